"""Run the stages without Snakemake; list the variants; add a paper or a routing.

The files are those of the workflow, which continues with them, also with unfinished trainings.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from recaps.command import at_least_one, command
from recaps.config.load import Project, load, read_yaml
from recaps.errors import TryAgain, UserError, nearest
from recaps.io import read_json
from recaps.workflow import layout, new, stages
from recaps.workflow.layout import DATASET_FILES, MEASURED_FILES, READ_FILES, RUN_FILES, named
from recaps.workflow.plan import Plan
from recaps.workflow.receipts import check, receipt

COMMANDS = {
    "list": "list the variants",
    "run": "train and evaluate variants; timings, tables and figures are left to the workflow",
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
    values: dict[str, object] = dict(read_yaml(options.config / "config.yaml"))
    values |= {"scale": options.scale} if options.scale else {}
    values |= {"papers": options.papers} if options.papers else {}
    values |= {"seeds": options.seeds} if options.seeds else {}
    values |= {"without": options.without} if options.without is not None else {}
    project = load(values, options.config)
    if options.command == "list":
        return _print(_listing(project))
    plan = Plan(project)
    check(plan.files.folder)
    return _run(plan, options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m recaps", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    each = {name: commands.add_parser(name, help=text, description=text) for name, text in COMMANDS.items()}
    for either in (each["list"], each["run"]):
        either.add_argument(
            "--config", type=Path, default=Path("config"), help="the folder of the configuration (default: config)"
        )
        either.add_argument("--scale", help="replaces the scale of config.yaml")
        either.add_argument("--papers", nargs="+", help="replaces the papers of config.yaml")
        either.add_argument("--seeds", nargs="+", type=int, help="replaces the seeds of the scale")
        either.add_argument("--without", nargs="*", help="leave these out, instead of those of config.yaml")
    each["run"].add_argument("--variants", nargs="+", help="only these, e.g. supcaps or sparse/supcaps (default: all)")
    each["run"].add_argument("--threads", type=at_least_one, help="CPU threads (default: PyTorch's choice)")
    each["new"].add_argument("what", choices=new.WHAT)
    each["new"].add_argument("name", help="lower-case letters and digits")
    each["new"].add_argument(
        "--kind", choices=new.KINDS, default="votes", help="the input of a routing (default: votes)"
    )
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
    return "\n".join(lines)


def _run(plan: Plan, options: argparse.Namespace) -> int:
    papers = plan.project.papers
    full = [f"{paper}/{variant}" for paper in papers for variant in papers[paper].variants]
    for name in options.variants or ():
        known = full if "/" in name else [each.partition("/")[2] for each in full]
        for paper, lost in plan.project.left_out.items():
            variant = name.removeprefix(f"{paper}/")
            if variant in lost.variants and name not in known:
                raise UserError(f"--variants: {lost.reason(variant)}")
        if name not in known:
            raise UserError(f"--variants: no variant '{name}' in {', '.join(papers)}{nearest(name, known)}")
    for paper, variant, seed in plan.runs(variants=options.variants):
        try:
            Run(plan, paper, variant, seed, options.threads).complete()
        except TryAgain as error:
            raise TryAgain(f"{paper}/{variant}, seed {seed}: {error}") from error
    return 0


class Names(dict[str, Any]):
    """Values by name, also as attributes, as Snakemake passes them to a script."""

    __getattr__ = dict.__getitem__


class Run:
    """One run with everything that is read from it, made stage by stage. Existing files are kept."""

    def __init__(self, plan: Plan, paper: str, variant: str, seed: int, threads: int | None) -> None:
        self.plan, self.threads = plan, threads
        self.names = Names(scale=plan.scale, paper=paper, variant=variant, seed=seed)
        self.variant = plan.project.papers[paper].variants[variant]
        self.folder = plan.files.run(paper, variant, seed)
        self.trained = named(self.folder, RUN_FILES)

    def complete(self) -> None:
        self.train()
        made = self.plan.of_run(self.names["paper"], self.names["variant"], self.names["seed"])
        if made["read"]:
            self.read()
        if made["heads"]:
            self.evaluate()
        self.record()

    def train(self) -> None:
        settings = self.plan.training(self.names)
        if self.trained["record"].exists():
            made = read_json(self.trained["config"])
            if any(made[key] != settings[key] for key in settings):
                raise UserError(f"{self.folder}: the run was made with other settings; move or delete it to train anew")
            return
        inputs = {"dataset": self.plan.training_set(self.names), "test": self.plan.evaluation_set(self.names)}
        params = {"settings": settings, "checkpoints": self.plan.checkpoints(self.names)}
        self._make("train_variant", self.names, inputs, self.trained, params)

    def read(self) -> None:
        plan, names = self.plan, self.names
        params = {
            "codes": plan.read_model_codes(names),
            "latents": plan.latents_of(names),
            "probes": plan.probes_of(names),
            "test": plan.probed_set(names),
            "heads": plan.own_heads(names),
        }
        inputs = self.trained | {"sets": plan.read_sets(names)}
        self._make("read_model", names, inputs, named(self.folder, READ_FILES), params)

    def evaluate(self) -> None:
        plan, names = self.plan, self.names
        params = {
            "code": plan.code("evaluate_heads"),
            "heads": plan.fitted_heads(names),
            "kept": plan.kept_heads(names),
        }
        inputs, output = {"latents": layout.latents(self.folder)}, {"heads": layout.heads(self.folder)}
        self._make("evaluate_heads", names, inputs, output, params)

    def record(self) -> None:
        plan, names = self.plan, self.names
        beside = plan.beside(names["paper"], names["variant"], names["seed"])
        for variant, seed in beside.items():
            Run(plan, names["paper"], variant, seed, self.threads).complete()
        params = {"code": plan.record_code(names), "project": plan.measured_variant(names), "beside": beside}
        sets = [file for file in plan.measured_inputs(names) if "datasets" in Path(file).parts]
        self._make("record_run", names, {"sets": sets}, named(self.folder, MEASURED_FILES), params)

    def _prepare(self, folder: Path) -> None:
        """Fetch and prepare a split, unless it is there."""
        output = named(folder, DATASET_FILES)
        if not output["record"].exists():
            dataset, split = folder.parts[-2:]
            names = Names(self.names, dataset=dataset, split=split)
            for raw in map(Path, self.plan.raw_files(names)):
                stages.fetch_file(self._job(Names(dataset=raw.parent.name, file=raw.name), {}, {"file": raw}, {}))
            self._make("prepare_dataset", names, {}, output, {"source": self.plan.preparation(names)})

    def _make(
        self, stage: str, names: Names, inputs: dict[str, Any], output: dict[str, Path], params: dict[str, Any]
    ) -> None:
        """Run a stage if its outputs are missing; first prepare the splits among its inputs."""
        *_, last = output.values()
        if last.exists():
            return
        print(f"recaps: making {last}", file=sys.stderr, flush=True)
        sets = [file for files in inputs.values() if isinstance(files, list) for file in files]
        for folder in dict.fromkeys(Path(file).parent for file in sets):
            self._prepare(folder)
        with receipt(list(output.values())):
            getattr(stages, stage)(self._job(names, inputs, output, params))

    def _job(self, names: Names, inputs: dict[str, Any], output: dict[str, Path], params: dict[str, Any]) -> Names:
        """Return what Snakemake would pass to the rule's script."""
        return Names(
            wildcards=names,
            input=Names(inputs),
            output=Names(output),
            params=Names(params),
            config=self.plan.project.config.model_dump(),
            resources={},
            threads=self.threads,
            scriptdir=Path("workflow", "scripts"),
        )
