"""Metrics of *Sparse Unsupervised Capsules Generalize Better* that need several runs."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from recaps.config.base import snapshot_of
from recaps.evaluation.record import MetricRow
from recaps.npz import Array
from recaps.report.results import Results

#: Accuracy of the quoted ConvNet on expanded MNIST, in percent; the quoted SUPCAPS has 99.23.
QUOTED = 99.22


def metrics(results: Results) -> list[MetricRow]:
    """The networks with labels at equal accuracy."""
    return [row for seed, part in results.by_seed() for row in _at_equal_accuracy(part, seed)]


def along_training(results: Results, variant: str, head: str, trained: str) -> dict[int, str]:
    """The protocols that test a head on the snapshots of a variant, by training step; none without such protocols.

    The last entry is `trained`, the protocol of the trained model. The others test snapshots on the same set.
    """
    settings, protocols = results.paper.variants[variant], results.paper.protocols
    steps: dict[int, str] = {}
    for protocol in settings.heads.get(head, ()):
        test_set, kept = snapshot_of(protocols[protocol].test.set)
        if test_set == protocols[trained].test.set and kept is not None:
            steps[settings.training.snapshots[kept]] = protocol
    return dict(sorted(steps.items())) | {settings.training.steps: trained} if steps else {}


def supervised_accuracies(results: Results) -> pd.DataFrame:
    """Accuracy in percent of networks with labels: columns `variant`, `step`, `mnist` (expanded) and `affnist`.

    All steps of a variant are tested on the same images.
    """
    rows = []
    for variant in results.paper.variants:
        tests = [along_training(results, variant, "argmax", each) for each in ("mnist-shifted", "affnist-trained")]
        for step in sorted(tests[0].keys() & tests[1].keys()):
            accuracies = [results.accuracy(variant, "argmax", protocols[step]).mean() for protocols in tests]
            rows.append((variant, step, *accuracies))
    return pd.DataFrame(rows, columns=["variant", "step", "mnist", "affnist"])


def at_accuracy(level: float, mnist: Array, affnist: Array) -> float:
    """Interpolate the accuracy on affNIST [steps] where that on expanded MNIST [steps] first reaches `level`.

    It is nan if the first value is already above the level, or none reaches it.
    """
    if mnist[0] > level or mnist.max() < level:
        return math.nan
    after = int(np.argmax(mnist >= level))
    before = max(after - 1, 0)
    return float(np.interp(level, mnist[before : after + 1], affnist[before : after + 1]))


def _at_equal_accuracy(part: Results, seed: int) -> list[MetricRow]:
    """The networks with labels, compared when both have the same accuracy: `QUOTED`, or the highest that all reach.

    There are no rows for a seed that one of them was not trained with.
    """
    points = supervised_accuracies(part)
    if set(points["variant"]) != {"convnet", "supcaps"}:
        return []
    level = min(QUOTED, float(points.groupby("variant")["mnist"].max().min()))
    rows: list[MetricRow] = []
    for variant, each in points.groupby("variant", sort=False):
        affnist = at_accuracy(level, each["mnist"].to_numpy(), each["affnist"].to_numpy())
        for metric, value, protocol in (
            ("affnist-at-equal-accuracy", affnist, "affnist-trained"),
            ("equal-accuracy", level, "mnist-shifted"),
        ):
            n = int(part.head(str(variant), "argmax", protocol)[0]["n"])
            name = part.resolve(part.paper.protocols[protocol].test.set)
            rows.append((str(variant), seed, metric, value, math.nan, n, "percent", name))
    return rows
