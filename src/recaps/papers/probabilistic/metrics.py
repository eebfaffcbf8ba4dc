"""Metrics that combine several runs: leads over the VAE, and effects of other settings."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

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
                [ours], [theirs] = part.head(variant, head, protocol), part.head(other, "linear", others)
                gap, error = _difference(ours, theirs)
                leads.append((gap, error, ours["n"], _tested_on(results, protocol)))
            least, error, n, on = min(leads)
            rows.append((family, seed, f"least-lead-{head}", least, error, n, "percent", on))
    return rows


def _changes(results: Results) -> list[MetricRow]:
    """Effects of other settings on the accuracy of presences, in percent, one for each seed of both models.

    `presence-gain` is the difference from `capsules`. `presence-change`, of a doubled setting, has the sign that makes
    its mean over seeds positive. Seeds differ by as much as settings do, so fewer than three seeds give no effect.
    """
    rows: list[MetricRow] = []
    on = _tested_on(results, "mnist")
    for variant in results.paper.variants:
        if not variant.startswith((DOUBLED, *NUMBERS)) or "capsules" not in results.paper.variants:
            continue
        gains: dict[int, tuple[float, float, int]] = {}
        for seed, part in results.by_seed():
            if {variant, "capsules"} <= {*part.paper.variants}:
                [ours], [before] = (part.head(name, "presence", "mnist") for name in (variant, "capsules"))
                gains[seed] = (*_difference(ours, before), ours["n"])
        if len(gains) >= FEWEST_SEEDS:
            sign = math.copysign(1, sum(gain for gain, _, _ in gains.values()))
            doubled = variant.startswith(DOUBLED)
            metric, sign = ("presence-change", sign) if doubled else ("presence-gain", 1)
            rows += [
                (variant, seed, metric, sign * gain, error, n, "percent", on)
                for seed, (gain, error, n) in gains.items()
            ]
    return rows


def _difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[float, float]:
    """The difference of the accuracies of two heads in percent, and its standard error over the test images."""
    errors = [proportion_error(each["accuracy"], each["n"]) for each in (ours, theirs)]
    return 100 * (ours["accuracy"] - theirs["accuracy"]), 100 * math.hypot(*errors)


def _tested_on(results: Results, protocol: str) -> str:
    return results.resolve(results.paper.protocols[protocol].test.set)
