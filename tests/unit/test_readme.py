"""The README shows what was published, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from recaps.report.scorecard import counts, load

pytestmark = pytest.mark.unit


def test_results_are_the_published_ones(root: Path) -> None:
    text = (root / "README.md").read_text(encoding="utf-8")
    published = root / "results/published/desk"
    for line in (published / "papers/sparse/table-1.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("|"):
            assert line in text, f"README.md lacks a line of the published table 1: {line}"
    for verdict, number in counts(load(published / "scorecard.csv")).items():
        assert f"{number} {verdict}" in text


def test_every_local_link_and_picture_exists(root: Path) -> None:
    for page in (root / "README.md", root / "CONTRIBUTING.md", *(root / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"
