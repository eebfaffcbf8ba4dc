"""Numbers that combine runs or need none: errors after equal training, numbers of weights, and costs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from recaps.config.variant import Variant
from recaps.evaluation.record import MetricRow, mean_row
from recaps.papers.consensus import architecture
from recaps.papers.consensus.variants import by_dataset, dataset_of, matrix_capsules
from recaps.report.results import Results, time_ratio_row

#: Images that the paper's training sees on MNIST: 100 epochs.
IMAGES = 100 * 60_000

#: What a timing counts of a model, by the beginning of a metric.
COUNTED = {"operations": "operations_per_image", "parameters": "parameters", "memory": "bytes_kept_per_image"}


def metrics(results: Results) -> list[MetricRow]:
    """Errors after equal training; numbers of weights, listed with the paper's first seed; and costs, listed with each
    variant's first seed."""
    return [*_equally_trained(results), *_weight_metrics(results), *_times(results)]


def _equally_trained(results: Results) -> list[MetricRow]:
    """The errors of connectionist routing and of the variants that are trained as it is, as `error-equal-training`.

    There are no rows for a data set on which it alone is trained in this way.
    """
    rows: list[MetricRow] = []
    for dataset, variants in by_dataset(results.paper).items():
        own = variants.get(f"{dataset}-connectionist")
        alike = [name for name, each in variants.items() if own is not None and _schedule(each) == _schedule(own)]
        for name in alike if len(alike) > 1 else ():
            known = pd.concat([results.numbers(name, seed) for seed in results.own_seeds[name]])
            errors = known[known["metric"] == "error"].assign(metric="error-equal-training")
            rows += errors.itertuples(index=False, name=None)
    return rows


def _schedule(variant: Variant) -> dict[str, Any]:
    """How a variant is trained, without how its training is watched."""
    return variant.training.model_dump(exclude={"evaluate_every", "evaluate_images", "log_every"})


def _weight_metrics(results: Results) -> list[MetricRow]:
    rows: list[MetricRow] = []
    for variants in matrix_capsules(results.paper).values():
        for variant, settings in variants.items():
            paper = architecture.paper_config(settings.model.routing.name)
            for metric, config in (("weights", results.config(variant)), ("paper-weights", paper)):
                n = architecture.weights_without_routing(architecture.network(config))
                rows.append((variant, results.seeds[0], metric, float(n), math.nan, 0, "count", ""))
    return rows


def _times(results: Results) -> list[MetricRow]:
    """Costs, where they were timed: the paper's training on MNIST in hours, the time of a step relative to EM, and that
    and `COUNTED` relative to the CNN of the same data set."""
    if "steps" not in results.paper.timings:
        return []
    timing, variants = results.timing("steps"), results.paper.variants
    seconds, device = timing["seconds_per_step"], timing["device"]
    timed = [name for name in variants if name in seconds]
    cnns = {dataset_of(name): name for name in timed if variants[name].model.family == "convnet"}
    rows: list[MetricRow] = []
    for name in timed:
        own, dataset = (name, results.own_seeds[name][0]), dataset_of(name)
        em, cnn = f"{dataset}-em", cnns.get(dataset, name)
        if dataset == "mnist":
            hours = np.array(seconds[name]) / timing["batch_size"][name] * IMAGES / 3600
            rows.append(mean_row(*own, "hours", hours, "hours", device))
        if name != em and em in seconds:
            rows.append(time_ratio_row(*own, "time-ratio", timing, em))
        if name != cnn:
            rows.append(time_ratio_row(*own, "time-ratio-cnn", timing, cnn))
            ratios = {metric: timing[counted][name] / timing[counted][cnn] for metric, counted in COUNTED.items()}
            rows += [(*own, f"{each}-ratio-cnn", n, math.nan, 0, "ratio", device) for each, n in ratios.items()]
    return rows
