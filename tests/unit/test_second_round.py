"""Inputs and interruptions of real users, written before the code that answers them: nothing silent, nothing raw."""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from messages import one_line
from PIL import Image
from resuming import digits, run, same
from snakemake.cli import parse_config

import recaps
from recaps import io, papers
from recaps.config.load import load
from recaps.config.reading import mapping, merged
from recaps.datasets import own
from recaps.errors import TryAgain, UserError
from recaps.plan.plan import Plan
from recaps.training import checkpoint
from recaps.training.interruption import Interrupted

pytestmark = pytest.mark.unit

ROOT = papers.FOLDER.parents[2]
DENSE = "overrides: {sparse: {variants: {dense-28: %s}}}"


# ---- Settings -------------------------------------------------------------------------------------------------------


def planned(*sources: dict[str, Any]) -> Plan:
    return Plan(load(merged([{"scale": "smoke", "papers": ["sparse"]}, *sources]), ROOT / "config"))


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    np.savez(tmp_path / "mine.npz", images=np.zeros((40, 28, 28), np.uint8), labels=np.arange(40) % 10)
    return tmp_path / "mine.npz"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("papers:\n\t- sparse", "not valid YAML"),
        (
            "papers: [Sparse]",
            "papers.0: 'Sparse' is not a name, of lower-case letters, digits and dashes (did you mean 'sparse'?)",
        ),
        ("seeds: 0-4", "config: seeds: Input should be a list, such as [0, 1, 2]"),
        ("papers: [sparse/dense-28]", "config: papers.0: 'sparse/dense-28' is not a name"),
        ("results: 2026-11-28", "config: results: Input should be a valid string, not 2026-11-28; write it in quotes"),
        (
            r"results: C:\Users\me\results",
            r"config: results: 'C:\\Users\\me\\results' contains a backslash; separate folders by /",
        ),
        ("results: 'results '", "config: results: 'results ' begins or ends with a space"),
        ("results: FILE", "config: results: FILE is a file; name a folder"),
        ("data: FILE", "config: data: FILE is a file; name a folder"),
        ("without: [MNIST_40]", "(did you mean 'mnist-40'?)"),
        ("device: cuda:1", "config: device: Input should be 'auto', 'cpu' or 'cuda', not 'cuda:1'"),
        ("datasets: {mine: {path: FILE}}", "config: datasets.mine: replaces no set"),
        ("datasets: {mnist: {path: FILE}}", "config: datasets.mnist: is the name of a set"),
        ("overrides: {sparse: {limits: {mnist/tset: 100}}}", "limits: no set matches 'mnist/tset'"),
        ("overrides: {sparse: {dense-28: {training: {steps: 5}}}}", "unknown key 'dense-28'"),
        (DENSE % "{training.steps: 5}", "unknown key 'variants.dense-28.training.steps'"),
        (DENSE % "null", "variants.dense-28: Input should be a mapping, not None"),
        (DENSE % "{training: {steps: '30,000'}}", "variants.dense-28.training.steps: Input should be a valid integer"),
        (
            "studies: {rates: {of: sparse/dense-28, vary: {training.learning_rate: [1e-3, 0.001]}}}",
            "studies.rates: two rows would be called dense-28-learning-rate-0.001",
        ),
        ("config: {seeds: [1]}", "config: unknown key 'config'"),
    ],
)
def test_files_of_settings(text: str, message: str, mine: Path) -> None:
    with pytest.raises(UserError) as caught:
        planned(mapping(text.replace("FILE", str(mine)), "mine.yaml"))
    assert message.replace("FILE", str(mine)) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("seeds=0,1,2", "config: seeds: Input should be a list, such as [0,1,2]"),
        ("papers=Sparse", "config: papers: Input should be a list, such as [Sparse]"),
        ("results=", "config: results: "),
    ],
)
def test_settings_on_the_command_line(key: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        planned(parse_config([key]))
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_numbers_that_yaml_takes_for_text_are_numbers() -> None:
    training = planned(mapping(DENSE % "{training: {learning_rate: 1e-4, steps: 1_000}}", ""))
    found = training.project.papers["sparse"].variants["dense-28"].training
    assert (found.learning_rate, found.steps) == (1e-4, 1000)


# ---- Own images -----------------------------------------------------------------------------------------------------


def picture(file: Path, value: int = 0) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8), value, np.uint8)).save(file)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(5):
        for name in ("cat", "dog"):
            picture(tmp_path / "set" / name / f"{number}.png", number)
    return tmp_path / "set"


