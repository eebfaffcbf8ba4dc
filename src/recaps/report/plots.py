"""Plotting functions that the figures of several papers share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import FigureBase
from matplotlib.lines import Line2D
from matplotlib.ticker import AutoLocator, FuncFormatter, Locator, LogLocator, MaxNLocator, NullFormatter

from recaps.config.training import Training
from recaps.npz import Array

#: Pixels between two pictures.
GAP = 2

#: Classes of Fashion-MNIST, by label.
FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


def mosaic(axis: Axes, pictures: Sequence[Array] | Array, columns: int, colours: str, low: float, high: float) -> None:
    """Draw pictures [H, W] or, in colour, [H, W, 3] row by row, with a thin gap; an empty axis if there are none."""
    axis.set(xticks=[], yticks=[])
    axis.grid(False)
    axis.spines[:].set_visible(False)
    if not len(pictures):
        return
    height, width, *colour = pictures[0].shape
    rows = -(-len(pictures) // columns)
    canvas = np.full((rows * (height + GAP) - GAP, columns * (width + GAP) - GAP, *colour), np.nan)
    for i, picture in enumerate(pictures):
        top, left = i // columns * (height + GAP), i % columns * (width + GAP)
        canvas[top : top + height, left : left + width] = picture
    palette = plt.get_cmap(colours).with_extremes(bad="white")
    shown = np.nan_to_num(canvas, nan=1.0) if colour else canvas
    axis.imshow(shown, cmap=palette, vmin=low, vmax=high)


def mosaic_rows(axis: Axes, rows: Sequence[tuple[str, Array]], columns: int) -> None:
    """Draw labelled rows of pictures, as for `mosaic`, with 1 <= n <= columns; an empty axis if there are none."""
    blank = np.full(rows[0][1].shape[1:], np.nan) if rows else np.empty((0, 0))
    filled = [[*pictures, *[blank] * (columns - len(pictures))] for _, pictures in rows]
    mosaic(axis, [picture for row in filled for picture in row], columns, "gray", 0, 1)
    axis.set_yticks(mosaic_centres(len(rows), len(blank)), [label for label, _ in rows])
    axis.tick_params(length=0)


def tick_columns(axis: Axes, labels: Sequence[str], width: int) -> None:
    """Label the columns of a mosaic."""
    axis.set_xticks(mosaic_centres(len(labels), width), labels)
    axis.tick_params(length=0, pad=1, labelsize=7)


def mosaic_centres(count: int, side: int) -> Array:
    """The centres of a mosaic's rows or columns, in pixels."""
    return (side + GAP) * np.arange(count) + (side - 1) / 2


def style(place: int) -> dict[str, Any]:
    """Colour, line style and marker at a position of the style sheet's cycle; position 2 is black."""
    cycle = list(plt.rcParams["axes.prop_cycle"])
    return dict(cycle[place % len(cycle)])


def error_curve(axis: Axes, curves: pd.DataFrame, label: str, look: Mapping[str, Any]) -> None:
    """Test error during training: the mean over seeds, with a band from the lowest to the highest seed.

    Args:
        curves: columns `seed`, `step` and `test_error`.
        look: colour, line style and marker, as returned by `style`.
    """
    over_seeds = {step: curves["test_error"][curves["step"] == step].to_numpy() for step in sorted(set(curves["step"]))}
    mean_and_range(axis, over_seeds, label=label, markevery=max(1, len(over_seeds) // 8), **look)


def mean_and_range(axis: Axes, over_seeds: Mapping[int, Array], **look: Any) -> Line2D:
    """A line through the means over seeds and, if there are several, a band over their range.

    Args:
        over_seeds: the values of all seeds, [seeds], by the horizontal place.
        look: arguments of `Axes.plot`.
    """
    places, values = list(over_seeds), list(over_seeds.values())
    (line,) = axis.plot(places, [each.mean() for each in values], **look)
    if max(map(len, values)) > 1:
        low, high = ([extreme(each) for each in values] for extreme in (np.min, np.max))
        axis.fill_between(places, low, high, color=line.get_color(), alpha=0.18, linewidth=0)
    return line


def tested_on(training: Training) -> str:
    """The images that the test error during training is measured on."""
    n = training.evaluate_images
    return "all test images" if n is None else f"{n:,} test images"


def timing_bar(axis: Axes, place: float, seconds: Array, reference: bool) -> None:
    """A bar up to the median, grey for what the others are compared with, and a point for each round."""
    axis.bar(place, np.median(seconds), width=0.8, color="0.55" if reference else "#9CCBE8")
    spread = np.linspace(-0.22, 0.22, len(seconds)) if len(seconds) > 1 else np.zeros(1)
    axis.plot(place + spread, seconds, linestyle="", marker="o", markersize=2.5, color="black")


def timing_axis(axis: Axes, ticks: Mapping[float, str], timing: Mapping[str, Any]) -> None:
    """Labels of an axis of `timing_bar`s: below each bar, and how it was measured."""
    axis.set_xticks(list(ticks), list(ticks.values()))
    axis.tick_params(axis="x", length=0)
    axis.grid(False, axis="x")
    axis.set(ylabel="seconds per 100 steps", ylim=(0, None))
    how = f"{_counted(timing['steps'], 'step')} in each of {_counted(timing['rounds'], 'round')}"
    axis.set_title(f"{timing['device']}\n{how}; the batch size below each bar", fontsize=9)


def _counted(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def labelled_map(axis: Axes, values: Array, highest: float) -> None:
    """A small map [h, w] of values from 0 to `highest`, with the value in each cell."""
    axis.set(xticks=[], yticks=[])
    axis.grid(False)
    axis.imshow(values, cmap="Blues", vmin=0, vmax=highest)
    for (row, column), value in np.ndenumerate(values):
        shade = "white" if value > 0.6 * highest else "black"
        axis.text(column, row, f"{value:.0f}", color=shade, fontsize=6, ha="center", va="center")


def plain_numbers(axis: Axes) -> None:
    """Label both axes with plain numbers: steps on x, and positive values on a logarithmic y.

    The y axis is linear if a line touches zero. Call this function after all lines are drawn.
    """
    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    values = np.concatenate([np.asarray(line.get_ydata()) for line in axis.lines] or [np.zeros(1)])
    if not values.min() > 0:
        axis.set_ylim(bottom=0)
        return
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(_round_numbers(values.max() / values.min()))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _round_numbers(ratio: float) -> Locator:
    """At least two ticks for a logarithmic axis whose ends differ by the factor `ratio`."""
    if ratio < 2:
        return AutoLocator()
    if ratio > 1000:
        return LogLocator()
    # With a smaller `numticks`, LogLocator skips decades and then leaves out all ticks.
    return LogLocator(subs=(1, 2, 5) if ratio > 20 else (1, 1.5, 2, 3, 4, 5, 7), numticks=20)


def legend_below(drawing: FigureBase, axes: Iterable[Axes], order: Sequence[str]) -> None:
    """One legend for all panels, below them: every label once, in the given order."""
    found = {label: line for axis in axes for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    labels = [label for label in order if label in found]
    if labels:
        drawing.legend([found[each] for each in labels], labels, loc="outside lower center", ncols=len(labels))
