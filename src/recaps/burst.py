"""Make the most of a machine that is borrowed for some minutes: `python -m recaps burst`, see `profiles/README.md`."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from recaps import estimate, io, provenance, step_times
from recaps.command import at_least_one
from recaps.datasets.download import fetch
from recaps.datasets.sources import file as official
from recaps.errors import TRY_AGAIN, UserError
from recaps.layout import PUBLISHED_FILES, RECORD_FILES
from recaps.plan import jobs
from recaps.plan.jobs import Job
from recaps.plan.plan import Plan
from recaps.plan.receipts import FOLDER as RECEIPTS
from recaps.plan.state import State
from recaps.training import checkpoint, lease, machine
from recaps.training import device as devices
from recaps.training.interruption import StopRequests

#: Paper, variant and seed.
Run = tuple[str, str, int]
#: Device and seconds of the trainings of finished runs that are not here, by the run's folder below that of the scale.
Elsewhere = dict[str, Mapping[str, Any]]

#: What comes back: at most eight files of 16 MiB, one of which has the digests of the others.
PIECE, PIECES, DIGESTS = 2**24, 7, "SHA256SUMS"
#: Bytes of what is sent.
MOST_SENT = 2**26
#: A process that uses the GPU.
_ON_GPU = "import torch; torch.zeros(1, device='cuda')"
#: Times that a task is started if another process is in its way.
TRIES = 3


def add_options(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--minutes", type=float, help="run for so long, and pack what is to go home into --out")
    what.add_argument("--ship", type=Path, metavar="FILE", help="write a tar file of all that the other machine needs")
    what.add_argument("--collect", type=Path, metavar="DIR", help="unpack what a burst has packed")
    add = parser.add_argument
    add("--make", nargs="+", help=argparse.SUPPRESS)  # files: what a process of a burst makes
    add("--out", type=Path, default=Path("burst"), metavar="DIR", help="the folder to pack into (default: burst)")
    add("--resume", type=Path, metavar="DIR", help="first unpack what another burst has packed")
    add("--jobs", type=at_least_one, default=max(1, _cores() - 1), help="trainings side by side (default: cores - 1)")
    add("--grace", type=float, default=90, help="seconds before the end when trainings save and stop (default: 90)")


def main(plan: Plan, options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Do what the command line, `arguments`, asks. Return 0, or 75 if the minutes were too few for all runs.

    Raises:
        UserError: a task failed; or see `ship` and `unpack`.
    """
    end = time.monotonic() + 60 * (options.minutes or 0)
    if options.ship:
        return _tell(ship(plan, options.ship))
    if packed := options.collect or options.resume:
        _tell(unpack(plan, packed))
    if options.collect:
        return 0
    os.environ["OMP_NUM_THREADS"] = "1"
    elsewhere = finished_elsewhere(plan)
    mine = [run for run in plan.runs(plan.project.reported) if _name(run) not in elsewhere]
    runs = wanted(plan, mine)
    device = devices.choose(plan.project.config.device, 1)
    with _shared(device.type):
        tasks = tasks_of(plan, runs, expected_seconds(plan, runs, elsewhere, machine.describe(device)))
        burst = Burst(tasks, options.jobs, end, options.grace, arguments)
        burst.go()
    _tell(pack(plan, dict.fromkeys([*mine, *runs]), options.out))
    if too_long := [str(task) for task in burst.waiting if task.seconds]:
        _tell(f"too long for the minutes that were left: {', '.join(too_long)}")
    if failed := [f"{task} ({task.log})" for task in burst.ended if not task.is_stopped]:
        raise UserError(f"failed: {', '.join(failed)}")
    return TRY_AGAIN if burst.waiting or burst.ended else 0


def _tell(text: str) -> int:
    print(f"recaps: {text}", file=sys.stderr, flush=True)
    return 0


