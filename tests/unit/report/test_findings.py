"""Findings: their numbers come from the published records, and their words hold there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from recaps.papers import FOLDER, names
from recaps.report import findings
from recaps.report.html import _markdown

pytestmark = pytest.mark.unit

#: Digits in the words of a template that are no results.
NAMES = re.compile(r"CIFAR-10|\d+ degrees|[A-Za-z]\d+")
EXPRESSION = re.compile(r"{%.*?%}|{{.*?}}", re.DOTALL)
#: In an expression: names, keys of studies, numbers of decimals, percent, and what `given` asks.
SETTINGS = re.compile(r'"[lg]t", 0|"[^"]*"|\w+=[\d.]+|number\(\d\)|\b100\b|{{ given\(.*?\) }}|[a-z_]\w*', re.DOTALL)


@pytest.fixture
def record(root: Path, tmp_path: Path) -> Path:
    """The parts of the published record that the findings of `sparse` read."""
    published, copy = root / "results/published/desk", tmp_path / "desk"
    (copy / "papers/sparse").mkdir(parents=True)
    for file in ("scorecard.csv", "papers/sparse/metrics.csv"):
        shutil.copyfile(published / file, copy / file)
    return copy


def change(record: Path, value: float | None) -> None:
    """Set the dense model's accuracy on affNIST, or remove it."""
    file = record / "papers/sparse/metrics.csv"
    rows = pd.read_csv(file)
    chosen = (rows["variant"] == "dense") & (rows["metric"] == "svm-affnist-a-position")
    assert chosen.any()
    rows.loc[chosen, "value"] = value
    (rows if value is not None else rows[~chosen]).to_csv(file, index=False)


def test_a_sentence_has_the_numbers_of_the_record(root: Path, record: Path) -> None:
    before = findings.read(record, root / "config", "sparse")
    change(record, 70.04)
    after = findings.read(record, root / "config", "sparse")
    assert "the dense model has 70.0 % instead of 60.6" in after[0]
    assert "the dense model has 70.0 %" not in before[0]
    assert after[2:] == before[2:]


@pytest.mark.parametrize("value", [50.0, None])
def test_what_the_record_does_not_show_is_left_out(root: Path, record: Path, value: float | None) -> None:
    """The dense model is then not better than published, or not measured."""
    change(record, value)
    assert not any("but the dense model has" in text for text in findings.read(record, root / "config", "sparse"))


@pytest.mark.parametrize("paper", ["", *names()])
def test_findings_are_few_and_hold(root: Path, paper: str) -> None:
    for scale in ("desk", "paper") if paper == "discriminative" else ("desk",):
        record = root / "results/published" / scale
        made = findings.render(record, root / "config", paper)
        assert 1 <= len(made) <= (10 if paper else 4)
        assert findings.read(record, root / "config", paper) == made
        page = (record / "index.html").read_text(encoding="utf-8")
        assert all(_markdown(findings.PICTURE.sub("", text)) in page for text in made), "`make publish DRAW=1`"


@pytest.mark.parametrize("paper", ["", *names()])
def test_templates_hold_no_result(paper: str) -> None:
    text = (FOLDER / paper / findings.FILE).read_text(encoding="utf-8")
    words = re.sub(r"\]\([^)]*\)", "]", EXPRESSION.sub("", text))
    assert re.findall(r".*\d.*", NAMES.sub("", words)) == []
    assert [each for each in EXPRESSION.findall(text) if re.search(r"\d", SETTINGS.sub("", each))] == []


def test_the_readmes_are_rendered(root: Path) -> None:
    stale = [file for file, text in findings.pages(root).items() if file.read_text(encoding="utf-8") != text]
    assert stale == [], "run `make publish DRAW=1`"


def test_every_readme_shows_its_findings(root: Path) -> None:
    for file in (root / "README.md", *(FOLDER / paper / "README.md" for paper in names())):
        assert re.search(
            r"<!-- findings desk -->\n\n- .*<!-- /findings -->", file.read_text(encoding="utf-8"), re.DOTALL
        )


def test_writing_fills_the_markers_alone(root: Path, record: Path) -> None:
    project = record.parent / "project"
    shutil.copytree(record, project / "results/published/desk")
    shutil.copytree(root / "config", project / "config")
    page = project / "src/recaps/papers/sparse/README.md"
    page.parent.mkdir(parents=True)
    page.write_text("Before.\n<!-- findings desk -->\nold\n<!-- /findings -->\nAfter.\n")
    findings.write(project)
    text = page.read_text()
    assert text.startswith("Before.\n<!-- findings desk -->\n\n- SPARSECAPS has")
    assert text.endswith("\n\n<!-- /findings -->\nAfter.\n")
    assert "old" not in text
    assert "(README.md#steps-and-the-dense-model)" in text
