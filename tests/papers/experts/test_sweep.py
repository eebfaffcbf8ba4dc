"""The sweep of W: one autoencoder, a row for each setting."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from recaps import arrays
from recaps.arrays import Arrays
from recaps.papers.experts import sweep


@pytest.fixture
def split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Squares at two places; 40 of the 100 images are held out."""
    monkeypatch.setattr(sweep, "HELD_OUT", 40)
    monkeypatch.setattr(sweep, "COMPARED", 30)
    drawn = np.random.default_rng(0)
    labels = np.arange(100) % 2
    images = drawn.integers(0, 20, (100, 1, 28, 28)).astype(np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[0, 8 + 8 * label : 16 + 8 * label, 8:20] += 200
    record = {"name": "mnist", "split": "train", "classes": 10, "stand_in": True}
    return arrays.save(Arrays(images, labels, {}, record), tmp_path / "mnist/train")


def _rows(split: Path, root: Path, *more: str) -> list[dict[str, str]]:
    out = split / "sweep.csv"
    common = ["mnist", str(split), "--scale", "smoke", "--config", str(root / "config"), "--out", str(out)]
    assert sweep.main([*common, "--decoder-steps", "3", "--threads", "1", *more]) == 0
    return list(csv.DictReader(out.open(encoding="utf-8")))


def test_each_setting_starts_from_the_same_autoencoder(split: Path, root: Path) -> None:
    both = _rows(split, root, "--rates", "1", "20", "--steps", "2", "4")
    assert [(row["rate"], row["steps"]) for row in both] == [("1.0", "2"), ("1.0", "4"), ("20.0", "2"), ("20.0", "4")]
    alone = _rows(split, root, "--rates", "20", "--steps", "4")
    assert alone == both[-1:]
    assert both[0]["selectivity"] != both[-1]["selectivity"]


def test_an_unknown_data_set_is_told_in_one_line(split: Path, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = [str(split), "--scale", "smoke", "--config", str(root / "config"), "--out", str(split / "sweep.csv")]
    assert sweep.main(["mnis", *common, "--rates", "1", "--steps", "2"]) == 1
    assert capsys.readouterr().err == "recaps: no variants mnis-experts and mnis-judge\n"
