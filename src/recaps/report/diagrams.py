"""Boxes, circles, lines and arrows of diagrams, in the units of an axis."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyBboxPatch

Point = tuple[float, float]


def canvas(axis: Axes, width: Point, height: Point) -> None:
    """Prepare an axis without ticks, with the same unit along both directions."""
    axis.set(xlim=width, ylim=height, aspect="equal")
    axis.set_axis_off()


def box(axis: Axes, centre: Point, size: tuple[float, float], text: str, **look: Any) -> None:
    """Draw a box with rounded corners and a text in its middle."""
    corner = (centre[0] - size[0] / 2, centre[1] - size[1] / 2)
    drawn: dict[str, Any] = {"fc": "white", "ec": "black", "lw": 0.8} | look
    axis.add_patch(FancyBboxPatch(corner, *size, "round,pad=0,rounding_size=0.08", **drawn))
    axis.text(*centre, text, ha="center", va="center", fontsize=7.5)


def circle(axis: Axes, centre: Point, radius: float, text: str = "", **look: Any) -> None:
    """Draw a circle with a text in its middle."""
    drawn: dict[str, Any] = {"fc": "white", "ec": "black", "lw": 0.8, "zorder": 3} | look
    axis.add_patch(Circle(centre, radius, **drawn))
    axis.text(*centre, text, ha="center", va="center", fontsize=9, zorder=4)


def line(axis: Axes, start: Point, end: Point, **look: Any) -> None:
    """Draw a straight line."""
    drawn: dict[str, Any] = {"color": "black", "linewidth": 0.8} | look
    axis.plot(*zip(start, end, strict=True), marker="", linestyle="-", **drawn)


def arrow(axis: Axes, start: Point, end: Point, gap: float = 0, **look: Any) -> None:
    """Draw an arrow that leaves `gap` points free at both ends."""
    drawn: dict[str, Any] = {"arrowstyle": "-|>", "shrinkA": gap, "shrinkB": gap, "color": "black", "lw": 0.8} | look
    axis.annotate("", end, start, arrowprops=drawn)