def finished_elsewhere(plan: Plan) -> Elsewhere:
    """Return the finished runs of the published record, and of the list that came with the tree."""
    shipped, published = Path(provenance.SHIPPED), Path(plan.results, "published", plan.scale)
    found = dict(io.read_json(shipped)["finished"].get(plan.scale, {})) if shipped.is_file() else {}
    papers = io.read_json(published / "MANIFEST.json")["papers"].values() if published.is_dir() else ()
    outdated = {run for about in papers for run in about.get("other_settings", ())}
    names = {file.parent.relative_to(published).as_posix() for file in published.glob("runs/*/*/*/record.json")}
    return found | {name: _cost(published / name) for name in names - outdated}


def _cost(run: Path) -> dict[str, Any]:
    record = io.read_json(run / "record.json")
    return {"device": record["device"], "seconds": record["wall_seconds"]}


def finished(plan: Plan, runs: Iterable[Run]) -> list[Run]:
    """Return the runs whose records are here and as planned. Their weights and latents need not be here."""
    state = State(plan)
    whole = [run for run in runs if all((plan.files.run(*run) / file).exists() for file in RECORD_FILES)]
    return [run for run in whole if not any(map(state.difference, plan.jobs_of(*run)))]


def wanted(plan: Plan, runs: Sequence[Run]) -> list[Run]:
    """Return the runs that are not finished, and those whose weights these need for their records."""
    found, done = list[Run](), finished(plan, runs)
    more = [run for run in runs if run not in done]
    while more:
        found += more
        more = [run for job in _needed(plan, found) if job.stage == "train_variant" and (run := _run(job)) not in found]
    return found


def _needed(plan: Plan, runs: Iterable[Run]) -> list[Job]:
    return jobs.needed(plan.jobs, [file for run in runs for file in plan.files_of(*run)])


def _run(job: Job) -> Run:
    return job.names.paper, job.names.variant, job.names.seed


def _name(run: Run) -> str:
    return "runs/{}/{}/seed-{}".format(*run)


def expected_seconds(plan: Plan, runs: Iterable[Run], elsewhere: Elsewhere, device: str) -> dict[Run, float]:
    """Return the seconds of those trainings that were measured on a device, by `make bench` or as another seed."""
    known = dict[Run, float]()
    steps = step_times.measured(Path(plan.results, step_times.FILE.name)).get(device, {})
    for paper, variant in dict.fromkeys(run[:2] for run in runs):
        seeds = [about for name, about in elsewhere.items() if name.startswith(f"runs/{paper}/{variant}/")]
        seconds = [about["seconds"] for about in seeds if about["device"] == device]
        settings = plan.project.every[paper].variants[variant]
        hours = step_times.hours(settings, estimate.untrained(settings).phases(), steps) if steps else None
        if hours or seconds:
            seconds = [3600 * hours] if hours else seconds
            known |= {run: statistics.median(seconds) for run in runs if run[:2] == (paper, variant)}
    return known


@dataclass(eq=False)
class Task:
    """The jobs of one process: a data set, a training, or all that follows a training."""

    jobs: list[Job]
    log: Path
    seconds: float = 0
    """Expected seconds of a training; 0 if they are unknown, or if it continues from a checkpoint."""
    tries: int = 0
    is_stopped: bool = False

    def __str__(self) -> str:
        return str(self.jobs[-1])

    @property
    def trains(self) -> bool:
        return self.jobs[0].stage == "train_variant"

    @property
    def outputs(self) -> set[str]:
        return {file for job in self.jobs for file in job.outputs}

    @property
    def inputs(self) -> set[str]:
        return {file for job in self.jobs for file in job.inputs} - self.outputs


