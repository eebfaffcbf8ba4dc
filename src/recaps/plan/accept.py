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
from recaps.plan.receipts import Receipt, file_of, rewrite
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

Record = Mapping[str, Any]


def accept(plan: Plan, root: Path) -> Iterator[str]:
    """Prove and accept what differs in modules alone; yield a line for each variant, and for what proves nothing.

    Args:
        plan: the plan.
        root: the git checkout, for the code of earlier commits.
    """
    state = State(plan)
    waiting: dict[tuple[str, ...], tuple[Record, dict[Job, Receipt]]] = {}
    for job in plan.jobs:
        receipt = state.receipts.of(job.outputs) if job.stage in STAGES else None
        if receipt is None or not state.reason(job):
            continue
        planned = state.planned(job)
        if not differences(receipt["identity"] | {"modules": planned["modules"]}, planned):
            names = job.names
            record = read_json(plan.files.run(names.paper, names.variant, names.seed) / "record.json")
            made = json.dumps([record.get("git"), record["device"]])
            _, receipts = waiting.setdefault((names.paper, names.variant, made), (record, {}))
            receipts[job] = receipt
    if not waiting:
        yield "nothing to accept: no result differs from the plan in its modules alone"
    today = provenance.git(root)
    now = today["commit"] if today["commit"] and not today["dirty"] else "unknown"
    with tempfile.TemporaryDirectory() as folder:
        for (paper, variant, _), (record, receipts) in waiting.items():
            for line in _accepted(plan, record, receipts, root, Path(folder), now):
                yield f"{paper}/{variant}: {line}"


def _accepted(
    plan: Plan, record: Record, receipts: Mapping[Job, Receipt], root: Path, folder: Path, now: str
) -> Iterator[str]:
    """Yield what became of the results of a variant that one commit made on one device, as a training's record says."""
    made = record.get("git", {})
    if made.get("dirty") or not made.get("commit"):
        yield "cannot be proved, as its code was not committed; train again"
        return
    try:
        source = _code(root, made["commit"], folder)
        doubts = {job: _doubt(plan, job, receipt, source) for job, receipt in receipts.items()}
    except UserError as error:
        yield f"cannot be proved: {error}"
        return
    yield from (f"{job}: {doubt}; it will be made again" for job, doubt in doubts.items() if doubt)
    if proved := {job: receipt for job, receipt in receipts.items() if not doubts[job]}:
        yield _proved(plan, record, proved, source, now)


def _doubt(plan: Plan, job: Job, receipt: Receipt, source: Path) -> str:
    """Return why first steps with the code in a folder prove nothing for a result; empty if they do."""
    was = dict(receipt["identity"]["modules"])
    for proof in reversed(receipt.get("proofs", ())):  # back to the modules that made it, before any was accepted
        was |= proof["modules"]
    was = {name: digest for name, digest in was.items() if digest}
    there = _run(DIGESTS, list(was), source)
    if differing := [name for name in was if there.get(name) != was[name]]:
        return f"made with another {', '.join(differing)} than that of the commit in its record"
    variant = plan.variant(job.names)
    tested = ["recaps.training.testing"] if not variant.training.evaluate_every else []  # else it matters to no run
    run = modules(["recaps.training.step", *tested, *variant.model.modules, *probes_of(job.names.paper, variant)])
    now = job.identity()["modules"]
    if others := [name for name in _changed(receipt, now) if name in now and name not in run]:
        return f"the first steps do not run {', '.join(others)}"
    return ""


def _changed(receipt: Receipt, now: Mapping[str, str]) -> dict[str, str | None]:
    """Return the modules that differ from today's, with the digests in the receipt."""
    old = receipt["identity"]["modules"]
    return {name: old.get(name) for name in sorted({*old, *now}) if old.get(name) != now.get(name)}


def _proved(plan: Plan, record: Record, receipts: Mapping[Job, Receipt], source: Path, now: str) -> str:
    """Return what became of results for which first steps are a proof."""
    names = next(iter(receipts)).names
    config = read_json(plan.files.run(names.paper, names.variant, names.seed) / "config.json")
    variant = plan.variant(names)
    trial = {
        "settings": {name: config[name] for name in ("model", "training")},  # with the steps of `training.minutes`
        "paper": names.paper,
        "seed": names.seed,
        "dataset": str(plan.files.dataset(plan.project.resolve(variant.data)).resolve()),
        "probes": sorted(variant.probes),
        "device": "cpu" if "thread" in record["device"] else "cuda",
        "threads": 1,
    }
    try:
        before = _run(TRIAL, trial, source)
        today = plan.training(names)
        if variant.training.minutes:
            today["training"] = config["training"]
        after = _run(TRIAL, trial | {"settings": today}, Path(recaps.__file__).parents[1])
    except UserError as error:
        return f"cannot be proved: {error}"
    if differing := [name for name in before if before[name] != after.get(name)]:
        return f"other numbers in {', '.join(differing)}; it will be made again"
    what = ", ".join(before)
    proof = {"from": record["git"]["commit"], "to": now, "what": what, "device": record["device"]}
    proof["date"] = provenance.now()[:10]
    accepted: dict[str, str | None] = {}
    for job, receipt in receipts.items():
        accepted |= _keep(plan, job, receipt, proof)
    seeds = len({job.names.seed for job in receipts})
    return f"the same bits ({what}); {seeds} runs accepted with {', '.join(sorted(accepted))}"


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
    if done.returncode or not lines:
        raise UserError(done.stderr.strip().rpartition("\n")[2])
    found = dict(json.loads(lines[-1]))
    if "error" in found:
        raise UserError(found["error"])
    return found


def _keep(plan: Plan, job: Job, receipt: Receipt, proof: Mapping[str, Any]) -> dict[str, str | None]:
    """Write today's digests and the proof into the receipt of a job and the record of its run; return the modules."""
    outputs, now = [Path(file) for file in job.outputs], {"modules": job.identity()["modules"]}
    changed = _changed(receipt, now["modules"])
    proofs = [*receipt.get("proofs", ()), {"modules": changed, **proof}]
    if job.stage == "train_variant":
        checkpoint.accept(Path(plan.checkpoints(job.names)), receipt["identity"], now)
    written = [file for file in outputs if file.name == "record.json"]
    for file in written:
        record = read_json(file)
        about = {"identity": record["identity"] | now, "proofs": [*record.get("proofs", ()), proofs[-1]]}
        write_json(file, record | about)
    receipt |= {"identity": receipt["identity"] | now, "proofs": proofs}
    rewrite(file_of(outputs), receipt, written)
    return changed
