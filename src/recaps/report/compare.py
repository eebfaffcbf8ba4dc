"""Compare your own results with the published ones, number by number.

`python -m recaps.report.compare --scale desk` compares the papers that `results/desk` and `results/published/desk` have
in common.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from recaps.command import command
from recaps.errors import UserError
from recaps.identity import Identity, differences
from recaps.io import read_json
from recaps.report import statistics
from recaps.report.measured import METRICS, Measured, collect, finished_papers, read_metrics
from recaps.report.verdicts import format_value
from recaps.workflow.layout import Layout

#: Below 0.05, because many numbers are compared at once.
SIGNIFICANCE = 0.01

SAME = "same"
WITHIN = "within the uncertainty"
DIFFERS = "DIFFERS"
UNKNOWN = "uncertainty unknown"
OTHER_DATA = "other test set"
ONLY_YOURS = "only in yours"
ONLY_PUBLISHED = "only in published"


def compare(results: Path, published: Path) -> pd.DataFrame:
    """Compare the papers that both sides have.

    Returns:
        A row per metric of either side, with the difference, its p-value and a finding.

    Raises:
        UserError: either side has no metrics, or they have no paper in common.
    """
    for folder in (results, published):
        if not finished_papers(folder):
            raise UserError(f"{folder}: no {METRICS}; finish a run of this scale first")
    common = [name for name in finished_papers(published) if name in finished_papers(results)]
    if not common:
        raise UserError(f"{results} and {published} have no paper in common ({'; '.join(missing(results, published))})")
    yours, theirs = _metrics(results, common), _metrics(published, common)
    keys = [*theirs, *(key for key in yours if key not in theirs)]
    return pd.DataFrame([_row(key, yours.get(key), theirs.get(key)) for key in keys])


def missing(results: Path, published: Path) -> list[str]:
    """One line for each side that has papers which the other side lacks."""
    sides = ((ONLY_YOURS, results, published), (ONLY_PUBLISHED, published, results))
    only = [(side, set(finished_papers(one)) - set(finished_papers(other))) for side, one, other in sides]
    return [f"not compared, {side}: {', '.join(sorted(names))}" for side, names in only if names]


def other_settings(results: Path, published: Path) -> list[str]:
    """One line for each variant that both sides made otherwise, from the published identity to yours.

    The lowest common seed counts. A run that was published before identities were recorded has settings only.
    """
    lines = {}
    for theirs in sorted(Path(published).glob(str(Layout(Path()).run("*", "*", "*") / "config.json")), reverse=True):
        yours = Path(results) / theirs.relative_to(published)
        if yours.is_file():
            records = [read_json(file.with_name("record.json")) for file in (theirs, yours)]
            if all("identity" in record for record in records):
                was, now = (record["identity"] for record in records)
            else:
                was, now = (_settings(read_json(file)) for file in (theirs, yours))
            lines["/".join(theirs.parts[-4:-2])] = "; ".join(differences(was, now))
    return [f"made otherwise than published: {name}: {text}" for name, text in reversed(lines.items()) if text]


def _settings(config: Mapping[str, Any]) -> Identity:
    return {"settings": {key: config[key] for key in ("model", "training")}}


def _metrics(folder: Path, names: Sequence[str]) -> dict[tuple[str, str, str], Measured]:
    return collect(read_metrics(Layout(Path(folder)).metrics(name) for name in names))


def _row(key: tuple[str, str, str], yours: Measured | None, theirs: Measured | None) -> dict[str, object]:
    row: dict[str, object] = {
        "metric": "/".join(key),
        "yours": _text(yours),
        "published": _text(theirs),
        "difference": math.nan,
        "p_value": math.nan,
        "basis": "",
        "finding": ONLY_PUBLISHED if yours is None else ONLY_YOURS,
    }
    if yours is None or theirs is None:
        return row
    gap = statistics.difference(yours.estimate, theirs.estimate)
    p_value = gap.p_value()
    if yours.measured_on != theirs.measured_on and yours.measured_on and theirs.measured_on:
        finding = OTHER_DATA
    elif gap.value == 0:
        finding = SAME
    elif p_value is None:
        finding = UNKNOWN
    else:
        finding = DIFFERS if p_value < SIGNIFICANCE else WITHIN
    value = math.nan if p_value is None else p_value
    return {**row, "difference": gap.value, "p_value": value, "basis": gap.basis, "finding": finding}


def _text(measured: Measured | None) -> str:
    if measured is None:
        return ""
    spread = "" if math.isnan(measured.sd) else f" ± {format_value(measured.sd, measured.unit)}"
    return f"{format_value(measured.estimate.value, measured.unit)}{spread} ({len(measured.seeds)})"


def summary(table: pd.DataFrame) -> str:
    """One line with the number of metrics for each finding."""
    counts = table["finding"].value_counts()
    others = (SAME, WITHIN, UNKNOWN, OTHER_DATA, ONLY_YOURS, ONLY_PUBLISHED)
    parts = [f"{counts[finding]} {finding}" for finding in others if finding in counts]
    differs = int(counts.get(DIFFERS, 0))
    head = f"{differs} of {len(table)} numbers differ by more than the uncertainty (p < {SIGNIFICANCE:g})"
    return "; ".join([head, *parts])


@command
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m recaps.report.compare", description="Compare your own results with the published ones."
    )
    parser.add_argument("--scale", required=True, help="the scale to compare, e.g. desk")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of results (default: results)")
    options = parser.parse_args(arguments)
    yours, published = options.results / options.scale, options.results / "published" / options.scale
    table = compare(yours, published)
    print(
        "Mean ± standard deviation (number of seeds). A single run counts with the uncertainty of its "
        "test set, or with the other side's spread over seeds if that is larger."
    )
    print(table.to_string(index=False, na_rep="", float_format="{:.3g}".format))
    print(summary(table))
    for line in [*missing(yours, published), *other_settings(yours, published)]:
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