def frames(folder: Path) -> None:
    pages = [Image.new("L", (8, 8), value) for value in (1, 2, 3)]
    pages[0].save(folder / "cat" / "5.tiff", save_all=True, append_images=pages[1:])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (frames, r"cat/5\.tiff: has 3 pictures; save each in a file of its own"),
        (lambda folder: picture(folder / "cat" / "more" / "5.png"), r"cat/more: .*move its pictures"),
        (lambda folder: picture(folder / "5.png"), r"set/5\.png: .*in no folder of a class"),
        (lambda folder: (folder / "cat" / "5.png").symlink_to("nowhere.png"), r"cat/5\.png: not a whole picture"),
        (lambda folder: (folder / "__MACOSX").mkdir(), "__MACOSX: no picture"),
    ],
)
def test_folders_of_pictures(change: Callable[[Path], None], message: str, folder: Path) -> None:
    change(folder)
    with one_line(message):
        own.read(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": np.arange(20)[:, None] % 4}, r"labels has shape \[20, 1\]"),
        ({"labels": np.array(["cat", "dog"] * 10)}, "labels is <U3; use whole numbers from 0 to K - 1"),
        ({"images": np.array([None] * 20)}, "images holds Python objects"),
        ({"labels": np.int64(3)}, r"labels has shape \[\]"),
    ],
)
def test_archives(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    """Also when a command only plans."""
    file = tmp_path / "mine.npz"
    np.savez(file, **{"images": np.zeros((20, 8, 8), np.uint8), "labels": np.arange(20) % 4, **changes})
    with one_line(message):
        own.read(file)
    for read in (own.number_of_classes, lambda path: own.sizes(path, 0.2)):
        with suppress(UserError):
            read(file)


# ---- Estimators and trained runs ------------------------------------------------------------------------------------


def classifier() -> Any:
    return recaps.CapsuleClassifier(steps=2, batch_size=8, random_state=0, device="cpu")


@pytest.mark.parametrize(
    "kind",
    [
        lambda X: [Image.fromarray(each) for each in X],
        lambda X: torch.from_numpy(X),
        lambda X: X.tolist(),
        lambda X: X.astype(">f4") / 255,
        lambda X: X[:, ::-1][:, ::-1],
    ],
)
def test_images_of_other_kinds_are_read_as_an_array(kind: Callable[[Any], Any]) -> None:
    X = np.random.default_rng(0).integers(0, 256, (16, 8, 8), dtype=np.uint8)
    y = np.arange(16) % 2
    model, other = classifier().fit(X, y), classifier().fit(kind(X), y)
    assert np.allclose(model.predict_proba(X), other.predict_proba(kind(X)), atol=1e-6)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return digits(tmp_path_factory.mktemp("digits"), 60)


SETTINGS: dict[str, Any] = {"model": {"family": "convnet"}, "training": {"steps": 6, "batch_size": 8, "log_every": 2}}


@pytest.fixture(scope="module")
def whole(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(SETTINGS, dataset, tmp_path_factory.mktemp("whole"))


@pytest.fixture
def trained(whole: Path, tmp_path: Path) -> Path:
    (tmp_path / "copy").mkdir()
    for file in whole.iterdir():
        (tmp_path / "copy" / file.name).write_bytes(file.read_bytes())
    return tmp_path / "copy"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("config.json", "{}"),
        ("config.json", "[]"),
        ("config.json", '{"model": {"family": "convnet"}}'),
        ("record.json", ""),
        ("model.safetensors", ""),
    ],
)
def test_runs_with_other_content(file: str, text: str, trained: Path) -> None:
    (trained / file).write_text(text)
    with one_line(re.escape(str(trained / file))):
        recaps.load(trained, device="cpu")


