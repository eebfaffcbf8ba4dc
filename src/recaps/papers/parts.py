"""Parts that the figures of several papers are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from recaps.npz import Array


def mosaic(axis: Axes, pictures: Sequence[Array] | Array, columns: int, colours: str, low: float, high: float) -> None:
    """Draw pictures [H, W] row by row, with a thin gap between them; of none, an empty axis."""
    axis.set(xticks=[], yticks=[])
    axis.grid(False)
    for spine in axis.spines.values():
        spine.set_visible(False)
    if not len(pictures):
        return
    height, width = pictures[0].shape
    rows = -(-len(pictures) // columns)
    gap = 2
    canvas = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap), np.nan)
    for i, picture in enumerate(pictures):
        top, left = i // columns * (height + gap), i % columns * (width + gap)
        canvas[top : top + height, left : left + width] = picture
    palette = plt.get_cmap(colours).with_extremes(bad="white")
    axis.imshow(canvas, cmap=palette, vmin=low, vmax=high)


def plain_numbers(axis: Axes) -> None:
    """Steps along x and positive values along y, on a logarithmic scale: both in plain numbers.

    The scale is linear where a line touches zero. Call it when the lines are drawn.
    """
    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    values = np.concatenate([np.asarray(line.get_ydata()) for line in axis.lines] or [np.zeros(1)])
    if not values.min() > 0:
        axis.set_ylim(bottom=0)
        return
    axis.set_yscale("log")
    wide = values.max() > 20 * values.min()
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if wide else (1, 1.5, 2, 3, 4, 5, 7)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def legend_below(drawing: Figure, axes: Iterable[Axes], order: Sequence[str]) -> None:
    """One legend for all panels: their labels, each once, in the given order."""
    found = {label: line for axis in axes for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    labels = [label for label in order if label in found]
    if labels:
        drawing.legend([found[each] for each in labels], labels, loc="outside lower center", ncols=len(labels))
