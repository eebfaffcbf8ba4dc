"""Accept a change of code that leaves the bits alone, after proving it.

For each variant whose runs differ from the plan in nothing but modules, the first steps are computed with the code that
made the run and with today's, at the run's own settings, seed and precision. If all bits are the same, the receipts of
its runs get today's digests, and the proof. This holds for runs of one commit and device, and for modules that these
steps run.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import recaps
from recaps import provenance
from recaps.errors import UserError
from recaps.identity import differences
from recaps.io import read_json, write_json
from recaps.plan.identities import probes_of
from recaps.plan.jobs import Job
from recaps.plan.modules import modules
from recaps.plan.plan import Plan
from recaps.plan.receipts import file_of, rewrite
from recaps.plan.state import State
from recaps.training import checkpoint

#: The stages whose results can be accepted. All others are cheap to make again.
STAGES = ("train_variant", "read_model")
#: The programs that run with the code of a commit: they read and write JSON.
TRIAL = ("-m", "recaps.training.proof")
DIGESTS = (
    "-c",
    """
import importlib, json, sys
from importlib.util import find_spec
places = ("plan", "modules"), ("plan", "fingerprint"), ("workflow", "fingerprint")  # the last two: in earlier commits
there = next(f"recaps.{a}.{b}" for a, b in places if find_spec(f"recaps.{a}") and find_spec(f"recaps.{a}.{b}"))
json.dump(importlib.import_module(there).modules(json.load(sys.stdin)), sys.stdout)
""",
)


def accept(plan: Plan, root: Path) -> Iterator[str]:
    """Prove and accept what differs in modules alone; yield a line for each variant, and for what proves nothing.

    Args:
        plan: the plan.
        root: the git checkout, for the code of earlier commits.
    """
    state = State(plan)
    waiting: dict[tuple[str, ...], list[Job]] = {}
    for job in plan.jobs:
        if job.stage in STAGES and _differs_in_modules(state, job):
            record = _record(plan, job)
            made = json.dumps([record.get("git"), record["device"]])
            waiting.setdefault((job.names.paper, job.names.variant, made), []).append(job)
    if not waiting:
        yield "nothing to accept: no result differs from the plan in its modules alone"
    today = provenance.git(root)
    now = today["commit"] if today["commit"] and not today["dirty"] else "unknown"
    with tempfile.TemporaryDirectory() as folder:
        for (paper, variant, _), jobs in waiting.items():
            for line in _accepted(state, jobs, root, Path(folder), now):
                yield f"{paper}/{variant}: {line}"


def _record(plan: Plan, job: Job) -> Mapping[str, Any]:
    """Return the record of the training that a job belongs to."""
    names = job.names
    return dict(read_json(plan.files.run(names.paper, names.variant, names.seed) / "record.json"))


def _differs_in_modules(state: State, job: Job) -> bool:
    receipt = state.receipts.of(job.outputs)
    if receipt is None or not state.reason(job):
        return False
    planned = state.planned(job)
    return not differences(receipt["identity"] | {"modules": planned["modules"]}, planned)


def _accepted(state: State, every: list[Job], root: Path, folder: Path, now: str) -> Iterator[str]:
    """Yield what became of the results of a variant that one commit made on one device."""
    record, made = _record(state.plan, every[0]), _record(state.plan, every[0]).get("git", {})
    if made.get("dirty") or not made.get("commit"):
        yield "cannot be proved, as its code was not committed; train again"
        return
    try:
        source = _code(root, made["commit"], folder)
        doubts = {job: _doubt(state, job, source) for job in every}
    except UserError as error:
        yield f"cannot be proved: {error}"
        return
    yield from (f"{job}: {doubt}; it will be made again" for job, doubt in doubts.items() if doubt)
    if jobs := [job for job in every if not doubts[job]]:
        yield _proved(state, jobs, source, record, now)


def _doubt(state: State, job: Job, source: Path) -> str:
    """Return why first steps with the code in a folder prove nothing for a result; empty if they do."""
    was = _made_with(state, job)
    there = _run(DIGESTS, list(was), source)
    if differing := [name for name in was if there.get(name) != was[name]]:
        return f"made with another {', '.join(differing)} than that of the commit in its record"
    variant = state.plan.variant(job.names)
    tested = ["recaps.training.testing"] if not variant.training.evaluate_every else []  # else it matters to no run
    run = modules(["recaps.training.step", *tested, *variant.model.modules, *probes_of(job.names.paper, variant)])
    if others := [name for name in _changed(state, job) if name in job.identity()["modules"] and name not in run]:
        return f"the first steps do not run {', '.join(others)}"
    return ""


def _made_with(state: State, job: Job) -> dict[str, str]:
    """Return the digests of the modules that made a result, before any was accepted."""
    receipt = state.receipts.of(job.outputs)
    assert receipt is not None
    found = dict(receipt["identity"]["modules"])
    for proof in reversed(receipt.get("proofs", ())):
        found |= proof["modules"]
    return {name: digest for name, digest in found.items() if digest}


def _changed(state: State, job: Job) -> dict[str, str | None]:
    """Return the modules that differ from today's, with the digests in the receipt."""
    receipt = state.receipts.of(job.outputs)
    assert receipt is not None
    old, new = receipt["identity"]["modules"], job.identity()["modules"]
    return {name: old.get(name) for name in sorted({*old, *new}) if old.get(name) != new.get(name)}


