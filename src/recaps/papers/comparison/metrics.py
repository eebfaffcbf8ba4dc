"""Metrics of the comparison, and the rows that its tables and figures share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from recaps.evaluation.record import MetricRow, mean_row
from recaps.npz import Array
from recaps.report.results import Results

#: The snapshot after the same number of training images.
IMAGES = "equal-images"
#: The snapshot after the same time of training. The protocols that test it end with `-time`.
TIME = "equal-time"

#: Test sets, by protocol.
TESTS = {
    "mnist": "MNIST",
    "affnist": "affNIST",
    "rotated-45": "rotated 45°",
    "rotated-90": "rotated 90°",
    "rotated-180": "rotated 180°",
    "scaled": "scaled",
    "noisy": "noisy",
}
#: Linear heads that are fitted on few labels and tested on MNIST, by protocol.
LABELS = {"labels-10": "10 labels", "labels-100": "100 labels", "labels-1000": "1,000 labels"}


class Row(NamedTuple):
    """A head of a variant: a row of the tables, a line of the figures. `features` is what it classifies."""

    variant: str
    head: str
    model: str
    features: str


def metrics(results: Results) -> list[MetricRow]:
    """The cost of each model as one job measured it, under the model's first seed."""
    timing = results.timing("cost")
    made: list[MetricRow] = []
    for variant, settings in results.paper.variants.items():
        timed, batch = timing["batch_size"][variant], settings.training.batch_size
        reading = timed / np.array(timing["seconds_per_batch_of_inference"][variant])
        first = results.own_seeds[variant][0]
        counts = {name.replace("_", "-"): timing[name][variant] for name in ("parameters", "operations_per_image")}
        for snapshot, n in settings.training.snapshots.items():
            seconds = batch / timed * seconds_until(n, timing, variant)
            made.append(mean_row(variant, first, f"seconds-{snapshot}", seconds, "seconds", ""))
            counts[f"images-{snapshot}"] = n * batch
        made.append(mean_row(variant, first, "images-per-second", reading, "images/s", ""))
        made += [(variant, first, metric, float(n), math.nan, 0, "count", "") for metric, n in counts.items()]
    return made


def seconds_until(step: int, timing: Mapping[str, Any], variant: str) -> Array:
    """Seconds of the first steps of a training, one value for each round of the timing."""
    phases = timing.get("seconds_per_step_by_phase")  # older timings have the mean of all steps only
    parts = phases[variant] if phases else [(0, step, timing["seconds_per_step"][variant])]
    each = [max(0, min(step, stop) - start) * np.array(seconds) for start, stop, seconds in parts]
    return np.asarray(np.sum(each, axis=0))


def rows(results: Results, kind: str) -> list[Row]:
    """The heads of a kind (`argmax`, `linear` or `svm`), in the order of the variants."""
    heads = results.paper.heads
    return [
        Row(variant, head, settings.title, "class scores" if kind == "argmax" else ", ".join(heads[head].features))
        for variant, settings in results.paper.variants.items()
        for head in settings.heads
        if heads[head].kind == kind
    ]


def main_rows(results: Results) -> dict[str, list[Row]]:
    """The heads that figures show, by group: a model's own class scores if it has any, else its linear heads."""
    own = rows(results, "argmax")
    labelled = {row.variant for row in own}
    return {
        "With labels: class scores": own,
        "Without labels: linear heads": [row for row in rows(results, "linear") if row.variant not in labelled],
    }


def accuracies(results: Results, row: Row, protocol: str) -> Array:
    """The accuracy of a head in percent for each seed, [seeds]; empty if the head is not tested so."""
    return results.metric(row.variant, f"{row.head}-{protocol}")
