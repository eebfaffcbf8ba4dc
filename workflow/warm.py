"""A warm start for the scripts of jobs: they fork from a process that has imported PyTorch, Numba and Matplotlib.

Without it, each job imports them anew, which takes longer than most jobs of scale `smoke`. `attend` replaces the way in
which Snakemake starts a Python script; written for its pinned version. A job with several threads, in an environment of
its own or not on Linux starts as before.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Sequence
from typing import Any

from snakemake.script import PythonScript

#: Modules that most jobs import. None of them starts a thread.
IMPORTS = (
    "matplotlib.pyplot",
    "recaps.datasets.preparation",
    "recaps.evaluation.heads",
    "recaps.evaluation.inference",
    "recaps.report.collect",
    "recaps.report.draw",
    "recaps.training.run",
    "numba.core.registry",
    "recaps.plan.job",
    "sklearn.linear_model",
    "snakemake.iocontainers",
    "snakemake.logging",
    "torch._dynamo",
)
#: The libraries under NumPy and PyTorch read these when they are imported.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
#: Exit status of a job that was killed.
KILLED = 128 + signal.SIGKILL


def attend() -> None:
    """Let the scripts of this process's jobs start warm."""
    if sys.platform != "linux":
        return
    cold, server = PythonScript.execute_script, Server()

    def execute(script: Any, name: str, edit: bool = False) -> None:
        alone = script.conda_env or script.container_img or script.env_modules or script.shadow_dir
        if edit or alone or script.threads != 1:
            cold(script, name, edit)
        elif status := server.run(name):
            raise subprocess.CalledProcessError(status, f"{sys.executable} {name}")

    PythonScript.execute_script = execute


class Server:
    """The process that jobs fork from. It starts with the first job and ends with this process."""

    def __init__(self, imports: Sequence[str] = IMPORTS) -> None:
        self.imports = imports
        self._lock = threading.Lock()
        self._requests: socket.socket | None = None

    def run(self, script: str) -> int:
        """Run a Python script in a fork of the server, and return its exit status."""
        ours, theirs = socket.socketpair()
        with ours:
            with self._lock, theirs:
                try:
                    self._request(script, theirs)
                except OSError:  # the server was killed, for example for memory
                    self._requests = None
                    self._request(script, theirs)
            # The job's end of the pair is closed when the job ends, however it ends.
            return (ours.recv(1) or bytes([KILLED]))[0]

    def _request(self, script: str, reply: socket.socket) -> None:
        self._requests = self._requests or _start(self.imports)
        socket.send_fds(self._requests, [script.encode()], [reply.fileno()])


def _start(imports: Sequence[str]) -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, __file__, str(theirs.fileno()), *imports]
        environment = {**os.environ, **ONE_THREAD}
        subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=environment)
    return ours


def serve(requests: socket.socket, imports: Sequence[str]) -> None:
    """Fork once for each request, until the other end is closed."""
    for name in imports:
        importlib.import_module(name)
    if numba := sys.modules.get("numba.core.registry"):
        # Its compiler else takes half a second to prepare when a process first calls a kernel.
        numba.cpu_target.typing_context.refresh()
        numba.cpu_target.target_context.refresh()
    # The garbage collector of a job then leaves these objects alone, and their memory stays shared.
    gc.freeze()
    # Ctrl-C reaches the jobs, which answer it.
    answer = signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The system then removes jobs that have ended.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        script, descriptors, *_ = socket.recv_fds(requests, 4096, 1)
        if not script:
            return
        with socket.socket(fileno=descriptors[0]) as reply:
            if os.fork() == 0:
                requests.close()
                signal.signal(signal.SIGINT, answer)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _forget_ends()
                reply.send(bytes([_run(script.decode())]))
                # The usual end of a process frees each object in memory, which takes longer than most jobs.
                os._exit(0)


def _forget_ends() -> None:
    """Leave to the server what the modules that it imported do at the end of a process.

    A job's own processes and handlers of logs still end with it.
    """
    atexit._clear()
    for name, end in (("logging", "shutdown"), ("multiprocessing.util", "_exit_function")):
        if module := sys.modules.get(name):
            atexit.register(getattr(module, end))
    weakref.finalize._registry.clear()
    weakref.finalize._registered_with_atexit = False


def _run(script: str) -> int:
    """Run a script as Python would, and return its exit status."""
    sys.argv = [script]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
