"""The published record: everything in it can be drawn again from the records of its runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from places import CONFIG

from recaps.report import publish

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("scale", ["desk", "paper"])
def test_the_published_record_can_be_drawn_again(root: Path, tmp_path: Path, scale: str) -> None:
    """It gives the same numbers, verdicts and manifest."""
    before, after = root / "results/published" / scale, tmp_path / "published" / scale
    shutil.copytree(before, after)
    for file in (*after.glob("papers/*/*.csv"), *after.glob("papers/*/*.md"), *after.glob("scorecard.*")):
        file.unlink() if file.name != "metrics.csv" else file.write_text("not read\n")
    manifest = publish.draw_again(after, CONFIG)
    drawn = json.loads((before / "MANIFEST.json").read_text())
    assert manifest["papers"] == drawn["papers"]
    assert manifest["files"].keys() == drawn["files"].keys()
    texts = [name for name in drawn["files"] if name.endswith((".csv", ".md", ".json"))]
    assert [name for name in texts if (before / name).read_bytes() != (after / name).read_bytes()] == []