def tasks_of(plan: Plan, runs: Sequence[Run], seconds: Mapping[Run, float]) -> list[Task]:
    """Return the tasks that make runs and are not done yet, in the order in which to start them.

    Trainings with a checkpoint come first, then the longest of those with known seconds, then the others.
    """
    state, tasks = State(plan), dict[Path, Task]()
    for job in _needed(plan, runs):
        stage = job.stage if job.stage in ("prepare_dataset", "train_variant") else "record_run"
        names = "-".join(str(each) for name, each in job.names.items() if name != "scale")
        log = plan.files.log(f"{stage}/{names}")
        tasks.setdefault(log, Task([], log)).jobs.append(job)
    begun, others = [], []
    for task in tasks.values():
        if all(job.is_made and not state.reason(job) for job in task.jobs):
            continue
        run = _run(task.jobs[0]) if task.trains else None
        if run and any(plan.files.checkpoints(*run).glob(f"*/{checkpoint.FILE}")):
            begun.append(task)
        else:
            others.append(task)
            task.seconds = seconds.get(run, 0) if run else 0
    return begun + sorted(others, key=lambda task: -task.seconds)


class Burst:
    """Processes that work on tasks until the time is up.

    Attributes:
        waiting: the tasks, in the order in which to start them.
        most: trainings side by side. Other tasks have the cores that are left, at least one.
        end: when all must be over, in seconds of `time.monotonic`.
        grace: seconds before `end` at which trainings are stopped; other tasks are at a third of them.
        arguments: the command line, which the processes get, too.
        ended: tasks that were stopped or have failed.
    """

    def __init__(self, waiting: list[Task], most: int, end: float, grace: float, arguments: Sequence[str]) -> None:
        self.waiting, self.most, self.end, self.grace, self.arguments = waiting, most, end, grace, arguments
        self.running: dict[Task, subprocess.Popen[bytes]] = {}
        self.ended: list[Task] = []

    def go(self) -> None:
        """Work until all is done or the time is up. SIGTERM brings the end forward."""
        with StopRequests() as stop:
            while True:
                if stop.requested:
                    self.end = min(self.end, time.monotonic() + self.grace)
                self.running = {task: each for task, each in self.running.items() if not self._has_ended(task, each)}
                while task := self._next():
                    self._start(task)
                if not self.running:
                    return
                time.sleep(0.2)

    def _left(self, task: Task) -> float:
        """Return the seconds until a task must stop."""
        return self.end - self.grace / (1 if task.trains else 3) - time.monotonic()

    def _next(self) -> Task | None:
        """Return the next task that may start now."""
        missing = {file for task in (*self.waiting, *self.running, *self.ended) for file in task.outputs}
        trainings = sum(task.trains for task in self.running)
        others = len(self.running) - trainings
        for task in self.waiting:
            free = trainings < self.most if task.trains else others < max(1, _cores() - trainings)
            if free and task.seconds < self._left(task) and missing.isdisjoint(task.inputs):
                return task
        return None

    def _start(self, task: Task) -> None:
        self.waiting.remove(task)
        task.tries += 1
        task.log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "recaps", *self.arguments, "--make", *sorted(task.outputs)]
        with open(task.log, "ab") as log:
            self.running[task] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _has_ended(self, task: Task, process: subprocess.Popen[bytes]) -> bool:
        """Return whether a task has ended; stop it if its time is up."""
        if (status := process.poll()) is None:
            if self._left(task) < 0 and not task.is_stopped:
                task.is_stopped = True
                process.terminate()
            if time.monotonic() > self.end - self.grace / 6:
                process.kill()
            return False
        again = status == TRY_AGAIN and not task.is_stopped and task.tries < TRIES
        if status:
            (self.waiting if again else self.ended).append(task)
        how = "made" if not status else "stopped" if task.is_stopped else "started again" if again else "failed"
        left = (self.end - time.monotonic()) / 60
        _tell(f"{left:.1f} minutes left, {len(self.waiting)} tasks waiting; {how}: {task}")
        return True


