"""Training: batches, resuming bit for bit, interruptions, leases, and losses that are not finite."""

from __future__ import annotations

import csv
import errno
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
import pytest
import reference
import torch
from messages import one_line
from resuming import same
from safetensors.torch import load_file
from torch import nn

from recaps.arrays import Arrays, read
from recaps.config.training import Training
from recaps.datasets.preparation import prepare
from recaps.errors import TryAgain, UserError
from recaps.identity import key, of_split
from recaps.models import build
from recaps.models.schedule import learning_rate
from recaps.models.supcaps import SupCaps
from recaps.papers.consensus.options import MatrixCapsOptions
from recaps.papers.sparse.options import SparseCapsOptions
from recaps.papers.sparse.sparsecaps import SparseCaps
from recaps.training import checkpoint, device, loop, machine, timing
from recaps.training.batches import Batches
from recaps.training.images import Images, shifted
from recaps.training.interruption import Interrupted, StopRequests
from recaps.training.lease import Lease, this_process
from recaps.training.randomness import batch_indices, generator
from recaps.training.run import train
from recaps.training.saved import load_model
from recaps.training.testing import error_on
from recaps.training.timing import time_variants

pytestmark = pytest.mark.unit

SETTINGS: dict[str, Any] = {
    "model": {
        "family": "sparsecaps",
        "learning": "sparse",
        "conv_channels": 4,
        "primary_types": 2,
        "capsules": 4,
        "capsule_dim": 4,
        "decoder": [8],
        "boost_every": 5,
        "settle_steps": 3,
    },
    "training": {"steps": 24, "batch_size": 8, "shift": 2, "log_every": 5},
}
CPU = torch.device("cpu")
#: Files that stay in the folder of checkpoints.
KEPT = [checkpoint.FILE, checkpoint.IDENTITY, loop.STARTS]
IDENTITY = {"paper": "sparse", "variant": "tiny", "scale": "test"}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("datasets")
    return prepare("mnist", "train", root, root, stand_in=True, options={"limit": 100})


def run(dataset: Path, folder: Path, settings: dict[str, Any] = SETTINGS, **options: Any) -> Path:
    arguments = {"seed": 0, "threads": 1, "device": "cpu"} | options
    train(settings, identity=IDENTITY, dataset=dataset, out=folder / "run", checkpoints=folder / "ckpt", **arguments)
    return folder / "run"


def checkpoints(folder: Path) -> Path:
    """The folder of checkpoints of the only identity that was trained in a folder."""
    (file,) = (folder / "ckpt").glob(f"*/{checkpoint.IDENTITY}")
    return file.parent


def with_training(**changes: Any) -> dict[str, Any]:
    return SETTINGS | {"training": SETTINGS["training"] | changes}


def test_each_pass_over_the_data_takes_every_image_once() -> None:
    drawn = torch.cat([batch_indices(10, 4, 7, step) for step in range(5)])
    assert drawn[:10].sort().values.tolist() == list(range(10))
    assert drawn[10:].sort().values.tolist() == list(range(10))
    assert not torch.equal(drawn[:10], drawn[10:])


def test_randomness_depends_on_seed_purpose_and_counter() -> None:
    keys = [(0, "a", 0), (0, "a", 1), (0, "b", 0), (1, "a", 0)]
    values = [torch.rand(4, generator=generator(*key)) for key in keys]
    assert len({tuple(value.tolist()) for value in values}) == 4
    assert torch.equal(values[1], torch.rand(4, generator=generator(0, "a", 1)))


def test_shifts_match_the_loops() -> None:
    images = torch.randint(0, 256, (5, 1, 6, 7), dtype=torch.uint8)
    offsets = torch.tensor([[0, 0], [2, -1], [-3, 3], [5, 0], [0, -6]])
    expected = torch.stack([reference.shift(i[0], *o.tolist())[None] for i, o in zip(images, offsets, strict=True)])
    assert torch.equal(shifted(images, offsets), expected)


def test_a_batch_is_a_function_of_the_step() -> None:
    images = np.random.default_rng(0).integers(0, 256, (50, 1, 8, 8), dtype=np.uint8)
    split = Images(Arrays(images, np.arange(50)), torch.device("cpu"))
    make = lambda seed: Batches(split, Training(batch_size=8, shift=2), seed, torch.device("cpu"))  # noqa: E731
    assert torch.equal(make(0)(3)["images"], make(0)(3)["images"])
    assert not torch.equal(make(0)(3)["labels"], make(1)(3)["labels"])
    assert not torch.equal(make(0)(3)["labels"], make(0)(4)["labels"])
    assert make(0)(0)["images"].max() <= 1


def test_learning_rate_decays_continuously_to_its_floor() -> None:
    training = Training()
    assert learning_rate(training, 0) == 1e-3
    assert learning_rate(training, 1000) == pytest.approx(1e-3 * 0.96**0.5)
    assert learning_rate(training, 10**6) == 1e-6


def test_a_run_is_a_function_of_its_seed(dataset: Path, tmp_path: Path) -> None:
    first = run(dataset, tmp_path / "a")
    assert same(first, run(dataset, tmp_path / "b"))
    assert not same(first, run(dataset, tmp_path / "c", seed=1))


