"""The private Slurm starts only where it can, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from private_slurm import ETC, PREFIX, why_not

FOLDER = Path(__file__).parent

#: What the commands of a private Slurm and of the job below have in them.
WORDS = (PREFIX, "slurmctld", "slurmd", "slurmstepd", "munged", "sleep 1000")

#: Starts one, lets a job with a child of its own run on it, and waits to be ended.
SESSION = """
import signal, sys
from private_slurm import private_slurm

signal.signal(signal.SIGINT, signal.default_int_handler)
with private_slurm() as slurm:
    job = slurm.submit("setsid sleep 1000 & echo started; sleep 1000")
    slurm.until(lambda: "started" in slurm.output(job), 300, "the job to start")
    print(slurm.folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _none_runs() -> None:
    if reason := why_not():
        pytest.skip(reason)


@pytest.mark.parametrize("end", ["exit", "interrupt", "kill"])
def test_nothing_is_left(end: str) -> None:
    before = _traces()
    session = subprocess.Popen(
        [sys.executable, "-c", SESSION],
        env=os.environ | {"PYTHONPATH": str(FOLDER)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with session:
        try:
            _end(session, end, before)
        finally:
            session.kill()


def _end(session: subprocess.Popen[str], end: str, before: set[str]) -> None:
    assert session.stdin
    assert session.stdout
    folder = Path(session.stdout.readline().strip())
    assert folder.name.startswith(PREFIX)
    during = _traces()
    assert {str(ETC / "slurm.conf"), str(folder), "sleep 1000", "slurmctld -D", "slurmd -D -N node2"} <= during - before
    reason = why_not()
    assert reason is not None, "no second one beside it"
    assert str(folder) in reason

    if end == "exit":
        session.stdin.close()
    else:
        session.send_signal({"interrupt": signal.SIGINT, "kill": signal.SIGKILL}[end])
    session.wait(300)
    deadline = time.monotonic() + 300
    while _traces() != before and end == "kill" and time.monotonic() < deadline:
        time.sleep(0.2)
    assert _traces() == before


def test_nothing_is_left_of_a_start_that_fails() -> None:
    before = _traces()
    script = 'from private_slurm import private_slurm\nwith private_slurm(more="NoSuchKey=1"): print("started")'
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": str(FOLDER)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "started" not in done.stdout
    assert "slurmctld ended" in done.stderr
    assert "NoSuchKey" in done.stderr, "the log says why"
    assert _traces() == before


@pytest.mark.parametrize("name", ["slurm.conf", "gres.conf"])
def test_a_foreign_configuration_is_not_touched(tmp_path: Path, name: str) -> None:
    assert why_not(tmp_path) is None
    (tmp_path / name).write_text("ClusterName=theirs\n")
    assert why_not(tmp_path) == f"this machine has a Slurm of its own: {tmp_path / name} exists"


def test_links_of_tests_that_were_cut_short_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").symlink_to(tmp_path / f"{PREFIX}gone" / "slurm.conf")
    assert why_not(tmp_path) is None


def test_a_foreign_daemon_is_not_disturbed(tmp_path: Path) -> None:
    # A process by that name is all that can be seen of a daemon that was started by hand.
    daemon = tmp_path / "slurmd"
    daemon.symlink_to("/bin/sleep")
    with subprocess.Popen([str(daemon), "60"]) as process:
        try:
            assert why_not() == f"this machine has a Slurm of its own, or other tests': process {process.pid} slurmd"
        finally:
            process.kill()


def _traces() -> set[str]:
    """Return the files and processes of a private Slurm on a machine."""
    files = [*ETC.glob("*"), *Path(tempfile.gettempdir()).glob(f"{PREFIX}*")]
    commands = []
    for process in psutil.process_iter():
        try:
            command = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if process.pid != os.getpid() and any(word in command for word in WORDS):
            commands.append(command)
    return {*map(str, files), *commands}
