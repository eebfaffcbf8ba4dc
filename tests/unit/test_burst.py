"""What a burst starts in which order, and what it packs. The whole way is tested in `tests/workflow`."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from messages import one_line
from places import CONFIG

from recaps import burst, io
from recaps.config.load import load
from recaps.workflow.plan import Plan

LONG, SHORT, UNKNOWN = (("sparse", name, 0) for name in ("dense", "sparsecaps", "convnet"))


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    variants = [f"sparse/{variant}" for _, variant, _ in (LONG, SHORT, UNKNOWN)]
    values = {"scale": "smoke", "papers": ["sparse"], "only": variants, "results": str(tmp_path / "results")}
    return Plan(load(values, CONFIG))


class Process:
    """A process of a burst that ends at once, without doing anything."""

    started: list[str] = []
    """The files that all should make, in order."""
    statuses: dict[str, int] = {}
    """The exit status of those that should make the weights of a variant, if it is not 0."""

    def __init__(self, command: list[str], **options: Any) -> None:
        files = command[command.index("--make") + 1 :]
        self.started.extend(files)
        self.status = next((self.statuses.get(variant, 0) for variant in trained(files)), 0)

    def poll(self) -> int:
        return self.status


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that the processes of a burst should make, in order."""
    monkeypatch.setattr(Process, "started", files := [])
    monkeypatch.setattr(subprocess, "Popen", Process)
    return files


def trained(files: list[str]) -> list[str]:
    return [Path(file).parts[-3] for file in files if file.endswith("model.safetensors")]


def go(plan: Plan, seconds: dict[burst.Run, float], minutes: float = 10) -> burst.Burst:
    tasks = burst.tasks_of(plan, burst.wanted(plan, plan.runs()), seconds)
    made = burst.Burst(tasks, 1, time.monotonic() + 60 * minutes, 60, ["burst"])
    made.go()
    return made


def test_the_longest_that_fits_comes_first_and_an_unknown_one_last(plan: Plan, started: list[str]) -> None:
    assert go(plan, {SHORT: 100, LONG: 200}).waiting == []
    assert trained(started) == ["dense", "sparsecaps", "convnet"]


def test_a_training_that_does_not_fit_is_not_started(plan: Plan, started: list[str]) -> None:
    waiting = {str(task) for task in go(plan, {SHORT: 100, LONG: 600}).waiting}
    assert trained(started) == ["sparsecaps", "convnet"]
    assert waiting == {"training of sparse/dense, seed 0", "record of sparse/dense, seed 0"}


def test_a_training_with_a_checkpoint_comes_before_all_others(plan: Plan, started: list[str]) -> None:
    io.write_text(plan.files.checkpoints(*UNKNOWN) / "0123/checkpoint.pt", "a checkpoint")
    go(plan, {SHORT: 100, LONG: 200})
    assert trained(started) == ["convnet", "dense", "sparsecaps"]


def test_records_wait_for_their_training(plan: Plan, started: list[str]) -> None:
    go(plan, {})
    for variant in ("dense", "sparsecaps", "convnet"):
        files = [Path(file).name for file in started if Path(file).parts[-3] == variant]
        assert files.index("model.safetensors") < files.index("numbers.csv")


def test_nothing_starts_without_time(plan: Plan, started: list[str]) -> None:
    assert {task.trains for task in go(plan, {}, minutes=0).waiting} == {True, False}
    assert started == []


def test_a_failed_training_has_no_record(plan: Plan, started: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Process, "statuses", {"sparsecaps": 1})
    made = go(plan, {})
    assert [str(task) for task in made.ended] == ["training of sparse/sparsecaps, seed 0"]
    assert [str(task) for task in made.waiting] == ["record of sparse/sparsecaps, seed 0"]


def test_a_task_that_meets_another_process_is_tried_again(
    plan: Plan, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Process, "statuses", {"convnet": 75})
    assert [str(task) for task in go(plan, {}).ended] == ["training of sparse/convnet, seed 0"]
    assert trained(started).count("convnet") == burst.TRIES


