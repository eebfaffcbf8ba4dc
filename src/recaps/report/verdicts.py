"""The verdict on a claim, computed from the measured values. `docs/claims.md` gives the rules."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from recaps.report import statistics
from recaps.report.claims import Bound, Claim, Measure, Number, Ordering
from recaps.report.measured import Measured
from recaps.report.statistics import Estimate

REPRODUCED = "reproduced"
DIRECTION = "direction holds"
NOT_REPRODUCED = "not reproduced"
NOT_RUN = "not run at this scale"
STAND_IN = "stand-in data, no verdict"
#: The verdicts on claims.
VERDICTS = (REPRODUCED, DIRECTION, NOT_REPRODUCED, NOT_RUN, STAND_IN)
#: The verdicts on checks of the configuration.
PASSED = "check passed"
FAILED = "check failed"
#: The verdicts on conjectures.
SUPPORTED = "supported"
NOT_SUPPORTED = "not supported"
NOT_DECIDED = "not decided"
CONJECTURE = {REPRODUCED: SUPPORTED, DIRECTION: NOT_DECIDED, NOT_REPRODUCED: NOT_SUPPORTED}

#: The fewest seeds whose interval counts for a number. That of two reaches nine standard deviations to each side.
FEWEST_SEEDS = 3

#: All measured metrics, by (paper, variant, metric).
All = Mapping[tuple[str, str, str], Measured]


@dataclass(frozen=True)
class Finding:
    """The columns of a scorecard row that depend on the kind of claim. Interval and p-value belong to `estimate`."""

    ours: str
    estimate: Estimate
    difference: float
    p_value: float | None
    verdict: str
    sd: float = math.nan


def judge(claim: Claim, present: Mapping[Measure, Measured], numbers: Mapping[str, Number], measured: All) -> Finding:
    if isinstance(claim, Number):
        finding = _judge_number(claim, present[claim.measure], numbers, measured)
    elif isinstance(claim, Ordering):
        finding = _judge_ordering(claim, [present[measure] for measure in claim.measures])
    else:
        finding = _judge_bound(claim, [present[measure] for measure in claim.measures])
    if claim.role == "check":
        return replace(finding, verdict=FAILED if finding.verdict == NOT_REPRODUCED else PASSED)
    if claim.role == "conjecture":
        open_ = finding.p_value is not None and finding.p_value >= 1 - statistics.LEVEL
        return replace(finding, verdict=NOT_DECIDED if open_ else CONJECTURE[finding.verdict])
    return finding


def _judge_number(claim: Number, ours: Measured, numbers: Mapping[str, Number], measured: All) -> Finding:
    estimate = ours.estimate
    gap = statistics.difference(estimate, statistics.published(claim.published, claim.sd, claim.seeds))
    enough = estimate.basis == "seeds" and estimate.freedom + 1 >= FEWEST_SEEDS
    interval = estimate.interval() if enough else None
    if abs(gap.value) <= claim.tolerance or (interval and interval[0] <= claim.published <= interval[1]):
        verdict = REPRODUCED
    elif _same_side(claim, estimate, numbers, measured):
        verdict = DIRECTION
    else:
        verdict = NOT_REPRODUCED
    p_value = gap.p_value() if estimate.basis == "seeds" else None
    return Finding(plain_value(estimate.value, claim.unit), estimate, gap.value, p_value, verdict, ours.sd)


def _same_side(claim: Number, estimate: Estimate, numbers: Mapping[str, Number], measured: All) -> bool:
    """Whether our value has the direction of the printed one.

    It lies on the same side of our counterpart as in the paper, is separated from it, and is at least as near to its
    own printed value as to the counterpart's.
    """
    if claim.beside is None:
        return False
    other = numbers[claim.beside]
    beside = measured.get((other.paper, other.measure.variant, other.measure.metric))
    if beside is None:
        return False
    gap = statistics.difference(estimate, beside.estimate)
    same_side = gap.value * (claim.published - other.published) > 0
    nearer = abs(estimate.value - claim.published) <= abs(estimate.value - other.published)
    return same_side and nearer and gap.separated()


def _judge_ordering(claim: Ordering, items: Sequence[Measured]) -> Finding:
    sign = 1 if claim.order == "descending" else -1
    found = [statistics.difference(first.estimate, second.estimate) for first, second in itertools.pairwise(items)]
    gaps = [replace(gap, value=sign * gap.value) for gap in found]
    weakest = min(gaps, key=_certainty)
    if any(gap.value <= 0 for gap in gaps):
        verdict = NOT_REPRODUCED
    else:
        verdict = REPRODUCED if all(gap.separated() for gap in gaps) else DIRECTION
    mark = ", " if verdict == NOT_REPRODUCED else claim.mark
    ours = mark.join(plain_value(item.estimate.value, claim.unit) for item in items)
    return Finding(ours, weakest, weakest.value, weakest.p_value(), verdict)


def _certainty(gap: Estimate) -> tuple[int, float, float]:
    """Sort key from the least to the most certain gap: wrong order first, then unknown error, then by p and by t."""
    if gap.value <= 0 or not gap.error:
        return (0 if gap.value <= 0 else 1 if gap.error is None else 3), gap.value, 0
    return 2, -(gap.p_value() or 0), gap.value / gap.error


def _judge_bound(claim: Bound, items: Sequence[Measured]) -> Finding:
    estimate = items[0].estimate
    if len(items) == 2:
        estimate = statistics.difference(estimate, items[1].estimate)
    inside = []
    if claim.at_least is not None:
        inside.append((estimate.value - claim.at_least, claim.at_least))
    if claim.at_most is not None:
        inside.append((claim.at_most - estimate.value, claim.at_most))
    margin, limit = min(inside)
    # Enough seeds have the same count, so that it needs no standard error.
    same_counts = claim.unit == "count" and estimate.basis == "none" and (estimate.runs or 0) >= FEWEST_SEEDS
    if margin < 0:
        verdict = NOT_REPRODUCED
    elif same_counts or all(estimate.separated(limit) for _, limit in inside):
        verdict = REPRODUCED
    else:
        verdict = DIRECTION
    sd = items[0].sd if len(items) == 1 else math.nan
    ours = _on_its_side(estimate.value, limit, claim.unit)
    return Finding(ours, estimate, margin, estimate.p_value(limit), verdict, sd)


def _on_its_side(value: float, limit: float, unit: str) -> str:
    """`plain_value`, or as many digits as show on which side of the limit the value is."""
    text = plain_value(value, unit)
    for digits in range(len(text), 18):
        if (float(text) - limit) * (value - limit) > 0 or value == limit:
            break
        text = f"{value:.{digits}g}"
    return text


def plain_value(value: float, unit: str) -> str:
    """A value for programs, with the number of digits that suits its unit."""
    if unit == "count" and (value % 1 == 0 or abs(value) >= 100):
        return f"{value:.0f}"
    if unit == "loss":
        return f"{value:.3g}"
    return f"{value:.3f}" if unit in ("fraction", "ratio") else f"{value:.2f}"


def format_value(value: float, unit: str) -> str:
    """A value for readers, with thousands separators: `6,928`."""
    return readable(plain_value(value, unit), unit)


def readable(text: str, unit: str) -> str:
    """The text of a scorecard's `published` or `ours`, with thousands separators in counts: `29,999`."""
    return re.sub(r"(?<![\w.])\d{4,}", lambda digits: f"{int(digits[0]):,}", text) if unit == "count" else text
