"""The library's stages without a workflow, for a machine that has PyTorch but no Snakemake.

The files are the workflow's own: what was made here, it takes over, unfinished trainings included.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from types import SimpleNamespace

from recaps.config.load import Project, load, read_yaml
from recaps.errors import TryAgain, UserError, nearest
from recaps.io import read_json
from recaps.receipts import check, receipt
from recaps.workflow import layout
from recaps.workflow.layout import RUN_FILES
from recaps.workflow.plan import Plan

RUN_HELP = "train and evaluate variants; timings, tables and figures are left to the workflow"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status: 0, 1 for a user's mistake, 75 to try again."""
    options = _parser().parse_args(arguments)
    try:
        values: dict[str, object] = dict(read_yaml(options.config / "config.yaml"))
        values |= {"scale": options.scale} if options.scale else {}
        values |= {"papers": options.papers} if options.papers else {}
        values |= {"seeds": options.seeds} if options.seeds else {}
        values |= {"without": options.without} if options.without is not None else {}
        project = load(values, options.config)
        if options.command == "list":
            return _print(_listing(project))
        plan = Plan(project, Path.cwd())
        check(Path(plan.results, plan.scale))
        return _run(plan, options)
    except UserError as error:
        print(f"recaps: {error}", file=sys.stderr)
        return error.status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m recaps", description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["list", "run"], help=f"list: name the variants; run: {RUN_HELP}")
    parser.add_argument("--config", type=Path, default=Path("config"), help="the folder of the configuration")
    parser.add_argument("--scale", help="instead of config.yaml's")
    parser.add_argument("--papers", nargs="+", help="instead of config.yaml's")
    parser.add_argument("--variants", nargs="+", help="only these (default: all)")
    parser.add_argument("--seeds", nargs="+", type=int, help="instead of the scale's")
    parser.add_argument("--without", nargs="*", help="data sets that cannot be had, instead of config.yaml's")
    parser.add_argument("--threads", type=int, help="CPU threads (default: PyTorch's choice)")
    return parser


def _print(text: str) -> int:
    try:
        print(text, flush=True)
    except BrokenPipeError:  # who reads has seen enough, as in `python -m recaps list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains as it leaves
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
    known = {name for paper in papers.values() for name in paper.variants}
    for name in options.variants or ():
        for lost in plan.project.left_out.values():
            if name in lost.variants and name not in known:
                raise UserError(f"--variants: {lost.reason(name)}")
        if name not in known:
            raise UserError(f"--variants: no variant '{name}' in {', '.join(papers)}{nearest(name, known)}")
    for paper, settings in papers.items():
        for name in (name for name in settings.variants if name in (options.variants or known)):
            for seed in plan.project.seeds:
                try:
                    Run(plan, paper, name, seed, options.threads).complete()
                except TryAgain as error:
                    raise TryAgain(f"{paper}/{name}, seed {seed}: {error}") from error
    return 0


class Run:
    """One run with all that is read from it, made stage by stage; what exists is kept."""

    def __init__(self, plan: Plan, paper: str, variant: str, seed: int, threads: int | None) -> None:
        self.plan = plan
        self.names = {"scale": plan.scale, "paper": paper, "variant": variant, "seed": seed}
        self.variant = plan.project.papers[paper].variants[variant]
        self.folder = Path(plan.run(self._wildcards()))
        self.device, self.threads = plan.project.config.device, threads

    def complete(self) -> None:
        self.train()
        self.read()
        self.evaluate()

    def train(self) -> None:
        from recaps.training.run import train

        names, record = self._wildcards(), self.folder / "record.json"
        settings = self.plan.training(names)
        if record.exists():
            made = read_json(self.folder / "config.json")
            if any(made[key] != settings[key] for key in settings):
                raise UserError(f"{self.folder}: holds a run with other settings; move or delete it to train anew")
        elif _missing(record):
            test = self.plan.evaluation_set(names)
            with receipt([self.folder / name for name in RUN_FILES]):
                train(
                    settings,
                    identity={key: self.names[key] for key in ("paper", "variant", "scale")},
                    seed=names.seed,
                    dataset=self._prepared(self.plan.training_set(names)),
                    test=self._prepared(test) if test else None,
                    out=self.folder,
                    checkpoints=Path(self.plan.checkpoints(names)),
                    device=self.device,
                    threads=self.threads,
                    checkpoint_seconds=self.plan.project.config.checkpoint_seconds,
                    project=self.plan.root,
                )

    def read(self) -> None:
        """Latents and probes."""
        from recaps.evaluation.latents import extract
        from recaps.evaluation.probes import probe

        for name in map(self.plan.project.resolve, self.variant.latents):
            if _missing(out := layout.latents(self.folder, name)):
                dataset, split = name.split("/")
                limit = self.plan.limit(self._wildcards(dataset=dataset, split=split))
                folder = self._prepared(self.plan.dataset_files(name))
                with receipt([out]):
                    extract(self.folder, folder, out, limit=limit, device=self.device, threads=self.threads)
        for name, images in self.variant.probes.items():
            if _missing(out := layout.probe(self.folder, name)):
                folder = self._prepared(self.plan.test_set(self._wildcards()))
                with receipt([out]):
                    probe(self.folder, folder, out, name=name, images=images, device=self.device, threads=self.threads)

    def evaluate(self) -> None:
        """Heads."""
        from recaps.evaluation.heads import evaluate

        for head, protocols in self.variant.heads.items():
            for name in protocols:
                names = self._wildcards(head=head, protocol=name)
                if _missing(out := layout.head(self.folder, head, name)):
                    protocol = self.plan.protocol(names)
                    files = self.plan.head_latents(names).items()
                    latents = {protocol[role]["set"]: Path(file) for role, file in files}
                    with receipt([out]):
                        evaluate(latents, self.plan.head(names), protocol, out)

    def _prepared(self, files: list[str]) -> Path:
        """Folder of a prepared split; fetched and prepared if it is not there."""
        from recaps.datasets.download import fetch
        from recaps.datasets.preparation import prepare
        from recaps.datasets.sources import file

        folder, config = Path(files[0]).parent, self.plan.project.config
        if not (folder / "record.json").exists():
            dataset, split = folder.parts[-2:]
            names = self._wildcards(dataset=dataset, split=split)
            for raw in map(Path, self.plan.raw_files(names)):
                fetch(file(raw.parent.name, raw.name), raw.parent, mirror=config.mirror)
            stand_in, options = self.plan.stand_in(names), self.plan.dataset_options(names)
            with receipt(list(map(Path, files))):
                prepare(dataset, split, Path(config.data), folder.parents[1], stand_in=stand_in, options=options)
        return folder

    def _wildcards(self, **more: str) -> SimpleNamespace:
        """As the workflow has them."""
        return SimpleNamespace(**self.names, **more)


def _missing(file: Path) -> bool:
    if not file.exists():
        print(f"recaps: making {file}", file=sys.stderr, flush=True)
        return True
    return False
