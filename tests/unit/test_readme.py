"""README and docs show what was published, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from recaps.report.scorecard import counts, load

pytestmark = pytest.mark.unit

#: The table of each paper that its page in docs/papers shows.
SHOWN = {
    "sparse": "table-1",
    "consensus": "table-3",
    "experts": "table-1",
    "probabilistic": "table-1",
    "discriminative": "table-2",
}


def test_the_readme_counts_the_published_verdicts(root: Path) -> None:
    text = (root / "README.md").read_text(encoding="utf-8")
    scorecard = load(root / "results/published/desk/scorecard.csv")
    assert set(scorecard["paper"]) == set(SHOWN)
    for paper, rows in scorecard.groupby("paper"):
        (line,) = (line for line in text.splitlines() if line.startswith(f"| [`{paper}`]"))
        numbers = [int(cell) for cell in line.split("|")[2:6]]
        found = counts(rows)
        verdicts = ("reproduced", "direction holds", "not reproduced")
        assert numbers == [len(rows), *(found.get(verdict, 0) for verdict in verdicts)]


@pytest.mark.parametrize("paper", SHOWN)
def test_a_papers_page_shows_the_published_table(root: Path, paper: str) -> None:
    text = (root / f"docs/papers/{paper}.md").read_text(encoding="utf-8")
    table = root / f"results/published/desk/papers/{paper}/{SHOWN[paper]}.md"
    for line in table.read_text(encoding="utf-8").splitlines():
        if line.startswith("|"):
            assert line in text, f"docs/papers/{paper}.md lacks a line of the published table: {line}"


def test_every_local_link_and_picture_exists(root: Path) -> None:
    for page in (root / "README.md", root / "CONTRIBUTING.md", *(root / "docs").rglob("*.md")):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"
