"""Compare two folders of results, number by number, such as your own with the published ones.

`python -m recaps compare results/desk results/published/desk` compares the papers that both have.
"""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

from recaps.errors import UserError
from recaps.identity import differences
from recaps.io import read_json
from recaps.layout import Layout
from recaps.report import statistics
from recaps.report.measured import METRICS, Measured, collect, finished_papers, read_metrics
from recaps.report.verdicts import format_value

#: Below 0.05, because many numbers are compared at once.
SIGNIFICANCE = 0.01

SAME = "same"
WITHIN = "within the uncertainty"
DIFFERS = "DIFFERS"
UNKNOWN = "uncertainty unknown"
OTHER_DATA = "other test set or machine"


def report(yours: Path, others: Path) -> str:
    """Return the table of the numbers that both sides have, and lines about all else.

    Each side is the folder of a scale, or a folder with one scale, such as `results/mine`.
    """
    yours, others = _scale(yours), _scale(others)
    table = compare(yours, others)
    both = table[~table["finding"].isin([only(yours), only(others)])]
    lines = [
        "Mean ± standard deviation (number of seeds). A single run counts with the uncertainty of its "
        "test set, or with the other side's spread over seeds if that is larger.",
        both.to_string(index=False, na_rep="", float_format="{:.3g}".format),
        summary(table),
        *missing(yours, others),
        *other_settings(yours, others),
    ]
    return "\n".join(lines)


def compare(yours: Path, others: Path) -> pd.DataFrame:
    """Compare the papers that both sides have.

    Returns:
        A row per metric of either side, with the difference, its p-value and a finding.

    Raises:
        UserError: either side has no metrics, or they have no paper in common.
    """
    for folder in (yours, others):
        if not finished_papers(folder):
            raise UserError(f"{folder}: no {METRICS}; finish a run of this scale first")
    common = [name for name in finished_papers(others) if name in finished_papers(yours)]
    if not common:
        raise UserError(f"{yours} and {others} have no paper in common ({'; '.join(missing(yours, others))})")
    ours, theirs = (collect(read_metrics(Layout(each).metrics(name) for name in common)) for each in (yours, others))
    return pd.DataFrame([_row(key, (yours, ours.get(key)), (others, theirs.get(key))) for key in theirs | ours])


def only(folder: Path) -> str:
    """Return the finding for what one side alone has."""
    return f"only in {folder}"


def missing(yours: Path, others: Path) -> list[str]:
    """One line for each side that has papers which the other side lacks."""
    sides = ((yours, others), (others, yours))
    more = [(one, set(finished_papers(one)) - set(finished_papers(other))) for one, other in sides]
    return [f"not compared, {only(one)}: {', '.join(sorted(names))}" for one, names in more if names]


def other_settings(yours: Path, others: Path) -> list[str]:
    """One line for each variant that both sides made otherwise, from the others' identity to yours.

    The lowest common seed counts. A run that was published before identities were recorded has settings only.
    """
    lines = {}
    for theirs in sorted(others.glob(str(Layout(Path()).run("*", "*", "*") / "config.json")), reverse=True):
        ours = yours / theirs.relative_to(others)
        if ours.is_file():
            records = [read_json(file.with_name("record.json")) for file in (theirs, ours)]
            if all("identity" in record for record in records):
                was, now = (record["identity"] for record in records)
            else:
                both = [read_json(file) for file in (theirs, ours)]
                was, now = ({"settings": {key: each[key] for key in ("model", "training")}} for each in both)
            lines["/".join(theirs.parts[-4:-2])] = "; ".join(differences(was, now))
    return [f"made otherwise than in {others}: {name}: {text}" for name, text in reversed(lines.items()) if text]


def _scale(folder: Path) -> Path:
    """Return the folder itself, or that of the only scale in it."""
    below = [] if finished_papers(folder) else [each for each in folder.glob("*") if finished_papers(each)]
    return below[0] if len(below) == 1 else folder


def _row(
    key: tuple[str, str, str], one: tuple[Path, Measured | None], other: tuple[Path, Measured | None]
) -> dict[str, object]:
    (yours, ours), (others, theirs) = one, other
    row: dict[str, object] = {"metric": "/".join(key), str(yours): _text(ours), str(others): _text(theirs)}
    if ours is None or theirs is None:
        finding = only(others if ours is None else yours)
        return row | {"difference": math.nan, "p_value": math.nan, "basis": "", "finding": finding}
    gap = statistics.difference(ours.estimate, theirs.estimate)
    p_value = gap.p_value()
    if ours.measured_on != theirs.measured_on and ours.measured_on and theirs.measured_on:
        finding = OTHER_DATA
    elif gap.value == 0:
        finding = SAME
    elif p_value is None:
        finding = UNKNOWN
    else:
        finding = DIFFERS if p_value < SIGNIFICANCE else WITHIN
    value = math.nan if p_value is None else p_value
    return row | {"difference": gap.value, "p_value": value, "basis": gap.basis, "finding": finding}


def _text(measured: Measured | None) -> str:
    if measured is None:
        return ""
    spread = "" if math.isnan(measured.sd) else f" ± {format_value(measured.sd, measured.unit)}"
    return f"{format_value(measured.estimate.value, measured.unit)}{spread} ({len(measured.seeds)})"


def summary(table: pd.DataFrame) -> str:
    """One line with the number of metrics for each finding."""
    counts = table["finding"].value_counts()
    parts = [f"{count} {finding}" for finding, count in counts.items() if finding != DIFFERS]
    differs = f"{counts.get(DIFFERS, 0)} of {len(table)} numbers differ by more than the uncertainty"
    return "; ".join([f"{differs} (p < {SIGNIFICANCE:g})", *parts])
