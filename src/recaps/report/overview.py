"""The picture of the scorecard: every published number in percent, and ours."""

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
    """Return the rows of a scorecard that the picture shows, with numbers in `ours` and `published`.

    These are the measured numbers in percent. Checks are left out, as are numbers outside 0 to 100: those are gains.
    """
    rows = card[(card["kind"] == "number") & (card["unit"] == "percent") & (card["ours"] != "") & ~card["check"]]
    numbers = {
        "ours": rows["ours"].astype(float),
        "published": rows["published"].str.split().str[0].astype(float),
    }
    rows = rows.assign(**numbers)
    return rows[rows["ours"].between(0, 100) & rows["published"].between(0, 100)]


def draw(card: pd.DataFrame, file: Path) -> None:
    """Write the picture of a scorecard (PNG)."""
    with plt.style.context(STYLE):
        drawing = overview(card)
        if STAND_IN in set(card["verdict"]):
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
        found = int((numbers["verdict"] == REPRODUCED).sum())
        axis.set_title(f"{paper}: {found} of {len(numbers)} reproduced", fontsize="medium")
    for unused in axes.flat[len(papers) :]:
        unused.remove()
    legend_below(drawing, drawing.axes, list(LOOKS))
    return drawing


def _panel(axis: Axes, numbers: pd.DataFrame) -> None:
    """Draw the numbers of a paper. A tolerance is a horizontal bar: it meets the diagonal if the number agrees."""
    values = np.concatenate([numbers["ours"], numbers["published"]])
    margin = max(0.06 * float(np.ptp(values)), 0.2)
    low, high = max(0.0, values.min() - margin), values.max() + margin
    axis.axline((low, low), slope=1, linestyle="--", linewidth=1, color="0.5", marker="", zorder=0)
    axis.hlines(
        numbers["ours"],
        numbers["published"] - numbers["tolerance"],
        numbers["published"] + numbers["tolerance"],
        color="0.7",
        linewidth=2.5,
        zorder=1,
    )
    axis.vlines(numbers["published"], numbers["interval_low"], numbers["interval_high"], color="0.3", linewidth=1)
    for verdict, look in LOOKS.items():
        rows = numbers[numbers["verdict"] == verdict]
        if len(rows):
            axis.plot(rows["published"], rows["ours"], linestyle="", markersize=5, label=verdict, **look)
    axis.xaxis.set_major_locator(MaxNLocator(5))
    axis.yaxis.set_major_locator(MaxNLocator(5))
    axis.set(xlim=(low, high), ylim=(low, high), xlabel="published, %", ylabel="ours, %", aspect="equal")
