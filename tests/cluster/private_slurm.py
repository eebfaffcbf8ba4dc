"""A private Slurm for tests: a controller and two nodes with two fake GPUs each, all on this machine.

Needs root and Debian's packages `slurm-wlm` and `munge` (`make test-cluster` installs them), and nothing from systemd.
Several nodes on one machine need a Slurm built with --enable-multiple-slurmd; Debian's is. Everything lies in one
temporary folder, munge's key and socket included, but for links to slurm.conf and gres.conf in /etc/slurm: jobs that
Snakemake's plugin starts lose SLURM_CONF, so the file must be where Slurm looks by itself.

Each daemon runs below a keeper, a small process that holds the reading end of a pipe. When the tests close their end,
or are killed in whatever way, the keeper ends its daemon and every process that came from it, jobs too. A last keeper,
the janitor, waits for the others and then removes links and folder.
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

#: Where Debian's Slurm looks for its configuration.
ETC = Path("/etc/slurm")
LINKS = ("slurm.conf", "gres.conf")
NODES = ("node1", "node2")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
DAEMONS = ("slurmctld", "slurmd", "slurmdbd", "slurmstepd")
PREFIX = "recaps-slurm-"

#: States that a job leaves only when it is put back into the queue.
ENDED = ("CANCELLED", "COMPLETED", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT")

# More cores and memory than there are, so that jobs that ask for as much as on a real cluster are accepted. Waits are
# short: cred_expire is also the wait of a requeued job. KillWait, between TERM and KILL, is Slurm's own: on a busy
# machine a checkpoint takes seconds. What cannot be changed: the controller looks at time limits and grace times only
# about every half minute.
CONFIGURATION = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/%n.log
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2,bf_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
DefMemPerCPU=1000
MinJobAge=300
KillWait=30
MessageTimeout=5
SlurmdTimeout=10
ReturnToService=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=8 RealMemory=64000 Gres=gpu:2
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=8 RealMemory=64000 Gres=gpu:2
PartitionName=main Nodes=ALL Default=YES PriorityTier=2 PreemptMode=OFF
PartitionName=urgent Nodes=ALL PriorityTier=3 PreemptMode=OFF
PartitionName=scavenge Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace}
PartitionName=spot Nodes=ALL PriorityTier=1 PreemptMode=CANCEL GraceTime={grace}
PartitionName=harsh Nodes=ALL PriorityTier=1 PreemptMode=CANCEL GraceTime=0
{more}
"""
# Slurm counts as a device whatever is a character device.
DEVICES = """\
NodeName=node1,node2 Name=gpu File=/dev/null
NodeName=node1,node2 Name=gpu File=/dev/zero
"""


def why_not(etc: Path = ETC) -> str | None:
    """Return in one line why no private Slurm can run on this machine; None if it can."""
    if missing := [program for program in PROGRAMS if not shutil.which(program)]:
        return f"needs Slurm and munge, not on the path: {', '.join(missing)} (`make test-cluster` installs them)"
    if os.geteuid() != 0:
        return "needs root: slurmd starts jobs as other users"
    for name in LINKS:
        place = etc / name
        if not os.path.lexists(place):
            continue
        if not _is_ours(place):
            return f"this machine has a Slurm of its own: {place} exists"
        if _is_alive(place.readlink().parent):
            return f"other tests have their Slurm on this machine: {place} points to {place.readlink().parent}"
    if running := [f"{process.pid} {process.name()}" for process in _processes() if process.name() in DAEMONS]:
        return f"this machine has a Slurm of its own, or other tests': process {', '.join(running)}"
    return None


@contextmanager
def private_slurm(grace: int = 30, more: str = "") -> Iterator[Slurm]:
    """A running Slurm; `grace`: seconds between a preempted job's TERM and its end; `more`: lines for slurm.conf."""
    if reason := why_not():
        raise RuntimeError(reason)
    slurm = Slurm()
    try:
        slurm.start(grace, more)
        yield slurm
    finally:
        slurm.stop()


