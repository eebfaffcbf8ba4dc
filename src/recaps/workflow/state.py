"""The results that are there, compared with the plan by their own receipts."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable
from pathlib import Path

from recaps.identity import differences
from recaps.workflow.jobs import Job
from recaps.workflow.plan import Plan, exits
from recaps.workflow.receipts import Receipts, refuse

#: Results that are made again and named at a start.
SHOWN = 10


class State:
    """The results that are there, compared with a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.receipts = Receipts(plan.files.folder)

    def reason(self, job: Job) -> str:
        """Return why a job's outputs, which are there, must be made again; empty if they match the plan."""
        receipt = self.receipts.of(job.outputs)
        if receipt is None:
            return "nothing says what made it"
        planned = job.identity() | {"data": self.receipts.data(map(Path, job.inputs))}
        return "; ".join(differences(receipt["identity"], planned))

    def stale(self, jobs: Iterable[Job]) -> dict[Job, str]:
        """Return the jobs whose outputs are all there and do not match the plan, each with the reason.

        Jobs that need the outputs of another that is to be made are left out: they are repeated anyway.
        """
        found: dict[Job, str] = {}
        new: set[str] = set()
        for job in jobs:
            if not new.isdisjoint(job.inputs) or not all(os.path.exists(file) for file in job.outputs):
                new.update(job.outputs)
            elif reason := self.reason(job):
                found[job] = reason
                new.update(job.outputs)
        return found


def to_make_again(plan: Plan, targets: Collection[str], *, dry: bool) -> list[str]:
    """Compare the results that the targets need with the plan; print a line for each that does not match.

    Args:
        plan: the plan.
        targets: targets of the workflow, or files; none means all.
        dry: whether no file may be written.

    Returns:
        The first output of each job to repeat. Snakemake repeats the jobs after it.
    """
    with exits():
        state = State(plan)
        refuse(state.receipts.check(refresh=not dry))
        stale = state.stale(plan.needed(targets))
    for job, reason in [*stale.items()][:SHOWN]:
        print(f"recaps: {job} is made again: {reason}", file=sys.stderr)
    if len(stale) > SHOWN:
        print(f"recaps: and {len(stale) - SHOWN} more; `python -m recaps why --all` names them", file=sys.stderr)
    return [job.outputs[0] for job in stale]
