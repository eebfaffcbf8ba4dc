"""A rule is older than the numbers that it judges, or says that it is not."""

from __future__ import annotations

import io
import re
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from places import CONFIG

from recaps.config.load import load
from recaps.papers import FOLDER, names
from recaps.report.claims import Claim, read

pytestmark = pytest.mark.unit

CLAIMS = [claim for paper in names() for claim in read(FOLDER / paper / "claims.yaml")]
CONJECTURES = {claim.id: claim for claim in CLAIMS if claim.role == "conjecture"}
#: What decides a verdict.
RULE = ("kind", "order", "measure", "measures", "minus", "at_least", "at_most")


def git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def first_commit(root: Path, file: Path, text: str) -> str | None:
    """The first commit in which a file holds a text."""
    found = git(root, "log", "--reverse", "--format=%H", f"-S{text}", "--", str(file)).split()
    return found[0] if found else None


def rule_of(text: str, claim: Claim) -> dict[str, object]:
    """The rule of a claim in the text of a `claims.yaml`."""
    shared: dict[str, Any] = {}
    for row in yaml.safe_load(text)["claims"]:
        shared = row.get("shared", shared)
        if row.get("id") == claim.id:
            return {key: _plain(each) for key, each in (shared | row).items() if key in RULE}
    raise AssertionError(f"no {claim.id}")


def _plain(value: Any) -> Any:
    """A measure as `variant/metric`; in earlier commits it is a mapping."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return f"{value['variant']}/{value['metric']}" if isinstance(value, dict) else value


@pytest.mark.parametrize("claim", CONJECTURES.values(), ids=CONJECTURES)
def test_the_rule_was_committed_before_its_numbers(root: Path, claim: Claim) -> None:
    if not (root / ".git").exists() or git(root, "rev-parse", "--is-shallow-repository").strip() == "true":
        pytest.skip("needs the history of the repository")
    measured = root / "results/published/desk/papers" / claim.measured_in / "metrics.csv"
    if not measured.exists():
        pytest.skip("not published")
    table = pd.read_csv(measured)
    for each in claim.measures:
        rows = table[(table["variant"] == each.variant) & (table["metric"] == each.metric)]
        if len(rows):
            file = FOLDER / claim.paper / "claims.yaml"
            rule = first_commit(root, file, claim.id)
            numbers = first_commit(root, measured, f"{each.variant},{rows['seed'].iloc[0]},{each.metric},")
            assert rule, "commit the rule"
            if numbers is None:
                continue
            assert numbers in git(root, "rev-list", f"{rule}..HEAD").split(), claim.id
            before = git(root, "show", f"{numbers}:{file.relative_to(root)}")
            if rule_of(before, claim) != rule_of(file.read_text(encoding="utf-8"), claim):
                assert "Changed after" in claim.reason, f"{claim.id}: say that its rule is younger than its numbers"


def test_each_conjecture_says_where_it_stands_and_why_its_rule_is_so() -> None:
    assert CONJECTURES
    for claim in CONJECTURES.values():
        assert claim.where
        assert claim.reason
        assert claim.kind in ("ordering", "bound")


def test_a_claim_measures_what_the_table_of_its_study_shows() -> None:
    project = load({"scale": "desk", "papers": list(names())}, CONFIG)
    for claim in CLAIMS:
        if claim.study:
            study = project.every[claim.measured_in]
            assert {each.variant for each in claim.measures} <= set(study.variants), claim.id
            assert {each.metric for each in claim.measures} <= set(study.study.columns), claim.id


def judged_by(row: pd.Series) -> tuple[object, ...]:
    """What a row of a scorecard says of its rule: kind, tolerance, limits, and the number of models in an order."""
    low = re.search(r"at least (-?[\d.]+)|(-?[\d.]+) to ", row["published"])
    high = re.search(r"at most (-?[\d.]+)| to (-?[\d.]+)", row["published"])
    limits = (float(found[1] or found[2]) if found else None for found in (low, high))
    models = len(re.findall(r"-?[\d.]+", row["ours"])) if row["kind"] == "ordering" else 0
    return row["kind"], float(row["tolerance"] or 0), *limits, models


def test_a_rule_that_changed_after_its_results_says_so(root: Path) -> None:
    """The published scorecards of earlier commits have the same rules, for every claim that they judge."""
    if not (root / ".git").exists() or git(root, "rev-parse", "--is-shallow-repository").strip() == "true":
        pytest.skip("needs the history of the repository")
    file = "results/published/desk/scorecard.csv"
    rules: dict[str, set[tuple[object, ...]]] = {}
    for commit in git(root, "log", "--format=%H", "--", file).split():
        card = pd.read_csv(io.StringIO(git(root, "show", f"{commit}:{file}")), dtype=str).fillna("")
        for _, row in card[card["ours"] != ""].iterrows():
            rules.setdefault(row["id"], set()).add(judged_by(row))
    changed = {claim for claim, versions in rules.items() if len(versions) > 1}
    assert changed
    said = {claim.id for claim in CLAIMS if re.search("Changed after", claim.reason + claim.note)}
    assert changed & {claim.id for claim in CLAIMS} - said == set()
