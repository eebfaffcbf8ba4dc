"""README and docs show what was published, and nothing else; and what was published can be traced to its code."""

from __future__ import annotations

import json
import re
import subprocess
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


def test_published_runs_name_commits_of_this_history(root: Path) -> None:
    git = ["git", "-C", str(root)]
    if not (root / ".git").exists() or _says(*git, "rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("needs a clone with its history")
    history = set(_says(*git, "rev-list", "HEAD").split())
    made = {file: json.loads(file.read_text(encoding="utf-8")) for file in (root / "results/published").rglob("*.json")}
    commits = {
        file.relative_to(root).as_posix(): about["git"]["commit"] for file, about in made.items() if "git" in about
    }
    assert commits
    assert not [file for file, about in made.items() if "git" in about and about["git"]["dirty"]]
    lost = {file: commit for file, commit in commits.items() if commit not in history}
    assert not lost, "train these again from a commit that stays, and publish them"


def _says(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
