"""Measured times of training steps: own, published, and what a training asks a cluster for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from places import CONFIG
from timed_runs import publish

from recaps import step_times
from recaps.config.load import Project, load
from recaps.config.variant import Variant
from recaps.plan.plan import MORE_MINUTES, UNKNOWN_MINUTES, Plan
from recaps.step_times import image_shape, measured, merged, published, slowest, step_name
from recaps.training.batches import view_shape

pytestmark = pytest.mark.unit


def project(scale: str = "smoke", **values: Any) -> Project:
    return load({"scale": scale, **values}, CONFIG)


def variant(name: str, **training: Any) -> Variant:
    """Return a variant of `experts` with some settings of its training changed."""
    found = project().papers["experts"].variants[name]
    return found.model_copy(update={"training": found.training.model_copy(update=training)})


def named(each: Variant) -> str:
    return step_name(each, "", "auto")


def test_a_published_time_is_the_median_over_runs_of_the_same_work_on_a_device(tmp_path: Path) -> None:
    vae, rbm = variant("mnist-vae"), variant("mnist-rbm")
    publish(tmp_path, "mnist-vae", vae, "A", 1.0)
    publish(tmp_path, "mnist-vae", variant("mnist-vae", steps=7, learning_rate=0.5), "A", 9.0)
    publish(tmp_path, "mnist-vae", vae, "A", 2.0)
    publish(tmp_path, "mnist-vae", vae, "B", 5.0)
    publish(tmp_path, "mnist-rbm", rbm, "A", 7.0, trained="experts/mnist-rbm")
    assert published(tmp_path) == {"A": {named(vae): 2.0}, "B": {named(vae): 5.0}}
    times = [{"device": device, "variant": "v", "steps": 1, "wall_seconds": 9.0,
              "config": each.model_dump(mode="json", include={"model", "data", "training"})}
             for device, each in (("A", vae), ("A", rbm), ("C", rbm))]  # fmt: skip
    (tmp_path / "step-times.json").write_text(json.dumps(times))
    found = {"A": {named(vae): 2.0, named(rbm): 9.0}, "B": {named(vae): 5.0}, "C": {named(rbm): 9.0}}
    assert published(tmp_path) == found, "runs first"


def test_runs_with_settings_that_are_no_longer_valid_do_not_count(tmp_path: Path) -> None:
    vae = variant("mnist-vae")
    publish(tmp_path, "mnist-vae", vae, "A", 1.0)
    (file,) = tmp_path.rglob("record.json")
    record = json.loads(file.read_text())
    record["config"]["model"]["gone"] = record["config"]["training"]["gone"] = 1
    file.write_text(json.dumps(record))
    assert published(tmp_path) == {"A": {named(vae): 1.0}}, "options that are gone do not count"
    for model in ({"family": "gone"}, record["config"]["model"] | {"hidden": "wide"}):
        file.write_text(json.dumps(record | {"config": record["config"] | {"model": model}}))
        assert published(tmp_path) == {}


def test_own_times_come_before_others(tmp_path: Path) -> None:
    assert measured(tmp_path / "none.json") == {}
    (tmp_path / "times.json").write_text(json.dumps({"A": {"w//auto": {"seconds": 1.0, "peak": 1e9}}}))
    mine = measured(tmp_path / "times.json")
    assert mine == {"A": {"w//auto": 1.0}}
    others = {"A": {"w//auto": 2.0, "v//auto": 3.0}, "B": {"w//auto": 4.0}}
    assert merged(others, mine) == {"A": {"w//auto": 1.0, "v//auto": 3.0}, "B": {"w//auto": 4.0}}


def test_the_slowest_step_of_a_kind_of_device() -> None:
    times = {"GPU X": {"w/a/auto": 1.0, "w/b/auto": 2.0, "v//auto": 9.0}, "GPU Y": {"w//auto": 1.5},
             "CPU, 1 thread": {"w//auto": 30.0}, "CPU, 16 threads": {"w//auto": 20.0}}  # fmt: skip
    assert slowest(times, gpu=True) == {"w": 2.0, "v": 9.0}
    assert slowest(times, gpu=False) == {"w": 30.0}


def test_shapes_are_those_that_models_see() -> None:
    for paper in project("paper").papers.values():
        for each in paper.variants.values():
            about = step_times.describe(each.data.split("/")[0])
            whole = (about["channels"], about["height"], about["width"])
            assert image_shape(each) == view_shape(whole, each.training)


def minutes(attempt: int = 1, **values: Any) -> int:
    plan = Plan(project("paper", papers=["experts"], device="cuda", **values))
    return plan.training_minutes(SimpleNamespace(paper="experts", variant="mnist-vae", seed="0"), attempt)


def test_a_training_asks_for_the_time_that_its_steps_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / step_times.PUBLISHED
    experts = project("paper").papers["experts"].variants
    vae = experts["mnist-vae"]
    assert minutes() == UNKNOWN_MINUTES
    publish(folder, "mnist-vae", vae, "A CPU, 2 threads", 50.0)
    assert minutes() == UNKNOWN_MINUTES, "on a GPU"
    other = vae.model_copy(update={"training": vae.training.model_copy(update={"batch_size": 7})})
    settings = {"variants": {"other": other.model_dump(mode="json", exclude={"beside", "latents", "heads", "probes"})}}
    publish(folder, "other", other, "A GPU", 36000 / vae.training.steps)
    added = {"overrides": {"experts": settings}}
    assert minutes() == UNKNOWN_MINUTES, "of no variant here"
    assert minutes(**added) == MORE_MINUTES + 2 * 600, "the same family"
    publish(folder, "mnist-vae", vae, "A GPU", 6000 / vae.training.steps)
    assert minutes() == minutes(**added) == MORE_MINUTES + 2 * 100
    assert minutes(attempt=3) == 3 * minutes()
    assert minutes(attempt=3, max_training_minutes=300) == 300


def test_a_training_of_scae_fits() -> None:
    """300,000 steps of 49 ms on an H200 take four hours."""
    plan = Plan(project("paper", papers=["probabilistic"], device="cuda"))
    for name in ("scae", "scae-rotated-180", "scae-released"):
        asked = plan.training_minutes(SimpleNamespace(paper="probabilistic", variant=name, seed="0"), 1)
        assert asked > 1.5 * 300_000 * 0.049 / 60


def test_asking_for_times_needs_no_torch() -> None:
    code = "import sys, recaps.step_times as t; t.published(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
