"""Numbers that combine runs or come from the timing: averages, comparisons along training, and ratios of times."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from recaps.evaluation.record import MetricRow
from recaps.papers.discriminative.variants import AVERAGED, by_dataset, titles
from recaps.report.metrics import early_mean, steps_to_reach
from recaps.report.results import Results, time_ratio_row


def metrics(results: Results) -> list[MetricRow]:
    """Averages and comparisons along training of each seed, and the ratios of times."""
    rows: list[MetricRow] = []
    for seed, part in results.by_seed():
        rows += _averages(part, seed)
        rows += _comparisons_along_training(part, seed)
    return rows + _ratios(results)


def _averages(results: Results, seed: int) -> list[MetricRow]:
    """Average test errors of a seed, of the algorithms that are tested on all of `AVERAGED`."""
    variants, rows = by_dataset(results.paper), []
    for algorithm in titles(results.paper):
        averaged = [variants.get(dataset, {}).get(algorithm, "") for dataset in AVERAGED]
        if all(averaged):
            found = pd.DataFrame([_row(results, variant, seed, "error") for variant in averaged])
            error, n, on = float(np.mean(found["value"])), int(found["n"].sum()), " and ".join(found["measured_on"])
            rows.append((averaged[-1], seed, "average-error", error, math.nan, n, "percent", on))
    return rows


def _comparisons_along_training(results: Results, seed: int) -> list[MetricRow]:
    """How the variants of a data set compare at the same steps: those of the shortest training.

    `mean-error` and `early-mean-error`: the mean test error over all of these steps and over their first tenth.
    `steps-to-dr`: the first step with an error that is at most DR's final one; if there is none, all steps.
    """
    rows: list[MetricRow] = []
    for by_algorithm in by_dataset(results.paper).values():
        shortest = min(int(results.history(each, seed)["step"].iloc[-1]) for each in by_algorithm.values())
        reference = by_algorithm.get("dr")
        final = float(results.evaluations(reference, seed)["test_error"].iloc[-1]) if reference else math.nan
        for variant in by_algorithm.values():
            curve, watched = results.evaluations(variant, seed), _row(results, variant, seed, "lowest-error")
            n, on = int(watched["n"]), str(watched["measured_on"])
            mean = float(curve.loc[curve["step"] <= shortest, "test_error"].mean())
            found = [("mean-error", mean, "percent"), ("early-mean-error", early_mean(curve, shortest), "percent")]
            if reference:
                found.append(("steps-to-dr", float(steps_to_reach(curve, final)), "count"))
            rows += [(variant, seed, metric, value, math.nan, n, unit, on) for metric, value, unit in found]
    return rows


def _row(results: Results, variant: str, seed: int, metric: str) -> pd.Series:
    """A row of a run's record."""
    rows = results.numbers(variant, seed)
    return rows[rows["metric"] == metric].iloc[0]


def _ratios(results: Results) -> list[MetricRow]:
    """Ratios of step times, under each variant's first seed: a timing trains nothing.

    `time-ratio` is relative to DR, `time-without-decoder` to the same algorithm with a decoder.
    """
    if "steps" not in results.paper.timings:
        return []
    timing = results.timing("steps")
    seconds, images = timing["seconds_per_step"], timing["batch_size"]
    rows = []
    for by_algorithm in by_dataset(results.paper).values():
        for algorithm, variant in by_algorithm.items():
            others = {"time-ratio": by_algorithm.get("dr", "")}
            whole = by_algorithm.get(algorithm.removesuffix("-fc"), "")
            if images.get(variant) == images.get(whole):
                others["time-without-decoder"] = whole
            for metric, other in others.items():
                if other != variant and {variant, other} <= seconds.keys():
                    rows.append(time_ratio_row(variant, results.own_seeds[variant][0], metric, timing, other))
    return rows
