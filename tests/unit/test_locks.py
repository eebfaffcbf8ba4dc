"""One process at a time makes a file."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from recaps import locks
from recaps.errors import UserError
from recaps.locks import alone

HOLD = """
import sys, time
from pathlib import Path
from recaps.locks import alone
with alone(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def holder(target: Path) -> subprocess.Popen[str]:
    """Start a process that holds the lock."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(target)], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    return process


def test_a_waiting_process_says_so_in_one_line_and_goes_on_when_the_other_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(locks, "PATIENCE", 0.1)
    target = tmp_path / "new" / "file"
    with holder(target) as process:
        killer = threading.Timer(1, process.send_signal, [signal.SIGKILL])
        killer.start()
        with alone(target):
            assert process.wait() == -signal.SIGKILL
    assert capfd.readouterr().err == f"recaps: {target}: another process is making it; waiting until it ends\n"
    assert not list(target.parent.iterdir())


def test_the_lock_of_a_killed_process_does_not_block(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "file"
    with holder(target) as process:
        process.kill()
    assert [file.name for file in tmp_path.iterdir()] == [".file.lock"]
    with alone(target):
        pass
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr().err == ""


def count(file: Path, times: int) -> None:
    """Add one to the number in a file, many times; two processes without a lock lose some."""
    for _ in range(times):
        with alone(file):
            file.write_text(str(int(file.read_text()) + 1))


def test_processes_exclude_each_other_while_the_lock_comes_and_goes(tmp_path: Path) -> None:
    file = tmp_path / "count"
    file.write_text("0")
    spawn = multiprocessing.get_context("spawn")
    both = [spawn.Process(target=count, args=(file, 200)) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert file.read_text() == "400"


def test_a_lock_on_a_file_that_has_just_been_removed_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It excludes nobody: the next process makes a new file."""
    flock, calls = fcntl.flock, []

    def late(held: int, how: int) -> None:
        if not calls:
            (tmp_path / ".file.lock").unlink()
        calls.append(held)
        flock(held, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with alone(tmp_path / "file"):
        assert (tmp_path / ".file.lock").exists()
    assert len(calls) == 2


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_lets_all_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with alone(tmp_path / "file"), alone(tmp_path / "file"):
        pass
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UserError, match=r"file: cannot write \(Permission denied\)"), alone(tmp_path / "file"):
        pass
