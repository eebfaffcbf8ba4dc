"""Run the stages without Snakemake; list the variants; add a paper or a routing.

The files are those of the workflow, which continues with them, also with unfinished trainings.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from recaps import burst
from recaps.command import at_least_one, command
from recaps.config.load import Project, load
from recaps.config.reading import merged, read_yaml
from recaps.errors import TryAgain, UserError, nearest
from recaps.plan import accept, jobs, new, stages, why
from recaps.plan.jobs import Job, Names
from recaps.plan.plan import Plan
from recaps.plan.receipts import Receipts, refuse
from recaps.plan.state import State

COMMANDS = {
    "list": "list the variants",
    "run": "train and evaluate variants; timings, tables and figures are left to the workflow",
    "burst": "train on a borrowed machine for some minutes, and bring the records home",
    "why": "say what of a result differs from the plan",
    "accept": "keep results of earlier code, after proving that today's code computes the same bits",
    "compare": "compare two folders of results, e.g. results/desk results/published/desk",
    "verify": "compare all results with their digests",
    "clean": "remove checkpoints that belong to no run of the plan",
    "new": "write the files of a new paper or routing",
}


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status: 0, 1 for a user's mistake, 75 to try again."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] not in (*COMMANDS, "-h", "--help"):
        known = nearest(arguments[0], COMMANDS)
        raise UserError(f"there is no command '{arguments[0]}'{known}; name the command first, then its options")
    options = _parser().parse_args(arguments)
    if options.command == "new":
        return _print(new.make(options.what, options.name, options.kind))
    if options.command == "compare":
        from recaps.report import compare

        return _print(compare.report(*options.folders))
    values: dict[str, Any] = merged(map(read_yaml, [options.config / "config.yaml", *options.configfile]))
    given = {"scale": options.scale, "papers": options.papers, "seeds": options.seeds, "only": options.variants}
    values |= {key: value for key, value in given.items() if value}
    values |= {"without": options.without} if options.without is not None else {}
    project = load(values, options.config)
    if options.command == "list":
        return _print(_listing(project))
    plan = Plan(project)
    if options.command == "why":
        return _print("\n".join(why.of_runs(plan, options.runs) if options.runs else why.of_all(plan)))
    if options.command == "accept":
        for line in accept.accept(plan, Path.cwd()):
            _print(line)
        return 0
    if options.command == "clean":
        if options.seeds:
            raise UserError("clean: takes no --seeds, as it would remove the checkpoints of all others")
        return _print("\n".join(why.clean(plan)))
    if options.command == "verify":
        *changed, summary = why.verify(plan)
        return _print("\n".join([*changed, summary])) or min(len(changed), 1)
    if options.command == "burst" and options.make:
        burst.end_with_parent()
        return _make(plan, options.make, 1)
    refuse(Receipts(plan.files.folder).check())
    return burst.main(plan, options, arguments) if options.command == "burst" else _run(plan, options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m recaps", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    each = {name: commands.add_parser(name, help=text, description=text) for name, text in COMMANDS.items()}
    for add in (each[name].add_argument for name in COMMANDS if name not in ("new", "compare")):
        add("--config", type=Path, default=Path("config"), help="the folder of the configuration (default: config)")
        add("--configfile", type=Path, nargs="+", default=[], help="more settings, as for Snakemake, e.g. mine.yaml")
        add("--scale", help="replaces the scale of config.yaml")
        add("--papers", nargs="+", help="replaces the papers of config.yaml")
        add("--seeds", nargs="+", type=int, help="replaces the seeds of the scale")
        add("--without", nargs="*", help="leave these out, instead of those of config.yaml")
        add("--variants", nargs="+", help="only these, as `only` in config.yaml, e.g. sparse/supcaps")
    each["run"].add_argument("--threads", type=at_least_one, help="CPU threads (default: PyTorch's choice)")
    burst.add_options(each["burst"])
    text = "paper/variant, paper/variant/seed-0 or a folder; without one, all results that differ"
    each["why"].add_argument("runs", nargs="*", metavar="RUN", help=text)
    each["compare"].add_argument("folders", nargs=2, type=Path, metavar="FOLDER")
    add = each["new"].add_argument
    add("what", choices=("paper", "routing"))
    add("name", help="lower-case letters and digits")
    add("--kind", choices=new.KINDS, default="votes", help="the input of a routing (default: votes)")
    return parser


def _print(text: str) -> int:
    print(text)
    return 0


def _listing(project: Project) -> str:
    lines = [f"scale {project.config.scale}: {project.scale.description}"]
    for name, paper in project.papers.items():
        lines.append(f"{name}: {paper.title} ({paper.authors}, {paper.reference})")
        for variant, settings in paper.variants.items():
            lines.append(f"  {variant:<16} {settings.title:<22} {settings.data:<16} {settings.training.steps} steps")
        if name in project.left_out:
            lines.append(f"  {project.left_out[name]}")
    for name, study in project.studies.items():
        lines.append(f"study {name}: {study.tables['table'].title}, {len(study.changes)} rows")
    return "\n".join(lines)


def _run(plan: Plan, options: argparse.Namespace) -> int:
    for run in plan.runs(plan.project.reported):
        try:
            _make(plan, plan.files_of(*run), options.threads)
        except TryAgain as error:
            paper, variant, seed = run
            raise TryAgain(f"{paper}/{variant}, seed {seed}: {error}") from error
    return 0


def _make(plan: Plan, files: list[str], threads: int | None) -> int:
    for job in jobs.needed(plan.jobs, files):
        _complete(plan, job, threads)
    return 0


def _complete(plan: Plan, job: Job, threads: int | None) -> None:
    """Make the outputs of a job unless they are there and match the plan."""
    reason = State(plan).reason(job)
    if job.is_made and not reason:
        return
    print(f"recaps: making {job}{f' again: {reason}' if reason else ''}", file=sys.stderr, flush=True)
    for raw in map(Path, plan.raw_files(job.names) if job.stage == "prepare_dataset" else ()):
        names = Names(dataset=raw.parent.name, file=raw.name)
        stages.fetch_file(Names(wildcards=names, output=Names(file=raw), config=plan.project.config.model_dump()))
    stages.make(job.stage, jobs.as_snakemake(plan, job, threads))
