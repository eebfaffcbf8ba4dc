"""GPU-hours asked and used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from recaps.report.cost import summary


def record(folder: Path, paper: str, seconds: float, *starts: dict[str, Any]) -> Path:
    file = folder / f"{len(list(folder.iterdir()))}.json"
    values = {"paper": paper, "variant": "x", "seed": 0, "wall_seconds": seconds, "starts": list(starts)}
    file.write_text(json.dumps(values))
    return file


def test_sums_by_paper(tmp_path: Path) -> None:
    files = [
        record(tmp_path, "sparse", 1800, {"gpus": 1, "minutes": 60}, {"gpus": 1, "minutes": 120}),
        record(tmp_path, "sparse", 3600, {"gpus": 2, "minutes": 60}),
        record(tmp_path, "experts", 900, {"gpus": 1, "minutes": 30}),
        record(tmp_path, "experts", 900, {"device": "a laptop"}),
        tmp_path / "not-yet.json",
    ]
    table = [line.split() for line in summary(files).splitlines()[1:]]
    assert table == [
        ["sparse", "2", "3", "5.0", "2.50"],
        ["experts", "1", "1", "0.5", "0.25"],
        ["all", "3", "4", "5.5", "2.75"],
    ]


@pytest.mark.parametrize("starts", [[], [{"device": "cpu"}], [{"job": "7", "gpus": 0, "minutes": 60}]])
def test_nothing_to_tell_without_gpus_of_a_cluster(tmp_path: Path, starts: list[dict[str, Any]]) -> None:
    assert summary([record(tmp_path, "sparse", 10, *starts)]) == ""
