"""Tables I and II of *Routing Towards Discriminative Power of Class Capsules*."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from recaps.papers.discriminative.variants import AVERAGED, DATASETS, by_dataset, titles
from recaps.report.results import Results
from recaps.report.statistics import sd

#: Rows of table I: layer, filter or capsule size, activation, numbers for MNIST, Fashion-MNIST and CIFAR-10.
TABLE_1: tuple[tuple[str, str, str, tuple[int | None, ...]], ...] = (
    ("Conv1", "9x9", "ReLU", (256, 256, 256)),
    ("Cap1", "8", "squash", (32, 32, 64)),
    ("Cap2", "16", "squash", (10, 10, 10)),
    ("FC1", "", "ReLU", (512, 512, None)),
    ("FC2", "", "ReLU", (1024, 1024, None)),
    ("FC3", "", "sigmoid", (784, 784, None)),
)


def table_1(results: Results) -> pd.DataFrame:
    """The layers that the paper lists beside those that were built, and the numbers of parameters."""
    variants = by_dataset(results.paper)
    built = {variant: results.config(variant) for variant in results.paper.variants}
    activations, sizes = _activations(results, built), _sizes(built)
    labels = {dataset: DATASETS.get(dataset, dataset) for dataset in {**DATASETS, **variants}}
    widths = {dataset: _widths(built[next(iter(by.values()))]) for dataset, by in variants.items()}
    rows = []
    for place, (layer, size, activation, published) in enumerate(TABLE_1):
        row: dict[str, object] = {"layer": layer, "size": size, "size ours": sizes.get(layer, size)}
        row |= {"activation": activation, "activation ours": activations.get(layer, activation)}
        numbers = dict(zip(AVERAGED, published, strict=True))
        for dataset, label in labels.items():
            if dataset in numbers:
                row[f"{label} published"] = numbers[dataset]
            row[f"{label} ours"] = widths[dataset][place] if dataset in widths else None
        rows.append(row)
    for names, counts in _parameters(results).items():
        rows.append({"layer": f"parameters, {names}"} | {f"{labels[each]} ours": n for each, n in counts.items()})
    table = pd.DataFrame(rows)
    numeric = {f"{label} {whose}" for label in labels.values() for whose in ("published", "ours")}
    return table.astype(dict.fromkeys(numeric & set(table), "Int64"))


def table_2(results: Results) -> pd.DataFrame:
    """Test errors in percent, ours (mean and sd over seeds) beside the published; a row per data set and algorithm."""
    variants, names = by_dataset(results.paper), titles(results.paper)
    averaged, others = list[tuple[str, str, str]](), list[tuple[str, str, str]]()
    for dataset, of_dataset in variants.items():
        label, rows = DATASETS.get(dataset, dataset), averaged if dataset in AVERAGED else others
        rows += [(label, variant, "error") for variant in of_dataset.values()]
    last = variants.get(AVERAGED[-1], {})  # its variants have the averages
    averaged += [("Average of the three", last[each], "average-error") for each in names if each in last]
    compared = (_compared(results, *each) for each in averaged + others)
    return pd.DataFrame([row for row in compared if row]).astype({"n": "Int64", "lowest n": "Int64"})


def _compared(results: Results, benchmark: str, variant: str, metric: str) -> dict[str, object]:
    """A row of table II; empty where the metric was not measured."""
    found = results.measured(variant, metric)
    if not len(found):
        return {}
    errors = found["value"].to_numpy(float)
    average = metric == "average-error"
    lowest = results.measured(variant, "lowest-error")
    return {
        "benchmark": benchmark,
        "algorithm": results.paper.variants[variant].title,
        "error % ours": errors.mean(),
        "sd": sd(errors),
        "error % published": results.published.get((variant, metric)),
        "tested on": "" if average else found["measured_on"].iloc[0],
        "n": None if average else found["n"].iloc[0],
        "seeds": len(errors),
        "lowest % ours": math.nan if average else lowest["value"].mean(),
        "lowest n": None if average else lowest["n"].iloc[0],
    }


# Table I


def _widths(config: Mapping[str, Any]) -> list[int | None]:
    """Numbers of filters, capsules and neurons of a run, layer by layer as in table I."""
    model = config["model"]
    decoder = model["decoder"]
    hidden = [*(decoder or ()), None, None][:2]
    output = math.prod(config["image_shape"]) if decoder else None
    return [model["conv_channels"], model["primary_types"], model["capsules"], *hidden, output]


def _sizes(built: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Dimensions of the capsules that were built. Both convolutions of the code are 9x9."""
    return {
        layer: ", ".join(dict.fromkeys(str(config["model"][key]) for config in built.values()))
        for layer, key in (("Cap1", "primary_dim"), ("Cap2", "capsule_dim"))
    }


def _activations(results: Results, built: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The activations that were built, where they depend on data set or algorithm."""
    convolutions, capsules = [], []
    for dataset, by_algorithm in by_dataset(results.paper).items():
        for variant in by_algorithm.values():
            model = built[variant]["model"]
            convolution = f"LeakyReLU {model['leaky_slope']:g}" if model["activation"] == "leaky_relu" else "ReLU"
            convolutions.append((convolution, DATASETS.get(dataset, dataset)))
            of_capsules, of_votes = model.get("squash_capsules", True), model.get("squash_votes", False)
            kinds = (("squash", of_capsules), ("squash of votes", of_votes))
            squashed = [f"{name} over classes" if how == "classes" else name for name, how in kinds if how]
            capsules.append((" and ".join(squashed) or "none", results.paper.variants[variant].title))
    return {"Conv1": _join(convolutions), "Cap2": _join(capsules)}


def _join(pairs: Iterable[tuple[str, str]]) -> str:
    """Join pairs of a value and a label: `ReLU` if all values are equal, else e.g. `squash (DR), none (L2, L1)`."""
    found: dict[str, list[str]] = {}
    for value, label in dict.fromkeys(pairs):
        found.setdefault(value, []).append(label)
    if len(found) == 1:
        return next(iter(found))
    return ", ".join(f"{value} ({', '.join(labels)})" for value, labels in found.items())


def _parameters(results: Results) -> dict[str, dict[str, int]]:
    """Numbers of parameters of the first seed, by algorithms (one entry if their numbers are equal) and data set."""
    counts: dict[str, dict[str, int]] = {}
    for dataset, by_algorithm in by_dataset(results.paper).items():
        for algorithm, variant in by_algorithm.items():
            counts.setdefault(algorithm, {})[dataset] = results.record(variant)["parameters"]
    names = titles(results.paper)
    return {
        " and ".join(names[each] for each in counts if counts[each] == numbers): numbers for numbers in counts.values()
    }
