"""The jobs of the workflow: what each makes from what."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recaps.plan.plan import Plan


class Names(dict[str, Any]):
    """Values by name, also as attributes, as Snakemake passes wildcards to functions and scripts."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(name)
        return self[name]


@dataclass(frozen=True, eq=False)
class Job:
    """A job of the workflow.

    Attributes:
        stage: the name of its rule, and of its function in `recaps.plan.stages`.
        names: its wildcards.
        inputs: files that it reads, official files aside.
        outputs: files that it makes.
        identity: returns `settings` and `modules` of its result.
    """

    stage: str
    names: Names
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    identity: Callable[[], dict[str, Any]]

    @property
    def is_made(self) -> bool:
        """Whether all outputs are there."""
        return all(map(os.path.exists, self.outputs))

    def __str__(self) -> str:
        names = self.names
        if "variant" in names:
            return f"{TITLES[self.stage]} of {names.paper}/{names.variant}, seed {names.seed}"
        if "dataset" in names:
            return f"{names.dataset}/{names.split}"
        return f"{TITLES[self.stage]} of {names.paper}" if "paper" in names else TITLES[self.stage]


#: What each stage makes, for messages.
TITLES = {
    "prepare_dataset": "data set",
    "train_variant": "training",
    "read_model": "latents and probes",
    "evaluate_heads": "heads",
    "record_run": "record",
    "time_steps": "timing",
    "collect_metrics": "metrics",
    "draw_tables": "tables",
    "draw_figures": "figures",
    "score_claims": "scorecard",
    "build_report": "report",
}


def every(plan: Plan) -> list[Job]:
    """Return all jobs that make files from settings and files, each after those whose outputs it needs."""
    made: list[Job] = []

    def add(stage: str, inputs: Iterable[str], outputs: Iterable[str], **names: Any) -> None:
        named = Names(scale=plan.scale, **names)
        made.append(Job(stage, named, tuple(inputs), tuple(outputs), functools.partial(plan.identity(stage), named)))

    for each in plan.sets(plan.project.every):
        dataset, split = each.split("/")
        add("prepare_dataset", [], plan.dataset_files(each), dataset=dataset, split=split)
    runs = [Names(paper=paper, variant=variant, seed=seed) for paper, variant, seed in plan.runs(plan.project.every)]
    for run in runs:
        files = plan.of_run(**run)
        add("train_variant", chain(*plan.training_inputs(run).values()), files["trained"], **run)
        if files["read"]:
            add("read_model", [*files["trained"][:2], *plan.read_sets(run)], files["read"], **run)
        if files["heads"]:
            add("evaluate_heads", files["read"][:1], files["heads"], **run)
    for run in runs:  # after all others, as a record may need another run
        add("record_run", plan.measured_inputs(run), plan.of_run(**run)["measured"], **run)
    for paper, settings in plan.project.every.items():
        for timing in settings.timings:
            names = Names(paper=paper, timing=timing)
            sets = plan.timing_sets(names).values()
            add("time_steps", chain(*sets), [str(plan.files.timing(paper, timing))], **names)
        names = Names(paper=paper)
        add("collect_metrics", plan.metrics_inputs(names), [str(plan.files.metrics(paper))], **names)
        if settings.tables:
            add("draw_tables", plan.shown(paper, settings.tables.values()), plan.tables(paper), **names)
        if settings.figures:
            drawn = [*plan.figures(paper), str(plan.files.shown(paper))]
            add("draw_figures", plan.shown(paper, settings.figures.values()), drawn, **names)
    judged = [*plan.written("claims.yaml"), *plan.metrics(), *plan.records(plan.with_claims())]
    add("score_claims", judged, plan.scorecard())
    add("build_report", plan.behind_report(), [plan.report()])
    return made


def needed(jobs: Sequence[Job], files: Iterable[str]) -> list[Job]:
    """Return those of a plan's jobs that make some files and what they are made from, in order."""
    wanted, found = set(files), []
    for job in reversed(jobs):
        if not wanted.isdisjoint(job.outputs):
            found.append(job)
            wanted.update(job.inputs)
    return found[::-1]


def params(plan: Plan, stage: str) -> dict[str, Callable[[Any], Any]]:
    """Return the params of a stage that belongs to a set, a run or a timing, as functions of its wildcards."""
    own: dict[str, dict[str, Callable[[Any], Any]]] = {
        "train_variant": {"has_model_of": plan.has_model_of},
        "read_model": {"codes": plan.identities.read_model_codes},
        "record_run": {"project": plan.measured_variant, "beside": plan.beside},
    }
    # No output: Snakemake deletes the outputs of a failed job, and the next attempt needs the checkpoints.
    kept = {"checkpoints": plan.checkpoints} if stage not in ("prepare_dataset", "time_steps") else {}
    return {"identity": plan.identity(stage), **kept, **own.get(stage, {})}


def as_snakemake(plan: Plan, job: Job, threads: int | None = None) -> Names:
    """Return what Snakemake would pass to the script of a job that belongs to a set or a run."""
    names = job.names
    sets = plan.training_inputs(names) if job.stage == "train_variant" else {}
    return Names(
        wildcards=names,
        input=Names({Path(file).stem: file for file in reversed(job.inputs)}, every=job.inputs, **sets),
        output=Names({Path(file).stem: Path(file) for file in job.outputs}),
        params=Names({name: value(names) for name, value in params(plan, job.stage).items()}),
        config=plan.project.config.model_dump(),
        resources={},
        threads=threads,
        scriptdir=Path("workflow", "scripts"),
    )