def test_a_signal_ends_a_burst_early_and_all_its_processes(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(Process):
        terminate = kill = lambda self: setattr(self, "status", -signal.SIGTERM)

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.status = None
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", Endless)
    made = burst.Burst(burst.tasks_of(plan, plan.runs(), {}), 1, time.monotonic() + 600, 1, [])
    made.go()
    assert made.ended
    assert all(task.is_stopped for task in made.ended)
    assert made.end < time.monotonic() + 1


def test_seconds_come_from_finished_runs_on_the_same_device(plan: Plan) -> None:
    elsewhere = {
        "runs/sparse/dense/seed-1": {"device": "a GPU", "seconds": 30.0},
        "runs/sparse/dense/seed-2": {"device": "a GPU", "seconds": 50.0},
        "runs/sparse/sparsecaps/seed-1": {"device": "another", "seconds": 9.0},
    }
    assert burst.expected_seconds(plan, [LONG, SHORT], elsewhere, "a GPU") == {LONG: 40}


def test_the_published_runs_are_known_unless_their_settings_have_changed(plan: Plan) -> None:
    published = Path(plan.results, "published", "smoke")
    for run in (LONG, SHORT):
        record = published / "runs/sparse" / run[1] / "seed-0/record.json"
        io.write_json(record, {"device": "a GPU", "wall_seconds": 3.0, "config": {}})
    papers = {"sparse": {"other_settings": ["runs/sparse/sparsecaps/seed-0"]}}
    io.write_json(published / "MANIFEST.json", {"papers": papers})
    assert burst.finished_elsewhere(plan) == {"runs/sparse/dense/seed-0": {"device": "a GPU", "seconds": 3.0}}


@pytest.fixture
def packed(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A packed folder, from which the largest checkpoint was left out."""
    monkeypatch.setattr(burst, "PIECE", 20_000)
    monkeypatch.setattr(burst, "PIECES", 3)
    for run, size in ((LONG, 70_000), (SHORT, 15_000), (UNKNOWN, 20_000)):
        folder = plan.files.checkpoints(*run)
        for name in ("checkpoint.pt", "checkpoint.previous.pt"):
            io.write_bytes(folder / "0123" / name, os.urandom(size))
        io.write_text(folder / "lease.json", "{}")
    text = burst.pack(plan, plan.runs(), tmp_path / "out")
    assert text.endswith("3 unfinished ones with checkpoints; do not fit: sparse/dense/seed-0")
    return tmp_path / "out"


def test_small_checkpoints_come_back_in_pieces(plan: Plan, packed: Path, tmp_path: Path) -> None:
    assert sorted(file.name for file in packed.iterdir()) == ["SHA256SUMS", *(f"burst.tar.{n}" for n in range(3))]
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=packed, check=True)
    there = Plan(plan.project.model_copy(update={"config": _at(plan, tmp_path / "there")}))
    burst.unpack(there, packed)
    files = {file.relative_to(there.files.folder).as_posix() for file in there.files.folder.rglob("*.*")}
    assert files == {f"checkpoints/sparse/{name}/seed-0/0123/checkpoint.pt" for name in ("sparsecaps", "convnet")}
    for file in files:
        assert (there.files.folder / file).read_bytes() == (plan.files.folder / file).read_bytes()


def _at(plan: Plan, results: Path) -> Any:
    return plan.project.config.model_copy(update={"results": str(results)})


def test_newer_checkpoints_stay(plan: Plan, packed: Path) -> None:
    old, new = (plan.files.checkpoints(*run) / "0123/checkpoint.pt" for run in (SHORT, UNKNOWN))
    os.utime(old, (1, 1))
    os.utime(old.with_name("checkpoint.previous.pt"), (1, 1))
    os.utime(old.parents[1] / "lease.json", (1, 1))
    new.write_text("newer")
    assert burst.unpack(plan, packed).endswith("0 finished runs and checkpoints of 1 others")
    assert old.stat().st_mtime > 1
    assert new.read_text() == "newer"


def damage(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1] + b"x")


@pytest.mark.parametrize("change", [damage, Path.unlink])
def test_a_piece_that_is_damaged_or_missing_is_named(plan: Plan, packed: Path, change: Callable[[Path], None]) -> None:
    change(packed / "burst.tar.1")
    with one_line(r"burst.tar.1: missing or damaged; copy it again"):
        burst.unpack(plan, packed)


def test_a_folder_without_pieces_is_told(plan: Plan, tmp_path: Path) -> None:
    with one_line(r"SHA256SUMS: no such file; name the folder"):
        burst.unpack(plan, tmp_path)


def test_missing_packages_are_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("psutil", "pydantic"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SystemExit, match=r"^recaps: this Python lacks psutil, pydantic; install them .*lock\)$"):
        runpy.run_module("recaps", run_name="__main__")


def mps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program that stands for that of MPS on the path. It writes arguments and input to `calls`."""
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls; [ "$1" ] || cat >> {tmp_path}/calls\n')
    control.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)


def test_mps_is_started_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mps(tmp_path, monkeypatch)
    monkeypatch.setattr(burst, "_ON_GPU", "")
    with burst._shared("cuda"):
        assert (tmp_path / "calls").read_text() == "-d\n"
    assert (tmp_path / "calls").read_text() == "-d\n\nquit\n"


def test_mps_that_no_process_can_use_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mps(tmp_path, monkeypatch)
    monkeypatch.setattr(burst, "_ON_GPU", "exit(1)")
    with burst._shared("cuda"):
        assert (tmp_path / "calls").read_text() == "-d\n\nquit\n"
    assert capsys.readouterr().err.count("\n") == 1
    assert (tmp_path / "calls").read_text() == "-d\n\nquit\n"


def test_without_mps_a_line_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with burst._shared("cpu"):
        assert capsys.readouterr().err == ""
    with burst._shared("cuda"):
        assert capsys.readouterr().err.count("\n") == 1