def end_with_parent() -> None:
    """Let Linux send SIGTERM to this process when its parent ends, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


@contextmanager
def _shared(device: str) -> Iterator[None]:
    """Let processes compute on a GPU at the same time meanwhile, with NVIDIA's MPS, if it can be started."""
    control = (shutil.which("nvidia-cuda-mps-control") if device == "cuda" else None) or ""
    started = bool(control) and _succeeds(control, "-d")
    works = started and _succeeds(sys.executable, "-c", _ON_GPU)
    if device == "cuda" and not works:
        _tell("NVIDIA's MPS cannot be used here; the trainings take turns on the GPU")
    if started and not works:
        _succeeds(control, text="quit\n")
    try:
        yield
    finally:
        if works:
            _succeeds(control, text="quit\n")


def _succeeds(*command: str, text: str = "") -> bool:
    return subprocess.run(command, input=text, text=True, capture_output=True, check=False).returncode == 0


def ship(plan: Plan, target: Path) -> str:
    """Write a tar file of at most 64 MiB: this commit without published results, the list of finished runs, and data.

    Data are official files, and those checkpoints of unfinished runs that fit. Return what was done, in one line.

    Raises:
        UserError: there are uncommitted changes, or the data are too large.
    """
    git = provenance.git(Path.cwd())
    if git["dirty"] is not False:
        raise UserError("--ship: sends a commit; run it in a git checkout, and commit or stash your changes first")
    elsewhere = finished_elsewhere(plan)
    every = [run for run in plan.runs(plan.project.reported) if _name(run) not in elsewhere]
    runs = wanted(plan, every)
    done = elsewhere | {_name(run): _cost(plan.files.run(*run)) for run in finished(plan, every)}
    sets = [job.names for job in _needed(plan, runs) if job.stage == "prepare_dataset"]
    raw = sorted({Path(file) for names in sets for file in plan.raw_files(names)})
    for file in raw:
        fetch(official(file.parent.name, file.name), file.parent, plan.project.config.mirror)
    with io.atomic(target) as part:
        tree = ("HEAD", "--", ".", ":(exclude)results/published")
        subprocess.run(["git", "archive", "--format=tar", f"--output={part}", *tree], check=True)
        with tarfile.open(part, "a", format=tarfile.GNU_FORMAT) as archive:
            text = json.dumps({"git": git, "finished": {plan.scale: done}}, indent=1).encode()
            about = tarfile.TarInfo(provenance.SHIPPED)
            about.size = len(text)
            archive.addfile(about, BytesIO(text))
            if (times := Path(plan.results, step_times.FILE.name)).is_file():
                archive.add(times, step_times.FILE)
            for file in raw:
                archive.add(file, Path("data", *file.parts[-2:]))
            left = _fill(archive, plan, _checkpoints(plan, runs), MOST_SENT, f"results/{plan.scale}/")
        if (size := part.stat().st_size) > MOST_SENT:
            sizes = ", ".join(f"{'/'.join(file.parts[-2:])} {file.stat().st_size / 2**20:.0f}" for file in raw)
            raise UserError(
                f"--ship: {size / 2**20:.0f} MiB are more than {MOST_SENT / 2**20:.0f} (MiB of data: {sizes}); name"
                " fewer papers, or data sets to leave out with --without"
            )
    return f"{target}: {size / 2**20:.1f} MiB, {len(done)} finished runs listed, {len(runs)} to make{left}"


