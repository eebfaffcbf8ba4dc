"""The results that are there, compared with the plan by their own receipts."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from recaps.errors import UserError
from recaps.identity import differences
from recaps.plan.jobs import Job
from recaps.plan.plan import Plan, exits
from recaps.plan.receipts import Receipts, refuse

#: Results to make again that a start names.
SHOWN = 10
#: Differences that a line names.
FEW = 3


class State:
    """The results that are there, compared with a plan. They are read once, when this is needed."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.repeated: dict[Job, str] = {}

    @functools.cached_property
    def receipts(self) -> Receipts:
        return Receipts(self.plan.files.folder)

    @functools.cached_property
    def _jobs(self) -> dict[tuple[str, frozenset[str]], Job]:
        return {_key(job.stage, job.names): job for job in self.plan.jobs}

    @functools.cached_property
    def _makers(self) -> dict[str, Job]:
        return {file: job for job in self.plan.jobs for file in job.outputs}

    def check(self, *, dry: bool) -> None:
        """End the process with one line if results have changed since they were made. `dry`: write no file."""
        with exits():
            refuse(self.receipts.check(refresh=not dry))

    def again(self, workflow: Any, stage: str, **names: Any) -> Callable[[Any], list[str]]:
        """Return an input function of a stage, without files.

        Snakemake calls it for each job of the stage; it makes Snakemake repeat those whose results do not match the
        plan. `names` are those of the stage that are no wildcards of its rule.
        """

        def none(wildcards: Any) -> list[str]:
            if workflow.is_main_process:
                workflow.dag.forcefiles.update(self.to_repeat(stage, {**dict(wildcards.items()), **names}))
            return []

        return none

    def reason(self, job: Job, most: int = FEW) -> str:
        """Return why a job's outputs must be made again; empty if they match the plan, or are not all there."""
        return (self.difference(job, most) or next(self._of_deleted(job), "")) if job.is_made else ""

    def _of_deleted(self, job: Job) -> Iterator[str]:
        """Yield in what inputs that were deleted since, such as weights, differ from the plan."""
        for file in job.inputs:
            if (maker := self._makers.get(file)) and not os.path.exists(file):
                if self.receipts.of(maker.outputs) and (text := self.difference(maker)):
                    yield f"{maker}: {text}"
                yield from self._of_deleted(maker)

    def difference(self, job: Job, most: int = FEW) -> str:
        """Return in what a job's outputs differ from the plan, whether they are still there or not.

        `most`: differences that are named; the others are counted.
        """
        if not (receipt := self.receipts.of(job.outputs)):
            return "nothing says what made it"
        found = differences(receipt["identity"], self.planned(job))
        return "; ".join(found[:most] + ([f"and {len(found) - most} more"] if len(found) > most else []))

    def planned(self, job: Job) -> dict[str, Any]:
        """Return the identity that a job's outputs should have."""
        return job.identity() | {"data": self.receipts.data(map(Path, job.inputs))}

    def to_repeat(self, stage: str, names: Mapping[str, Any]) -> Iterable[str]:
        """Return the outputs of a job if they do not match the plan. The first time, a line says why."""
        with exits():
            if (job := self._jobs.get(_key(stage, names))) is None:
                what = ", ".join(f"{name} {value}" for name, value in names.items() if name != "scale")
                raise UserError(f"{stage}: the settings ask for no {what}; see `seeds`, `only` and `without`")
            if job not in self.repeated:
                self.repeated[job] = self.reason(job)
                shown = sum(map(bool, self.repeated.values()))
                if self.repeated[job] and shown <= SHOWN:
                    print(f"recaps: {job} is made again: {self.repeated[job]}", file=sys.stderr)
                elif self.repeated[job] and shown == SHOWN + 1:
                    told = f"recaps: and others; `python -m recaps why --scale {self.plan.scale}` names them"
                    print(told, file=sys.stderr)
        return job.outputs if self.repeated[job] else ()


def _key(stage: str, names: Mapping[str, Any]) -> tuple[str, frozenset[str]]:
    """Identify a job by its stage and wildcards; numbers may be texts."""
    return stage, frozenset(f"{name}={value}" for name, value in names.items() if name != "scale")
