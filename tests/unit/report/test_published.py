"""The published record: everything in it can be drawn again from the records of its runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from places import CONFIG

from recaps.report import publish, scorecard, verdicts

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("scale", ["desk", "paper"])
def test_the_published_record_can_be_drawn_again(root: Path, tmp_path: Path, scale: str) -> None:
    """It gives the same numbers and verdicts."""
    before, after = root / "results/published" / scale, tmp_path / "published" / scale
    shutil.copytree(before, after)
    drawn = [*after.glob("papers/*/*.csv"), *after.glob("papers/*/*.md"), *after.glob("scorecard.*")]
    kept = {file for file in drawn if file.with_suffix(".png").exists()}
    for file in set(drawn) - kept:
        file.unlink()
    manifest = publish.draw_again(after, CONFIG)
    expected = json.loads((before / "MANIFEST.json").read_text())
    assert manifest["papers"] == expected["papers"]
    assert manifest["files"].keys() == expected["files"].keys()
    for file in before.glob("papers/*/metrics.csv"):
        assert (after / file.relative_to(before)).read_bytes() == file.read_bytes()
    made, again = (scorecard.load(folder / "scorecard.csv") for folder in (before, after))
    pd.testing.assert_frame_equal(made, again, rtol=1e-4)


@pytest.mark.parametrize("scale", ["desk", "paper"])
def test_a_claim_is_decided_by_three_seeds_or_names_what_would_decide(root: Path, scale: str) -> None:
    """Decided: an order or a limit at p < 0.05, a number by the interval of three seeds."""
    card = scorecard.load(root / f"results/published/{scale}/scorecard.csv")
    settled = (verdicts.REPRODUCED, verdicts.SUPPORTED, verdicts.PASSED, verdicts.FAILED)
    others = card[~card["verdict"].isin(settled)]
    decided = (others["seeds"] >= verdicts.FEWEST_SEEDS) & ((others["p_value"] < 0.05) | (others["kind"] == "number"))
    assert len(others)
    assert others[(others["decides"] == "") & ~decided]["id"].tolist() == []
