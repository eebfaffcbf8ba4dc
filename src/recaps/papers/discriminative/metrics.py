"""Every number measured for *Routing Towards Discriminative Power of Class Capsules*, and the pictures of figure 2."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from recaps.config.variant import Variant
from recaps.npz import Array
from recaps.papers.discriminative.variants import (
    AVERAGED,
    DECODED_SET,
    DECODER,
    OTHER,
    by_dataset,
    learns_coefficients,
    titles,
)
from recaps.report.metrics import (
    beyond_class_mean,
    early_error,
    early_loss,
    first_of_each,
    last_fifth,
    near_zero_share,
    negative_share,
    squared_error,
    steps_to_reach,
    travel,
)
from recaps.report.results import MetricRow, Results, mean_row, metric_rows, time_ratio_row

#: Figure 2 shows this many images of each class.
SHOWN = 10


def arrays(results: Results) -> dict[str, Array]:
    """Decode the test images that `OTHER` (L2/FC) classifies right, each from its label's capsule.

    The decoder is always that of `DECODER` (DR). It gets three capsules for each image: its own, that of `OTHER`, and
    that of `OTHER` mapped to the coordinates of its own (`mapped`).

    Returns:
        For each seed s: `images-s` [N], positions of these images in the test set; `errors-s` [3, N], squared errors
        summed over the pixels, from the three capsules. For the first seed and the first ten images of each class:
        `shown` [n], positions in `images-s`; `decoded` [3, n, H, W], the decoded pictures.
    """
    found: dict[str, Array] = {}
    for seed, part in results.by_seed():
        if not {DECODER, OTHER} <= part.paper.variants.keys():
            continue
        other = results.latents(OTHER, DECODED_SET, "capsules", "scores", "labels", seed=seed)
        own = results.latents(DECODER, DECODED_SET, "capsules", seed=seed)
        right = np.flatnonzero(other["scores"].argmax(1) == other["labels"])
        labels, images = other["labels"][right], _images(results, right)
        capsules = [each["capsules"][right] for each in (own, other)]
        capsules.append(mapped(capsules[1], capsules[0], labels))
        decoder = results.run(DECODER, seed)
        decoded = [_reconstruct(decoder, each, labels) for each in capsules]
        errors = np.stack([squared_error(pictures, images) for pictures in decoded])
        if not found:
            shown = first_of_each(labels, SHOWN)
            found |= {"shown": shown, "decoded": np.stack([pictures[shown] for pictures in decoded])}
        found |= {f"images-{seed}": right, f"errors-{seed}": errors}
    return found


def metrics(results: Results) -> pd.DataFrame:
    """Errors, their convergence, learned coefficients, errors of decoded images, and time per step."""
    rows: list[MetricRow] = []
    for seed, part in results.by_seed():
        rows += _error_metrics(part, seed)
        rows += _convergence_metrics(part, seed)
        rows += _coefficient_metrics(part, seed)
        rows += _decoded_metrics(part, seed)
    return pd.concat([metric_rows(rows), combined(results)], ignore_index=True)


def combined(results: Results) -> pd.DataFrame:
    """What depends on several variants: averages, comparisons along training, and times.

    `publish --add` computes them again from all runs.
    """
    rows: list[MetricRow] = []
    for seed, part in results.by_seed():
        rows += _averages(part, seed)
        rows += _comparisons_along_training(part, seed)
    return metric_rows(rows + _ratios(results))


# Errors


def _error_metrics(results: Results, seed: int) -> list[MetricRow]:
    """Test errors of a seed."""
    rows: list[MetricRow] = []
    for by_algorithm in by_dataset(results.paper).values():
        for variant in by_algorithm.values():
            error, n, on = _errors(results, variant)[0], _tested(results, variant), _test_set(results, variant)
            rows.append((variant, seed, "error", float(error), math.nan, n, "percent", on))
    return rows


def _averages(results: Results, seed: int) -> list[MetricRow]:
    """Average test errors of a seed, of the algorithms that are tested on all of `AVERAGED`."""
    variants, rows = by_dataset(results.paper), []
    for algorithm in titles(results.paper):
        averaged = [variants.get(dataset, {}).get(algorithm, "") for dataset in AVERAGED]
        if all(averaged):
            errors = np.mean([_errors(results, variant) for variant in averaged], axis=0)
            n = sum(_tested(results, variant) for variant in averaged)
            on = " and ".join(_test_set(results, variant) for variant in averaged)
            rows.append((averaged[-1], seed, "average-error", float(errors[0]), math.nan, n, "percent", on))
    return rows


def _errors(results: Results, variant: str) -> Array:
    """Test error in percent for every seed, [seeds]."""
    return 100 - results.accuracy(variant, "argmax", _protocol(results, variant))


def _tested(results: Results, variant: str) -> int:
    """Number of test images."""
    return int(results.head(variant, "argmax", _protocol(results, variant))[0]["n"])


def _test_set(results: Results, variant: str) -> str:
    return results.resolve(results.paper.protocols[_protocol(results, variant)].test.set)


def _protocol(results: Results, variant: str) -> str:
    return results.paper.variants[variant].heads["argmax"][0]


# Convergence


def _convergence_metrics(results: Results, seed: int) -> list[MetricRow]:
    rows: list[MetricRow] = []
    for variant in results.paper.variants:
        curve, history = results.evaluations(variant, seed), results.history(variant, seed)
        change = last_fifth(history)
        on, n = _test_set(results, variant), _evaluated(results, variant)
        lowest, early = float(curve["test_error"].min()), early_error(curve)
        rows.append((variant, seed, "lowest-error", lowest, math.nan, n, "percent", on))
        rows.append((variant, seed, "early-error", early, math.nan, n, "percent", on))
        rows.append((variant, seed, "loss-last-fifth", change, math.nan, 0, "percent", ""))
    return rows


def _comparisons_along_training(results: Results, seed: int) -> list[MetricRow]:
    """How the variants of a data set compare at the same steps.

    `early-margin`: the mean margin loss over the first tenth of the shortest training. `steps-to-dr`: the first step
    with an error that is at most DR's final one; if there is none, all steps.
    """
    rows: list[MetricRow] = []
    for by_algorithm in by_dataset(results.paper).values():
        histories = {variant: results.history(variant, seed) for variant in by_algorithm.values()}
        shortest = min(int(history["step"].iloc[-1]) for history in histories.values())
        reference = by_algorithm.get("dr")
        final = float(results.evaluations(reference, seed)["test_error"].iloc[-1]) if reference else math.nan
        for variant, history in histories.items():
            margin = early_loss(history, "margin", shortest)
            rows.append((variant, seed, "early-margin", margin, math.nan, 0, "loss", ""))
            if reference:
                steps = float(steps_to_reach(results.evaluations(variant, seed), final))
                on, n = _test_set(results, variant), _evaluated(results, variant)
                rows.append((variant, seed, "steps-to-dr", steps, math.nan, n, "count", on))
    return rows


def _evaluated(results: Results, variant: str) -> int:
    """Number of test images that are classified during training."""
    chosen = results.paper.variants[variant].training.evaluate_images
    n = _tested(results, variant)
    return n if chosen is None else min(chosen, n)


# Coefficients


def _coefficient_metrics(results: Results, seed: int) -> list[MetricRow]:
    rows = []
    for by_algorithm in by_dataset(results.paper).values():
        for variant in by_algorithm.values():
            if learns_coefficients(results.paper, variant) and _can_reach_zero(results.paper.variants[variant]):
                values = results.weight(variant, "coefficients", seed)
                for name, share in (("negative", negative_share), ("near-zero", near_zero_share)):
                    rows.append((variant, seed, f"coefficients-{name}", share(values), math.nan, 0, "fraction", ""))
    return rows


def _can_reach_zero(variant: Variant) -> bool:
    """Whether training is long enough for a coefficient to move from its initial value to zero.

    Adam moves a coefficient by about its learning rate in a step. In a shorter training, the schedule decides how many
    coefficients are negative or near zero, not the algorithm.
    """
    model = variant.model
    far = {"plain": math.inf, "adam": travel(variant.training, model.ascent_rate), "none": 0.0}
    return far[model.ascent] >= abs(model.initial)


# Decoding


def _decoded_metrics(results: Results, seed: int) -> list[MetricRow]:
    """Errors of the decoded images, and the share of images whose class mean is nearer than the decoded picture.

    `mapped-...`: the same for the mapped capsules of `OTHER`.
    """
    places = results.arrays.get(f"images-{seed}", np.empty(0))
    if not len(places):
        return []
    images, labels = _images(results, places), results.split(DECODED_SET).labels[places]
    rows: list[MetricRow] = []
    on = _test_set(results, OTHER)
    kinds = ((DECODER, ""), (OTHER, ""), (OTHER, "mapped-"))
    for (variant, kind), errors in zip(kinds, results.arrays[f"errors-{seed}"], strict=True):
        beyond = beyond_class_mean(errors, images, labels)
        rows.append(mean_row(variant, seed, f"{kind}decoded-error", errors, "squared error", on))
        share = float(beyond.mean())
        rows.append((variant, seed, f"{kind}poorly-decoded", share, math.nan, len(beyond), "fraction", on))
    return rows


def mapped(capsules: Array, targets: Array, labels: Array) -> Array:
    """Capsules, with that of the label in the coordinates of another network's, [N, L, D] and [N, L, D] to [N, L, D].

    Each class has a linear map with an offset, fitted by least squares on one half of its images and applied to the
    other half, in turn. A class with a single image keeps its capsule.
    """
    from sklearn.linear_model import LinearRegression
    from sklearn.model_selection import KFold, cross_val_predict

    found = np.array(capsules)
    for label, count in zip(*np.unique(labels, return_counts=True), strict=True):
        if count > 1:
            one = (labels == label, label)
            found[one] = cross_val_predict(LinearRegression(), capsules[one], targets[one], cv=KFold(2))
    return found


def _images(results: Results, places: Array) -> Array:
    """Images of `DECODED_SET` in 0..1, [N, H, W]."""
    return np.asarray(results.split(DECODED_SET).images[places, 0].astype(np.float32) / 255)


def _reconstruct(run: Path, capsules: Array, labels: Array) -> Array:
    """Decode each label's capsule with the decoder of a run: [N, L, D], [N] to [N, H, W]."""
    import torch

    from recaps.training.saved import load_model

    model: Any = load_model(run, torch.device("cpu"))[0]
    mask = np.eye(capsules.shape[1], dtype=np.float32)[labels]
    with torch.inference_mode():
        pictures = model.decode(torch.from_numpy(capsules), torch.from_numpy(mask))
    return np.asarray(pictures[:, 0].float().numpy())


# Time


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
