"""The picture of the scorecard: the published numbers in percent, and ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from recaps.report.draw import STYLE, save, warn
from recaps.report.plots import legend_below
from recaps.report.results import STAND_IN as NOTE
from recaps.report.verdicts import DIRECTION, NOT_REPRODUCED, REPRODUCED, STAND_IN

#: Colour and marker of a verdict.
LOOKS: dict[str, dict[str, Any]] = {
    REPRODUCED: {"color": "#0072B2", "marker": "o"},
    DIRECTION: {"color": "#E69F00", "marker": "^"},
    NOT_REPRODUCED: {"color": "#D55E00", "marker": "x"},
    STAND_IN: {"color": "0.4", "marker": "o", "markerfacecolor": "none"},
}
#: Panels in a row.
COLUMNS = 4


def shown(card: pd.DataFrame) -> pd.DataFrame:
    """Return the measured numbers in percent of a scorecard, as numbers in `ours` and `published`."""
    rows = card.query("kind == 'number' and unit == 'percent' and ours != '' and role == 'claim'")
    published = rows["published"].str.split().str[0].astype(float)
    return rows.assign(ours=rows["ours"].astype(float), published=published)


def draw(card: pd.DataFrame, file: Path) -> None:
    """Write the picture of a scorecard (PNG)."""
    with plt.style.context(STYLE):
        drawing = overview(card)
        if STAND_IN in set(shown(card)["verdict"]):
            warn(drawing, NOTE)
        save(drawing, file)
        plt.close(drawing)


def overview(card: pd.DataFrame) -> Figure:
    """A panel for each paper: our numbers against the published ones, with tolerances and 95 % intervals."""
    papers = list(shown(card).groupby("paper", sort=False))
    rows = max(1, -(-len(papers) // COLUMNS))
    columns = min(COLUMNS, max(1, len(papers)))
    drawing, axes = plt.subplots(rows, columns, figsize=(2.6 * columns, 2.7 * rows + 0.3), squeeze=False)
    for axis, (paper, numbers) in zip(axes.flat, papers, strict=False):
        _panel(axis, numbers)
        axis.set_title(f"{paper}\n{_summary(numbers)}", fontsize="medium")
    for unused in axes.flat[len(papers) :]:
        unused.remove()
    legend_below(drawing, drawing.axes, list(LOOKS))
    return drawing


def _summary(numbers: pd.DataFrame) -> str:
    """Return how many numbers are reproduced, and how many the panel cannot show."""
    outside = int((~_inside(numbers)).sum())
    note = f" ({outside} outside)" if outside else ""
    if STAND_IN in set(numbers["verdict"]):
        return f"stand-in data{note}"
    return f"{(numbers['verdict'] == REPRODUCED).sum()} of {len(numbers)} reproduced{note}"


def _inside(numbers: pd.DataFrame) -> pd.Series:
    """Return which numbers have a place in a panel: a loss, as of a gain, has none."""
    return numbers["ours"].between(0, 100) & numbers["published"].between(0, 100)


def _panel(axis: Axes, numbers: pd.DataFrame) -> None:
    """Draw the numbers of a paper. A tolerance is a horizontal bar, an interval a vertical one.

    A number is reproduced if one of them meets the diagonal.
    """
    numbers = numbers[_inside(numbers)]
    values = np.concatenate([numbers[each].dropna() for each in ("ours", "published", "interval_low", "interval_high")])
    if not len(values):
        return
    margin = max(0.06 * float(np.ptp(values)), 0.2)
    low, high = max(0.0, float(values.min()) - margin), float(values.max()) + margin
    axis.axline((low, low), slope=1, linestyle="--", linewidth=1, color="0.5", marker="", zorder=0)
    ours, published, tolerance = (numbers[each] for each in ("ours", "published", "tolerance"))
    axis.hlines(ours, published - tolerance, published + tolerance, color="0.7", linewidth=2.5, zorder=1)
    axis.vlines(published, numbers["interval_low"], numbers["interval_high"], color="0.3", linewidth=1)
    for verdict, look in LOOKS.items():
        rows = numbers[numbers["verdict"] == verdict]
        if len(rows):
            axis.plot(rows["published"], rows["ours"], linestyle="", markersize=5, label=verdict, **look)
    axis.xaxis.set_major_locator(MaxNLocator(5))
    axis.yaxis.set_major_locator(MaxNLocator(5))
    axis.set(xlim=(low, high), ylim=(low, high), xlabel="published, %", ylabel="ours, %", aspect="equal")
