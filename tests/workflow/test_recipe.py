"""The recipe of docs/adding-a-paper.md: a new paper is one folder, a new routing one file and one entry in YAML."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest
from clones import SMOKE, Clone, copy

#: Two papers at scale `smoke`, `consensus` on MNIST only.
SETTINGS = ("--config", "scale=smoke", "papers=[mine, consensus]", "without=[smallnorb]")

VARIANT = """\
  mnist-plain:
    <<: *mnist
    title: Plain
    model: {family: matrixcaps, routing: {name: recaps.nn.routing.plain:PlainRouting, sharpness: 2}}
"""
AT_SMOKE = "      mnist-plain: *small\n"

CLAIM = """
  - id: consensus/table-3/mnist-plain
    kind: bound
    where: Table 3
    statement: Plain routing classifies at least every other test image.
    measure: {variant: mnist-plain, metric: error}
    unit: percent
    at_most: 50
    reason: For the test of the recipe.
"""


@pytest.fixture(scope="module")
def extended(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A copy with a new paper and a new routing, in which both have run."""
    clone = copy(root, tmp_path_factory.mktemp("extended"))
    for command in (["paper", "mine"], ["routing", "plain", "--kind", "poses"]):
        done = clone.python("recaps", "new", *command)
        assert done.status == 0, done.output
    assert VARIANT.replace("sharpness: 2", "sharpness: 1.0") in f"{done.output}\n", "what the command advises"
    consensus = clone.folder / "src/recaps/papers/consensus"
    text = (consensus / "paper.yaml").read_text()
    for place, more in (("\n  norb-", VARIANT), ("\n      mnist-similarity: {model: {compiled: true}}", AT_SMOKE)):
        assert place in text
        text = text.replace(place, f"\n{more}{place[1:]}", 1)
    (consensus / "paper.yaml").write_text(text)
    with (consensus / "claims.yaml").open("a") as file:
        file.write(CLAIM)
    done = clone.snakemake(*SMOKE, *SETTINGS)
    assert done.status == 0, done.output[-6000:]
    return clone


def results(clone: Clone, file: str) -> pd.DataFrame:
    return pd.read_csv(clone.folder / "results/smoke" / file)


def test_the_paper_is_in_tables_figures_and_scorecard(extended: Clone) -> None:
    assert list(results(extended, "papers/mine/table-1.csv")["routing"]) == ["Dynamic routing", "One iteration"]
    assert set(results(extended, "papers/mine/figure-1.csv")["variant"]) == {"dynamic", "single"}
    claim = results(extended, "scorecard.csv").set_index("id").loc["mine/table-1/dynamic"]
    assert float(claim["ours"]) == pytest.approx(results(extended, "papers/mine/table-1.csv")["ours"][0], abs=0.01)
    assert "mine" in (extended.folder / "results/smoke/report.html").read_text()


def test_the_routing_is_in_tables_figures_and_scorecard(extended: Clone) -> None:
    table = results(extended, "papers/consensus/table-3.csv")
    assert table.isin(["Plain"]).any(axis=None), table
    assert "mnist-plain" in set(results(extended, "papers/consensus/figure-7.csv")["variant"])
    claim = results(extended, "scorecard.csv").set_index("id").loc["consensus/table-3/mnist-plain"]
    assert float(claim["ours"]) > 0


def test_the_paper_is_a_target_everywhere(extended: Clone) -> None:
    assert "mine" in extended.snakemake("--list-target-rules").output.split()
    assert "mine: Title of the paper" in extended.python("recaps", "list").output
    manual = extended.python("recaps.config.manual")
    assert manual.status == 0, manual.output


def test_nothing_misses_a_paper_that_is_taken_out(extended: Clone) -> None:
    """Neither by a dry run of the others nor by the list. The comparison needs the models of all papers."""
    taken = extended.folder / "taken"
    for paper in ("mine", "comparison", "sparse"):
        shutil.move(extended.folder / "src/recaps/papers" / paper, taken / paper)
    try:
        assert "draw_tables_of_consensus" in extended.plan()
        listed = extended.python("recaps", "list")
    finally:
        for paper in taken.iterdir():
            shutil.move(paper, extended.folder / "src/recaps/papers" / paper.name)
    assert listed.status == 0, listed.output
    assert "consensus:" in listed.output
    assert "sparse:" not in listed.output
