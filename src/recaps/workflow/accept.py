"""Accept a change of code that leaves the bits alone, after proving it.

For each variant whose runs differ from the plan in nothing but modules, the first steps are computed with the code that
made the run and with today's, at the run's own settings, seed and precision. If all bits are the same, the receipts of
its runs get today's digests, and the proof.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import recaps
from recaps import provenance
from recaps.errors import UserError
from recaps.identity import differences
from recaps.io import read_json, write_json
from recaps.workflow.jobs import Job
from recaps.workflow.plan import Plan
from recaps.workflow.receipts import place, rewrite
from recaps.workflow.state import State

#: The stages whose results can be accepted. All others are cheap to make again.
STAGES = ("train_variant", "read_model")


def accept(plan: Plan, root: Path) -> Iterator[str]:
    """Prove and accept what differs in modules alone; yield a line for each variant.

    Args:
        plan: the plan.
        root: the git checkout, for the code of earlier commits.
    """
    state = State(plan)
    waiting: dict[tuple[str, str], list[Job]] = {}
    for job in plan.jobs:
        if job.stage in STAGES and _differs_in_modules(state, job):
            waiting.setdefault((job.names.paper, job.names.variant), []).append(job)
    if not waiting:
        yield "nothing to accept: no result differs from the plan in its modules alone"
    now = provenance.git(root)["commit"] or "unknown"
    with tempfile.TemporaryDirectory() as folder:
        for (paper, variant), jobs in waiting.items():
            yield f"{paper}/{variant}: {_accepted(state, jobs, root, Path(folder), now)}"


def _differs_in_modules(state: State, job: Job) -> bool:
    receipt = state.receipts.of(job.outputs)
    if receipt is None or not state.reason(job):
        return False
    planned = state.planned(job)
    return not differences(receipt["identity"] | {"modules": planned["modules"]}, planned)


def _accepted(state: State, jobs: list[Job], root: Path, folder: Path, now: str) -> str:
    """Return what became of the results of a variant."""
    first = jobs[0].names
    run = state.plan.files.run(first.paper, first.variant, first.seed)
    record, config = read_json(run / "record.json"), read_json(run / "config.json")
    made = record.get("git", {})
    if made.get("dirty") or not made.get("commit"):
        return "cannot be proved, as its code was not committed; train again"
    device = "cpu" if "thread" in record["device"] else "cuda"
    variant = state.plan.project.papers[first.paper].variants[first.variant]
    trial = {
        "settings": {name: config[name] for name in ("model", "training")},
        "paper": first.paper,
        "seed": first.seed,
        "dataset": str(state.plan.files.dataset(state.plan.project.resolve(variant.data)).resolve()),
        "probes": sorted(variant.probes),
        "device": device,
        "threads": 1,
    }
    try:
        before = _run(trial, _code(root, made["commit"], folder))
        after = _run(trial | {"settings": state.plan.training(first)}, Path(recaps.__file__).parents[1])
    except UserError as error:
        return f"cannot be proved: {error}"
    if differing := [name for name in before if before[name] != after.get(name)]:
        return f"other numbers in {', '.join(differing)}; it will be made again"
    modules = set()
    for job in jobs:
        modules |= _keep(state, job, made["commit"], now, ", ".join(before), record["device"])
    seeds = len({job.names.seed for job in jobs})
    return f"the same bits ({', '.join(before)}); {seeds} runs accepted with {', '.join(sorted(modules))}"


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


def _run(trial: Mapping[str, Any], source: Path) -> dict[str, str]:
    """Return the digests of a trial with the code in a folder."""
    done = subprocess.run(
        [sys.executable, "-m", "recaps.training.proof"],
        input=json.dumps(trial),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(source)},
        cwd=source,
        check=False,
    )
    lines = done.stdout.splitlines()
    found = json.loads(lines[-1]) if done.returncode == 0 and lines else {"error": done.stderr.strip()[-200:]}
    if "error" in found:
        raise UserError(found["error"])
    return dict(found)


def _keep(state: State, job: Job, before: str, now: str, what: str, device: str) -> set[str]:
    """Write today's digests and the proof into the receipt of a job and the record of its run; return the modules."""
    outputs = [Path(file) for file in job.outputs]
    receipt = state.receipts.of(job.outputs)
    assert receipt is not None
    old, new = receipt["identity"]["modules"], job.identity()["modules"]
    changed = sorted(name for name in new if old.get(name) != new[name])
    proof = {
        "modules": changed,
        "from": before,
        "to": now,
        "what": what,
        "device": device,
        "date": provenance.now()[:10],
    }
    receipt["identity"] = receipt["identity"] | {"modules": new}
    receipt["proofs"] = [*receipt.get("proofs", ()), proof]
    written = [file for file in outputs if file.name == "record.json"]
    for file in written:
        record = read_json(file)
        record["identity"] = record["identity"] | {"modules": new}
        write_json(file, record | {"proofs": [*record.get("proofs", ()), proof]})
    rewrite(place(outputs), receipt, written)
    return set(changed)
