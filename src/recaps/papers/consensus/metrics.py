"""Numbers that need no training: numbers of weights, and times of the paper's training."""

from __future__ import annotations

import math

import numpy as np

from recaps.evaluation.record import MetricRow, mean_row
from recaps.papers.consensus import architecture
from recaps.papers.consensus.variants import dataset_of, matrix_capsules
from recaps.report.results import Results, time_ratio_row

#: Images that the paper's training sees on MNIST: 100 epochs.
IMAGES = 100 * 60_000


def metrics(results: Results) -> list[MetricRow]:
    """Numbers of weights, listed with the paper's first seed, and times, listed with each variant's first seed."""
    return [*_weight_metrics(results), *_times(results)]


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
    """Times of a step relative to EM, and of the paper's training on MNIST in hours."""
    if "steps" not in results.paper.timings:
        return []
    timing = results.timing("steps")
    seconds = {name: np.array(each) for name, each in timing["seconds_per_step"].items()}
    batch = timing["batch_size"]
    rows = []
    for name in (each for each in results.paper.variants if each in seconds):
        own, em = (name, results.own_seeds[name][0]), f"{dataset_of(name)}-em"
        if dataset_of(name) == "mnist":
            hours = seconds[name] / batch[name] * IMAGES / 3600
            rows.append(mean_row(*own, "hours", hours, "hours", timing["device"]))
        if name != em and em in seconds:
            rows.append(time_ratio_row(*own, "time-ratio", timing, em))
    return rows
