"""The plan: from the checked configuration to the files, settings and code that the rules of the workflow ask for.

The rules pass Snakemake's wildcards; any object with attributes `paper`, `variant` and so on will do.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from recaps import checkout
from recaps.config.base import Section, snapshot_of
from recaps.config.load import Project, load, merged
from recaps.config.variant import Output, Paper, Timing, Variant
from recaps.config.workflow import OwnData
from recaps.datasets import catalogue, checksums, own, sources
from recaps.errors import UserError, nearest
from recaps.identity import key
from recaps.io import digest_of, short
from recaps.report.claims import printed
from recaps.workflow import checks, layout
from recaps.workflow.fingerprint import modules
from recaps.workflow.jobs import Job, Names
from recaps.workflow.layout import DATASET_FILES, MEASURED_FILES, READ_FILES, RECORD_FILES, RUN_FILES, Layout

Inputs = dict[str, Any]

#: Settings that change no number, or that are merged into others.
MACHINE = {"papers", "without", "mirror", "device", "checkpoint_seconds", "data", "results", "overrides"}
#: The modules that compute what a training leaves, besides the model's family.
TRAINING = ("recaps.training.step", "recaps.training.testing")
#: The modules that read a trained model, besides the model's family.
READING = ("recaps.evaluation.latents", "recaps.evaluation.probes", "recaps.evaluation.heads")


def start(config: dict[str, Any], sources: Iterable[Path | Mapping[str, Any]], root: Path) -> Plan:
    """Return the plan for the user's settings. A mistake in them, or another checkout's library, ends in one line.

    Args:
        config: the configuration that Snakemake passes to jobs. The merged settings replace its content.
        sources: the settings before they are merged, files or mappings. Later ones override earlier ones.
        root: the folder of the Snakefile.
    """
    with exits():
        checkout.require(root, "snakemake")
        _show_library_to_jobs()
        values = merged(sources)
        config.clear()
        config.update(values)
        return Plan(load(values, short(root / "config")))


@contextmanager
def exits() -> Iterator[None]:
    """End the process with one line for a UserError."""
    try:
        yield
    except UserError as error:
        sys.exit(f"recaps: {error}")


def growing(amount: int) -> Callable[[Any, int], int]:
    """Return a resource that grows with each attempt: `amount`, twice `amount`, ..."""

    def grown(wildcards: Any, attempt: int) -> int:
        return amount * attempt

    return grown


#: The folder of device files.
DEVICES = Path("/dev")


class Plan:
    """All files of one scale, with the settings and the code that each depends on."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.scale = project.config.scale
        self.results = project.config.results
        self.data = project.config.data
        self.files = Layout(Path(self.results, self.scale))
        checks.check(project)

    # Wildcards

    def any_of(self, kind: str) -> str:
        """Return the pattern of the names that a wildcard may take."""
        papers = self.project.papers.values()
        names: dict[str, Iterable[str]] = {
            "scale": [self.scale],
            "paper": self.project.papers,
            "dataset": {*catalogue.names(), *map(self.project.dataset, catalogue.names())},
            "split": {split for name in catalogue.names() for split in catalogue.splits(name)},
            "variant": {name for paper in papers for name in paper.variants},
            "timing": {name for paper in papers for name in paper.timings},
        }
        return "|".join(re.escape(name) for name in sorted(names[kind], key=lambda name: (-len(name), name)))

    # Targets

    def datasets(self) -> list[str]:
        """Return the records of all prepared sets that the papers use."""
        return [str(self.files.dataset(name) / "record.json") for name in self._sets()]

    def prepared(self) -> list[str]:
        """Return all files of these sets."""
        return [file for name in self._sets() for file in self.dataset_files(name)]

    def runs(self, papers: Iterable[str] = (), variants: Iterable[str] | None = None) -> list[tuple[str, str, int]]:
        """Return paper, variant and seed of all runs, or of those of some papers and variants.

        Variants are given as `variant` or `paper/variant`.
        """
        chosen = None if variants is None else set(variants)
        return [
            (paper, variant, seed)
            for paper in papers or self.project.papers
            for variant, settings in self.project.papers[paper].variants.items()
            if chosen is None or chosen & {variant, f"{paper}/{variant}"}
            for seed in self.project.seeds_of(settings)
        ]

    def of_run(self, paper: str, variant: str, seed: int) -> dict[str, list[str]]:
        """Return the files of a run by kind: `trained`, `read` from its model, and `heads` fitted on its latents."""
        run, settings = self.files.run(paper, variant, seed), self.project.papers[paper].variants[variant]
        is_read = settings.latents or settings.probes
        is_fitted = any(self.project.papers[paper].heads[head].kind != "argmax" for head in settings.heads)
        return {
            "trained": [str(run / file) for file in RUN_FILES],
            "read": [str(run / file) for file in READ_FILES] if is_read else [],
            "heads": [str(layout.heads(run))] if is_fitted else [],
            "measured": [str(run / file) for file in MEASURED_FILES],
        }

    def beside(self, paper: str, variant: str, seed: int) -> dict[str, int]:
        """Return the variants whose runs the record of a run needs, each with its seed."""
        variants = self.project.papers[paper].variants
        seeds = {name: self.project.seeds_of(variants[name]) for name in variants[variant].beside}
        return {name: seed if seed in each else each[0] for name, each in seeds.items()}

    def models(self) -> list[str]:
        return [str(self.files.run(*run) / "model.safetensors") for run in self.runs()]

    def records(self) -> list[str]:
        """Return the records of all runs."""
        return [str(self.files.run(*run) / "record.json") for run in self.runs()]

    def latents(self) -> list[str]:
        """Return all files that are read from trained models: latents, probes and scores."""
        return [file for run in self.runs() for file in self.of_run(*run)["read"]]

    def heads(self) -> list[str]:
        """Return the results of all heads."""
        own = [str(layout.scores(self.files.run(*run))) for run in self.runs() if self.of_run(*run)["read"]]
        return own + [file for run in self.runs() for file in self.of_run(*run)["heads"]]

    def timings(self) -> list[str]:
        papers = self.project.papers.items()
        return [str(self.files.timing(name, timing)) for name, paper in papers for timing in paper.timings]

    def metrics(self) -> list[str]:
        """Return the table of numbers of each paper."""
        return [str(self.files.metrics(paper)) for paper in self.project.papers]

    def tables(self, *papers: str) -> list[str]:
        """Return the files of all tables, or of the tables of some papers."""
        made = [(paper, name) for paper in papers or self.project.papers for name in self.project.papers[paper].tables]
        return [str(file) for paper, name in made for file in self.files.table(paper, name)]

    def figures(self, *papers: str) -> list[str]:
        """Return the files of all figures, or of the figures of some papers."""
        made = [(paper, name) for paper in papers or self.project.papers for name in self.project.papers[paper].figures]
        return [str(file) for paper, name in made for file in self.files.figure(paper, name)]

    def scorecard(self) -> list[str]:
        return [*map(str, self.files.scorecard()), *(str(self.files.verdicts(paper)) for paper in self.project.papers)]

    def report(self) -> str:
        return str(self.files.report())

    def paper(self, name: str) -> list[str]:
        """Return all files of one paper: tables, figures, metrics, the inputs of these, and all files of its runs."""
        inputs = self.metrics_inputs(SimpleNamespace(paper=name))
        runs = [file for run in self.runs([name]) for files in self.of_run(*run).values() for file in files]
        drawn = [*self.tables(name), *self.figures(name), str(self.files.metrics(name))]
        return list(dict.fromkeys([*drawn, *inputs, *runs]))

    def papers(self) -> list[str]:
        """Return all files of all papers."""
        return list(dict.fromkeys(file for paper in self.project.papers for file in self.paper(paper)))

    def everything(self) -> list[str]:
        """Return all files. A target names each of them, as Snakemake does not replace other missing files."""
        return list(dict.fromkeys([*self.prepared(), *self.papers(), *self.scorecard(), self.report()]))

    def readings(self) -> list[str]:
        """Return the pages of the papers."""
        return [str(checks.own_file(paper, "README.md")) for paper in self.project.papers]

    def claims(self) -> list[str]:
        """Return the claims of the papers."""
        return [str(checks.own_file(paper, "claims.yaml")) for paper in self.project.papers]

    # Inputs of the rules

    def raw_files(self, wildcards: Any) -> list[str]:
        """Return the official files that a split is made from; none for stand-ins and for the user's own data."""
        name, mine = self.project.origin(wildcards.dataset)
        files = catalogue.raw_inputs(name, wildcards.split, self.project.scale.stand_in or mine is not None)
        return [str(Path(self.data, file)) for file in files]

    def training_set(self, wildcards: Any) -> list[str]:
        return self.dataset_files(self.project.resolve(self._variant(wildcards).data))

    def test_set(self, wildcards: Any) -> list[str]:
        """Return the test split of a variant's training data."""
        return self.dataset_files(self.project.resolve(self._variant(wildcards).test))

    def evaluation_set(self, wildcards: Any) -> list[str]:
        """Return the test split if the training evaluates on it."""
        return self.test_set(wildcards) if self._variant(wildcards).training.evaluate_every else []

    def timing_sets(self, wildcards: Any) -> Inputs:
        """Return the training set of each variant of a timing, by the variant's name."""
        timed = self._timed(wildcards).items()
        return {name: self.dataset_files(self.project.resolve(variant.data)) for name, variant in timed}

    def read_sets(self, wildcards: Any) -> list[str]:
        """Return the sets that a trained model is read on."""
        variant = self._variant(wildcards)
        names = {*(snapshot_of(name)[0] for name in variant.latents), *([variant.test] if variant.probes else [])}
        return [file for name in sorted(map(self.project.resolve, names)) for file in self.dataset_files(name)]

    def shown(self, paper: str, outputs: Iterable[Output]) -> list[str]:
        """Return the inputs of some tables or figures: the paper's metrics, and the records of the variants shown."""
        every = list(outputs)
        variants = self.project.papers[paper].matching(tuple(name for each in every for name in each.needs))
        timings = dict.fromkeys(name for each in every for name in each.timings)
        return [str(self.files.metrics(paper)), *self._records(paper, variants, timings)]

    def metrics_inputs(self, wildcards: Any) -> list[str]:
        """Return the records of all runs of a paper, and its timings."""
        settings = self.project.papers[wildcards.paper]
        return self._records(wildcards.paper, settings.variants, settings.timings)

    # Settings of the rules

    def preparation(self, wildcards: Any) -> dict[str, Any]:
        """Return what a prepared set depends on, besides official files: the arguments of `preparation.prepare`."""
        name, mine = self.project.origin(wildcards.dataset)
        return {
            "like": name,
            "stand_in": self.project.scale.stand_in and mine is None,
            "options": catalogue.resolve(name, self.project.scale.dataset_options.get(name, {})),
            "own": {"name": mine, **_own(self.project.own[mine])} if mine else None,
        }

    def training(self, wildcards: Any) -> dict[str, Any]:
        """Return the settings that a run depends on, besides seed and data."""
        return _training(self._variant(wildcards))

    def checkpoints(self, wildcards: Any) -> str:
        """Return the folder of a run's checkpoints and lease."""
        return str(self.files.checkpoints(wildcards.paper, wildcards.variant, wildcards.seed))

    def timed_variants(self, wildcards: Any) -> dict[str, dict[str, Any]]:
        """Return the settings of `training` for each variant of a timing."""
        return {name: _training(variant) for name, variant in self._timed(wildcards).items()}

    def timing_options(self, wildcards: Any) -> dict[str, Any]:
        return self._timing(wildcards).model_dump(mode="json", exclude={"variants", "networks"})

    def measured_inputs(self, wildcards: Any) -> list[str]:
        """Return what the record of a run is made of: its files, the sets of its data, and the runs beside it."""
        paper, variant, seed = wildcards.paper, wildcards.variant, int(wildcards.seed)
        runs = {variant: seed, **self.beside(paper, variant, seed)}
        made = [self.of_run(paper, *run) for run in runs.items()]
        own = self._variant(wildcards)
        sets = [self.project.resolve(name) for name in own.images]
        return [
            *(file for each in made for kind in ("trained", "read", "heads") for file in each[kind]),
            *(file for name in sets for file in self.dataset_files(name)),
        ]

    def latents_of(self, wildcards: Any) -> dict[str, int | None]:
        """Return the latents to extract, by the names of their sets at this scale, with the number of images.

        None means all images.
        """
        found: dict[str, int | None] = {}
        for name, n in self._variant(wildcards).latents.items():
            used = self.project.resolve(name)
            known = found.get(used, 0)
            found[used] = None if n is None or known is None else max(n, known)
        return found

    def probes_of(self, wildcards: Any) -> dict[str, int]:
        """Return the probes of a variant, each with its number of images."""
        return dict(self._variant(wildcards).probes)

    def probed_set(self, wildcards: Any) -> str:
        """Return the set that probes are computed on, by its name at this scale."""
        return self.project.resolve(self._variant(wildcards).test)

    def own_heads(self, wildcards: Any) -> dict[str, Any]:
        """Return the heads that need no fit."""
        return self._heads(wildcards.paper, wildcards.variant, fitted=False)

    def fitted_heads(self, wildcards: Any) -> dict[str, Any]:
        return self._heads(wildcards.paper, wildcards.variant, fitted=True)

    def kept_heads(self, wildcards: Any) -> str:
        """Return the folder of finished heads, which is no output: Snakemake deletes the outputs of a failed job."""
        return str(Path(self.checkpoints(wildcards), layout.HEADS))

    def _heads(self, paper: str, variant: str, *, fitted: bool) -> dict[str, Any]:
        """Return the settings of a variant's heads by head and protocol, with the names of the sets at this scale."""
        settings = self.project.papers[paper]
        return {
            head: {name: self._evaluation(settings, head, name) for name in protocols}
            for head, protocols in settings.variants[variant].heads.items()
            if (settings.heads[head].kind != "argmax") == fitted
        }

    def _evaluation(self, paper: Paper, head: str, protocol: str) -> dict[str, Any]:
        # Its title may change without a new fit; the report takes it from the configuration.
        rules = paper.protocols[protocol].model_dump(mode="json") | {"title": protocol}
        if paper.heads[head].kind == "argmax":
            rules["fit"] = None
        for part in filter(None, (rules["fit"], rules["test"])):
            share = self._share_of_usual_size(part["set"])
            part["set"] = self.project.resolve(part["set"])
            part["start"] = int(share * part["start"])
            part["count"] = part["count"] and max(1, int(share * part["count"]))
        return {"head": paper.heads[head].model_dump(mode="json"), "protocol": rules}

    def _share_of_usual_size(self, set_name: str) -> Fraction:
        """Return the size of the user's own images relative to the set that they replace, at most 1; 1 without them."""
        name, split = snapshot_of(self.project.resolve(set_name))[0].split("/")
        like, mine = self.project.origin(name)
        if mine is None:
            return Fraction(1)
        base, base_split = catalogue.base_of(like, split)
        usual = catalogue.STAND_IN_COUNTS if self.project.scale.stand_in else catalogue.entry(base).counts
        return min(Fraction(self._own_sizes[mine][base_split], usual[base_split]), Fraction(1))

    @functools.cached_property
    def _own_sizes(self) -> dict[str, dict[str, int]]:
        """The number of images in each split of the user's own data."""
        return {name: own.sizes(Path(each.path), each.test_fraction) for name, each in self.project.own.items()}

    def settings(self, paper: str | None = None) -> dict[str, Any]:
        """Return the configuration without the settings that change no number.

        With the name of a paper, the result has only what its metrics, tables and figures depend on: this paper, and
        neither `left_out`, which no drawing shows, nor `elsewhere`.
        """
        values = self.project.model_dump(mode="json", exclude={"config": MACHINE})
        if paper:
            values["papers"] = {paper: values["papers"][paper]}
            del values["left_out"], values["elsewhere"]
            values["scale"]["description"] = ""
        return values

    def measured(self, wildcards: Any) -> dict[str, Any]:
        """Return the settings of a paper without its tables and figures: their captions change no metric."""
        values = self.settings(wildcards.paper)
        values["papers"] = {name: {**each, "tables": {}, "figures": {}} for name, each in values["papers"].items()}
        return values

    def measured_variant(self, wildcards: Any) -> dict[str, Any]:
        """Return the settings of a paper with the run's variant and those beside it alone."""
        paper = self.project.papers[wildcards.paper]
        kept = {"variants": self._beside(wildcards), "timings": {}, "tables": {}, "figures": {}}
        alone = {wildcards.paper: paper.model_copy(update=kept)}
        project = self.project.model_copy(update={"papers": alone, "left_out": {}, "elsewhere": {}})
        return project.model_dump(mode="json", exclude={"config": MACHINE})

    def _beside(self, wildcards: Any) -> dict[str, Variant]:
        """Return a run's variant and those that its record needs."""
        every = self.project.papers[wildcards.paper].variants
        return {name: every[name] for name in (wildcards.variant, *every[wildcards.variant].beside)}

    def _measuring(self, wildcards: Any) -> dict[str, Any]:
        """Return what a record depends on: no titles, and no other seeds."""
        paper = self.project.papers[wildcards.paper]

        def untitled(sections: Mapping[str, Section]) -> dict[str, Any]:
            return {name: each.model_dump(mode="json", exclude={"title", "seeds"}) for name, each in sections.items()}

        return {
            "variants": untitled(self._beside(wildcards)),
            "heads": untitled(paper.heads),
            "protocols": untitled(paper.protocols),
            "datasets": self.project.replaced,
            "beside": self.beside(wildcards.paper, wildcards.variant, int(wildcards.seed)),
        }

    def drawing(self, paper: str, kind: str) -> dict[str, Callable[[Any], Any]]:
        """Return the parameters of the rule that draws a paper's `tables` or `figures`."""
        outputs: Mapping[str, Output] = getattr(self.project.papers[paper], kind)
        return {
            "identity": lambda wildcards: self.identity(f"draw_{kind}")(Names(paper=paper)),
            "project": lambda wildcards: self._drawn(paper, kind),
            "printed": lambda wildcards: printed(checks.claims_of(paper)),
            "captions": lambda wildcards: {name: self._caption(paper, output) for name, output in outputs.items()},
        }

    def _drawn(self, paper: str, kind: str) -> dict[str, Any]:
        """Return the settings of a paper without its tables, or without its figures."""
        values = self.settings(paper)
        values["papers"][paper][{"tables": "figures", "figures": "tables"}[kind]] = {}
        return values

    def _identity_of_drawing(self, paper: str, kind: str) -> dict[str, Any]:
        """Return what tables or figures depend on: the settings of the paper, and the numbers that it prints."""
        return self._drawn(paper, kind) | {"printed": printed(checks.claims_of(paper))}

    def left_out(self, wildcards: Any) -> dict[str, Any]:
        """Return the parts of the papers that are left out."""
        return {name: lost.model_dump(mode="json") for name, lost in self.project.left_out.items()}

    def own_data(self, wildcards: Any) -> dict[str, list[str]]:
        """Return the user's own data by the papers that use them, e.g. `mine in place of mnist`."""
        found = {paper: self.project.own_data(paper) for paper in self.project.papers}
        return {paper: names for paper, names in found.items() if names}

    def gpus(self, wildcards: Any) -> int:
        """Return the GPUs of a job: one if it asks for CUDA, or would use a GPU of this machine."""
        device = self.project.config.device
        return int(device == "cuda" or (device == "auto" and _has_gpu()))

    # What identifies the results of the rules

    def identity(self, stage: str) -> Callable[[Any], dict[str, Any]]:
        """Return a function of wildcards that returns `settings` and `modules` of a stage's result.

        The third part, `data`, is known when the inputs are there.
        """
        settings, code = self._settings[stage], self._code[stage]
        return lambda wildcards: {"settings": settings(wildcards), "modules": code(wildcards)}

    @functools.cached_property
    def _settings(self) -> dict[str, Callable[[Any], dict[str, Any]]]:
        """The settings that the result of each stage depends on."""
        return {
            "prepare_dataset": lambda names: self.preparation(names) | {"files": self._official(names)},
            "train_variant": lambda names: self.training(names) | {"seed": int(names.seed)},
            "time_steps": lambda names: {"variants": self.timed_variants(names), **self.timing_options(names)},
            "read_model": lambda names: {
                "latents": self.latents_of(names),
                "probes": self.probes_of(names),
                "test": self.probed_set(names),
                "heads": self.own_heads(names),
            },
            "evaluate_heads": self.fitted_heads,
            "record_run": self._measuring,
            "collect_metrics": self.measured,
            "draw_tables": lambda names: self._identity_of_drawing(names.paper, "tables"),
            "draw_figures": lambda names: self._identity_of_drawing(names.paper, "figures"),
            "score_claims": lambda names: {
                "left_out": self.left_out(names),
                "own": self.own_data(names),
                "claims": {file: digest_of(Path(file)) for file in self.claims()},
            },
            "build_report": lambda names: {
                "project": self.settings(),
                "readings": {file: digest_of(Path(file)) for file in self.readings()},
            },
        }

    @functools.cached_property
    def _code(self) -> dict[str, Callable[[Any], dict[str, str]]]:
        """The digests of the modules that compute the numbers of each stage."""

        def drawing(stage: str, own: str = "") -> Callable[[Any], dict[str, str]]:
            """Stages that only collect and draw count with all their code, and with the paper's module `own`."""

            def code(names: Any) -> dict[str, str]:
                there = own and checks.own_file(names.paper, f"{own}.py").exists()
                paper = [f"recaps.papers.{names.paper}.{own}"] if there else []
                return modules([f"recaps.workflow.stages:{stage}", *paper])

            return code

        def reading(names: Any) -> dict[str, str]:
            variant = self._variant(names)
            return modules([*READING, *family(variant), *_probes(names.paper, variant)])

        return {
            "prepare_dataset": self._preparing,
            "train_variant": lambda names: modules([*TRAINING, *family(self._variant(names))]),
            "time_steps": lambda names: modules([*TRAINING, "recaps.training.timing", *self._timed_families(names)]),
            "read_model": reading,
            "evaluate_heads": lambda names: modules(["recaps.evaluation.heads"]),
            "record_run": lambda names: modules(self._recording(names)),
            "collect_metrics": drawing("collect_metrics", "metrics"),
            "draw_tables": drawing("draw_tables", "tables"),
            "draw_figures": drawing("draw_figures", "figures"),
            "score_claims": drawing("score_claims"),
            "build_report": drawing("build_report"),
        }

    def read_model_codes(self, wildcards: Any) -> dict[str, str]:
        """Return what stands for the modules that compute latents, and for those that compute probes."""
        variant = self._variant(wildcards)
        latents = ["recaps.evaluation.latents", *family(variant)]
        probes = [*latents, "recaps.evaluation.probes", *_probes(wildcards.paper, variant)]
        return {name: key({"modules": modules(roots)}) for name, roots in (("latents", latents), ("probes", probes))}

    def heads_code(self, wildcards: Any) -> str:
        """Return what stands for the modules that fit heads."""
        return key({"modules": modules(["recaps.evaluation.heads"])})

    def _official(self, wildcards: Any) -> dict[str, str | None]:
        """Return the digests of the official files that a split is made from."""
        files = map(Path, self.raw_files(wildcards))
        return {f"{path.parent.name}/{path.name}": _expected(path) for path in files}

    def _preparing(self, wildcards: Any) -> dict[str, str]:
        """Return the digests of the modules that prepare a split: those of other sets do not count."""
        name, mine = self.project.origin(wildcards.dataset)
        base = catalogue.entry(name).base or name
        source = "own" if mine else "standin" if self.project.scale.stand_in else f"formats.{catalogue.FORMATS[base]}"
        derived = [] if base == name else ["norb" if base == "smallnorb" else "derived"]
        used = modules([f"recaps.datasets.{module}" for module in (source, *derived)])
        return {
            name: digest
            for name, digest in modules(["recaps.datasets.preparation"]).items()
            if name in used or name.rpartition(".")[2] in ("arrays", "preparation", "raw")
        }

    def _recording(self, wildcards: Any) -> list[str]:
        """Return the modules that measure a run: the paper's own, and the families of the models that it loads."""
        families = {module for each in self._beside(wildcards).values() for module in family(each)}
        return [f"recaps.papers.{wildcards.paper}.record", "recaps.evaluation.record", *sorted(families)]

    def _timed_families(self, wildcards: Any) -> list[str]:
        return sorted({module for variant in self._timed(wildcards).values() for module in family(variant)})

    # Jobs

    @functools.cached_property
    def jobs(self) -> list[Job]:
        """All jobs that make files from settings and files, each after those whose outputs it needs."""
        made: list[Job] = []

        def add(stage: str, inputs: Iterable[str], outputs: Iterable[str], **names: Any) -> None:
            named = Names(scale=self.scale, **names)
            made.append(
                Job(stage, named, tuple(inputs), tuple(outputs), functools.partial(self.identity(stage), named))
            )

        for each in self._sets():
            dataset, split = each.split("/")
            add("prepare_dataset", [], self.dataset_files(each), dataset=dataset, split=split)
        for paper, variant, seed in self.runs():
            run = Names(paper=paper, variant=variant, seed=seed)
            files = self.of_run(paper, variant, seed)
            add("train_variant", [*self.training_set(run), *self.evaluation_set(run)], files["trained"], **run)
            if files["read"]:
                add("read_model", [*files["trained"][:2], *self.read_sets(run)], files["read"], **run)
            if files["heads"]:
                add("evaluate_heads", files["read"][:1], files["heads"], **run)
        for paper, variant, seed in self.runs():  # after all others, as a record may need another run
            run = Names(paper=paper, variant=variant, seed=seed)
            add("record_run", self.measured_inputs(run), self.of_run(paper, variant, seed)["measured"], **run)
        for paper, settings in self.project.papers.items():
            for timing in settings.timings:
                names = Names(paper=paper, timing=timing)
                sets = [file for files in self.timing_sets(names).values() for file in files]
                add("time_steps", sets, [str(self.files.timing(paper, timing))], **names)
            names = Names(paper=paper)
            add("collect_metrics", self.metrics_inputs(names), [str(self.files.metrics(paper))], **names)
            if settings.tables:
                add("draw_tables", self.shown(paper, settings.tables.values()), self.tables(paper), **names)
            if settings.figures:
                drawn = [*self.figures(paper), str(self.files.shown(paper))]
                add("draw_figures", self.shown(paper, settings.figures.values()), drawn, **names)
        add("score_claims", [*self.claims(), *self.metrics(), *self.records()], self.scorecard())
        drawn = [*self.scorecard(), *self.tables(), *self.figures(), *self.metrics(), *self.heads(), *self.timings()]
        shown = [str(self.files.shown(name)) for name, paper in self.project.papers.items() if paper.figures]
        add("build_report", [*drawn, *shown, *self.records(), *self.datasets()], [self.report()])
        return made

    def as_snakemake(self, job: Job, threads: int | None = None) -> Names:
        """Return what Snakemake would pass to the script of a job that belongs to a set or a run."""
        names = job.names
        params: dict[str, dict[str, Callable[[], Any]]] = {
            "prepare_dataset": {"source": lambda: self.preparation(names)},
            "train_variant": {"settings": lambda: self.training(names)},
            "read_model": {
                "codes": lambda: self.read_model_codes(names),
                "latents": lambda: self.latents_of(names),
                "probes": lambda: self.probes_of(names),
                "test": lambda: self.probed_set(names),
                "heads": lambda: self.own_heads(names),
            },
            "evaluate_heads": {
                "code": lambda: self.heads_code(names),
                "heads": lambda: self.fitted_heads(names),
                "kept": lambda: self.kept_heads(names),
            },
            "record_run": {
                "project": lambda: self.measured_variant(names),
                "beside": lambda: self.beside(names.paper, names.variant, names.seed),
            },
        }
        chosen = Names({name: value() for name, value in params[job.stage].items()}, identity=job.identity())
        sets: dict[str, list[str]] = {}
        if job.stage == "train_variant":
            sets = {"dataset": self.training_set(names), "test": self.evaluation_set(names)}
        if "variant" in names:
            chosen["checkpoints"] = self.checkpoints(names)
        return Names(
            wildcards=names,
            input=Names({Path(file).stem: file for file in reversed(job.inputs)}, every=job.inputs, **sets),
            output=Names({Path(file).stem: Path(file) for file in job.outputs}),
            params=chosen,
            config=self.project.config.model_dump(),
            resources={},
            threads=threads,
            scriptdir=Path("workflow", "scripts"),
        )

    def jobs_of(self, paper: str, variant: str, seed: int) -> list[Job]:
        """Return the jobs that make the files of a run."""
        files = {file for each in self.of_run(paper, variant, seed).values() for file in each}
        return [job for job in self.jobs if not files.isdisjoint(job.outputs)]

    def needed(self, targets: Collection[str]) -> list[Job]:
        """Return the jobs that the targets need: names of the Snakefile's targets, or files. None: the default."""
        files = {os.path.normpath(file) for target in targets or ("all",) for file in self._target(target)}
        needed = []
        for job in reversed(self.jobs):
            if not files.isdisjoint(job.outputs):
                needed.append(job)
                files.update(job.inputs)
        return needed[::-1]

    def _target(self, name: str) -> list[str]:
        """Return the files of a target."""
        named: dict[str, Callable[[], list[str]]] = {
            "all": self.everything,
            "data": self.prepared,
            "train": self.models,
            "latents": self.latents,
            "heads": self.heads,
            "tables": self.tables,
            "figures": self.figures,
            "papers": self.papers,
            "scorecard": self.scorecard,
            "report": lambda: [self.report()],
        }
        if name in self.project.papers:
            return self.paper(name)
        return named[name]() if name in named else [name]

    # Names of files

    def _sets(self) -> list[str]:
        """Return the sets that the papers use, by the names of their replacements at this scale."""
        papers = self.project.papers.values()
        return sorted({self.project.resolve(name) for paper in papers for name in paper.used_sets})

    def dataset_files(self, name: str) -> list[str]:
        """Return the files of a prepared split, by its name at this scale."""
        return [str(self.files.dataset(name) / file) for file in DATASET_FILES]

    def _records(self, paper: str, variants: Iterable[str], timings: Iterable[str]) -> list[str]:
        """Return the records of runs of some variants, and timings: all that is drawn."""
        runs = self.runs([paper], variants)
        return [
            *(str(self.files.run(*run) / file) for run in runs for file in RECORD_FILES),
            *(file for run in runs for file in self.of_run(*run)["heads"]),
            *(str(layout.scores(self.files.run(*run))) for run in runs if self.of_run(*run)["read"]),
            *(str(self.files.timing(paper, name)) for name in timings),
        ]

    def _caption(self, paper: str, output: Output) -> str:
        mine = self.project.own_data(paper)
        note = f" OWN DATA: {', '.join(mine)}." if mine else ""
        if any(self.project.stand_in(name) for name in self.project.papers[paper].used_sets):
            note += " STAND-IN DATA: the numbers show only that everything runs."
        return f"{output.title}. {output.caption}{note}"

    def _variant(self, wildcards: Any) -> Variant:
        paper = self.project.papers[wildcards.paper]
        if wildcards.variant not in paper.variants:
            where = checks.own_file(wildcards.paper, "paper.yaml")
            raise UserError(f"{where}: no variant '{wildcards.variant}'{nearest(wildcards.variant, paper.variants)}")
        return paper.variants[wildcards.variant]

    def _timing(self, wildcards: Any) -> Timing:
        return self.project.papers[wildcards.paper].timings[wildcards.timing]

    def _timed(self, wildcards: Any) -> dict[str, Variant]:
        """Return the variants of a timing."""
        return self.project.timed(wildcards.paper, wildcards.timing)


