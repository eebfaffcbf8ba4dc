"""The rule of a conjecture is older than the numbers that it judges."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pandas as pd
import pytest

from recaps.papers import FOLDER, names
from recaps.report.claims import Claim, read

pytestmark = pytest.mark.unit

CONJECTURES = {
    claim.id: claim for paper in names() for claim in read(FOLDER / paper / "claims.yaml") if claim.role == "conjecture"
}


def git(root: Path, *arguments: str) -> list[str]:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def first_commit(root: Path, file: Path, text: str) -> str | None:
    """The first commit in which a file holds a text."""
    found = git(root, "log", "--reverse", "--format=%H", f"-S{text}", "--", str(file))
    return found[0] if found else None


@pytest.mark.parametrize("claim", CONJECTURES.values(), ids=CONJECTURES)
def test_the_rule_was_committed_before_its_numbers(root: Path, claim: Claim) -> None:
    if not (root / ".git").exists() or git(root, "rev-parse", "--is-shallow-repository") == ["true"]:
        pytest.skip("needs the history of the repository")
    measured = root / "results/published/desk/papers" / claim.measured_in / "metrics.csv"
    if not measured.exists():
        pytest.skip("not published")
    table = pd.read_csv(measured)
    for each in claim.measures:
        rows = table[(table["variant"] == each.variant) & (table["metric"] == each.metric)]
        if len(rows):
            rule = first_commit(root, FOLDER / claim.paper / "claims.yaml", claim.id)
            numbers = first_commit(root, measured, f"{each.variant},{rows['seed'].iloc[0]},{each.metric},")
            assert rule, "commit the rule"
            assert numbers is None or numbers in git(root, "rev-list", f"{rule}..HEAD"), claim.id


def test_each_conjecture_says_where_it_stands_and_why_its_rule_is_so() -> None:
    assert CONJECTURES
    for claim in CONJECTURES.values():
        assert claim.where
        assert claim.reason
        assert claim.kind in ("ordering", "bound")
