"""The command line that goes through the stages without Snakemake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recaps.cli import main

pytestmark = pytest.mark.unit

CONFIG = Path(__file__).parents[2] / "config"


def test_list_names_every_variant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--config", str(CONFIG), "--scale", "paper"]) == 0
    text = capsys.readouterr().out
    assert "sparse: Sparse Unsupervised Capsules Generalize Better" in text
    assert "30000 steps" in text


def test_run_goes_through_all_stages_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["run", "--config", str(CONFIG), "--scale", "smoke", "--variants", "convnet-28", "--threads", "1"]
    assert main(command) == 0
    run = tmp_path / "results/smoke/runs/sparse/convnet-28/seed-0"
    assert json.loads((run / "heads/argmax-mnist-28.json").read_text())["stand_in"] is True
    assert json.loads((run / "record.json").read_text())["steps"] == 30
    made = sorted(file for file in tmp_path.rglob("*") if file.is_file())
    times = [file.stat().st_mtime_ns for file in made]
    capsys.readouterr()
    assert main(command) == 0
    assert capsys.readouterr().err == ""
    assert [file.stat().st_mtime_ns for file in made] == times


def test_a_misspelt_variant_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--config", str(CONFIG), "--variants", "sparscaps"]) == 1
    assert (
        capsys.readouterr().err
        == "recaps: --variants: sparse has no variant 'sparscaps' (did you mean 'sparsecaps'?)\n"
    )
