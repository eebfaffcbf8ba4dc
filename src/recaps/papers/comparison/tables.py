"""Tables of the comparison."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import pandas as pd

from recaps.npz import Array
from recaps.papers.comparison.metrics import IMAGES, LABELS, TESTS, TIME, Row, accuracies, rows
from recaps.report.results import Results
from recaps.report.statistics import Estimate, difference, holm, over_seeds

#: The variants that the table of differences refers to.
CONVNET, PIXELS = "convnet", "pixels"
#: Tests of the table of differences.
COMPARED = ("mnist", "affnist", "rotated-45", "scaled", "noisy")


def same_images(results: Results) -> pd.DataFrame:
    """Table A: accuracies after the same number of training images."""
    return _accuracies(results, _main_heads(results), TESTS)


def same_time(results: Results) -> pd.DataFrame:
    """Table B: accuracies after the same time of training, and the images seen by then."""
    tests = {f"{protocol}-time": title for protocol, title in TESTS.items()}
    every = _main_heads(results)
    table = _accuracies(results, every, tests)
    for place, column in ((3, "images"), (4, "seconds")):
        values = [results.metric(row.variant, f"{column}-{TIME}")[:1] for row in every]
        table.insert(place, column, ["".join(f"{value:,.0f}" for value in each) for each in values])
    return table


def heads(results: Results) -> pd.DataFrame:
    """Accuracies of linear heads that are fitted on few labelled images, and of heads with an RBF kernel."""
    linear = rows(results, "linear")
    table = _accuracies(results, linear, LABELS | {"mnist": "all labels", "affnist": "affNIST"})
    kernel = {(row.variant, row.features): row for row in rows(results, "svm")}
    of_row = [kernel.get((row.variant, row.features)) for row in linear]
    for protocol, column in (("mnist", "all labels, RBF"), ("affnist", "affNIST, RBF")):
        table[column] = [_cell(accuracies(results, row, protocol)) if row else "" for row in of_row]
    return table.drop(columns=["head", "seeds"])


def cost(results: Results) -> pd.DataFrame:
    """Parameters, operations, and times of training and inference, as one job measured them."""
    names = ("parameters", "operations-per-image", f"seconds-{IMAGES}", "images-per-second")
    made = []
    for variant, settings in results.paper.variants.items():
        parameters, operations, seconds, images = (float(results.metric(variant, name)[0]) for name in names)
        made.append((settings.title, f"{parameters:,.0f}", operations / 1e6, seconds, f"{images:,.0f}"))
    columns = ["model", "parameters", "MFLOP per training image", "seconds of training", "images/s in inference"]
    return pd.DataFrame(made, columns=columns)


def differences(results: Results) -> pd.DataFrame:
    """Differences to the ConvNet (models with labels) and to the pixels (models without), with Welch's p-values.

    The p-values are corrected for the number of cells by Holm's method. There are no rows for a reference that is left
    out.
    """
    linear = rows(results, "linear")
    labelled = {row.variant for row in rows(results, "argmax")}
    references = {row.variant: row for row in linear if row.variant in (CONVNET, PIXELS)}
    against = [(row, CONVNET if row.variant in labelled else PIXELS) for row in linear if row.variant not in references]
    pairs = [(row, references[name]) for row, name in against if name in references]
    gaps = [[_gap(results, row, reference, test) for test in COMPARED] for row, reference in pairs]
    corrected = iter(holm([gap.p_value() if gap else None for cells in gaps for gap in cells]))
    made = []
    for (row, reference), cells in zip(pairs, gaps, strict=True):
        shown = {TESTS[test]: _gap_cell(gap, next(corrected)) for test, gap in zip(COMPARED, cells, strict=True)}
        made.append({"model": row.model, "on": row.features, "minus": reference.model, **shown})
    return pd.DataFrame(made)


def _gap(results: Results, row: Row, reference: Row, test: str) -> Estimate | None:
    """The difference of two accuracies in points; None if one of the heads is not tested so."""
    values = [accuracies(results, each, test).tolist() for each in (row, reference)]
    if not all(values):
        return None
    ours, theirs = map(over_seeds, values)
    if not results.metric(reference.variant, "parameters").any():  # learns nothing, so it has no spread
        theirs = Estimate(theirs.value, 0.0, math.inf, "seeds")
    return difference(ours, theirs)


def _gap_cell(gap: Estimate | None, p: float | None) -> str:
    if gap is None:
        return ""
    if p is None:
        return f"{gap.value:+.1f}"
    return f"{_with_interval(gap, '+.1f')}, p {'< 0.001' if p < 0.001 else f'= {p:.3f}'}"


def _accuracies(results: Results, shown: Iterable[Row], tests: Mapping[str, str]) -> pd.DataFrame:
    kinds = {name: "none" if head.kind == "argmax" else head.kind for name, head in results.paper.heads.items()}
    made = []
    for row in shown:
        cells = {title: _cell(accuracies(results, row, protocol)) for protocol, title in tests.items()}
        seeds = str(len(results.own_seeds[row.variant]))
        made.append({"model": row.model, "head": kinds[row.head], "on": row.features, **cells, "seeds": seeds})
    return pd.DataFrame(made)


def _main_heads(results: Results) -> list[Row]:
    """The class scores and the linear heads, by variant."""
    order = list(results.paper.variants)
    every = [row for kind in ("argmax", "linear") for row in rows(results, kind)]
    return sorted(every, key=lambda row: order.index(row.variant))


def _cell(values: Array) -> str:
    """Mean and half of the 95 % interval over seeds; empty without values."""
    return _with_interval(over_seeds(values.tolist()), ".1f") if len(values) else ""


def _with_interval(estimate: Estimate, form: str) -> str:
    interval = estimate.interval()
    half = f" ± {interval[1] - estimate.value:.1f}" if interval else ""
    return f"{estimate.value:{form}}{half}"