def test_the_record_of_a_run(dataset: Path, tmp_path: Path) -> None:
    folder = run(dataset, tmp_path)
    record = json.loads((folder / "record.json").read_text())
    assert record["seed"] == 0
    assert record["steps"] == 24
    assert record["dataset"]["stand_in"] is True
    assert record["config"]["training"]["shift"] == 2
    assert record["packages"]["torch"] == version("torch"), "without the build, such as +cpu or +cu130"
    assert record["wall_seconds"] > 0
    assert record["peak_memory_bytes"] > 1e7
    model, config = load_model(folder, torch.device("cpu"))
    assert config["image_shape"] == [1, 28, 28]
    assert model.latents(torch.zeros(1, 1, 28, 28))["capsules"].shape == (1, 4, 4)


def test_a_finished_run_is_written_again_without_training(dataset: Path, tmp_path: Path) -> None:
    first = run(dataset, tmp_path)
    assert sorted(os.listdir(checkpoints(tmp_path))) == sorted(KEPT), "no checkpoint before"
    seconds = json.loads((first / "record.json").read_text())["wall_seconds"]
    first.rename(tmp_path / "kept")
    again = run(dataset, tmp_path)
    assert same(tmp_path / "kept", again)
    record = json.loads((again / "record.json").read_text())
    assert (record["wall_seconds"], len(record["starts"]), record["interruptions"]) == (seconds, 2, 0)


def test_snapshots_are_the_weights_of_a_run_that_ends_there(dataset: Path, tmp_path: Path) -> None:
    never = SETTINGS["model"] | {"settle_steps": 0}
    whole = with_training(snapshots=[5, 20]) | {"model": never}
    out = run(dataset, tmp_path / "whole", whole)
    for step in (5, 20):
        ended = run(dataset, tmp_path / str(step), with_training(steps=step) | {"model": never})
        kept, there = (load_model(*which) for which in ((out, CPU, step), (ended, CPU)))
        assert all(torch.equal(a, b) for a, b in zip(*(m[0].state_dict().values() for m in (kept, there)), strict=True))
    plain = run(dataset, tmp_path / "plain", SETTINGS | {"model": never})
    last, alone = (load_model(each, CPU)[0].state_dict() for each in (out, plain))
    assert all(torch.equal(a, b) for a, b in zip(last.values(), alone.values(), strict=True))


