"""Metrics that combine several runs: leads over the VAE, and effects of doubling a setting."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from recaps.evaluation.record import MetricRow
from recaps.papers.probabilistic.record import ROTATED
from recaps.report.results import Results
from recaps.report.statistics import proportion_error

#: Variants that double a setting of `capsules`.
DOUBLED = "capsules-double-"


def metrics(results: Results) -> list[MetricRow]:
    """Leads over the VAE and effects of doubling, by the results of heads."""
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
    """Smallest lead of each line of figure 4 over the VAE, in percent, over all rotations of the training digits."""
    rows: list[MetricRow] = []
    for seed, part in results.by_seed():
        lines = trained_on_rotations(part)
        vae = lines.get(("vae", "linear"), {})
        for (family, head), points in lines.items():
            if family == "vae" or not {0, *ROTATED} <= {*points} or not {*ROTATED} <= {*vae}:
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
    """Absolute change of the accuracy of presences, in percent, of each variant in which a setting is doubled."""
    rows: list[MetricRow] = []
    for seed, part in results.by_seed():
        for variant in part.paper.variants:
            if variant.startswith(DOUBLED) and "capsules" in part.paper.variants:
                [ours], [before] = (part.head(name, "presence", "mnist") for name in (variant, "capsules"))
                change, error = _difference(ours, before)
                on = _tested_on(results, "mnist")
                rows.append((variant, seed, "presence-change", abs(change), error, ours["n"], "percent", on))
    return rows


def _difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[float, float]:
    """The difference of the accuracies of two heads in percent, and its standard error over the test images."""
    errors = [proportion_error(each["accuracy"], each["n"]) for each in (ours, theirs)]
    return 100 * (ours["accuracy"] - theirs["accuracy"]), 100 * math.hypot(*errors)


def _tested_on(results: Results, protocol: str) -> str:
    return results.resolve(results.paper.protocols[protocol].test.set)
