"""From the checked configuration to files: what the rules of the workflow ask for.

A rule's functions get Snakemake's wildcards; here they are any object with attributes `paper`, `variant` and so on.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from recaps import receipts
from recaps.config.load import Project, load
from recaps.config.variant import Output, Part, Timing, Variant
from recaps.datasets import catalogue
from recaps.errors import UserError, nearest
from recaps.papers import FOLDER
from recaps.report.claims import Printed, printed
from recaps.workflow import layout
from recaps.workflow.fingerprint import fingerprint
from recaps.workflow.layout import DATASET_FILES, RUN_FILES, Layout

Inputs = dict[str, Any]


def start(values: Mapping[str, Any], root: Path, *, check: bool) -> Plan:
    """Return the plan for the user's settings; a mistake in them ends the process with one line.

    Args:
        values: the merged configuration, as Snakemake has it.
        root: the folder of the Snakefile.
        check: whether to look for results that have changed since they were made.
    """
    _show_library_to_jobs()
    try:
        plan = Plan(load(values, _short(root / "config")), root)
        if check:
            receipts.check(Path(plan.results, plan.scale))
        return plan
    except UserError as error:
        sys.exit(f"recaps: {error}")


def growing(amount: int) -> Callable[[Any, int], int]:
    """A resource that grows with each attempt: `amount`, twice `amount`, ..."""

    def grown(wildcards: Any, attempt: int) -> int:
        return amount * attempt

    return grown


class Plan:
    """Every file of one scale, and for each the settings and the code that it depends on."""

    def __init__(self, project: Project, root: Path) -> None:
        self.project = project
        self.root = root
        self.scale = project.config.scale
        self.results = project.config.results
        self.data = project.config.data
        self.files = Layout(Path(self.results, self.scale))
        self._check_sets()

    # Wildcards

    def any_of(self, kind: str) -> str:
        """Pattern of the names that a wildcard may take."""
        papers = self.project.papers.values()
        names: dict[str, Iterable[str]] = {
            "scale": [self.scale],
            "paper": self.project.papers,
            "dataset": catalogue.names(),
            "split": {split for name in catalogue.names() for split in catalogue.splits(name)},
            "variant": {name for paper in papers for name in paper.variants},
            "head": {name for paper in papers for name in paper.heads},
            "protocol": {name for paper in papers for name in paper.protocols},
            "probe": {name for paper in papers for variant in paper.variants.values() for name in variant.probes},
            "table": {name for paper in papers for name in paper.tables},
            "figure": {name for paper in papers for name in paper.figures},
            "timing": {name for paper in papers for name in paper.timings},
        }
        return "|".join(re.escape(name) for name in sorted(names[kind], key=lambda name: (-len(name), name)))

    # Targets

    def datasets(self) -> list[str]:
        """The record of every prepared set that the papers use."""
        return [str(self.files.dataset(name) / "record.json") for name in self._sets()]

    def prepared(self) -> list[str]:
        """All files of these sets."""
        return [file for name in self._sets() for file in self.dataset_files(name)]

    def models(self) -> list[str]:
        return [str(run / "model.safetensors") for paper in self.project.papers for run in self._runs(paper)]

    def latents(self) -> list[str]:
        return [file for paper in self.project.papers for file in self._paper_latents(paper)]

    def heads(self) -> list[str]:
        return [file for paper in self.project.papers for file in self._paper_heads(paper)]

    def tables(self) -> list[str]:
        return [file for paper in self.project.papers for file in self._paper_tables(paper)]

    def figures(self) -> list[str]:
        return [file for paper in self.project.papers for file in self._paper_figures(paper)]

    def probes(self) -> list[str]:
        return [file for paper in self.project.papers for file in self._paper_probes(paper)]

    def timings(self) -> list[str]:
        papers = self.project.papers.items()
        return [str(self.files.timing(name, timing)) for name, paper in papers for timing in paper.timings]

    def metrics(self) -> list[str]:
        """The table of every paper's numbers."""
        return [str(self.files.metrics(paper)[0]) for paper in self.project.papers]

    def records(self) -> list[str]:
        """The records of all runs."""
        return [str(run / "record.json") for paper in self.project.papers for run in self._runs(paper)]

    def scorecard(self) -> list[str]:
        return [*map(str, self.files.scorecard()), *(str(self.files.verdicts(paper)) for paper in self.project.papers)]

    def report(self) -> str:
        return str(self.files.report())

    def paper(self, name: str) -> list[str]:
        """All that is made for one paper: tables, figures, metrics, and what these are made from."""
        drawn = [*self._paper_tables(name), *self._paper_figures(name)]
        return [*drawn, *map(str, self.files.metrics(name)), *self.metrics_inputs(SimpleNamespace(paper=name))]

    def everything(self) -> list[str]:
        """All that is made: a target asks for each file itself, as Snakemake makes no other missing one again."""
        papers = [file for paper in self.project.papers for file in self.paper(paper)]
        return list(dict.fromkeys([*self.prepared(), *papers, *self.scorecard(), self.report()]))

    def readings(self) -> list[str]:
        """The pages of the papers."""
        return [self._own(paper, "README.md") for paper in self.project.papers]

    def claims(self) -> list[str]:
        """What the papers state."""
        return [self._own(paper, "claims.yaml") for paper in self.project.papers]

    # Inputs of the rules

    def raw_files(self, wildcards: Any) -> list[str]:
        """The official files that a set is made from."""
        files = catalogue.raw_inputs(wildcards.dataset, wildcards.split, self.project.scale.stand_in)
        return [f"{self.data}/{file}" for file in files]

    def training_set(self, wildcards: Any) -> list[str]:
        return self.dataset_files(self.project.resolve(self._variant(wildcards).data))

    def test_set(self, wildcards: Any) -> list[str]:
        """The test split of the data that a variant is trained on."""
        return self.dataset_files(self.project.resolve(self._variant(wildcards).test))

    def evaluation_set(self, wildcards: Any) -> list[str]:
        """The test split, where the training evaluates on it."""
        return self.test_set(wildcards) if self._variant(wildcards).training.evaluate_every else []

    def timing_sets(self, wildcards: Any) -> Inputs:
        """The training set of every variant of a timing, by the variant's name."""
        return {
            variant: self.dataset_files(self.project.resolve(settings.data))
            for variant, settings in self._timed(wildcards).items()
        }

    def head_latents(self, wildcards: Any) -> Inputs:
        """The latents that a head is fitted and tested on, as `fit` (where it is fitted) and `test`."""
        run = self.run(wildcards)
        return {role: str(layout.latents(run, name)) for role, name in self._parts(wildcards).items()}

    def table_inputs(self, wildcards: Any) -> list[str]:
        return self._shown(wildcards.paper, self.project.papers[wildcards.paper].tables[wildcards.table])

    def figure_inputs(self, wildcards: Any) -> list[str]:
        return self._shown(wildcards.paper, self.project.papers[wildcards.paper].figures[wildcards.figure])

    def metrics_inputs(self, wildcards: Any) -> list[str]:
        """All that was made for one paper: its runs, what was read from them, its timings, and the sets it shows."""
        settings = self.project.papers[wildcards.paper]
        runs = self._of_runs(wildcards.paper, settings.variants)
        return [*runs, *self._besides(wildcards.paper, settings.timings, sorted(settings.shown_sets))]

    # Settings of the rules

    def stand_in(self, wildcards: Any) -> bool:
        return self.project.scale.stand_in

    def dataset_options(self, wildcards: Any) -> dict[str, Any]:
        return self.project.scale.dataset_options.get(wildcards.dataset, {})

    def training(self, wildcards: Any) -> dict[str, Any]:
        """What a run is a function of, besides seed and data."""
        return _training(self._variant(wildcards))

    def checkpoints(self, wildcards: Any) -> str:
        """Where a run's state is kept while it trains: a folder for each state of settings, library and the options of
        the data, so that none finds what another began."""
        variant = self._variant(wildcards)
        code = fingerprint(["recaps.training.run", *family(variant)])
        names = {self.project.resolve(name).split("/")[0] for name in (variant.data, variant.test)}
        data = {name: self.project.scale.dataset_options.get(name, {}) for name in names}
        state = json.dumps([self.training(wildcards), code, data], sort_keys=True)
        key = hashlib.sha256(state.encode()).hexdigest()[:8]
        return str(self.files.checkpoints(wildcards.paper, wildcards.variant, wildcards.seed, key))

    def timed_variants(self, wildcards: Any) -> dict[str, dict[str, Any]]:
        """As `training`, for every variant of a timing."""
        return {name: _training(variant) for name, variant in self._timed(wildcards).items()}

    def timing_options(self, wildcards: Any) -> dict[str, Any]:
        """How a timing measures."""
        return self._timing(wildcards).model_dump(mode="json", exclude={"variants"})

    def limit(self, wildcards: Any) -> int | None:
        """The largest number of images whose latents are extracted."""
        wanted = f"{wildcards.dataset}/{wildcards.split}"
        limits = [n for name, n in self._variant(wildcards).latents.items() if self.project.resolve(name) == wanted]
        return None if None in limits else max(n for n in limits if n is not None)

    def probe_images(self, wildcards: Any) -> int:
        """The number of images that a probe is shown."""
        return self._variant(wildcards).probes[wildcards.probe]

    def head(self, wildcards: Any) -> dict[str, Any]:
        return self.project.papers[wildcards.paper].heads[wildcards.head].model_dump(mode="json")

    def protocol(self, wildcards: Any) -> dict[str, Any]:
        """A protocol with the names of the sets that are really used."""
        paper = self.project.papers[wildcards.paper]
        protocol = paper.protocols[wildcards.protocol].model_dump(mode="json")
        for role, name in self._parts(wildcards).items():
            protocol[role]["set"] = name
        return protocol

    def printed(self, wildcards: Any) -> dict[str, Printed]:
        """What the paper prints: all of its claims that a drawing depends on."""
        return printed(Path(self._own(wildcards.paper, "claims.yaml")))

    def table_caption(self, wildcards: Any) -> str:
        return self._caption(self.project.papers[wildcards.paper].tables[wildcards.table])

    def figure_caption(self, wildcards: Any) -> str:
        return self._caption(self.project.papers[wildcards.paper].figures[wildcards.figure])

    def settings(self, wildcards: Any) -> dict[str, Any]:
        """The configuration without what changes no number; of the paper in the wildcards alone, if there is one.

        What is left out of a paper is in no drawing of it, whose caption says so.
        """
        machine = {"papers", "without", "mirror", "device", "checkpoint_seconds", "data", "results", "overrides"}
        values = self.project.model_dump(mode="json", exclude={"config": machine})
        if paper := getattr(wildcards, "paper", None):
            values["papers"] = {paper: values["papers"][paper]}
            del values["left_out"]
        return values

    def left_out(self, wildcards: Any) -> dict[str, Any]:
        """What the papers go without."""
        return {name: lost.model_dump(mode="json") for name, lost in self.project.left_out.items()}

    def gpus(self, wildcards: Any) -> int:
        """GPUs of a job: one where the configuration asks for CUDA, as that of the profile for clusters does."""
        return int(self.project.config.device == "cuda")

    # Code of the rules

    def code(self, script: str, *modules: str) -> str:
        """Fingerprint of a rule's script, the library below it, and modules that the library imports by name."""
        return fingerprint([str(self.root / "workflow" / "scripts" / f"{script}.py"), *modules])

    def family_code(self, script: str) -> Callable[[Any], str]:
        """As `code`, with the family of the variant's model."""

        def of(wildcards: Any) -> str:
            return self.code(script, *family(self._variant(wildcards)))

        return of

    def probe_code(self, wildcards: Any) -> str:
        """As `code`, with the family of the variant's model and the paper's probes."""
        return self.code("read_probe", *family(self._variant(wildcards)), f"recaps.papers.{wildcards.paper}.probes")

    def timing_code(self, wildcards: Any) -> str:
        """As `code`, with the families of all models that are timed."""
        modules = {module for variant in self._timed(wildcards).values() for module in family(variant)}
        return self.code("time_steps", *sorted(modules))

    def paper_code(self, script: str, part: str) -> Callable[[Any], str]:
        """As `code`, with the paper's module `tables`, `figures` or `metrics`."""

        def of(wildcards: Any) -> str:
            return self.code(script, f"recaps.papers.{wildcards.paper}.{part}")

        return of

    # Names of files

    def _sets(self) -> list[str]:
        """The sets that the papers use, by the names of those that are really used."""
        papers = self.project.papers.values()
        return sorted({self.project.resolve(name) for paper in papers for name in paper.used_sets})

    def dataset_files(self, name: str) -> list[str]:
        """The files of a prepared split, given the name of the set that is really used."""
        return [str(self.files.dataset(name) / file) for file in DATASET_FILES]

    def run(self, wildcards: Any) -> Path:
        """The folder of a run."""
        return self.files.run(wildcards.paper, wildcards.variant, wildcards.seed)

    def _runs(self, paper: str, variant: str | None = None) -> list[Path]:
        """The folders of a paper's runs, or of one variant's."""
        variants = [variant] if variant else self.project.papers[paper].variants
        return [self.files.run(paper, name, seed) for name in variants for seed in self.project.seeds]

    def _own(self, paper: str, file: str) -> str:
        """A file of the paper's own folder."""
        return str(_short(FOLDER / paper / file))

    def _paper_tables(self, paper: str) -> list[str]:
        tables = self.project.papers[paper].tables
        return [str(file) for name in tables for file in self.files.table(paper, name)]

    def _paper_figures(self, paper: str) -> list[str]:
        figures = self.project.papers[paper].figures
        return [str(file) for name in figures for file in self.files.figure(paper, name)]

    def _paper_latents(self, paper: str, variants: Iterable[str] | None = None) -> list[str]:
        known = self.project.papers[paper].variants
        return [
            str(layout.latents(run, self.project.resolve(name)))
            for variant in (known if variants is None else variants)
            for run in self._runs(paper, variant)
            for name in known[variant].latents
        ]

    def _paper_heads(self, paper: str, variants: Iterable[str] | None = None) -> list[str]:
        known = self.project.papers[paper].variants
        return [
            str(layout.head(run, head, protocol))
            for variant in (known if variants is None else variants)
            for run in self._runs(paper, variant)
            for head, protocols in known[variant].heads.items()
            for protocol in protocols
        ]

    def _paper_probes(self, paper: str, variants: Iterable[str] | None = None) -> list[str]:
        known = self.project.papers[paper].variants
        return [
            str(layout.probe(run, name))
            for variant in (known if variants is None else variants)
            for run in self._runs(paper, variant)
            for name in known[variant].probes
        ]

    def _of_runs(self, paper: str, variants: Iterable[str]) -> list[str]:
        """All that was made of some variants: runs, latents, heads and probes."""
        names = list(variants)
        trained = [str(run / file) for name in names for run in self._runs(paper, name) for file in RUN_FILES]
        read = (self._paper_latents(paper, names), self._paper_heads(paper, names), self._paper_probes(paper, names))
        return [*trained, *(file for files in read for file in files)]

    def _shown(self, paper: str, output: Output) -> list[str]:
        """What a table or figure is drawn from: the paper's metrics, and all of the variants that it shows."""
        runs = self._of_runs(paper, self.project.papers[paper].shown(output))
        return [*map(str, self.files.metrics(paper)), *runs, *self._besides(paper, output.timings, output.sets)]

    def _besides(self, paper: str, timings: Iterable[str], sets: Iterable[str]) -> list[str]:
        """What a table or figure reads besides runs."""
        shown = [file for name in sets for file in self.dataset_files(self.project.resolve(name))]
        return [*(str(self.files.timing(paper, name)) for name in timings), *shown]

    def _caption(self, output: Output) -> str:
        warning = " STAND-IN DATA: the numbers show only that everything runs." if self.project.scale.stand_in else ""
        return f"{output.title}. {output.caption}{warning}"

    def _variant(self, wildcards: Any) -> Variant:
        paper = self.project.papers[wildcards.paper]
        if wildcards.variant not in paper.variants:
            where = f"{wildcards.paper}/paper.yaml"
            raise UserError(f"{where}: no variant '{wildcards.variant}'{nearest(wildcards.variant, paper.variants)}")
        return paper.variants[wildcards.variant]

    def _timing(self, wildcards: Any) -> Timing:
        return self.project.papers[wildcards.paper].timings[wildcards.timing]

    def _timed(self, wildcards: Any) -> dict[str, Variant]:
        """The variants of a timing."""
        variants = self.project.papers[wildcards.paper].variants
        return {name: variants[name] for name in self._timing(wildcards).variants}

    def _parts(self, wildcards: Any) -> dict[str, str]:
        """The sets a head is fitted and tested on, by role."""
        paper = self.project.papers[wildcards.paper]
        protocol = paper.protocols[wildcards.protocol]
        parts: dict[str, Part | None] = {"fit": protocol.fit, "test": protocol.test}
        if paper.heads[wildcards.head].kind == "argmax":
            del parts["fit"]
        return {role: self.project.resolve(part.set) for role, part in parts.items() if part is not None}

    # Checks across files

    def _check_sets(self) -> None:
        """Refuse sets, splits and options that the catalogue does not know."""
        scale = f"config/scales/{self.scale}.yaml"
        for name, options in self.project.scale.dataset_options.items():
            _at(f"{scale}: dataset_options", catalogue.resolve, name, options)
        for paper, settings in self.project.papers.items():
            for name in sorted(settings.used_sets):
                _at(f"{paper}/paper.yaml", catalogue.check_split, *self.project.resolve(name).split("/"))


def _training(variant: Variant) -> dict[str, Any]:
    return variant.model_dump(mode="json", include={"model", "training"})


def family(variant: Variant) -> list[str]:
    """The modules that a variant's model is imported from by name."""
    modules: list[str] = variant.model.modules
    return modules


def _at(where: str, check: Callable[..., Any], *arguments: Any) -> None:
    """Call `check`; its UserError gets told where the mistake is."""
    try:
        check(*arguments)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def _short(path: Path) -> Path:
    """The path as seen from the working directory where that is shorter."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else Path(relative)


def _show_library_to_jobs() -> None:
    """Let jobs in a conda environment of their own (`--sdm conda`) import this very library."""
    source = Path(__file__).resolve().parents[2]
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if source.name == "src" and str(source) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(source), *filter(None, paths)])
