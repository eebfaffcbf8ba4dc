"""Tell why results differ from the plan; name and remove checkpoints that nothing needs; check all digests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from recaps import papers
from recaps.errors import UserError, nearest
from recaps.identity import differences
from recaps.io import read_json
from recaps.layout import HEADS
from recaps.plan import jobs
from recaps.plan.plan import Plan
from recaps.plan.state import State
from recaps.training import lease
from recaps.training.checkpoint import IDENTITY


def of_runs(plan: Plan, names: Sequence[str]) -> Iterator[str]:
    """Yield a line for each result of some runs: whether it matches the plan, and what differs.

    Args:
        plan: the plan.
        names: runs as `paper/variant`, `paper/variant/seed-0` or folders.

    Raises:
        UserError: there is no such run in the plan.
    """
    state = State(plan)
    for job in (job for name in names for run in chosen(plan, name) for job in plan.jobs_of(*run)):
        if not job.is_made:
            yield f"{job}: not made yet"
            continue
        yield f"{job}: {state.reason(job, most=1000) or 'as planned'}"
        # The changes of code that were proved to keep its numbers.
        for proof in (state.receipts.of(job.outputs) or {}).get("proofs", ()):
            yield (
                f"  accepted {proof['date']}: {', '.join(proof['modules'])}; the same bits with commits"
                f" {proof['from'][:10]} and {proof['to'][:10]} in {proof['what']} ({proof['device']})"
            )


def of_all(plan: Plan) -> list[str]:
    """Return a line for each result that does not match the plan, and for checkpoints that no run of it needs."""
    state = State(plan)
    found = [f"{job}: {reason}" for job in plan.jobs if (reason := state.reason(job))]
    planned = jobs.needed(plan.jobs, plan.everything())
    missing = sum(not job.is_made for job in planned)
    lines = [*found, f"{len(planned)} results: {missing} not made yet, {len(found)} differ from the plan"]
    if left := [*orphans(plan)]:
        size = sum(_size(folder) for folder in left) / 1e6
        lines.append(f"{len(left)} folders of checkpoints ({size:.1f} MB) belong to no run of the plan:")
        lines += [f"  {folder}" for folder in left]
        lines.append("`python -m recaps clean` removes them")
    return lines


def orphans(plan: Plan) -> Iterator[Path]:
    """Yield the folders of checkpoints that no run of the plan would continue and that no process holds.

    Those of papers, studies and variants that the plan leaves aside stay: their runs may be unfinished.
    """
    aside = {*papers.names()} - {*plan.project.papers}
    aside |= {f"{paper}/{variant}" for paper, lost in plan.project.left_out.items() for variant in lost.variants}
    planned = {plan.checkpoints(job.names): job for job in plan.jobs if job.stage == "train_variant"}
    state = State(plan)
    for folder in sorted(plan.files.folder.glob("checkpoints/*/*/seed-*/*/")):
        paper, variant = folder.parts[-4:-2]
        if "." in paper and paper not in plan.project.studies:
            continue
        if folder.name == HEADS or aside & {paper, f"{paper}/{variant}"} or lease.holder(folder.parent):
            continue
        job, file = planned.get(str(folder.parent)), folder / IDENTITY
        if job is None or not file.exists() or differences(read_json(file), state.planned(job)):
            yield folder


def clean(plan: Plan) -> list[str]:
    """Remove the folders of `orphans`, and return a line for each."""
    lines = []
    for folder in [*orphans(plan)]:
        lines.append(f"removed {folder} ({_size(folder) / 1e6:.1f} MB)")
        shutil.rmtree(folder)
    nothing = "no checkpoints to remove: each belongs to a run of the plan, or to a part that the plan leaves aside"
    return lines or [nothing]


def verify(plan: Plan) -> list[str]:
    """Compare every file that has a receipt with its digest; return a line for each that differs, and their number."""
    receipts = State(plan).receipts
    changed = receipts.check(refresh=False, whole=True)
    if not (n := sum(len(found["outputs"]) for found in receipts.places.values())):
        raise UserError(f"verify: there are no results in {plan.files.folder}; name their scale with --scale")
    return [*(f"{file}: changed since it was made" for file in changed), f"{n} files checked, {len(changed)} changed"]


def chosen(plan: Plan, name: str) -> list[tuple[str, str, int]]:
    """Return the runs of the plan that a name means."""
    words = [*Path(name).parts]
    if "runs" in words:
        if words[: words.index("runs")][-1:] not in ([], [plan.scale]):
            raise UserError(f"why: '{name}' is no run of scale {plan.scale}; name its scale with --scale")
        words = words[words.index("runs") + 1 :]
    wanted = [
        run
        for run in plan.runs(plan.project.every)
        if words[:2] == [run[0], run[1]] and (len(words) < 3 or words[2] in (f"seed-{run[2]}", str(run[2])))
    ]
    if not wanted:
        known = [f"{paper}/{variant}" for paper, variant, _ in plan.runs(plan.project.every)]
        raise UserError(f"why: the plan has no run '{name}'{nearest('/'.join(words[:2]), known)}")
    return wanted


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
