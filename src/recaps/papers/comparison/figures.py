"""Figures of the comparison."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from recaps.npz import Array
from recaps.papers.comparison.metrics import IMAGES, TIME, Row, accuracies, main_rows
from recaps.report.plots import mosaic_rows, style
from recaps.report.results import Results
from recaps.report.statistics import over_seeds

#: Largest rotation in degrees, by protocol.
ANGLES = {"mnist": 0, "rotated-45": 45, "rotated-90": 90, "rotated-180": 180}
#: Lines in one panel, so that each has its own colour.
LINES = 7


def accuracy_by_angle(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Accuracy against the largest rotation of the test digits, a line for each model."""
    drawing, panels = _panels(results, "accuracy, %")
    made = []
    for axis, rows in panels:
        for place, row in enumerate(rows):
            found = {angle: accuracies(results, row, protocol) for protocol, angle in ANGLES.items()}
            axis.plot([*found], [each.mean() for each in found.values()], label=_label(row, rows), **style(place))
            for angle, values in found.items():
                _bar(axis, angle, values, place)
                seeded = zip(results.own_seeds[row.variant], values, strict=True)
                made += [(row.variant, row.head, angle, seed, value) for seed, value in seeded]
        axis.set(xticks=[*ANGLES.values()], xlabel="rotated by up to (degrees)")
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16))
    return drawing, pd.DataFrame(made, columns=["variant", "head", "degrees", "seed", "accuracy"])


def affnist_by_seconds(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Accuracy on affNIST against seconds of training: a point at the same images, another at the same time."""
    drawing, panels = _panels(results, "accuracy on affNIST, %")
    made = []
    for axis, rows in panels:
        for place, row in enumerate(rows):
            if not results.metric(row.variant, "parameters").any():  # a floor that does not train
                level = float(accuracies(results, row, "affnist").mean())
                axis.axhline(level, label=_label(row, rows), **style(place) | {"linewidth": 0.8, "marker": ""})
                made.append((row.variant, row.head, IMAGES, 0.0, results.own_seeds[row.variant][0], level))
                continue
            seconds = [float(results.metric(row.variant, f"seconds-{each}")[0]) for each in (IMAGES, TIME)]
            found = [accuracies(results, row, each) for each in ("affnist", "affnist-time")]
            look = style(place) | {"linewidth": 0.8}
            axis.plot(seconds, [each.mean() for each in found], label=_label(row, rows), **look)
            # A hollow marker shows the point at the same time.
            axis.plot(seconds[1], found[1].mean(), **look | {"markerfacecolor": "white", "linestyle": ""})
            for at, values, snapshot in zip(seconds, found, (IMAGES, TIME), strict=True):
                _bar(axis, at, values, place)
                seeded = zip(results.own_seeds[row.variant], values, strict=True)
                made += [(row.variant, row.head, snapshot, at, seed, value) for seed, value in seeded]
        axis.set(xlabel="seconds of training", xscale="log")
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16))
    return drawing, pd.DataFrame(made, columns=["variant", "head", "snapshot", "seconds", "seed", "accuracy"])


def reconstructions(results: Results) -> tuple[Figure, pd.DataFrame]:
    """The first test image of each class, and the pictures of every model that decodes."""
    shown: list[tuple[str, Array]] = []
    made = []
    for variant, settings in results.paper.variants.items():
        if "reconstructions" not in settings.probes:
            continue
        arrays = results.arrays(variant, "reconstructions")
        if not shown:
            shown.append(("test image", arrays["images"]))
        shown.append((settings.title, arrays["decoded"]))
        numbers = {name: arrays[name] for name in ("image", "label", "squared_error")}
        made.append(pd.DataFrame(numbers | {"variant": variant}))
    drawing, axis = plt.subplots(figsize=(6.4, 0.55 * len(shown) + 0.3))
    mosaic_rows(axis, shown, max(len(pictures) for _, pictures in shown))
    return drawing, pd.concat(made)


def _panels(results: Results, quantity: str) -> tuple[Figure, list[tuple[Axes, list[Row]]]]:
    """The axis and the rows of each panel of a quantity in percent: the models by group, at most `LINES` in a panel."""
    panels = []
    for title, rows in main_rows(results).items():
        parts = np.array_split(np.arange(len(rows)), -(-len(rows) // LINES)) if rows else []
        panels += [
            (f"{title} ({k})" if len(parts) > 1 else title, [rows[i] for i in part]) for k, part in enumerate(parts, 1)
        ]
    size = (3.4 * len(panels), 4.6)
    drawing, axes = plt.subplots(1, len(panels), figsize=size, sharex=True, sharey=True, squeeze=False)
    for axis, (title, _) in zip(axes.flat, panels, strict=True):
        axis.set(title=title, ylim=(0, 100))
    axes.flat[0].set_ylabel(quantity)
    return drawing, [(axis, rows) for axis, (_, rows) in zip(axes.flat, panels, strict=True)]


def _label(row: Row, others: Sequence[Row]) -> str:
    """The model, with the features where several heads of it are shown."""
    several = sum(each.variant == row.variant for each in others) > 1
    return f"{row.model}: {row.features}" if several else row.model


def _bar(axis: Axes, x: float, values: Array, place: int) -> None:
    """The 95 % interval over seeds as an error bar, if there are several."""
    estimate = over_seeds(values.tolist())
    if (interval := estimate.interval()) is not None:
        axis.vlines(x, *interval, color=style(place)["color"], linewidth=0.8)
