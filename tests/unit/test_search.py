"""The search for settings: accuracy is measured on held-out training images."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from recaps import arrays, search
from recaps.arrays import Arrays
from recaps.training.interruption import Interrupted

pytestmark = pytest.mark.unit


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """Two classes, bright above or below; the last 10 images have swapped labels."""
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


def test_heads_are_fitted_on_the_first_images_and_tested_on_the_last(split: Path, root: Path) -> None:
    right, wrong = (
        float(_rows(split, root, "--trial", "{training: {steps: 40}}", "--held-out", str(held))[0]["linear %"])
        for held in (20, 10)
    )
    # The accuracy is 0 on the last 10 images, whose labels are swapped, and 50 % on the last 20.
    assert (right, wrong) == (50.0, 0.0)


def test_every_trial_has_a_row_with_its_changes(split: Path, root: Path) -> None:
    trials = ("{training: {steps: 2}}", "{model: {latent_dim: 3}, training: {steps: 3}}")
    rows = _rows(split, root, *(word for trial in trials for word in ("--trial", trial)))
    assert [row["changed"] for row in rows] == list(trials)
    assert [row["steps"] for row in rows] == ["2", "3"]


def test_the_same_trial_gives_the_same_row(split: Path, root: Path) -> None:
    first, second = (_rows(split, root, "--trial", "{training: {steps: 5}}")[0] for _ in range(2))
    first.pop("seconds"), second.pop("seconds")
    assert first == second


def test_trials_of_the_same_time_have_as_many_steps_as_fit(
    split: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 2.0])  # 20 steps in 2 seconds
    monkeypatch.setattr(search, "time", SimpleNamespace(process_time=lambda: next(clock), perf_counter=lambda: 0.0))
    asked = []
    monkeypatch.setattr(search, "fit", lambda model, *_, **__: asked.append(model.training_options))
    assert (
        _rows(split, root, "--minutes", "0.1", "--trial", "{training: {steps: 40, lr_decay_steps: 10}}")[0]["steps"]
        == "60"
    )
    assert [(each.steps, each.lr_decay_steps) for each in asked] == [(20, 10), (20, 10), (60, 15)]


def test_the_diagnosis_of_the_model_is_in_the_row(split: Path, root: Path) -> None:
    arguments = ["probabilistic", "capsules", str(split), "--scale", "smoke", "--config", str(root / "config")]
    out = split / "search.csv"
    trial = ["--trial", "{training: {steps: 2}}", "--fit", "20", "--held-out", "10", "--out", str(out)]
    assert search.main([*arguments, *trial]) == 0
    row = next(csv.DictReader(out.open(encoding="utf-8")))
    assert {"bound", "objects", "log odds spread"} <= row.keys()
    assert 1 <= float(row["live templates"]) <= 16


def test_class_scores_of_the_model_itself_are_tested(split: Path, root: Path) -> None:
    arguments = ["sparse", "convnet", str(split), "--scale", "smoke", "--config", str(root / "config")]
    arguments += ["--fit", "1", "--trial", "{model: {classes: 2}, training: {steps: 40, shift: 0}}"]
    found = []
    for held in ("20", "10"):
        out = split / f"{held}.csv"
        assert search.main([*arguments, "--held-out", held, "--out", str(out)]) == 0
        found += list(csv.DictReader(out.open(encoding="utf-8")))
    assert [float(row["argmax %"]) for row in found] == [50.0, 0.0]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--trial", "{training: {step: 2}}", "--held-out", "10"], "step"),
        (["--held-out", "30"], "--fit, --held-out"),
        (["--held-out", "0"], "--fit, --held-out"),
        (["--trial", "steps", "--held-out", "10"], "--trial 'steps': expected a mapping of keys to values"),
        (["--trial", "{}", "--trial", "{model: {}}}", "--held-out", "10"], "--trial '{model: {}}}': not valid YAML: "),
    ],
)
def test_a_mistake_is_reported_in_one_line(
    split: Path, root: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    common = ["probabilistic", "vae", str(split), "--scale", "smoke", "--config", str(root / "config")]
    assert search.main([*common, "--out", str(split / "out.csv"), "--fit", "40", *more]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (split / "out.csv").exists(), "no trial is run before all are read"


def test_finished_trials_are_kept_when_the_search_is_stopped(
    split: Path, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(given: Any, changed: dict[str, Any], arrays: Arrays) -> dict[str, Any]:
        if changed:
            raise Interrupted("run again to continue")
        return {"changed": "{}"}

    monkeypatch.setattr(search, "row", stop)
    out = split / "out.csv"
    more = ["--fit", "40", "--held-out", "10", "--trial", "{}", "--trial", "{model: {}}", "--config", str(root)]
    assert search.main(["probabilistic", "vae", str(split), "--out", str(out), *more]) == 130
    assert capsys.readouterr().err == f"recaps: stopped; finished trials in {out}: 1 of 2\n"
    assert out.read_text() == "changed\n{}\n"


def test_a_misspelt_variant_is_reported(split: Path, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--scale", "smoke", "--config", str(root / "config"), "--out", str(split / "out.csv"), "--fit", "40"]
    assert search.main(["probabilistic", "vea", str(split), *more, "--held-out", "10", "--trial", "{model: {}}"]) == 1
    assert "no variant 'vea' (did you mean 'vae'?)" in capsys.readouterr().err