class Slurm:
    """A running Slurm. A call that Slurm refuses raises RuntimeError with the ends of all logs."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
        self._keepers: dict[str, subprocess.Popen[bytes]] = {}
        self._environment: dict[str, str] = {}

    # ---- Jobs --------------------------------------------------------------------------------------------------------

    def submit(self, script: str, **options: str | int | bool) -> int:
        """Submit lines of bash and return the job's id. `time=5`, `gpus=1`, `no_requeue=True` are options of sbatch."""
        words = [f"--output={self.folder}/jobs/%j", "--open-mode=append", f"--chdir={self.folder}/jobs"]
        for key, value in options.items():
            option = f"--{key.replace('_', '-')}"
            words.append(option if value is True else f"{option}={value}")
        return int(self.run("sbatch", "--parsable", *words, text=f"#!/bin/bash\n{script}\n"))

    def details(self, job: int) -> dict[str, str]:
        """Return the fields of `scontrol show job`: JobState, Restarts, ExitCode, NodeList, ..."""
        return _pairs(self.run("scontrol", "--oneliner", "show", "job", str(job)))

    def jobs(self) -> list[dict[str, str]]:
        """Return the details of all jobs, including those that ended in the last minutes."""
        return [_pairs(line) for line in self.run("scontrol", "--oneliner", "show", "jobs").splitlines() if "=" in line]

    def state(self, job: int) -> str:
        return self.details(job)["JobState"]

    def wait(self, job: int, states: Collection[str] = ENDED, seconds: float = 300) -> str:
        """Wait until the job is in one of these states, and return the state."""
        states = {states} if isinstance(states, str) else states
        self.until(lambda: self.state(job) in states, seconds, f"job {job} to be {' or '.join(sorted(states))}")
        return self.state(job)

    def output(self, job: int) -> str:
        """Return the output of all attempts of a job."""
        place = self.folder / "jobs" / str(job)
        return place.read_text(encoding="utf-8") if place.exists() else ""

    def cancel(self, job: int) -> None:
        self.run("scancel", str(job))

    # ---- Faults ------------------------------------------------------------------------------------------------------

    def start_controller(self) -> None:
        self._start("slurmctld", "slurmctld", "-D")
        self.until(lambda: "is UP" in self.run("scontrol", "ping"), 30, "the controller to answer")

    def stop_controller(self) -> None:
        """Stop the controller like a service: its state is saved, and jobs continue."""
        self._end("slurmctld")

    def start_node(self, name: str) -> None:
        self._start(name, "slurmd", "-D", "-N", name)
        self.until(lambda: self.node(name).startswith(("IDLE", "MIXED", "ALLOCATED")), 60, f"{name} to be up")

    def kill_node(self, name: str) -> None:
        """Simulate a power failure: slurmd and all its jobs end at once. The controller notices after half a minute."""
        self._end(name)

    def node(self, name: str) -> str:
        """Return the node's state, such as IDLE or DOWN+NOT_RESPONDING."""
        return _pairs(self.run("scontrol", "--oneliner", "show", "node", name))["State"]

    # ---- Commands ----------------------------------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        """Return the environment of commands for this Slurm: no settings of another one, and no `sacct` on the path.

        Without a database `sacct` never works, and the plugin falls back to it when the controller does not answer. The
        plugin also asks it for an account, and fails where it is not there: give jobs a `slurm_account`, whichever.
        """
        return dict(self._environment)

    def run(self, *command: str, text: str = "") -> str:
        done = subprocess.run(command, input=text, env=self._environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}\n{self.tails()}")
        return done.stdout

    def until(self, holds: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until a condition holds. An error of Slurm counts as false."""
        deadline = time.monotonic() + seconds
        while True:
            error = ""
            try:
                if holds():
                    return
            except RuntimeError as refused:
                error = str(refused).partition("\n")[0] + "\n"
            gone = [name for name, keeper in self._keepers.items() if keeper.poll() is not None]
            if gone or time.monotonic() > deadline:
                why = f"{', '.join(gone)} ended" if gone else f"not within {seconds:.0f} seconds"
                raise RuntimeError(f"waiting for {what}: {why}\n{error}{self.queue()}{self.tails()}")
            time.sleep(0.2)

    def queue(self) -> str:
        """Return all jobs and their states, for error messages."""
        command = ("squeue", "--states=all", "--format=%i %P %j %T %r %N")
        return subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False).stdout

    def tails(self, lines: int = 15) -> str:
        """Return the ends of all logs, for error messages."""
        logs = sorted((self.folder / "log").iterdir())
        # What a daemon prints is in its log as well, unless it has not come that far.
        logs = [log for log in logs if log.suffix == ".log" or not log.with_suffix(".log").exists()]
        texts = {log.name: log.read_text(errors="replace").splitlines()[-lines:] for log in logs}
        return "\n".join("\n".join([f"==> {name} <==", *text]) for name, text in texts.items() if text)

    # ---- Begin and end -----------------------------------------------------------------------------------------------

    def start(self, grace: int, more: str) -> None:
        self.folder.chmod(0o755)
        for name in ("jobs", "log", "state", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir()
        (self.folder / "alive").touch()
        self._keep("janitor")
        host = socket.gethostname().partition(".")[0]
        text = CONFIGURATION.format(host=host, ports=_free_ports(3), folder=self.folder, grace=grace, more=more)
        (self.folder / "slurm.conf").write_text(text, encoding="utf-8")
        (self.folder / "gres.conf").write_text(DEVICES, encoding="utf-8")
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        for name in LINKS:
            _link(ETC / name, self.folder / name)
        settings = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SBATCH", "SRUN"))}
        self._environment = settings | {"PATH": _path_without("sacct", self.folder)}

        files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "seed-file": "seed", "log-file": "log"}
        places = (f"--{key}={self.folder}/munge.{ending}" for key, ending in files.items())
        self._start("munged", "munged", "--foreground", *places)
        self.until((self.folder / "munge.socket").exists, 10, "munged")
        self.start_controller()
        for node in NODES:
            self._start(node, "slurmd", "-D", "-N", node)
        for node in NODES:
            self.until(lambda node=node: self.node(node) == "IDLE", 60, f"{node} to be up")

    def stop(self) -> None:
        """Stop everything. No process and no file remains."""
        for name in [name for name in self._keepers if name != "janitor"]:
            self._end(name)
        if "janitor" in self._keepers:
            self._end("janitor")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, name: str, *command: str) -> None:
        assert name not in self._keepers, f"{name} runs already"
        self._keep(name, *command)

    def _keep(self, name: str, *command: str) -> None:
        with (self.folder / "log" / f"{name}.out").open("ab") as out:
            self._keepers[name] = subprocess.Popen(
                [sys.executable, __file__, str(self.folder), *command],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                env=self._environment or None,
                start_new_session=True,
            )

    def _end(self, name: str) -> None:
        keeper = self._keepers.pop(name)
        assert keeper.stdin
        keeper.stdin.close()
        keeper.wait(timeout=60)