def _proved(state: State, jobs: list[Job], source: Path, record: Mapping[str, Any], now: str) -> str:
    """Return what became of results for which first steps are a proof."""
    first = jobs[0].names
    config = read_json(state.plan.files.run(first.paper, first.variant, first.seed) / "config.json")
    device = "cpu" if "thread" in record["device"] else "cuda"
    variant = state.plan.project.every[first.paper].variants[first.variant]
    trial = {
        "settings": {name: config[name] for name in ("model", "training")},  # with the steps of `training.minutes`
        "paper": first.paper,
        "seed": first.seed,
        "dataset": str(state.plan.files.dataset(state.plan.project.resolve(variant.data)).resolve()),
        "probes": sorted(variant.probes),
        "device": device,
        "threads": 1,
    }
    try:
        before = _run(TRIAL, trial, source)
        today = {"model": variant.model.model_dump(mode="json"), "training": variant.training.model_dump(mode="json")}
        if variant.training.minutes:
            today["training"] = config["training"]
        after = _run(TRIAL, trial | {"settings": today}, Path(recaps.__file__).parents[1])
    except UserError as error:
        return f"cannot be proved: {error}"
    if differing := [name for name in before if before[name] != after.get(name)]:
        return f"other numbers in {', '.join(differing)}; it will be made again"
    accepted = set()
    for job in jobs:
        accepted |= _keep(state, job, record["git"]["commit"], now, ", ".join(before), record["device"])
    seeds = len({job.names.seed for job in jobs})
    return f"the same bits ({', '.join(before)}); {seeds} runs accepted with {', '.join(sorted(accepted))}"


def _code(root: Path, commit: str, folder: Path) -> Path:
    """Return the folder `src` of a commit, unpacked once."""
    target = folder / commit
    if not target.exists():
        packed = subprocess.run(["git", "-C", str(root), "archive", commit, "src"], capture_output=True, check=False)
        if packed.returncode:
            raise UserError(f"git has no commit {commit[:10]}, which made it")
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
            archive.extractall(target, filter="data")
    if not (target / "src/recaps/training/proof.py").exists():
        raise UserError(f"commit {commit[:10]}, which made it, is older than this command")
    return target / "src"


def _run(program: Sequence[str], given: Any, source: Path) -> dict[str, str]:
    """Return the digests that a program with the code in a folder writes."""
    done = subprocess.run(
        [sys.executable, *program],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(source)},
        cwd=source,
        check=False,
    )
    lines = done.stdout.splitlines()
    found = (
        json.loads(lines[-1]) if done.returncode == 0 and lines else {"error": done.stderr.strip().rpartition("\n")[2]}
    )
    if "error" in found:
        raise UserError(found["error"])
    return dict(found)


def _keep(state: State, job: Job, before: str, now: str, what: str, device: str) -> set[str]:
    """Write today's digests and the proof into the receipt of a job and the record of its run; return the modules."""
    outputs = [Path(file) for file in job.outputs]
    receipt = state.receipts.of(job.outputs)
    assert receipt is not None
    new, changed = job.identity()["modules"], _changed(state, job)
    proof = {
        "modules": changed,
        "from": before,
        "to": now,
        "what": what,
        "device": device,
        "date": provenance.now()[:10],
    }
    if job.stage == "train_variant":
        checkpoint.accept(Path(state.plan.checkpoints(job.names)), receipt["identity"], {"modules": new})
    receipt["identity"] = receipt["identity"] | {"modules": new}
    receipt["proofs"] = [*receipt.get("proofs", ()), proof]
    written = [file for file in outputs if file.name == "record.json"]
    for file in written:
        record = read_json(file)
        record["identity"] = record["identity"] | {"modules": new}
        write_json(file, record | {"proofs": [*record.get("proofs", ()), proof]})
    rewrite(file_of(outputs), receipt, written)
    return {*changed}
