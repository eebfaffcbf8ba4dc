"""Trainings through `snakemake --profile slurm`, and faults that interrupt them, for the tests and for the campaign."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from clones import Clone, Done, copy
from private_slurm import NODES, Slurm

from recaps.layout import RUN_FILES

PAPER, VARIANT = "probabilistic", "vae"

#: What strikes a training, given its seed and a source of chance.
Fault = Callable[["Trainings", int, random.Random], None]

#: What a site's own file says for the tests' Slurm: quick looks at the queue, and pretended GPUs for work on the CPU.
SITE = """\
slurm-init-seconds-before-status-checks: 3
max-status-checks-per-second: 2
latency-wait: 10
default-resources: [slurm_account=tests]
set-threads: {{train_variant: 1, time_steps: 2}}
set-resources: {{train_variant: {{gpu: 1, slurm_partition: "{partition}", runs_per_gpu: {together}}}}}
"""

#: Fails while the file beside it exists.
SQUEUE = """\
#!/bin/bash
if [ -e "$(dirname "$0")/silent" ]; then echo "squeue: error: no answer" >&2; exit 1; fi
exec {squeue} "$@"
"""

#: Snakemake on a Slurm, as the site's own file says.
COMMAND = (sys.executable, "-m", "snakemake", "--profile", "slurm", "--profile", "site.yaml")


def snakemake(slurm: Slurm, clone: Clone, *arguments: str, timeout: float | None = None) -> Done:
    """Run the smoke workflow of a copy of this repository on a Slurm, as the copy's `site.yaml` says."""
    done = subprocess.run(
        [*COMMAND, "--config", "scale=smoke", "device=cpu", *arguments],
        cwd=clone.folder,
        env=environment(slurm, clone.folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Done(done.returncode, done.stdout)


def environment(slurm: Slurm, folder: Path) -> dict[str, str]:
    """What Snakemake needs in a copy of this repository."""
    return slurm.environment() | {"PYTHONPATH": str(folder / "src"), "COLUMNS": "200"}


class Trainings:
    """Several seeds of one small model in a copy of this repository.

    `record`: the result that each seed has when nothing disturbs it.
    """

    def __init__(self, root: Path, folder: Path, slurm: Slurm, *, seeds: int = 3, steps: int = 3000) -> None:
        self.slurm = slurm
        self.seeds, self.steps = range(seeds), steps
        self.clone: Clone = copy(root, folder)
        self.results = folder / "results" / "smoke"
        self.main: subprocess.Popen[bytes] | None = None
        self.wanted: Sequence[int] = ()
        self.output = folder / "snakemake.out"
        tools = folder / "tools"
        tools.mkdir()
        self.silence = tools / "silent"
        self.environment = environment(slurm, folder)
        squeue = shutil.which("squeue", path=self.environment["PATH"])
        (tools / "squeue").write_text(SQUEUE.format(squeue=squeue))
        (tools / "squeue").chmod(0o755)
        self.environment["PATH"] = f"{tools}{os.pathsep}{self.environment['PATH']}"
        self.site()
        done = self.clone.snakemake("--profile", "profiles/smoke", *self._wanted(self.seeds))
        assert done.status == 0, done.output
        self.record = {seed: self.digest(seed) for seed in self.seeds}
        self.clear()

    def site(self, partition: str = "main", together: int = 1) -> None:
        """Write the site's file. `partition` of trainings is a name or a Python expression of their `wildcards`."""
        (self.clone.folder / "site.yaml").write_text(SITE.format(partition=partition, together=together))

    def clear(self) -> None:
        """Delete all runs, and the lock of a killed Snakemake. Keep the data."""
        shutil.rmtree(self.clone.folder / ".snakemake" / "locks", ignore_errors=True)
        for name in ("runs", "checkpoints", "logs"):
            shutil.rmtree(self.results / name, ignore_errors=True)

    # ---- Snakemake ---------------------------------------------------------------------------------------------------

    def start(self, seeds: Sequence[int], training: str = "") -> None:
        """Start Snakemake. `training` is more settings of the training, as YAML."""
        self.wanted = seeds
        with self.output.open("ab") as out:
            self.main = subprocess.Popen(
                [*COMMAND, *self._wanted(seeds, training)],
                cwd=self.clone.folder,
                env=self.environment,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def finish(self, seconds: float = 1500) -> int:
        """Wait for Snakemake to end; return its exit status."""
        assert self.main
        try:
            return self.main.wait(timeout=seconds)
        finally:
            self.stop()

    def stop(self) -> None:
        """End Snakemake and its jobs, in any state."""
        if self.main and self.main.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.main.pid, signal.SIGKILL)
            self.main.wait()
            self.slurm.run("scancel", "--me")

    def unlock(self) -> None:
        subprocess.run(
            [sys.executable, "-m", "snakemake", "--unlock"],
            cwd=self.clone.folder,
            env=self.environment,
            check=True,
            capture_output=True,
        )

    def told(self) -> str:
        """Return the output of all starts of Snakemake."""
        return self.output.read_text(errors="replace")

    def _wanted(self, seeds: Sequence[int], more: str = "") -> list[str]:
        training = f"steps: {self.steps}, log_every: 20, {more}"
        return [
            "--config",
            "scale=smoke",
            "device=cpu",
            "checkpoint_seconds=0.5",
            f"papers=[{PAPER}]",
            f"seeds=[{', '.join(map(str, self.seeds))}]",
            f"overrides={{{PAPER}: {{variants: {{{VARIANT}: {{training: {{{training}}}}}}}}}}}",
            "--",
            *(f"results/smoke/runs/{PAPER}/{VARIANT}/seed-{seed}/record.json" for seed in seeds),
        ]

    # ---- A run -------------------------------------------------------------------------------------------------------

    def run(self, seed: int) -> Path:
        return self.results / "runs" / PAPER / VARIANT / f"seed-{seed}"

    def log(self, seed: int) -> Path:
        return self.results / "logs" / "train_variant" / f"{PAPER}-{VARIANT}-seed-{seed}.log"

    def checkpoints(self, seed: int) -> Path:
        """Return the folder of its lease. Its checkpoints lie in a folder of their settings below."""
        return self.results / "checkpoints" / PAPER / VARIANT / f"seed-{seed}"

    def step(self, seed: int) -> int:
        """Return the number of steps in the log."""
        try:
            found = re.findall(r"^step +(\d+)/", self.log(seed).read_text(errors="replace"), re.MULTILINE)
        except FileNotFoundError:
            return 0
        return int(found[-1]) if found else 0

    def lease(self, seed: int) -> dict[str, str | int]:
        """Return host, process and Slurm job of the trainer; empty if there is none."""
        try:
            return json.loads((self.checkpoints(seed) / "lease.json").read_text())
        except (FileNotFoundError, ValueError):
            return {}

    def reaches(self, seed: int, step: int, seconds: float = 900) -> bool:
        """Wait until a run has trained for this many steps; return whether it reached them before its end."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not (self.run(seed) / "record.json").exists():
            if self.step(seed) >= step and self.lease(seed):
                return True
            if self.main and self.main.poll() is not None:
                break
            time.sleep(0.05)
        return False

    def strike(self, struck: Mapping[int, tuple[Fault, int]], chance: random.Random) -> dict[int, bool]:
        """Inject the fault of each seed after its number of steps; return whether each came in time."""
        chances = {seed: random.Random(chance.random()) for seed in struck}

        def strike(seed: int) -> bool:
            fault, step = struck[seed]
            if self.reaches(seed, step):
                with suppress(KeyError, ProcessLookupError, psutil.NoSuchProcess):  # it has come to its end in between
                    fault(self, seed, chances[seed])
                    return True
            return False

        with ThreadPoolExecutor() as threads:
            return dict(zip(struck, threads.map(strike, struck), strict=True))

    def digest(self, seed: int) -> tuple[str, str]:
        """Return the digest of the weights, and of the history without times."""
        run = self.run(seed)
        with (run / "history.csv").open(newline="") as file:
            rows = [{k: v for k, v in row.items() if k not in _TIMES} for row in csv.DictReader(file)]
        texts = ((run / "model.safetensors").read_bytes(), json.dumps(rows).encode())
        weights, history = (hashlib.sha256(text).hexdigest() for text in texts)
        return weights, history

    def same(self, seed: int) -> bool:
        """Return whether the run equals the undisturbed one."""
        return not self.differing(seed)

    def differing(self, seed: int) -> str:
        """Return in what the run differs from the undisturbed one; empty if in nothing."""
        missing = [file for file in RUN_FILES if not (self.run(seed) / file).exists()]
        if missing:
            return f"seed {seed}: no {', '.join(missing)}"
        pairs = zip(("weights", "history"), self.digest(seed), self.record[seed], strict=True)
        parts = [part for part, now, wanted in pairs if now != wanted]
        return f"seed {seed}: other {' and '.join(parts)}" if parts else ""

    def interruptions(self, seed: int) -> int:
        """Return how often the run continued from a checkpoint."""
        return int(json.loads((self.run(seed) / "record.json").read_text())["interruptions"])

    def starts(self, seed: int) -> list[dict[str, Any]]:
        """Return the starts of a run that reached a checkpoint, each with `job`, `gpus` and `minutes`."""
        return list(json.loads((self.run(seed) / "record.json").read_text())["starts"])


_TIMES = ("seconds", "images_per_second")


# ---- Faults: each strikes while the run trains ----------------------------------------------------------------------


def kill(trainings: Trainings, seed: int, chance: random.Random) -> None:
    """SIGKILL of the training"""
    os.kill(int(trainings.lease(seed)["pid"]), signal.SIGKILL)


def cancel(trainings: Trainings, seed: int, chance: random.Random) -> None:
    """Job cancelled"""
    trainings.slurm.cancel(int(trainings.lease(seed)["job"]))


def kill_step(trainings: Trainings, seed: int, chance: random.Random) -> None:
    """SIGKILL of all processes of the job"""
    trainings.slurm.run("scancel", "--signal=KILL", f"{trainings.lease(seed)['job']}.0")


def cut_checkpoint(trainings: Trainings, seed: int, chance: random.Random) -> None:
    """SIGKILL, last checkpoint cut short"""
    with _stopped(trainings, seed) as file:
        os.truncate(file, chance.randrange(file.stat().st_size))


def flip_bit(trainings: Trainings, seed: int, chance: random.Random) -> None:
    """SIGKILL, a bit of the last checkpoint flipped"""
    with _stopped(trainings, seed) as file:
        content = bytearray(file.read_bytes())
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        file.write_bytes(content)


def shorten(trainings: Trainings, seed: int, chance: random.Random) -> None:
    """Time limit reached"""
    # A limit of two minutes and a warning two minutes ahead: Slurm warns when it next looks, within half a minute.
    # Until then the training stands still, lest it come to its end; Slurm lets it go on as it warns it.
    holder = trainings.lease(seed)
    process = Path(f"/proc/{holder['pid']}")
    os.kill(int(holder["pid"]), signal.SIGSTOP)
    trainings.slurm.run("scontrol", "update", f"JobId={holder['job']}", "TimeLimit=2")
    trainings.slurm.until(lambda: not process.exists(), 600, "the warning")


def preempt(trainings: Trainings, seed: int, chance: random.Random) -> None:
    """Preempted"""
    node = trainings.slurm.details(int(trainings.lease(seed)["job"]))["NodeList"]
    urgent = trainings.slurm.submit("true", partition="urgent", exclusive=True, nodelist=node)
    trainings.slurm.wait(urgent)


def silence(trainings: Trainings, seed: int, chance: random.Random) -> None:
    """Status queries fail for a minute"""
    trainings.silence.touch()
    time.sleep(60)
    trainings.silence.unlink()


def restart_controller(trainings: Trainings, seed: int, chance: random.Random) -> None:
    """slurmctld restarted"""
    trainings.slurm.stop_controller()
    time.sleep(chance.uniform(1, 20))
    trainings.slurm.start_controller()


def kill_node(trainings: Trainings, seed: int, chance: random.Random) -> None:
    """slurmd of the node killed, with all jobs on it"""
    node = trainings.slurm.details(int(trainings.lease(seed)["job"]))["NodeList"]
    assert node in NODES
    trainings.slurm.kill_node(node)
    try:
        trainings.slurm.until(lambda: "DOWN" in trainings.slurm.node(node), 300, f"{node} to be missed")
    finally:
        trainings.slurm.start_node(node)


def kill_snakemake(trainings: Trainings, seed: int, chance: random.Random) -> None:
    """Snakemake killed, its jobs cancelled, started again"""
    assert trainings.main
    os.killpg(trainings.main.pid, signal.SIGKILL)
    trainings.main.wait()
    time.sleep(chance.uniform(0, 2))
    trainings.unlock()
    left = [int(job["JobId"]) for job in trainings.slurm.jobs() if job["JobState"] in ("PENDING", "RUNNING")]
    for job in left:
        trainings.slurm.cancel(job)
    for job in left:
        trainings.slurm.wait(job)
    trainings.start(trainings.wanted)


def fill_disk(trainings: Trainings, seed: int, chance: random.Random) -> None:
    """Disk full, and freed again"""
    filler = trainings.results.parent / "filler"
    # Several checkpoints are due in this time, which is the training's own: the machine may be busy. What a checkpoint
    # that fails gives back is taken as well.
    training = psutil.Process(int(trainings.lease(seed)["pid"]))
    end = sum(training.cpu_times()[:2]) + chance.uniform(1, 2)
    try:
        with filler.open("wb", buffering=0) as file:
            while sum(training.cpu_times()[:2]) < end:
                try:
                    file.write(bytes(1 << 16))
                except OSError:
                    time.sleep(0.01)
    finally:
        filler.unlink()


@contextmanager
def _stopped(trainings: Trainings, seed: int) -> Iterator[Path]:
    """Stop a training, yield its checkpoint, and kill it afterwards."""
    pid = int(trainings.lease(seed)["pid"])
    while not (found := list(trainings.checkpoints(seed).glob("*/checkpoint.previous.pt"))):
        time.sleep(0.05)
    (previous,) = found
    file = previous.with_name("checkpoint.pt")
    os.kill(pid, signal.SIGSTOP)
    try:
        yield file
    finally:
        os.kill(pid, signal.SIGKILL)


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[None]:
    """Mount a separate file system on `folder`, with the content of the folder."""
    held = folder.with_name(f"{folder.name}.held")
    folder.rename(held)
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)], check=True)
    try:
        shutil.copytree(held, folder, dirs_exist_ok=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()
        held.rename(folder)