def _expected(path: Path) -> str | None:
    """Return the digest of an official file, or None before the first download of one without a published digest."""
    return checksums.expected_digest(sources.file(path.parent.name, path.name), path.parent)


def _has_gpu() -> bool:
    """Return whether this machine has a GPU that PyTorch may use, without the seconds that PyTorch takes to load."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
    return visible not in ("", "-1") and any(DEVICES.glob("nvidia[0-9]*"))


def _own(settings: OwnData) -> dict[str, Any]:
    """Return the settings of own data, and the state of its files."""
    return settings.model_dump(mode="json") | {"state": own.state(Path(settings.path))}


def _training(variant: Variant) -> dict[str, Any]:
    return variant.model_dump(mode="json", include={"model", "training"})


def _probes(paper: str, variant: Variant) -> list[str]:
    """Return the module of the variant's probes."""
    return [f"recaps.papers.{paper}.probes"] if variant.probes else []


def family(variant: Variant) -> list[str]:
    """Return the modules that a variant's model is imported from by name."""
    modules: list[str] = variant.model.modules
    return modules


def _show_library_to_jobs() -> None:
    """Let jobs in their own conda environment (`--sdm conda`) import this library."""
    source = Path(__file__).resolve().parents[2]
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if source.name == "src" and str(source) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(source), *filter(None, paths)])
