"""Metrics that combine several runs: leads over the VAE, and effects of other settings."""

from __future__ import annotations

import math
import re

from recaps.evaluation.record import MetricRow
from recaps.papers.probabilistic.record import ROTATED, settled
from recaps.report.results import Results
from recaps.report.statistics import proportion_error
from recaps.report.verdicts import FEWEST_SEEDS

#: Variants that double a setting of `capsules`, and those with other numbers of capsules.
DOUBLED, NUMBERS = "capsules-double-", ("capsules-half", "capsules-more")


def metrics(results: Results) -> list[MetricRow]:
    """Leads over the VAE and effects of other settings, by the results of heads."""
    return [*_leads(results), *_changes(results)]


def trained_on_rotations(results: Results) -> dict[tuple[str, str], dict[int, tuple[str, str]]]:
    """The lines of figure 4: variant and protocol by the largest rotation of the training digits, for family and head.

    A family is the variant `name`, trained on upright digits, and the variants `name-rotated-45`, `name-rotated-90` and
    so on. All are tested on digits like those that they were trained on.
    """
    lines: dict[tuple[str, str], dict[int, tuple[str, str]]] = {}
    for variant, settings in results.paper.variants.items():
        match = re.fullmatch(r"(.+)-rotated-(\d+)", variant)
        family, degrees = (match[1], int(match[2])) if match else (variant, 0)
        own = (f"rotated-{degrees}",) if degrees else ("mnist", "mnist-40")
        for head, protocols in settings.heads.items():
            for protocol in protocols:
                if protocol in own:
                    lines.setdefault((family, head), {})[degrees] = (variant, protocol)
    return {line: points for line, points in lines.items() if len(points) > 1}


def _leads(results: Results) -> list[MetricRow]:
    """Smallest lead of each line of figure 4 over the VAE, in percent, over all rotations of the training digits.

    SCAE has one only if it is trained for long enough.
    """
    rows: list[MetricRow] = []
    for seed, part in results.by_seed():
        lines = trained_on_rotations(part)
        vae = lines.get(("vae", "linear"), {})
        for (family, head), points in lines.items():
            if family == "vae" or not {0, *ROTATED} <= {*points} or not {*ROTATED} <= {*vae}:
                continue
            if not all(settled(results.paper.variants[variant]) for variant, _ in points.values()):
                continue
            leads = []
            for degrees in ROTATED:
                (variant, protocol), (other, others) = points[degrees], vae[degrees]
                gap = _difference(part, (variant, head, protocol), (other, "linear", others))
                leads.append((*gap, "percent", _tested_on(results, protocol)))
            rows.append((family, seed, f"least-lead-{head}", *min(leads)))
    return rows


def _changes(results: Results) -> list[MetricRow]:
    """Effects of other settings on the accuracy of presences, in percent, one for each seed of both models.

    `presence-gain` is the difference from `capsules`. `presence-change`, of a doubled setting, has the sign that makes
    its mean over seeds positive. Seeds differ by as much as settings do, so fewer than three seeds give no effect.
    """
    rows: list[MetricRow] = []
    on = _tested_on(results, "mnist")
    for variant in results.paper.variants:
        if not variant.startswith((DOUBLED, *NUMBERS)):
            continue
        heads = [(name, "presence", "mnist") for name in (variant, "capsules")]
        both = [(seed, part) for seed, part in results.by_seed() if {variant, "capsules"} <= {*part.paper.variants}]
        gains = [(seed, *_difference(part, *heads)) for seed, part in both]
        if len(gains) >= FEWEST_SEEDS:
            metric, sign = "presence-gain", 1.0
            if variant.startswith(DOUBLED):
                metric, sign = "presence-change", math.copysign(1, sum(gain for _, gain, _, _ in gains))
            rows += [(variant, seed, metric, sign * gain, error, n, "percent", on) for seed, gain, error, n in gains]
    return rows


def _difference(part: Results, ours: tuple[str, str, str], theirs: tuple[str, str, str]) -> tuple[float, float, int]:
    """The difference of two accuracies in percent, its standard error over the test images, and their number.

    Args:
        part: the results of one seed.
        ours, theirs: variant, head and protocol.
    """
    [own], [other] = part.head(*ours), part.head(*theirs)
    errors = [proportion_error(each["accuracy"], each["n"]) for each in (own, other)]
    return 100 * (own["accuracy"] - other["accuracy"]), 100 * math.hypot(*errors), own["n"]


def _tested_on(results: Results, protocol: str) -> str:
    return results.resolve(results.paper.protocols[protocol].test.set)
