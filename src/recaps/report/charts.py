"""Small SVG drawings of the report: a value beside the published one, and training curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from xml.sax.saxutils import escape, quoteattr

import pandas as pd
from markupsafe import Markup

Curve = Sequence[tuple[float, float]]
#: Standard errors of a normal variable at which p is 0.05.
DECIDED = NormalDist().inv_cdf(0.975)


def scatter(numbers: pd.DataFrame, badges: Sequence[tuple[str, str]]) -> Markup:
    """Our numbers in percent (upwards) against the published ones, with their tolerances.

    On the diagonal, both are equal. A symbol links to the row of its claim. Nothing is drawn if there is no number.

    Args:
        numbers: rows of the scorecard, see `overview.shown`.
        badges: the symbol and the style of each verdict.
    """
    width, height, left, top, bottom = 340.0, 300.0, 40.0, 10.0, 40.0
    if numbers.empty:
        return Markup("")
    values = numbers[["published", "ours"]].to_numpy()
    margin = 0.08 * (values.max() - values.min()) or 1
    low, high = values.min() - margin, values.max() + margin

    def x(value: float) -> float:
        return left + (min(max(value, low), high) - low) / (high - low) * (width - left - 10)

    def y(value: float) -> float:
        return height - bottom - (value - low) / (high - low) * (height - bottom - top)

    base, right = height - bottom, width - 10
    texts = [
        (left, base + 15, "start", f"{low:.3g}"),
        (right, base + 15, "end", f"{high:.3g}"),
        ((left + right) / 2, base + 32, "middle", "published, %"),
        (left - 5, base, "end", f"{low:.3g}"),
        (left - 5, top + 8, "end", f"{high:.3g}"),
        (left - 5, (top + base) / 2, "end", "ours"),
    ]
    parts = [
        f'<path class="axis" d="M{left:g},{top:g}V{base:g}H{right:g}"/>',
        f'<line class="equal" x1="{left:g}" y1="{base:g}" x2="{right:g}" y2="{top:g}"/>',
        *(f'<text x="{a:g}" y="{b:g}" text-anchor="{anchor}">{text}</text>' for a, b, anchor, text in texts),
    ]
    for (_, row), (symbol, style) in zip(numbers.iterrows(), badges, strict=True):
        published, ours, tolerance = row["published"], row["ours"], row["tolerance"]
        ends = x(published - tolerance), x(published + tolerance)
        at = f'y1="{y(ours):.1f}" y2="{y(ours):.1f}"'
        parts.append(f'<line class="tolerance" x1="{ends[0]:.1f}" x2="{ends[1]:.1f}" {at}/>')
        title = escape(f"{row['statement']} published {published:g}, ours {ours:g}")
        parts.append(
            f'<a href="#{row["id"]}"><title>{title}</title><text class="mark {style}" text-anchor="middle" '
            f'x="{x(published):.1f}" y="{y(ours) + 5:.1f}">{symbol}</text></a>'
        )
    label = f"{len(numbers)} numbers in percent: ours against the published ones"
    return _svg("scatter", width, height, parts, label)


def strip(published: float, tolerance: float, ours: float, interval: tuple[float, float] | None) -> Markup:
    """The published value with its tolerance as a band, and our value with its interval, on one line."""
    width, height, margin = 150.0, 22.0, 6.0
    points = [published - tolerance, published + tolerance, ours, *(interval or ())]
    low, high = min(points), max(points)

    def x(value: float) -> str:
        share = (value - low) / (high - low) if high > low else 0.5
        return f"{margin + share * (width - 2 * margin):.1f}"

    band = float(x(published + tolerance)) - float(x(published - tolerance))
    parts = [
        f'<rect x="{x(published - tolerance)}" width="{max(band, 1):.1f}"/>',
        f'<path class="published" d="M{x(published)} 1V21"/>',
    ]
    if interval:
        parts.append(f'<path class="interval" d="M{x(interval[0])} 11H{x(interval[1])}"/>')
    parts.append(f'<circle cx="{x(ours)}"/>')
    return _svg("strip", width, height, parts)


def certainty(difference: float, p_value: float) -> Markup:
    """How surely a rule is met: a dot on an axis from "against it" over "undecided" (the band) to "for it".

    Args:
        difference: from the limit of the rule, positive if it is met.
        p_value: of no difference; nan if it needs none.
    """
    width, height, most = 150.0, 22.0, 3.0
    errors = most if math.isnan(p_value) else NormalDist().inv_cdf(1 - max(p_value, 1e-12) / 2) / DECIDED
    centre = width / 2
    unit = (centre - 8) / most
    place = centre + unit * math.copysign(min(errors, most), difference)
    parts = [
        f'<rect x="{centre - unit:.1f}" width="{2 * unit:.1f}"/>',
        f'<path class="published" d="M{centre:g} 1V21"/>',
        f'<circle cx="{place:.1f}"/>',
    ]
    return _svg("strip", width, height, parts)


def curves(series: Sequence[Curve], label: str) -> Markup:
    """One line of (step, loss) per run; the axis is logarithmic if all losses are positive."""
    width, height, left, bottom, top = 260.0, 130.0, 46.0, 18.0, 8.0
    series = [[point for point in curve if math.isfinite(point[1])] for curve in series]
    points = [point for curve in series for point in curve]
    if not points:
        return Markup("")
    last = max(step for step, _ in points) or 1
    low, high = min(loss for _, loss in points), max(loss for _, loss in points)
    scale = math.log10 if low > 0 else float

    def place(step: float, loss: float) -> str:
        span = scale(high) - scale(low) or 1
        x = left + step / last * (width - left - 8)
        y = height - bottom - (scale(loss) - scale(low)) / span * (height - bottom - top)
        return f"{x:.0f},{y:.0f}"

    base = height - bottom
    highest, lowest = _apart(high, low)
    parts = [
        f'<path class="axis" d="M{left:g},{top:g}V{base:g}H{width - 8:g}"/>',
        f'<text x="{left - 5:g}" y="{top + 6:g}">{highest}</text>',
        f'<text x="{left - 5:g}" y="{base:g}">{lowest}</text>',
        f'<text x="{left:g}" y="{height - 5:g}" text-anchor="start">0</text>',
        f'<text x="{width - 8:g}" y="{height - 5:g}">step {last:,.0f}</text>',
    ]
    for number, curve in enumerate(series):
        path = " ".join(place(step, loss) for step, loss in curve)
        parts.append(f'<polyline class="curve seed-{number % 3}" points="{path}"/>')
    return _svg("curves", width, height, parts, label)


def _apart(high: float, low: float) -> tuple[str, str]:
    """The ends of an axis with the fewest digits that distinguish them."""
    texts = [(f"{high:.{digits}g}", f"{low:.{digits}g}") for digits in range(3, 7)]
    return next((pair for pair in texts if pair[0] != pair[1]), ("", texts[0][1]))


def thin(rows: Sequence[int], most: int) -> list[int]:
    """At most `most` of the positions `rows`: evenly spread, including the first and the last."""
    if len(rows) <= most:
        return list(rows)
    step = (len(rows) - 1) / (most - 1)
    return [rows[round(index * step)] for index in range(most)]


def _svg(kind: str, width: float, height: float, parts: Sequence[str], label: str = "") -> Markup:
    """`label`: the text for screen readers; without one, the text beside the drawing says the same."""
    role = f'role="img" aria-label={quoteattr(label)}' if label else 'aria-hidden="true"'
    head = f'<svg class="{kind}" viewBox="0 0 {width:g} {height:g}" {role}>'
    return Markup(head + "".join(parts) + "</svg>")