@pytest.mark.parametrize(
    ("place", "options", "message"),
    [
        ("model.safetensors", {}, "model.safetensors: is a file; name the folder that holds it"),
        (".", {"step": "3"}, "step: '3' is no whole number"),
        (".", {"device": "gpu"}, "device: there is no device 'gpu'; use auto, cpu or cuda"),
    ],
)
def test_runs_named_in_another_way(place: str, options: dict[str, Any], message: str, trained: Path) -> None:
    with one_line(re.escape(message)):
        recaps.load(trained / place, **options)


# ---- Interruptions --------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Ends a run as SIGKILL would, without anything that comes after it."""


def at_replace(monkeypatch: pytest.MonkeyPatch, target: str, act: Callable[[], None], after: bool = False) -> None:
    """Act once before or after a file is renamed to one named `target`."""
    replace, done = os.replace, []

    def acting(source: Any, new: Any) -> None:
        if after:
            replace(source, new)
        if Path(new).name == target and not done:
            done.append(1)
            act()
        if not after:
            replace(source, new)

    monkeypatch.setattr(os, "replace", acting)


def frequently(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a checkpoint after each step."""
    train = recaps.training.run.fit
    monkeypatch.setattr("recaps.training.run.fit", lambda *a, **b: train(*a, **{**b, "checkpoint_seconds": 0}))


def kill() -> None:
    raise Killed


def interrupt_twice() -> None:
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)


def full() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("target", "after", "act", "ends_with"),
    [
        ("checkpoint.pt.new", False, lambda: signal.raise_signal(signal.SIGHUP), Interrupted),
        ("checkpoint.pt.new", True, lambda: signal.raise_signal(signal.SIGTERM), Interrupted),
        ("checkpoint.pt.new", False, interrupt_twice, KeyboardInterrupt),
        ("checkpoint.previous.pt", True, kill, Killed),
        ("history.csv", False, full, TryAgain),
    ],
)
def test_interrupted_while_a_file_is_written(
    target: str,
    after: bool,
    act: Callable[[], None],
    ends_with: type[BaseException],
    dataset: Path,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        frequently(patch)
        at_replace(patch, target, act, after)
        with pytest.raises(ends_with):
            run(SETTINGS, dataset, tmp_path)
    assert not list(tmp_path.rglob("*.part"))
    assert same(whole, run(SETTINGS, dataset, tmp_path))
    assert {each.name for each in tmp_path.rglob("checkpoint*")} <= {"checkpoints", checkpoint.FILE}


def test_a_full_disk_at_the_first_checkpoint_and_then_a_kill(
    dataset: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        frequently(patch)
        at_replace(patch, "checkpoint.pt.new", full)
        at_replace(patch, checkpoint.FILE, kill)
        with pytest.raises(Killed):
            run(SETTINGS, dataset, tmp_path)
    assert "no checkpoint of step 1" in capsys.readouterr().err
    assert same(whole, run(SETTINGS, dataset, tmp_path))


def test_a_hangup_that_is_ignored_stays_ignored(
    dataset: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        frequently(monkeypatch)
        at_replace(monkeypatch, checkpoint.FILE, lambda: signal.raise_signal(signal.SIGHUP))
        assert same(whole, run(SETTINGS, dataset, tmp_path))
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_checkpoint_that_a_power_cut_emptied(
    dataset: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        frequently(patch)
        at_replace(patch, "history.csv", kill)
        with pytest.raises(Killed):
            run(SETTINGS, dataset, tmp_path)
    for file in tmp_path.rglob("checkpoint*.pt"):
        io.write_bytes(file, b"")
    assert same(whole, run(SETTINGS, dataset, tmp_path))
    assert "damaged" in capsys.readouterr().err
