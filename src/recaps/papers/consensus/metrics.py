"""Metrics of *Learning to compute inner consensus*."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from recaps.config.variant import Variant
from recaps.npz import Array
from recaps.papers.consensus import architecture
from recaps.report.results import MetricRow, Results, mean_row, metric_rows, time_ratio_row

#: Names of the data sets in tables and figures. Any other data set keeps the prefix of its variants as its name.
DATASETS = {"mnist": "MNIST", "norb": "smallNORB"}

#: The layers that route, and their short names in metrics.
CAPSULE_LAYERS = {
    "conv-1": "Convolutional Capsule Layer 1",
    "conv-2": "Convolutional Capsule Layer 2",
    "class": "Capsule Class Layer",
}

#: Images that the paper's training sees on MNIST: 100 epochs.
IMAGES = 100 * 60_000


def metrics(results: Results) -> pd.DataFrame:
    """Errors, gaps between familiar and novel viewpoints, effective shares, numbers of weights, times of a step."""
    rows: list[MetricRow] = []
    for seed, part in results.by_seed():
        rows += _error_metrics(part, seed)
        rows += _viewpoint_metrics(part, seed)
        rows += _share_metrics(part, seed)
    return pd.concat([metric_rows(rows + _weight_metrics(results)), combined(results)], ignore_index=True)


def by_dataset(results: Results, ending: str = "") -> dict[str, dict[str, Variant]]:
    """The variants of each data set, as `{"mnist": {"mnist-em": ..., ...}, ...}`, in the order of the configuration.

    A variant is named `<data set>-<routing>`.

    Args:
        results: the paper's results.
        ending: selects the variants whose class scores are tested in the protocol `<data set><ending>`. The default
            selects the variants of table 3, "-novel" those of table 4.
    """
    found: dict[str, dict[str, Variant]] = {}
    for name, variant in results.paper.variants.items():
        dataset = dataset_of(name)
        if dataset + ending in variant.heads.get("argmax", ()):
            found.setdefault(dataset, {})[name] = variant
    return found


def dataset_of(name: str) -> str:
    """The data set in the name of a variant."""
    return name.partition("-")[0]


def matrix_capsules(results: Results) -> dict[str, dict[str, Variant]]:
    """The variants of table 3 that are networks of matrix capsules, by data set."""
    every = by_dataset(results)
    return {
        dataset: found
        for dataset, variants in every.items()
        if (found := {name: each for name, each in variants.items() if each.model.family == "matrixcaps"})
    }


def routed_by(variant: Variant, routing: str) -> bool:
    """Whether a variant is a network of matrix capsules with the given routing."""
    return variant.model.family == "matrixcaps" and variant.model.routing.name == routing


def probed(results: Results) -> dict[str, dict[str, Variant]]:
    """The variants of table 3 that have the probe `routing`, by data set."""
    every = matrix_capsules(results)
    return {
        dataset: found
        for dataset, variants in every.items()
        if (found := {name: each for name, each in variants.items() if "routing" in each.probes})
    }


# Errors


def _error_metrics(results: Results, seed: int) -> list[MetricRow]:
    rows: list[MetricRow] = []
    for dataset, variants in by_dataset(results).items():
        for variant in variants:
            error, n, on = _error(results, variant, dataset)
            rows.append((variant, seed, "error", error, math.nan, n, "percent", on))
    return rows


def _viewpoint_metrics(results: Results, seed: int) -> list[MetricRow]:
    rows: list[MetricRow] = []
    for dataset, variants in by_dataset(results, "-novel").items():
        for variant in variants:
            found = {}
            for part in ("familiar", "novel"):
                error, n, on = _error(results, variant, f"{dataset}-{part}")
                rows.append((variant, seed, f"error-{part}", error, math.nan, n, "percent", on))
                found[part] = (error, error * (100 - error) / n)
            gap, variance = (found["novel"][0] - found["familiar"][0], found["novel"][1] + found["familiar"][1])
            # n is 0: the two errors are measured on different images, and the standard error is known.
            rows.append((variant, seed, "gap", gap, math.sqrt(variance), 0, "percent", on.split("/")[0]))
    return rows


def _error(results: Results, variant: str, protocol: str) -> tuple[float, int, str]:
    """Test error of the first seed in percent, the number of test images, and their set."""
    found = results.head(variant, "argmax", protocol)[0]
    return 100 - 100 * found["accuracy"], int(found["n"]), results.resolve(results.paper.protocols[protocol].test.set)


# Routing


def _share_metrics(results: Results, seed: int) -> list[MetricRow]:
    rows = []
    for variants in probed(results).values():
        for variant, settings in variants.items():
            probe, on = results.probe(variant, "routing", seed), results.resolve(settings.test)
            for place, layer in enumerate(CAPSULE_LAYERS):
                shares = probe[f"effective-{place}"].mean((1, 2))
                rows.append(mean_row(variant, seed, f"effective-share-{layer}", shares, "fraction", on))
    return rows


def class_shares(coupling: Array, labels: Array, em: bool) -> Array:
    """The share of each position in the input of the right class: [N, h, w, types, classes], [N] to [N, h, w].

    Args:
        coupling: assignments of the class layer.
        labels: the right classes.
        em: whether the routing is EM. EM assigns each input capsule to the classes, so the share is the mean over the
            capsules of a position. Other routings distribute each class over the inputs, so the share is their sum,
            and all positions add up to 1.
    """
    right = np.stack([each[..., label] for each, label in zip(coupling, labels, strict=True)])
    return np.asarray(right.mean(-1) if em else right.sum(-1))


# Weights and time


def _weight_metrics(results: Results) -> list[MetricRow]:
    """Numbers of weights, listed with the first seed because they do not depend on training."""
    rows: list[MetricRow] = []
    for variants in matrix_capsules(results).values():
        for variant, settings in variants.items():
            paper = architecture.paper_config(settings.model.routing.name)
            for metric, config in (("weights", results.config(variant)), ("paper-weights", paper)):
                n = architecture.weights_without_routing(architecture.network(config))
                rows.append((variant, results.seeds[0], metric, float(n), math.nan, 0, "count", ""))
    return rows


def combined(results: Results) -> pd.DataFrame:
    """Times of a step relative to EM, and of the paper's training on MNIST in hours.

    They are listed with each variant's first seed, because a timing trains nothing. `publish --add` computes them again
    from the published timing.
    """
    if "steps" not in results.paper.timings:
        return metric_rows([])
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
    return metric_rows(rows)