def _pairs(line: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


def _is_ours(place: Path) -> bool:
    """Return whether private_slurm made this link, now or in tests that ended badly."""
    return place.is_symlink() and place.readlink().parent.name.startswith(PREFIX)


def _is_alive(folder: Path) -> bool:
    """Return whether a keeper of a Slurm in this folder runs."""
    try:
        with (folder / "alive").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _link(place: Path, target: Path) -> None:
    """Make the link. It is an error if other tests or a real Slurm have made one meanwhile."""
    place.parent.mkdir(exist_ok=True)
    if os.path.lexists(place) and _is_ours(place) and not _is_alive(place.readlink().parent):
        place.unlink()
    place.symlink_to(target)


def _processes() -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            process.name()
            yield process


def _free_ports(n: int) -> list[int]:
    sockets = [socket.socket() for _ in range(n)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _path_without(program: str, folder: Path) -> str:
    """Return the search path with each directory that has the program replaced by links to its other programs."""
    directories = []
    for number, directory in enumerate(os.environ["PATH"].split(os.pathsep)):
        if (Path(directory) / program).exists():
            links = folder / f"path-{number}"
            links.mkdir()
            for file in Path(directory).iterdir():
                if file.name != program:
                    (links / file.name).symlink_to(file)
            directory = str(links)
        directories.append(directory)
    return os.pathsep.join(directories)


# ---- The keeper ------------------------------------------------------------------------------------------------------


def _keep_daemon(command: list[str]) -> None:
    """Run a Slurm until the pipe is closed or Slurm ends; then end all its processes."""
    # Processes whose parent ends become children of this one, not of init: none gets lost.
    _become_subreaper()
    daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    ended: set[int] = set()
    while daemon.pid not in ended and not select.select([sys.stdin], [], [], 0.2)[0]:
        ended |= _reap()
    if command[0] == "slurmctld" and daemon.pid not in ended:
        daemon.terminate()
        deadline = time.monotonic() + 20
        while daemon.pid not in ended and time.monotonic() < deadline:
            time.sleep(0.05)
            ended |= _reap()
    while children := psutil.Process().children(recursive=True):
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        time.sleep(0.01)
        _reap()


def _clean(folder: Path) -> None:
    """Wait until the pipe is closed and all other keepers are done. Then remove the links and the folder."""
    sys.stdin.read()
    with (folder / "alive").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    for name in LINKS:
        place = ETC / name
        if place.is_symlink() and place.readlink() == folder / name:
            place.unlink()
    shutil.rmtree(folder)


def _become_subreaper() -> None:
    import ctypes

    PR_SET_CHILD_SUBREAPER = 36
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _reap() -> set[int]:
    """Return the children that have ended since the last call."""
    ended = set()
    with suppress(ChildProcessError):
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            ended.add(pid)
    return ended


def _main(folder: Path, command: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not command:
        _clean(folder)
        return
    with (folder / "alive").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        _keep_daemon(command)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2:])
