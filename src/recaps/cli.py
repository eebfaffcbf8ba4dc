"""The library's stages without a workflow, for a machine that has PyTorch but no Snakemake.

The files are the workflow's own: what was made here, it takes over.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from recaps.config.load import Project, load, read_yaml
from recaps.config.variant import Variant
from recaps.errors import TRY_AGAIN, UserError, nearest
from recaps.fingerprint import fingerprint
from recaps.io import read_json

#: What a training runs, given the model's family.
CODE = ("recaps.training.run", "recaps.models.{}", "recaps.config.models.{}")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status: 0, 1 for a user's mistake, 75 to try again."""
    options = _parser().parse_args(arguments)
    try:
        values: dict[str, object] = dict(read_yaml(options.config / "config.yaml"))
        values |= {"scale": options.scale} if options.scale else {}
        values |= {"papers": options.papers} if options.papers else {}
        project = load(values, options.config)
        if options.command == "list":
            print(_listing(project))
            return 0
        return _run(project, options)
    except UserError as error:
        print(f"recaps: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m recaps", description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["list", "run"], help="list the variants, or train and evaluate them")
    parser.add_argument("--config", type=Path, default=Path("config"), help="the folder of the configuration")
    parser.add_argument("--scale", help="instead of config.yaml's")
    parser.add_argument("--papers", nargs="+", help="instead of config.yaml's")
    parser.add_argument("--variants", nargs="+", help="only these (default: all)")
    parser.add_argument("--seeds", nargs="+", type=int, help="instead of the scale's")
    parser.add_argument("--threads", type=int, help="CPU threads (default: PyTorch's choice)")
    return parser


def _listing(project: Project) -> str:
    lines = [f"scale {project.config.scale}: {project.scale.description}"]
    for name, paper in project.papers.items():
        lines.append(f"{name}: {paper.title} ({paper.authors}, {paper.reference})")
        for variant, settings in paper.variants.items():
            lines.append(f"  {variant:<16} {settings.title:<22} {settings.data:<16} {settings.training.steps} steps")
    return "\n".join(lines)


def _run(project: Project, options: argparse.Namespace) -> int:
    from recaps.training.interruption import Interrupted

    for paper, settings in project.papers.items():
        for name in options.variants or settings.variants:
            if name not in settings.variants:
                raise UserError(f"--variants: {paper} has no variant '{name}'{nearest(name, settings.variants)}")
            for seed in options.seeds or project.seeds:
                try:
                    Run(project, paper, name, seed, options.threads).complete()
                except Interrupted as stop:
                    print(f"recaps: {paper}/{name}, seed {seed}: {stop}", file=sys.stderr)
                    return TRY_AGAIN
    return 0


class Run:
    """One run with all that is read from it, made stage by stage; what exists is kept."""

    def __init__(self, project: Project, paper: str, variant: str, seed: int, threads: int | None) -> None:
        self.project, self.seed, self.threads = project, seed, threads
        self.identity = {"paper": paper, "variant": variant, "scale": project.config.scale}
        self.paper = project.papers[paper]
        self.variant: Variant = self.paper.variants[variant]
        self.root = Path(project.config.results) / project.config.scale
        self.folder = self.root / "runs" / paper / variant / f"seed-{seed}"

    def complete(self) -> None:
        self.train()
        self.read()
        self.evaluate()

    def dataset(self, set_name: str) -> Path:
        """Folder of a prepared split; fetched and prepared if it is not there."""
        from recaps.datasets import catalogue
        from recaps.datasets.download import fetch
        from recaps.datasets.preparation import prepare
        from recaps.datasets.sources import file

        name, split = self.project.resolve(set_name).split("/")
        folder = self.root / "datasets" / name / split
        if not (folder / "record.json").exists():
            raw, scale = Path(self.project.config.data), self.project.scale
            for path in map(Path, catalogue.raw_inputs(name, split, scale.stand_in)):
                fetch(file(str(path.parent), path.name), raw / path.parent, mirror=self.project.config.mirror)
            options: Mapping[str, object] = scale.dataset_options.get(name, {})
            prepare(name, split, raw, self.root / "datasets", stand_in=scale.stand_in, options=options)
        return folder

    def train(self) -> None:
        from recaps.training.run import train

        settings = self.variant.model_dump(mode="json", include={"model", "training"})
        if (self.folder / "record.json").exists():
            made = read_json(self.folder / "config.json")
            if any(made[key] != settings[key] for key in settings):
                raise UserError(f"{self.folder}: holds a run with other settings; move or delete it to train anew")
        if self._missing([self.folder / "record.json"]):
            train(
                settings,
                identity=self.identity,
                seed=self.seed,
                dataset=self.dataset(self.variant.data),
                out=self.folder,
                checkpoints=self.root / "checkpoints" / self.folder.relative_to(self.root / "runs"),
                device=self.project.config.device,
                threads=self.threads,
                code=fingerprint([each.format(self.variant.model.family) for each in CODE]),
                project=Path.cwd(),
            )

    def read(self) -> None:
        """Latents and probes."""
        from recaps.evaluation.latents import extract
        from recaps.evaluation.probes import probe

        device, threads = self.project.config.device, self.threads
        for name, limit in self.variant.latents.items():
            for out in self._missing([self._latents(name)]):
                extract(self.folder, self.dataset(name), out, limit=limit, device=device, threads=threads)
        test = f"{self.variant.data.split('/')[0]}/test"
        for name in self.variant.probes:
            for out in self._missing([self.folder / "probes" / f"{name}.npz"]):
                probe(self.folder, self.dataset(test), out, name=name, device=device, threads=threads)

    def evaluate(self) -> None:
        """Heads."""
        from recaps.evaluation.heads import evaluate

        for head, protocols in self.variant.heads.items():
            for name in protocols:
                protocol = self.paper.protocols[name]
                sets = {part.set for part in (protocol.fit, protocol.test) if part and part.set in self.variant.latents}
                rules = protocol.model_dump()
                for part in filter(None, (rules["fit"], rules["test"])):
                    part["set"] = self.project.resolve(part["set"])
                for out in self._missing([self.folder / "heads" / f"{head}-{name}.json"]):
                    latents = {self.project.resolve(each): self._latents(each) for each in sets}
                    evaluate(latents, self.paper.heads[head].model_dump(), rules, out)

    def _latents(self, set_name: str) -> Path:
        return self.folder / "latents" / f"{self.project.resolve(set_name).replace('/', '-')}.npz"

    def _missing(self, files: Iterable[Path]) -> list[Path]:
        missing = [file for file in files if not file.exists()]
        for file in missing:
            print(f"recaps: making {file}", file=sys.stderr, flush=True)
        return missing