def pack(plan: Plan, runs: Iterable[Run], out: Path) -> str:
    """Write to the folder `out` one tar file in pieces, and `SHA256SUMS`: what comes back from a burst.

    The file holds the records of finished runs, and those checkpoints of the others that fit. Return what was done, in
    one line.
    """
    done, records = finished(plan, runs), []
    for folder in (plan.files.run(*run) for run in done):
        there = [folder / name for name in PUBLISHED_FILES if (folder / name).exists()]
        records.append(there + sorted((folder / RECEIPTS).glob("*.json")))
    begun, tar = _checkpoints(plan, [run for run in runs if run not in done]), BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.GNU_FORMAT) as archive:
        left = _fill(archive, plan, [*records, *begun], PIECES * PIECE)
    for file in (*out.glob("burst.tar.*"), out / DIGESTS):
        file.unlink(missing_ok=True)
    content, digests = tar.getvalue(), ""
    for start in range(0, len(content), PIECE):
        io.write_bytes(file := out / f"burst.tar.{start // PIECE}", content[start : start + PIECE])
        digests += f"{io.digest_of(file)}  {file.name}\n"
    io.write_text(out / DIGESTS, digests)
    return f"{out}: {len(done)} finished runs, {len(begun)} unfinished ones with checkpoints{left}"


def _checkpoints(plan: Plan, runs: Iterable[Run]) -> list[list[Path]]:
    """Return the files of the checkpoints of those runs that have some, the smallest first."""
    found = []
    for folder in (plan.files.checkpoints(*run) for run in runs):
        files = (file for file in sorted(folder.rglob("[!.]*")) if file.is_file())
        found.append([file for file in files if file.name not in (lease.FILE, checkpoint.PREVIOUS)])
    return sorted(filter(None, found), key=lambda files: sum(file.stat().st_size for file in files))


def _fill(archive: tarfile.TarFile, plan: Plan, parts: Iterable[list[Path]], most: int, prefix: str = "") -> str:
    """Add files to an archive, part by part, up to `most` bytes in all. Return what does not fit, as text."""
    left = []
    for files in parts:
        names = [file.relative_to(plan.files.folder) for file in files]
        size = sum(1024 + file.stat().st_size for file in files)  # headers, and whole blocks of 512 bytes
        if archive.offset + size > most - tarfile.RECORDSIZE:
            left.append("/".join(names[0].parts[1:4]))
        else:
            for file, name in zip(files, names, strict=True):
                archive.add(file, prefix + name.as_posix())
    return f"; do not fit: {', '.join(left)}" if left else ""


def unpack(plan: Plan, packed: Path) -> str:
    """Move what `pack` wrote to the results, except for finished runs and newer checkpoints there.

    Return what was done, in one line.

    Raises:
        UserError: a piece is missing or damaged.
    """
    if not (packed / DIGESTS).is_file():
        raise UserError(f"{packed / DIGESTS}: no such file; name the folder that a burst packed into")
    pieces = [line.split() for line in (packed / DIGESTS).read_text(encoding="utf-8").splitlines()]
    for digest, name in pieces:
        if not (packed / name).is_file() or io.digest_of(packed / name) != digest:
            raise UserError(f"{packed / name}: missing or damaged; copy it again")
    content = b"".join((packed / name).read_bytes() for _, name in pieces)
    folder, moved = plan.files.folder, {"runs": 0, "checkpoints": 0}
    folder.mkdir(parents=True, exist_ok=True)
    done = {plan.files.run(*run) for run in finished(plan, plan.runs(plan.project.reported))}
    with tempfile.TemporaryDirectory(prefix=".burst-", dir=folder) as temporary:
        with tarfile.open(fileobj=BytesIO(content)) as archive:
            archive.extractall(temporary, filter="data")
        for new in sorted(Path(temporary).glob("*/*/*/seed-*")):
            kind, *run = new.relative_to(temporary).parts
            there = folder.joinpath(kind, *run)
            if folder.joinpath("runs", *run) not in done and _newest(new) > _newest(there):
                shutil.rmtree(there, ignore_errors=True)
                there.parent.mkdir(parents=True, exist_ok=True)
                os.replace(new, there)
                moved[kind] += 1
    return f"{packed}: {moved['runs']} finished runs and checkpoints of {moved['checkpoints']} others"


def _newest(folder: Path) -> float:
    """Return when the newest file of a folder was written; 0 if there is none."""
    return max((file.stat().st_mtime for file in folder.rglob("*") if file.is_file()), default=0)
