"""Settings that mean something else than they seem to, or nothing, are refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.svm import LinearSVC

from recaps import papers
from recaps.config.load import load
from recaps.config.reading import mapping
from recaps.config.workflow import Config
from recaps.datasets import sources
from recaps.datasets.download import fetch
from recaps.errors import TryAgain, UserError
from recaps.workflow import stages
from recaps.workflow.plan import Plan, start

pytestmark = pytest.mark.unit

ROOT = papers.FOLDER.parents[2]
CONFIG = ROOT / "config"


def planned(**values: Any) -> Plan:
    return Plan(load({"scale": "smoke", "papers": ["sparse"], **values}, CONFIG))


def dense(**options: Any) -> dict[str, Any]:
    return {"overrides": {"sparse": {"variants": {"dense-28": options}}}}


def refused(**values: Any) -> str:
    with pytest.raises(UserError) as caught:
        planned(**values)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


# ---- YAML -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("overrides: {a: 1}\nscale: desk\noverrides: {b: 2}", "line 3: the key 'overrides' is there twice"),
        ("a: {b: 1, b: 2}", "line 1: the key 'b' is there twice"),
        ("seeds: [010]", "line 1: 010 is no plain decimal number; write it without leading zeros or colons"),
        ("seeds: [1:30]", "line 1: 1:30 is no plain decimal number"),
        ("a: [", "not valid YAML"),
    ],
)
def test_yaml_that_means_something_else(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        mapping(text, "mine.yaml")
    assert str(caught.value).startswith(f"mine.yaml: {message}")
    assert "\n" not in str(caught.value)


def test_yaml_that_is_right() -> None:
    text = "a: &x {b: 1, c: 2}\nd: {<<: *x, b: 3}\ne: [0, 10, -3, 0x1f, 1.0e-3]\nf: {1: a, '1': b}"
    assert mapping(text, "") == {
        "a": {"b": 1, "c": 2},
        "d": {"b": 3, "c": 2},
        "e": [0, 10, -3, 31, 0.001],
        "f": {1: "a", "1": "b"},
    }


# ---- Values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (dense(training={"steps": True}), "variants.dense-28.training: steps: true is no number"),
        (dense(training={"log_every": True}), "log_every: true is no number"),
        ({"seeds": [True]}, "config: seeds: true is no number"),
        ({"checkpoint_seconds": True}, "config: checkpoint_seconds: true is no number"),
        (dense(training={"lr_floor": 0.5}), "lr_floor: 0.5 is above the learning_rate, 0.001"),
        (dense(training={"shift": 40}), "variants.dense-28.training.shift: 40, but its images are 28x28"),
        (dense(training={"shift": 10**20}), "training.shift: 100000000000000000000, but its images are 28x28"),
        (dense(training={"crop": 64}), "variants.dense-28.training.crop: 64, but its images are 28x28"),
        (dense(training={"brightness": 1e6}), "variants.dense-28.training.brightness: Input should be less than"),
        (dense(training={"pad": 3000}), "variants.dense-28.training.pad: Input should be less than"),
        (dense(model={"frequency_range": [2, 3]}), "variants.dense-28.model.frequency_range.0: Input should be less"),
        (dense(probes={"single-capsule": 3}), "no function single_capsule to compute 'single-capsule' (did you mean"),
        ({"papers": "sparse"}, "config: papers: Input should be a list, such as [sparse]"),
        ({"without": [3]}, "config: without.0: Input should be a valid string, not 3"),
        ({"checkpoint_seconds": "often"}, "config: checkpoint_seconds: Input should be a valid number"),
    ],
)
def test_values_that_cannot_mean_anything(values: dict[str, Any], message: str) -> None:
    assert message in refused(**values)


def test_true_is_right_where_it_belongs() -> None:
    options = dense(training={"flip": True, "crop": 28, "shift": 27, "pad": 2})
    assert planned(**options).project.papers["sparse"].variants["dense-28"].training.flip


def test_the_size_of_own_images_is_known_before_they_are_read(tmp_path: Path) -> None:
    images, labels = np.zeros((40, 28, 28), np.uint8), np.arange(40) % 10
    np.savez(tmp_path / "mine.npz", images=images, labels=labels)
    datasets = {"mine": {"path": str(tmp_path / "mine.npz"), "size": 32}, "mnist": "mine"}
    assert "datasets.mine.size: 32, but mnist, which it replaces, has images of 28x28" in refused(datasets=datasets)


# ---- Paths ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["results", "data", "mirror"])
def test_homes_and_variables_are_replaced(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PLACE", "somewhere")
    assert getattr(Config.model_validate({key: "~/x"}), key) == f"{tmp_path}/x"
    assert getattr(Config.model_validate({key: "$PLACE/x"}), key) == "somewhere/x"


def test_jobs_read_the_replaced_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("recaps.checkout.require", lambda root, command: None)
    config: dict[str, Any] = {}
    plan = start(config, [{"scale": "smoke", "results": "~/x"}], ROOT)
    assert config["results"] == plan.results == f"{tmp_path}/x"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "the path is empty"),
        ("  ", "the path is empty"),
        ("$NOT_SET_ANYWHERE/x", "'$NOT_SET_ANYWHERE/x' names a variable that is not set"),
        ("~nobody-of-this-name/x", "names a user that is not there"),
        ("re{sults}", "contains '{', which Snakemake cannot have in the name of a file"),
        ("two\nlines", r"contains '\n', which Snakemake cannot have"),
    ],
)
@pytest.mark.parametrize("key", ["results", "data"])
def test_paths_that_make_folders_nobody_wants(key: str, path: str, message: str) -> None:
    assert f"config: {key}: " in (told := refused(**{key: path}))
    assert message in told


@pytest.mark.parametrize("address", ["ftp://user:secret@host/x", "s3://bucket/x"])
def test_mirrors_of_unknown_schemes(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = refused(mirror=address)
    assert "is not supported; give a folder, or an address with http://, https://, file://" in told
    assert "secret" not in told
    monkeypatch.setenv("RECAPS_MIRROR", address)
    with pytest.raises(UserError, match=r"RECAPS_MIRROR.*give a folder") as caught:
        fetch(sources.file("mnist", "train-labels-idx1-ubyte.gz"), tmp_path)
    assert "secret" not in str(caught.value)


def test_a_scheme_in_capitals_is_an_address() -> None:
    assert Config.model_validate({"mirror": "HTTP://host/x"}).mirror == "http://host/x"


# ---- Sizes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.zeros(10**15),
        lambda: np.zeros((10**10, 10**10)),
        lambda: np.zeros(10**19),
        lambda: torch.empty(10**15),
        lambda: torch.empty(10**10, 10**10),
    ],
)
def test_what_no_memory_holds_is_one_line(make: Callable[[], Any]) -> None:
    with pytest.raises(UserError, match="does not fit into memory") as caught, stages._enough_memory():
        make()
    assert "\n" not in str(caught.value)


def test_what_does_not_fit_beside_others_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECAPS_RUNS", "4")
    with pytest.raises(TryAgain, match="set `runs_per_gpu` lower"), stages._enough_memory():
        torch.empty(10**15)


def test_other_faults_stay_what_they_are() -> None:
    with pytest.raises(ValueError, match="infinity or a value too large for dtype"), stages._enough_memory():
        LinearSVC().fit(np.array([[np.inf], [1.0]]), [0, 1])
