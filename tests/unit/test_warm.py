"""The warm start of jobs: scripts that fork from a process with PyTorch in memory."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import warm
from snakemake.scheduling.job_scheduler import JobScheduler
from snakemake.script import PythonScript

pytestmark = [pytest.mark.unit, pytest.mark.skipif(sys.platform != "linux", reason="jobs start warm on Linux only")]


@pytest.fixture(scope="module")
def server() -> Iterator[warm.Server]:
    server = warm.Server()
    yield server
    server._requests.close()


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.py"
        file.write_text(text)
        return str(file)

    return write


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("pass", 0),
        ("import sys; sys.exit(75)", 75),
        ("import sys; sys.exit('no number')", 1),
        ("raise ValueError", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL),
    ],
)
def test_the_exit_status_is_the_scripts(server: warm.Server, script: Any, text: str, status: int) -> None:
    assert server.run(script(text)) == status


def test_a_server_that_was_killed_is_replaced(script: Any) -> None:
    server = warm.Server(())
    assert server.run(script("import os, signal; os.kill(os.getppid(), signal.SIGKILL)")) in (0, warm.KILLED)
    deadline = time.monotonic() + 60
    while (status := server.run(script("import sys; sys.exit(7)"))) != 7:
        assert status == warm.KILLED
        assert time.monotonic() < deadline


def test_a_message_in_place_of_a_status_is_printed(capfd: pytest.CaptureFixture[str], script: Any) -> None:
    server = warm.Server(())
    assert server.run(script("import sys; sys.exit('what went wrong')")) == 1
    assert capfd.readouterr().err == "what went wrong\n"


def test_a_script_sees_what_it_would_see_by_itself(server: warm.Server, script: Any, tmp_path: Path) -> None:
    text = f"""
import atexit, os, subprocess, sys
from pathlib import Path
assert __name__ == "__main__" and "torch" in sys.modules
assert subprocess.run(["true"]).returncode == 0, "the status of a child is not lost"
here = Path({str(tmp_path)!r})
(here / "argv").write_text(" ".join(sys.argv))
(here / "threads").write_text(os.environ["OMP_NUM_THREADS"])
atexit.register((here / "end").touch)
"""
    name = script(text)
    assert server.run(name) == 0
    assert (tmp_path / "argv").read_text() == name
    assert (tmp_path / "threads").read_text() == "1"
    assert (tmp_path / "end").exists()


def test_a_job_ends_what_is_its_own_and_not_what_is_the_servers(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ends.py").write_text("""
import atexit, multiprocessing.util, tempfile
from pathlib import Path
here = Path(__file__).parent
kept = tempfile.TemporaryDirectory(dir=here, prefix="kept")
atexit.register((here / "ended").touch)
""")
    text = """
import multiprocessing, time, ends
def work():
    time.sleep(0.3)
    (ends.here / "worked").touch()
multiprocessing.get_context("fork").Process(target=work).start()
"""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = warm.Server(["ends"])
    assert server.run(script(text)) == 0
    assert (tmp_path / "worked").exists(), "it waits for its processes"
    assert not (tmp_path / "ended").exists()
    assert len([*tmp_path.glob("kept*")]) == 1


def test_scripts_run_side_by_side_and_share_nothing(server: warm.Server, script: Any, tmp_path: Path) -> None:
    """Each waits for a file that the other writes."""
    text = """
import time, sys, torch
from pathlib import Path
assert not hasattr(torch, "mark")
torch.mark = 1
(Path({here!r}) / "{own}").touch()
while not (Path({here!r}) / "{other}").exists():
    time.sleep(0.01)
"""
    names = [script(text.format(here=str(tmp_path), own=own, other=other)) for own, other in ("ab", "ba")]
    with ThreadPoolExecutor() as threads:
        assert list(threads.map(server.run, names)) == [0, 0]


def test_the_server_ends_with_the_process_that_started_it(script: Any) -> None:
    program = f"""
import os, signal, psutil, warm
warm.Server().run({script("pass")!r})
print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = os.environ | {"PYTHONPATH": str(Path(warm.__file__).parent)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, check=False)
    children = [*map(int, done.stdout.split())]
    assert children
    deadline = time.monotonic() + 300
    while left := [pid for pid in children if _lives(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.default_int_handler])
def test_a_script_answers_ctrl_c_unless_the_process_that_started_it_ignores_it(handler: Any, script: Any) -> None:
    text = "import signal, sys; sys.exit(3 if signal.getsignal(signal.SIGINT) == signal.SIG_IGN else 4)"
    before = signal.signal(signal.SIGINT, handler)
    try:
        server = warm.Server(())
        assert server.run(script(text)) == (3 if handler == signal.SIG_IGN else 4)
        server._requests.close()
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_scheduler_has_the_limit_that_the_snakefile_lifts(root: Path) -> None:
    """On one machine only: on a cluster, the user's limit holds."""
    local = (root / "Snakefile").read_text().partition("if workflow.local_exec:\n")[2].partition("\n\n")[0]
    assert "        workflow.scheduler.job_rate_limiter = None\n" in local
    source = inspect.getsource(JobScheduler)
    assert "self.job_rate_limiter is None" in source
    assert "_schedule_reevalutation(self.job_rate_limiter.timespan)" in source


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("changes", "is_warm"),
    [
        ({}, True),
        ({"threads": 2}, False),
        ({"conda_env": "env"}, False),
        ({"container_img": "image"}, False),
        ({"env_modules": "modules"}, False),
        ({"shadow_dir": "folder"}, False),
    ],
)
def test_only_scripts_with_one_thread_and_our_environment_start_warm(
    changes: dict[str, Any], is_warm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(PythonScript, "execute_script", lambda script, name, edit: started.append("cold"))
    monkeypatch.setattr(warm.Server, "run", lambda server, name: started.append("warm"))
    warm.attend()
    usual = {"threads": 1, "conda_env": None, "container_img": None, "env_modules": None, "shadow_dir": None}
    PythonScript.execute_script(SimpleNamespace(**{**usual, **changes}), "script.py")
    assert started == ["warm" if is_warm else "cold"]


def test_a_failed_script_is_an_error_as_in_a_cold_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PythonScript, "execute_script", None)
    monkeypatch.setattr(warm.Server, "run", lambda server, name: 70)
    warm.attend()
    usual = {"threads": 1, "conda_env": None, "container_img": None, "env_modules": None, "shadow_dir": None}
    with pytest.raises(subprocess.CalledProcessError) as raised:
        PythonScript.execute_script(SimpleNamespace(**usual), "script.py")
    assert raised.value.returncode == 70