def test_snapshots_survive_an_interruption(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = with_training(snapshots=[2, 10, 24])
    whole = run(dataset, tmp_path / "whole", settings)
    schedule = SparseCaps.schedule

    def interrupted(model: SparseCaps, number: int) -> Any:
        if number == 7:
            os.kill(os.getpid(), signal.SIGTERM)
        return schedule(model, number)

    with monkeypatch.context() as patch:
        patch.setattr(SparseCaps, "schedule", interrupted)
        with pytest.raises(Interrupted):
            run(dataset, tmp_path / "cut", settings)
    resumed = run(dataset, tmp_path / "cut", settings)
    assert (resumed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_history_has_a_row_per_interval_and_one_for_the_rest(dataset: Path, tmp_path: Path) -> None:
    rows = np.genfromtxt(run(dataset, tmp_path) / "history.csv", delimiter=",", names=True)
    assert rows["step"].tolist() == [5, 10, 15, 20, 24]


#: Trains a run. Its step number `pause` waits for a signal: the training never ends before it comes.
SCRIPT = """
import json, sys, time
from pathlib import Path
from recaps.training.interruption import Interrupted, StopRequests
from recaps.training.lease import Lease
from recaps.training.run import train
settings, dataset, folder = json.loads(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
pause, touch, enter, steps, stops = int(sys.argv[4]), Lease.touch, StopRequests.__enter__, [], []

def wait(lease):
    steps.append(1)
    while len(steps) == pause and not stops[0].requested:
        time.sleep(0.01)
    touch(lease)

def remember(stop):
    stops.append(stop)
    return enter(stop)

Lease.touch, StopRequests.__enter__ = wait, remember
try:
    train(settings, identity={"paper": "sparse", "variant": "tiny", "scale": "test"}, seed=0, dataset=dataset,
          out=folder / "run", checkpoints=folder / "ckpt", device="cpu", threads=1, checkpoint_seconds=0)
except Interrupted:
    raise SystemExit(75)
"""


def start(settings: dict[str, Any], dataset: Path, folder: Path, pause: int = 0) -> subprocess.Popen[bytes]:
    """Train in another process, which stops in its step number `pause`, if given, until a signal comes."""
    command = [sys.executable, "-c", SCRIPT, json.dumps(settings), str(dataset), str(folder), str(pause)]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def wait_for_step(folder: Path, step: int, process: subprocess.Popen[bytes]) -> None:
    """Wait for a checkpoint at `step` or later, or for the end of the process."""
    while process.poll() is None and saved_step(folder) < step:
        time.sleep(0.005)


def saved_step(folder: Path) -> int:
    """Return the step of the last checkpoint; 0 if there is none."""
    try:
        saved = checkpoint.read(checkpoints(folder) / checkpoint.FILE)
    except Exception:  # not there yet
        saved = None
    return int(saved["state"]["progress"]["step"]) if saved else 0


def test_killed_at_random_steps_and_resumed_it_ends_with_the_same_bits(dataset: Path, tmp_path: Path) -> None:
    """The kill comes at any point between two steps of the run and the step in which the process waits."""
    settings = with_training(steps=60)
    undisturbed = run(dataset, tmp_path / "whole", settings)
    folder, draw = tmp_path / "cut", random.Random(0)
    for step in sorted(draw.sample(range(5, 45), 3)):
        done = saved_step(folder)
        target = max(step, done + 1)
        process = start(settings, dataset, folder, pause=target - done + draw.randrange(2, 7))
        wait_for_step(folder, target, process)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not (folder / "run" / "record.json").exists()
    assert start(settings, dataset, folder).wait() == 0
    assert same(undisturbed, folder / "run")
    assert json.loads((folder / "run" / "record.json").read_text())["interruptions"] == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_on_a_signal_a_run_saves_and_exits_with_75(dataset: Path, tmp_path: Path, number: int) -> None:
    process = start(with_training(steps=400), dataset, tmp_path, pause=12)
    wait_for_step(tmp_path, 10, process)
    process.send_signal(number)
    assert process.wait() == 75
    assert not (tmp_path / "run").exists()
    assert checkpoint.FILE in os.listdir(checkpoints(tmp_path))
    assert os.listdir(tmp_path / "ckpt") == [checkpoints(tmp_path).name], "no lease"


def test_a_signal_in_the_process_itself_is_handled_and_the_handler_restored(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    original = Lease.touch

    def stop_at_first_step(lease: Lease) -> None:
        signal.raise_signal(signal.SIGTERM)
        original(lease)

    monkeypatch.setattr(Lease, "touch", stop_at_first_step)
    with pytest.raises(Interrupted, match="stopped at step 1 of 24"):
        run(dataset, tmp_path)
    assert signal.getsignal(signal.SIGTERM) is before
    monkeypatch.undo()
    assert same(run(dataset, tmp_path), run(dataset, tmp_path / "whole"))


def test_a_second_ctrl_c_stops_at_once_and_an_ignored_one_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    with StopRequests() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopRequests() as stop:
            signal.raise_signal(signal.SIGINT)
            assert not stop.requested
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_is_continued_has_the_whole_history_in_its_log_and_all_starts_in_its_record(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also a start that was killed before it saved anything."""
    settings = with_training(log_every=1)
    monkeypatch.setattr(loop, "take_steps", lambda *arguments: sys.exit(137))
    with pytest.raises(SystemExit):
        run(dataset, tmp_path, settings)
    monkeypatch.undo()
    interrupted(dataset, tmp_path, monkeypatch, settings=settings)
    shown = capsys.readouterr().err
    assert shown.startswith("step      1/24")
    record = json.loads((run(dataset, tmp_path, settings) / "record.json").read_text())
    assert (len(record["starts"]), record["interruptions"]) == (3, 2)
    assert capsys.readouterr().err.startswith(f"{shown}continuing from step 1 of 24\nstep      2/24")


def test_a_compilation_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    with machine.telling_of_compilation():
        for add in (lambda a: a + 1, lambda a: a + 2):
            numba.njit(add)(1)
    assert capsys.readouterr().err.count("compiling kernels, once on this machine") == 1


def interrupted(dataset: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    monkeypatch.setattr(Lease, "touch", lambda lease: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(Interrupted):
        run(dataset, folder, **options)
    monkeypatch.undo()


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"settings": with_training(batch_size=4)}, {"modules": {"recaps.training.step": "other"}}]
)
def test_a_checkpoint_of_another_run_is_not_continued(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    """It stays: back at the earlier settings, the run goes on with it."""
    interrupted(dataset, tmp_path, monkeypatch, modules={"recaps.training.step": "one"})
    change = {"modules": {"recaps.training.step": "one"}} | change
    other = run(dataset, tmp_path, **change)
    assert json.loads((other / "record.json").read_text())["interruptions"] == 0
    assert same(other, run(dataset, tmp_path / "whole", **change))
    assert len(list((tmp_path / "ckpt").iterdir())) == 2
    first = run(dataset, tmp_path, modules={"recaps.training.step": "one"})
    assert json.loads((first / "record.json").read_text())["interruptions"] == 1
    assert same(first, run(dataset, tmp_path / "first"))


def test_an_option_that_is_added_loses_no_checkpoint(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, training = SparseCapsOptions(**SETTINGS["model"]), Training(**SETTINGS["training"])
    now = {"model": model.model_dump(mode="json"), "training": training.model_dump(mode="json")}
    was = json.loads(json.dumps(now))
    del was["model"]["boost_step"], was["training"]["flip"]
    interrupted(dataset, tmp_path, monkeypatch, settings=was)
    folder = checkpoints(tmp_path)
    resumed = run(dataset, tmp_path, now)
    assert json.loads((resumed / "record.json").read_text())["interruptions"] == 1
    assert checkpoints(tmp_path) == folder


def test_the_folder_of_checkpoints_says_what_they_are_of(dataset: Path, tmp_path: Path) -> None:
    out = run(dataset, tmp_path, modules={"recaps.training.step": "one"})
    record = json.loads((out / "record.json").read_text())
    assert record["identity"] == {
        "settings": {**SETTINGS, "seed": 0},
        "data": {"mnist/train": of_split(read(dataset).record)},
        "modules": {"recaps.training.step": "one"},
    }
    about = json.loads((checkpoints(tmp_path) / checkpoint.IDENTITY).read_text())
    assert about == record["identity"] | {"device": {"type": "cpu"}}
    assert checkpoints(tmp_path).name == key(about)


def test_another_kind_of_device_has_checkpoints_of_its_own(tmp_path: Path) -> None:
    """The bits differ between kinds of devices."""
    about = {"settings": {"seed": 0}, "data": {}, "modules": {}}
    made = [checkpoint.folder_of(tmp_path, about | {"device": {"type": kind}}) for kind in ("cpu", "cuda", "cpu")]
    assert made[0] == made[2] != made[1]


def test_a_checkpoint_in_the_wrong_folder_is_refused(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that was copied by hand."""
    interrupted(dataset, tmp_path, monkeypatch)
    interrupted(dataset, tmp_path / "other", monkeypatch, seed=1)
    os.replace(checkpoints(tmp_path / "other") / checkpoint.FILE, checkpoints(tmp_path) / checkpoint.FILE)
    with pytest.raises(UserError, match="other settings, other data or another device; delete"):
        run(dataset, tmp_path)


def test_a_run_has_one_lease_whatever_its_settings(dataset: Path, tmp_path: Path) -> None:
    with Lease(tmp_path / "ckpt") as held:
        for settings in (SETTINGS, with_training(batch_size=4)):
            with pytest.raises(TryAgain, match="trains this run"):
                run(dataset, tmp_path, settings)
        assert os.listdir(tmp_path / "ckpt") == ["lease.json"], "nothing is begun"
        run(dataset, tmp_path, lease=held)
        assert (tmp_path / "ckpt" / "lease.json").exists(), "the caller gives it back"
    assert os.listdir(tmp_path / "ckpt") == [checkpoints(tmp_path).name]


def test_a_lease_is_touched_while_its_holder_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recaps.training.lease.TOUCHED", 0.01)
    with Lease(tmp_path) as lease:
        with lease.kept():
            os.utime(lease.file, (0, 0))
            deadline = time.monotonic() + 60
            while lease.file.stat().st_mtime == 0:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        os.utime(lease.file, (0, 0))
        time.sleep(0.1)
        assert lease.file.stat().st_mtime == 0


@pytest.mark.parametrize("which", ["training", "test"])
@pytest.mark.parametrize("array", ["images", "labels"])
def test_images_that_differ_from_their_record_are_refused(
    dataset: Path, tmp_path: Path, which: str, array: str
) -> None:
    damaged = tmp_path / "mnist" / "train"
    shutil.copytree(dataset, damaged)
    values = np.load(damaged / f"{array}.npy")
    values.flat[-1] ^= 1
    np.save(damaged / f"{array}.npy", values)
    settings = {"model": LABELLED, "training": {**SETTINGS["training"], "evaluate_every": 8}}
    sets = (damaged, dataset) if which == "training" else (dataset, damaged)
    with one_line(f"^{damaged}: its images differ from its record; delete the folder and run again$"):
        run(sets[0], tmp_path, settings, test=sets[1])
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "ckpt").exists()


def cut_short(content: bytes) -> bytes:
    return content[:-1000]


def flipped(content: bytes) -> bytes:
    """Flip one bit in the middle of the weights."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("damage", [cut_short, flipped, lambda content: b""])
@pytest.mark.parametrize("damaged", [(checkpoint.FILE,), (checkpoint.FILE, checkpoint.PREVIOUS)])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(
    dataset: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[bytes], bytes],
    damaged: tuple[str, ...],
) -> None:
    interrupted(dataset, tmp_path, monkeypatch)
    interrupted(dataset, tmp_path, monkeypatch)
    before = checkpoint.read(checkpoints(tmp_path) / checkpoint.PREVIOUS)
    last = checkpoint.read(checkpoints(tmp_path) / checkpoint.FILE)
    assert before is not None
    assert last is not None
    assert before["state"]["progress"]["step"] < last["state"]["progress"]["step"]
    for name in damaged:
        file = checkpoints(tmp_path) / name
        file.write_bytes(damage(file.read_bytes()))
    resumed = run(dataset, tmp_path)
    reported = [line for line in capsys.readouterr().err.splitlines() if "damaged" in line]
    assert [name for name in damaged if any(f"{name}: " in line for line in reported)] == list(damaged)
    assert len(reported) == len(damaged)
    then = ("using the checkpoint before it", "training starts anew")[: len(damaged)]
    assert [line.partition("; ")[2] for line in reported] == list(then)
    interruptions = json.loads((resumed / "record.json").read_text())["interruptions"]
    assert interruptions == 2, "also if nothing is left of them but the file of all starts"
    assert same(resumed, run(dataset, tmp_path / "whole"))


def test_a_save_that_is_cut_between_its_files_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    for step in (1, 2):
        checkpoint.save(tmp_path, {"step": step})
    os.replace(
        tmp_path / checkpoint.FILE, tmp_path / checkpoint.PREVIOUS
    )  # as in `save`, before the new one is in place
    assert checkpoint.load(tmp_path) == {"step": 2}
    checkpoint.save(tmp_path, {"step": 3})
    assert checkpoint.load(tmp_path) == {"step": 3}


LABELLED = {**SETTINGS["model"], "family": "supcaps", "capsules": 10}
LABELLED = {key: value for key, value in LABELLED.items() if key not in ("learning", "boost_every", "settle_steps")}


def test_the_test_error_is_in_the_history_and_changes_nothing_else(dataset: Path, tmp_path: Path) -> None:
    settings = {"model": LABELLED, "training": SETTINGS["training"]}
    tested = {"model": LABELLED, "training": {**SETTINGS["training"], "evaluate_every": 8, "evaluate_images": 30}}
    plain = run(dataset, tmp_path / "plain", settings)
    watched = run(dataset, tmp_path / "watched", tested, test=dataset)
    rows = list(csv.DictReader((watched / "history.csv").open()))
    errors = {int(row["step"]): row["test_error"] for row in rows}
    assert [step for step, error in errors.items() if error] == [8, 16, 24]
    assert list(errors) == [5, 8, 10, 15, 16, 20, 24]
    weights = [load_file(folder / "model.safetensors") for folder in (plain, watched)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    model, _ = load_model(watched, torch.device("cpu"))
    arrays = read(dataset)
    images, labels = torch.tensor(arrays.images[:30]) / 255, torch.tensor(arrays.labels[:30])
    with torch.inference_mode():
        wrong = (model.class_scores(images).argmax(1) != labels).sum()
    assert float(errors[24]) == pytest.approx(100 * int(wrong) / 30)


def test_the_error_is_that_of_a_loop_over_images_and_leaves_the_model_as_it_was() -> None:
    """With batch normalisation, whose running means a forward pass in training mode would change."""
    torch.manual_seed(0)
    options = MatrixCapsOptions(conv_channels=4, types=(2, 2, 2), routing={"name": "em"})
    model = build(options, (1, 20, 20), 3).train()
    images, labels = torch.rand(17, 1, 20, 20), torch.arange(17) % 3
    before = {name: value.clone() for name, value in model.state_dict().items()}
    split = Images(Arrays((255 * images).byte().numpy(), labels.numpy()), CPU)
    with torch.inference_mode():
        scores = [model.eval().class_scores((255 * image).byte().float()[None] / 255)[0].argmax() for image in images]
    model.train()
    for n, batch_size in ((17, 7), (10, 3), (None, 250)):
        training = Training(evaluate_every=1, evaluate_images=n)
        wrong = [score != label for score, label in zip(scores, labels, strict=True)][:n]
        assert error_on(model, split, training, CPU, batch_size=batch_size) == pytest.approx(
            100 * sum(map(bool, wrong)) / len(wrong)
        )
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_to_evaluate_a_test_split_is_needed(dataset: Path, tmp_path: Path) -> None:
    settings = {"model": LABELLED, "training": {**SETTINGS["training"], "evaluate_every": 8}}
    with pytest.raises(UserError, match=r"training\.evaluate_every: requires a test split"):
        run(dataset, tmp_path, settings)


def test_a_model_without_labels_has_no_test_error(dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"training\.evaluate_every: the model is trained without labels"):
        run(dataset, tmp_path, with_training(evaluate_every=8), test=dataset)


def test_a_checkpoint_made_on_other_pairs_or_tested_on_other_images_is_not_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stored digits of the pairs do not depend on the shift."""
    made, tested = (
        [
            prepare("multimnist", split, tmp_path, tmp_path / f"{shift}", stand_in=True, options={"shift": shift})
            for shift in (1, 4)
        ]
        for split in ("train", "test")
    )
    training = {**SETTINGS["training"], "shift": 0, "evaluate_every": 8, "evaluate_images": 10}
    settings = {"model": LABELLED, "training": training}
    interrupted(made[0], tmp_path, monkeypatch, settings=settings, test=tested[0])
    for k, n, interruptions in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
        out = run(made[k], tmp_path, settings, test=tested[n])
        assert json.loads((out / "record.json").read_text())["interruptions"] == interruptions
    assert read(made[0]).record["digest"] == read(made[1]).record["digest"]


@pytest.mark.parametrize("family", ["supcaps", "discriminative"])
def test_pairs_can_be_trained_on_and_interrupted(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = prepare("multimnist", "train", tmp_path, tmp_path, stand_in=True, options={"limit": 60, "pairs": 5})
    settings = {"model": {**LABELLED, "family": family}, "training": {**SETTINGS["training"], "shift": 0}}
    whole = run(pairs, tmp_path / "whole", settings)
    cut = tmp_path / "cut"
    interrupted(pairs, cut, monkeypatch, settings=settings)
    assert same(whole, run(pairs, cut, settings))


def test_variants_are_timed_side_by_side(dataset: Path, tmp_path: Path) -> None:
    training = {**SETTINGS["training"], "shift": 0}
    variants = {
        name: {"model": {**LABELLED, "family": family}, "training": training}
        for name, family in (("a", "supcaps"), ("b", "discriminative"))
    }
    out = tmp_path / "steps.json"
    time_variants(variants, dict.fromkeys(variants, dataset), out, rounds=3, steps=2, batch_size=4, device="cpu")
    made = json.loads(out.read_text())
    assert made["batch_size"] == {"a": 4, "b": 4}
    assert made["stand_in"]
    assert {name: len(values) for name, values in made["seconds_per_step"].items()} == {"a": 3, "b": 3}
    for seconds in ("seconds_per_step", "seconds_per_batch_of_inference"):
        assert {name: len(values) for name, values in made[seconds].items()} == {"a": 3, "b": 3}
        assert all(0 < value < 10 for values in made[seconds].values() for value in values)
    assert made["seconds_per_step_by_phase"] == {
        name: [[0, training["steps"], values]] for name, values in made["seconds_per_step"].items()
    }
    weights = 8 * 81 + 8 + 2 * 8 * (81 * 8 + 1)
    assert min(made["parameters"].values()) > weights
    convolution = 2 * 81 * 8 * 20 * 20
    assert all(value > 2 * convolution for value in made["operations_per_image"].values())
    maps = 4 * 8 * 20 * 20
    assert all(value > maps for value in made["bytes_kept_per_image"].values())


def test_what_is_kept_for_the_backward_pass_counts_once_and_without_parameters() -> None:
    """The images, the hidden values of the ReLU and of the product after it, and the outputs that are squared."""

    class Toy(nn.Sequential):
        training_options = Training(precision="float32")

        def schedule(self, step: int) -> None:
            pass

        def work(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            self(batch["images"]).square().sum().backward()
            return {}

    model: Any = Toy(nn.Linear(3, 5, bias=False), nn.ReLU(), nn.Linear(5, 4, bias=False))
    batches: Any = SimpleNamespace(
        device=CPU, training=model.training_options, draw=lambda step: {}, make=lambda _: {"images": torch.rand(2, 3)}
    )
    kept = timing.count_kept_bytes(model, batches, 0)
    assert kept == 4 * 2 * (3 + 5 + 4)


def test_each_round_times_all_variants_in_an_order_of_its_own(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, names = {**SETTINGS["training"], "shift": 0}, "abcd"
    variants = {name: {"model": LABELLED, "training": {**training, "steps": 8 + k}} for k, name in enumerate(names)}
    made, timed = list[Any](), list[Any]()

    def stepper(model: Any, batches: Any, phase: range) -> Any:
        return made.append((phase.stop, n := [0])) or (lambda steps: n.__setitem__(0, n[0] + steps))

    def clock(step: Any, steps: int, device: torch.device) -> float:
        before = [n[0] for _, n in made]
        step(steps)
        timed.extend(stop for (stop, n), old in zip(made, before, strict=True) if n[0] > old)
        return 1.0

    monkeypatch.setattr(timing, "_stepper", stepper)
    monkeypatch.setattr(timing, "_timed", clock)
    time_variants(variants, dict.fromkeys(variants, dataset), tmp_path / "s.json", rounds=5, steps=3, batch_size=4)
    rounds = [timed[k : k + 4] for k in range(0, len(timed), 4)]
    assert len(rounds) == 5
    assert all(sorted(each) == [8, 9, 10, 11] for each in rounds)
    assert len({*map(tuple, rounds)}) > 1
    assert {n[0] for _, n in made} == {2 + 5 * 3}, "two steps to warm up, then three in each round"


def test_a_timing_on_a_busy_machine_warns(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {
        "model": {"family": "supcaps", "conv_channels": 8, "primary_types": 2, "decoder": None},
        "training": {"steps": 10, "batch_size": 4},
    }
    out = tmp_path / "steps.json"
    for slowest, expected in ((1.9, ""), (2.5, f"a: a step takes 1 s in one round and 2.5 s in another.*{out}")):
        taken = iter([1.0, 7.0, slowest, 7.0])
        monkeypatch.setattr(timing, "_timed", lambda step, n, device, taken=taken: next(taken))
        time_variants({"a": settings}, {"a": dataset}, out, rounds=2, steps=1, device="cpu")
        assert re.match(expected or "$", capsys.readouterr().err)


def test_the_time_of_a_step_is_the_mean_of_all_kinds_of_steps(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "model": {"family": "experts", "autoencoder": 0.5, "encoder": 0.3, "channels": [8, 8], "capsules": 4},
        "training": {"steps": 10, "batch_size": 4, "log_every": 1},
    }
    taken = iter([1.0, 10.0, 100.0, 7.0])
    monkeypatch.setattr(timing, "_timed", lambda step, n, device: step(n) or next(taken))
    out = tmp_path / "steps.json"
    time_variants({"a": settings}, {"a": dataset}, out, rounds=1, steps=1, device="cpu")
    made = json.loads(out.read_text())
    assert made["seconds_per_step"]["a"] == [pytest.approx(0.5 * 1 + 0.3 * 10 + 0.2 * 100)]
    assert made["seconds_per_batch_of_inference"]["a"] == [7]


def test_a_loss_that_is_not_finite_names_step_term_and_checkpoint(dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'loss' is nan at step \d+ \(no checkpoint yet\)"):
        run(dataset, tmp_path, with_training(learning_rate=1e38))
    assert not (tmp_path / "run").exists()


def test_a_loss_that_is_not_finite_from_the_start_is_the_models(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = SparseCaps.losses
    monkeypatch.setattr(SparseCaps, "losses", lambda *given: losses(*given) | {"loss": torch.tensor(torch.nan)})
    monkeypatch.setattr("recaps.models.model.backward", lambda loss: None)
    with pytest.raises(UserError, match="'loss' is nan before the first update; correct the model or its routing"):
        run(dataset, tmp_path)


def test_weights_that_are_not_finite_never_replace_a_checkpoint(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(dataset, tmp_path, monkeypatch)
    before = (checkpoints(tmp_path) / checkpoint.FILE).read_bytes()
    work = SparseCaps.work

    def spoil(model: SparseCaps, batch: Any) -> Any:
        metrics = work(model, batch)
        with torch.no_grad():
            model.bias[0, 0] = float("nan")
        return metrics

    monkeypatch.setattr(SparseCaps, "work", spoil)
    with pytest.raises(UserError, match=r"a weight of 'bias' is not finite at step 1 \(the last good checkpoint"):
        run(dataset, tmp_path, checkpoint_seconds=0)
    assert (checkpoints(tmp_path) / checkpoint.FILE).read_bytes() == before


def test_a_training_that_blows_up_at_once_saves_nothing(dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not finite at step 0 \(no checkpoint yet\)"):
        run(dataset, tmp_path, with_training(learning_rate=1e38), checkpoint_seconds=0)
    assert sorted(os.listdir(checkpoints(tmp_path))) == [checkpoint.IDENTITY, loop.STARTS]


def test_a_full_disk_that_is_freed_changes_nothing(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, save = run(dataset, tmp_path / "whole"), checkpoint.save
    steps = []

    def full_for_a_while(folder: Path, state: dict[str, Any]) -> None:
        steps.append(state["progress"]["step"])
        if 4 <= steps[-1] < 12:
            raise TryAgain(f"{folder}: the disk is full")
        save(folder, state)

    monkeypatch.setattr(checkpoint, "save", full_for_a_while)
    assert same(whole, run(dataset, tmp_path, checkpoint_seconds=0))
    reported = [line for line in capsys.readouterr().err.splitlines() if "no checkpoint" in line]
    assert [line.split(":")[0] for line in reported] == [f"no checkpoint of step {step}" for step in range(4, 12)]


def test_what_a_killed_trainer_left_half_written_is_removed(dataset: Path, tmp_path: Path) -> None:
    run(dataset, tmp_path)
    half = checkpoints(tmp_path) / f".{checkpoint.FILE}.new.abc.part"
    half.write_bytes(b"half")
    run(dataset, tmp_path)
    assert not half.exists()


def test_a_full_disk_is_reported_and_leaves_the_last_checkpoint(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted(dataset, tmp_path, monkeypatch)
    before = (checkpoints(tmp_path) / checkpoint.FILE).read_bytes()

    write = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if checkpoint.FILE in path.name or path.suffix == ".safetensors":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(TryAgain, match="the disk is full; free some space and run again"):
            run(dataset, tmp_path, checkpoint_seconds=0)
    assert "no checkpoint of step" in capsys.readouterr().err
    assert sorted(os.listdir(checkpoints(tmp_path))) == sorted(KEPT)
    assert (checkpoints(tmp_path) / checkpoint.FILE).read_bytes() == before
    assert same(run(dataset, tmp_path), run(dataset, tmp_path / "whole"))


def test_a_second_trainer_is_kept_out(tmp_path: Path) -> None:
    with (
        Lease(tmp_path),
        pytest.raises(TryAgain, match=f"process {os.getpid()} on .* trains this run"),
        Lease(tmp_path),
    ):
        pass
    with Lease(tmp_path):
        pass


def test_the_lease_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    lease = {"host": socket.gethostname(), "pid": child.pid, "started": 1.0, "job": None}
    (tmp_path / "lease.json").write_text(json.dumps(lease))
    with Lease(tmp_path):
        assert json.loads((tmp_path / "lease.json").read_text())["pid"] == os.getpid()


def leave_lease(folder: Path, **changes: Any) -> Path:
    lease = {"host": "elsewhere", "pid": 1, "started": 1.0, "job": None, "token": "theirs"} | changes
    file = folder / "lease.json"
    file.write_text(json.dumps(lease))
    return file


@pytest.mark.parametrize("text", ["[1]", "7", "{}", '{"host": "elsewhere"}', ""])
def test_a_file_that_is_no_lease_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    (tmp_path / "lease.json").write_text(text)
    with Lease(tmp_path):
        assert json.loads((tmp_path / "lease.json").read_text())["pid"] == os.getpid()
    assert capsys.readouterr().err.endswith("lease.json: names no process, so it is no lease; replaced\n")


@pytest.mark.parametrize("changes", [{"pid": "1"}, {"pid": -1}, {"started": None}])
def test_a_lease_with_wrong_values_is_replaced(tmp_path: Path, changes: dict[str, Any]) -> None:
    leave_lease(tmp_path, **{"host": socket.gethostname(), "pid": os.getpid()} | changes)
    with Lease(tmp_path):
        assert json.loads((tmp_path / "lease.json").read_text())["pid"] == os.getpid()


def test_waiting_for_another_host_says_for_whom_and_how_long_also_if_its_clock_is_ahead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = leave_lease(tmp_path)
    os.utime(file, (time.time() + 3600,) * 2)
    with Lease(tmp_path, patience=0.6):
        pass
    waiting = "waiting 1 s to see if process 1 on elsewhere, which trained this run, has ended"
    assert capsys.readouterr().err == f"recaps: {file}: {waiting}\n"


def test_a_lease_that_is_removed_or_cannot_be_touched_stops_with_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def utime(file: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with Lease(tmp_path / "a") as lease, monkeypatch.context() as patch:
        patch.setattr(os, "utime", utime)
        with one_line(r"lease\.json: cannot write \(Read-only file system\)"):
            lease.touch()
    with Lease(tmp_path / "b") as lease:
        shutil.rmtree(tmp_path / "b")
        with one_line(r"lease\.json: was removed during the run, perhaps with its folder", TryAgain):
            lease.touch()


def test_the_lease_of_another_host_counts_while_it_is_touched(tmp_path: Path) -> None:
    file, done = leave_lease(tmp_path), threading.Event()

    def live() -> None:
        while not done.wait(0.1):
            file.touch()

    thread = threading.Thread(target=live)
    thread.start()
    try:
        with pytest.raises(TryAgain, match="process 1 on elsewhere trains this run"), Lease(tmp_path, 30):
            pass
    finally:
        done.set()
        thread.join()
    with Lease(tmp_path, patience=0.5):
        assert json.loads(file.read_text())["pid"] == os.getpid()


def test_a_requeued_job_takes_over_its_own_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    leave_lease(tmp_path, job="7")
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it waits"))
    with Lease(tmp_path):
        assert json.loads((tmp_path / "lease.json").read_text())["pid"] == os.getpid()
        with pytest.raises(TryAgain, match="trains this run"), Lease(tmp_path):  # within one job, and alive
            pass


def test_a_lease_that_another_process_took_first_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at a dead holder's lease and its removal, another process may take it."""
    file = leave_lease(tmp_path, host=socket.gethostname(), pid=2**30)
    rename, faster = os.rename, {**this_process(), "job": None, "token": "faster"}

    def late(source: Path, target: Path) -> None:
        if json.loads(file.read_text())["token"] == "theirs":
            file.write_text(json.dumps(faster))
        rename(source, target)

    monkeypatch.setattr(os, "rename", late)
    with pytest.raises(TryAgain, match=f"process {os.getpid()} on"), Lease(tmp_path):
        pass
    assert json.loads(file.read_text()) == faster
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_system_without_hard_links_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(source: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    with one_line("has no hard links, which trainings need; set `results`"), Lease(tmp_path):
        pass
    assert not [*tmp_path.iterdir()]


def test_a_trainer_that_was_taken_for_dead_stops_and_leaves_the_other_alone(tmp_path: Path) -> None:
    with Lease(tmp_path) as lease:
        file = leave_lease(tmp_path)
        with pytest.raises(TryAgain, match="another process has taken over this run"):
            lease.touch()
    assert json.loads(file.read_text())["token"] == "theirs"


def test_a_missing_gpu_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with one_line("device: cuda is requested, but PyTorch finds no GPU"):
        device.choose("cuda")


@pytest.mark.parametrize(
    ("name", "threads", "message"),
    [
        ("gpu", None, "device: there is no device 'gpu'; use auto, cpu or cuda"),
        ("cuda:0", None, "device: there is no device 'cuda:0'; use auto, cpu or cuda"),
        ("", None, "device: there is no device ''; use auto, cpu or cuda"),
        ("cpu", 0, "threads: 0 is too few; use at least 1"),
        ("cpu", -1, "threads: -1 is too few; use at least 1"),
    ],
)
def test_a_wrong_device_or_number_of_threads_is_reported_in_one_line(
    name: str, threads: int | None, message: str
) -> None:
    with one_line(f"^{message}$"):
        device.choose(name, threads)


@pytest.mark.parametrize(
    ("kind", "precision", "unit", "expected"),
    [
        ("cpu", "auto", True, "bf16"),
        ("cpu", "auto", False, "float32"),
        ("cuda", "auto", True, "bf16"),
        ("cuda", "auto", False, "float32"),
        ("cpu", "bf16", False, "bf16"),
        ("cuda", "float32", True, "float32"),
    ],
)
def test_precision_depends_on_the_device(
    kind: str, precision: str, unit: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": unit})
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: unit)
    assert device.resolve(torch.device(kind), precision) == expected
    if kind == "cpu":
        with device.arithmetic(torch.device(kind), precision):
            made = torch.ones(2, 2) @ torch.ones(2, 2)
        assert made.dtype == (torch.bfloat16 if expected == "bf16" else torch.float32)


def test_models_are_evaluated_in_float32(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, evaluated = set[bool](), set[bool]()
    losses, scores = SupCaps.losses, SupCaps.class_scores
    autocast = lambda: torch.is_autocast_enabled("cpu")  # noqa: E731
    monkeypatch.setattr(SupCaps, "losses", lambda *given: trained.add(autocast()) or losses(*given))
    monkeypatch.setattr(SupCaps, "class_scores", lambda *given: evaluated.add(autocast()) or scores(*given))
    training = {**SETTINGS["training"], "evaluate_every": 8, "precision": "bf16"}
    run(dataset, tmp_path, {"model": LABELLED, "training": training}, test=dataset)
    assert (trained, evaluated) == ({True}, {False})


@pytest.mark.gpu
def test_a_run_on_the_gpu_is_a_function_of_its_seed(dataset: Path, tmp_path: Path) -> None:
    first = run(dataset, tmp_path / "a", device="cuda")
    assert same(first, run(dataset, tmp_path / "b", device="cuda"))
