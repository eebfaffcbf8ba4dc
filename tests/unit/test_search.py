"""Searching settings on training images: what counts is measured on images that nothing learned from."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from recaps import arrays, search
from recaps.arrays import Arrays

pytestmark = pytest.mark.unit


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """Two classes, bright above or below, but for the last 10 images, whose labels are the other way round."""
    drawn = np.random.default_rng(0)
    labels = np.arange(60) % 2
    images = drawn.integers(0, 30, (60, 1, 28, 28)).astype(np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[0, 14 * label : 14 * (label + 1)] += 200
    labels[-10:] = 1 - labels[-10:]
    record = {"name": "mnist", "split": "train", "classes": 2, "stand_in": True}
    return arrays.save(Arrays(images, labels, {}, record), tmp_path / "mnist/train")


def _rows(split: Path, root: Path, *more: str) -> list[dict[str, str]]:
    out = split / "search.csv"
    common = [
        "probabilistic",
        "vae",
        str(split),
        "--scale",
        "smoke",
        "--config",
        str(root / "config"),
        "--out",
        str(out),
    ]
    assert search.main([*common, "--fit", "40", "--held-out", "10", "--threads", "1", *more]) == 0
    return list(csv.DictReader(out.open(encoding="utf-8")))


def test_the_last_images_judge_and_the_first_fit(split: Path, root: Path) -> None:
    right, wrong = (
        float(_rows(split, root, "--trial", "{training: {steps: 40}}", "--held-out", str(held))[0]["linear %"])
        for held in (20, 10)
    )
    # Of the last 10 none is right, since their labels are turned round; of the last 20 half.
    assert (right, wrong) == (50.0, 0.0)


def test_every_trial_has_a_row_that_says_what_it_changed(split: Path, root: Path) -> None:
    trials = ("{training: {steps: 2}}", "{model: {latent_dim: 3}, training: {steps: 3}}")
    rows = _rows(split, root, *(word for trial in trials for word in ("--trial", trial)))
    assert [row["changed"] for row in rows] == list(trials)
    assert [row["steps"] for row in rows] == ["2", "3"]


def test_the_same_trial_gives_the_same_row(split: Path, root: Path) -> None:
    first, second = (_rows(split, root, "--trial", "{training: {steps: 5}}")[0] for _ in range(2))
    first.pop("seconds"), second.pop("seconds")
    assert first == second


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--trial", "{training: {step: 2}}", "--held-out", "10"], "step"),
        (["--held-out", "30"], "--fit, --held-out"),
        (["--held-out", "0"], "--fit, --held-out"),
        (["--trial", "steps", "--held-out", "10"], "--trial: 'steps' is no mapping"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    split: Path, root: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    common = ["probabilistic", "vae", str(split), "--scale", "smoke", "--config", str(root / "config")]
    assert search.main([*common, "--out", str(split / "out.csv"), "--fit", "40", *more]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_misspelt_variant_is_told(split: Path, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--scale", "smoke", "--config", str(root / "config"), "--out", str(split / "out.csv"), "--fit", "40"]
    assert search.main(["probabilistic", "vea", str(split), *more, "--held-out", "10", "--trial", "{model: {}}"]) == 1
    assert "no variant 'vea' (did you mean 'vae'?)" in capsys.readouterr().err
