"""The documentation agrees with the published results and links to what exists; these results name their code."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from recaps.papers import FOLDER, names
from recaps.report.html import READINGS

pytestmark = pytest.mark.unit

PUBLISHED = "results/published/desk"
#: What is not typed by hand or is no number of ours: findings, code, addresses of links, names of parts of a paper.
NOT_COUNTED = re.compile(
    r"<!-- findings .*?<!-- /findings -->|^```.*?^```|`[^`]*`|(?<=\])\([^)]*\)"
    r"|(?i:equations?|eqs?\.|sections?|tables?|figures?|algorithm|procedure) [\dIV.]+(?:(?:, | and | to )\d[\d.]*)*",
    re.DOTALL | re.MULTILINE,
)
#: How many other numbers a paper's page may have: those that the paper prints, and settings. Results of ours belong
#: into `findings.md.j2`, which takes them from the records, or into the table of a study.
NUMBERS = {"comparison": 20, "consensus": 80, "discriminative": 70, "experts": 45, "probabilistic": 70, "sparse": 45}


def test_the_readme_is_short(root: Path) -> None:
    assert len((root / "README.md").read_text(encoding="utf-8").split()) <= 900


@pytest.mark.parametrize("paper", [name for name in names() if name != "comparison"])
def test_equations_and_code_come_first(paper: str) -> None:
    text = (FOLDER / paper / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^## .*", text, re.MULTILINE)[0] == "## Where to find it"


@pytest.mark.parametrize("paper", names())
def test_results_are_not_typed_into_a_papers_page(paper: str) -> None:
    words = NOT_COUNTED.sub("", (FOLDER / paper / "README.md").read_text(encoding="utf-8"))
    numbers = re.findall(r"(?<![A-Za-z])\d[\d.,]*", words)
    assert len(numbers) <= NUMBERS.get(paper, 50), numbers


@pytest.mark.parametrize("paper", names())
def test_a_papers_page_has_its_readings_and_links_its_published_tables(root: Path, paper: str) -> None:
    assert f"\n## {READINGS}\n" in (FOLDER / paper / "README.md").read_text(encoding="utf-8")
    published = root / PUBLISHED / "papers" / paper
    if not published.exists():
        pytest.skip("this paper is not published yet")
    linked = {target.resolve() for target in _targets(FOLDER / paper / "README.md")}
    assert linked & {file.resolve() for file in published.glob("*.md")}


def test_the_published_page_is_small_and_whole(root: Path) -> None:
    page = root / PUBLISHED / "index.html"
    assert page.stat().st_size < 600_000
    text = page.read_text(encoding="utf-8")
    targets = {target for target in re.findall(r'(?:href|src)="([^"#]+)"', text) if not target.startswith("http")}
    assert targets
    assert [target for target in targets if not (page.parent / target).is_file()] == []


def test_every_local_link_and_picture_exists(root: Path) -> None:
    pages = [root / "README.md", root / "CONTRIBUTING.md", root / "profiles/README.md", *(root / "docs").rglob("*.md")]
    for page in (*pages, *(FOLDER / paper / "README.md" for paper in names())):
        for target in _targets(page):
            assert target.exists(), f"{page} links to {target}, which does not exist"


def _targets(page: Path) -> list[Path]:
    """The files that a page links to or shows."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
    return [page.parent / link for link in links]


def test_published_runs_name_commits_of_this_history(root: Path) -> None:
    git = ["git", "-C", str(root)]
    if not (root / ".git").exists() or _run(*git, "rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("needs a clone with its whole history")
    history = set(_run(*git, "rev-list", "HEAD").split())
    made = {file: json.loads(file.read_text(encoding="utf-8")) for file in (root / "results/published").rglob("*.json")}
    commits = {
        file.relative_to(root).as_posix(): about["git"]["commit"] for file, about in made.items() if "git" in about
    }
    assert commits
    assert not [file for file, about in made.items() if "git" in about and about["git"]["dirty"]]
    lost = {file: commit for file, commit in commits.items() if commit not in history}
    assert not lost, "their commits are gone: train again from a commit that stays, and publish"


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
