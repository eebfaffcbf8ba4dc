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
from typing import Any

from recaps import checkout, layout, step_times
from recaps.config.base import snapshot_of
from recaps.config.heads import Head
from recaps.config.load import Project, load
from recaps.config.reading import merged
from recaps.config.studies import Row, training_of
from recaps.config.variant import Output, Paper, Variant
from recaps.datasets import catalogue, own
from recaps.errors import UserError, nearest
from recaps.io import digest_of, short
from recaps.layout import DATASET_FILES, MEASURED_FILES, READ_FILES, RECORD_FILES, RUN_FILES, Layout
from recaps.plan import checks, jobs
from recaps.plan.identities import Identities
from recaps.plan.jobs import Job, Names

#: Settings that change no number, or that are merged into others.
MACHINE = {
    "papers",
    "without",
    "only",
    "studies",
    "mirror",
    "device",
    "checkpoint_seconds",
    "max_training_minutes",
    "data",
    "results",
    "overrides",
}

#: Settings of a variant that a training depends on.
TRAINED = {"model", "training"}


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
        plan = Plan(load(values, short(root / "config")))
        # As jobs read them: with `~` and variables replaced.
        paths = [key for key in ("results", "data", "mirror") if key in values]
        config.update({key: getattr(plan.project.config, key) for key in paths})
        return plan


@contextmanager
def exits() -> Iterator[None]:
    """End the process with one line for a UserError."""
    try:
        yield
    except UserError as error:
        sys.exit(f"recaps: {error}")


def growing(amount: int) -> Callable[[Any, int], int]:
    """Return a resource that grows with each attempt: `amount`, twice `amount`, ..."""
    return lambda wildcards, attempt: amount * attempt


#: Minutes to ask for a training whose steps were not measured.
UNKNOWN_MINUTES = 240
#: Minutes to ask for all else that a training does: start, evaluation, checkpoints.
MORE_MINUTES = 30

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
        self.identities = Identities(self)
        self.identity, self.params = self.identities.of, functools.partial(jobs.params, self)
        checks.check(project)

    def patterns(self) -> dict[str, str]:
        """Return the pattern of what each wildcard may be."""
        papers = self.project.every.values()
        names: dict[str, Iterable[str]] = {
            "scale": [self.scale],
            "paper": self.project.every,
            "dataset": {*catalogue.names(), *map(self.project.dataset, catalogue.names())},
            "split": {split for name in catalogue.names() for split in catalogue.splits(name)},
            "variant": {name for paper in papers for name in paper.variants},
            "timing": {name for paper in papers for name in paper.timings},
        }
        longest_first = {kind: sorted(each, key=lambda name: (-len(name), name)) for kind, each in names.items()}
        patterns = {kind: "|".join(map(re.escape, each)) for kind, each in longest_first.items()}
        return patterns | {"seed": r"\d+", "file": "[^/]+"}

    # Targets

    def prepared(self) -> list[str]:
        """Return all files of the prepared sets that the papers and the studies of `needed` use."""
        return [file for name in self.sets(self.needed()) for file in self.dataset_files(name)]

    def runs(self, papers: Iterable[str] = (), variants: Iterable[str] | None = None) -> list[tuple[str, str, int]]:
        """Return paper, variant and seed of all runs of the papers, or of some papers, studies and variants."""
        chosen = None if variants is None else set(variants)
        return [
            (paper, variant, seed)
            for paper in papers or self.project.papers
            for variant, settings in self.project.every[paper].variants.items()
            if chosen is None or variant in chosen
            for seed in self.project.seeds_of(settings)
        ]

    def of_run(self, paper: str, variant: str, seed: int) -> dict[str, list[str]]:
        """Return the files of a run by kind: `trained`, `read` from its model, and `heads` fitted on its latents."""
        run, settings = self.files.run(paper, variant, seed), self.project.every[paper].variants[variant]
        is_read = settings.latents or settings.probes
        is_fitted = any(self.project.every[paper].head(variant, head).kind != "argmax" for head in settings.heads)
        return {
            "trained": [str(run / file) for file in RUN_FILES],
            "read": [str(run / file) for file in READ_FILES] if is_read else [],
            "heads": [str(layout.heads(run))] if is_fitted else [],
            "measured": [str(run / file) for file in MEASURED_FILES],
        }

    def files_of(self, *run: Any) -> list[str]:
        """Return all files of a run, given as paper, variant and seed."""
        return [file for each in self.of_run(*run).values() for file in each]

    def beside(self, wildcards: Any) -> dict[str, int]:
        """Return the variants whose runs the record of a run needs, each with its seed."""
        variants, seed = self.project.every[wildcards.paper].variants, int(wildcards.seed)
        seeds = {name: self.project.seeds_of(variants[name]) for name in variants[wildcards.variant].beside}
        return {name: seed if seed in each else each[0] for name, each in seeds.items()}

    def models(self) -> list[str]:
        return [str(self.files.run(*run) / "model.safetensors") for run in self.runs()]

    def records(self, papers: Iterable[str] = ()) -> list[str]:
        """Return the records of all runs of the papers, or of some papers and studies."""
        return [str(self.files.run(*run) / "record.json") for run in self.runs(papers)]

    def latents(self) -> list[str]:
        """Return all files that are read from trained models: latents, probes and scores."""
        return [file for run in self.runs() for file in self.of_run(*run)["read"]]

    def heads(self) -> list[str]:
        own = [str(layout.scores(self.files.run(*run))) for run in self.runs() if self.of_run(*run)["read"]]
        return own + [file for run in self.runs() for file in self.of_run(*run)["heads"]]

    def timings(self) -> list[str]:
        papers = self.project.papers.items()
        return [str(self.files.timing(name, timing)) for name, paper in papers for timing in paper.timings]

    def with_claims(self) -> list[str]:
        """Return the papers, and the studies that measure a claim."""
        papers = self.project.papers
        claimed = [claim.measured_in for paper in papers for claim in checks.claims_of(paper)]
        return [*papers, *(study for study in self.project.studies if study in claimed)]

    def needed(self) -> list[str]:
        """Return the papers, the studies that the report shows and those that measure a claim."""
        return list(dict.fromkeys([*self.project.reported, *self.with_claims()]))

    def metrics(self) -> list[str]:
        """Return the metrics of what measures the claims."""
        return [str(self.files.metrics(name)) for name in self.with_claims()]

    def tables(self, *papers: str) -> list[str]:
        """Return the files of all tables, or of the tables of some papers."""
        made = [(paper, name) for paper in papers or self.project.papers for name in self.project.every[paper].tables]
        return [str(file) for paper, name in made for file in self.files.table(paper, name)]

    def figures(self, *papers: str) -> list[str]:
        """Return the files of all figures, or of the figures of some papers."""
        made = [(paper, name) for paper in papers or self.project.papers for name in self.project.every[paper].figures]
        return [str(file) for paper, name in made for file in self.files.figure(paper, name)]

    def scorecard(self) -> list[str]:
        return [*map(str, self.files.scorecard()), *(str(self.files.verdicts(paper)) for paper in self.project.papers)]

    def report(self) -> str:
        return str(self.files.report())

    def behind_report(self) -> list[str]:
        """Return what the report is made of, besides the pages of the papers."""
        reported = self.project.reported
        shown = [str(self.files.shown(name)) for name, paper in reported.items() if paper.figures]
        sets = [str(self.files.dataset(name) / "record.json") for name in self.sets(reported)]
        numbers = [*self.scorecard(), *self.metrics(), *self.heads(), *self.timings(), *shown, *self.records()]
        return [*self.tables(*reported), *self.figures(*reported), *numbers, *sets]

    def papers(self, names: Iterable[str]) -> list[str]:
        """Return all files of papers and studies: tables, figures, metrics, their inputs, and all files of the runs."""
        files = list[str]()
        for name in names:
            files += [*self.tables(name), *self.figures(name), str(self.files.metrics(name))]
            files += self.metrics_inputs(Names(paper=name))
            files += [file for run in self.runs([name]) for file in self.files_of(*run)]
        return list(dict.fromkeys(files))

    def everything(self) -> list[str]:
        """Return all files. A target names each of them, as Snakemake does not replace other missing files."""
        made = self.papers(self.needed())
        return list(dict.fromkeys([*self.prepared(), *made, *self.scorecard(), self.report()]))

    def written(self, file: str) -> list[str]:
        """Return the file of this name of each paper, `README.md` or `claims.yaml`."""
        return [str(checks.paper_file(paper, file)) for paper in self.project.papers]

    # Inputs of the rules

    def raw_files(self, wildcards: Any) -> list[str]:
        """Return the official files that a split is made from; none for stand-ins and for the user's own data."""
        name, mine = self.project.origin(wildcards.dataset)
        files = catalogue.raw_inputs(name, wildcards.split, self.project.scale.stand_in or mine is not None)
        return [str(Path(self.data, file)) for file in files]

    def training_inputs(self, wildcards: Any) -> dict[str, list[str]]:
        """Return the files of a training by what they are.

        These are its training set, its test set if it evaluates on it, and those of the run whose trained weights a row
        of a study has or starts from, if it does.
        """
        row, seed, start = self.variant(wildcards), int(wildcards.seed), list[str]()
        if owner := self.has_model_of(wildcards):
            paper, variant = owner.split("/")
            start = self.of_run(paper, variant, seed)["trained"]
        elif isinstance(row, Row) and row.start:
            start = self.of_run(wildcards.paper, row.start, seed)["trained"][:1]
        test = self.dataset_files(self.project.resolve(row.test)) if row.training.evaluate_every else []
        return {"dataset": self.dataset_files(self.project.resolve(row.data)), "test": test, "start": start}

    def has_model_of(self, wildcards: Any) -> str:
        """Return the run of which a row of a study has the trained model, `paper/variant`; empty if it is trained.

        It is the first run of its paper, or of a study above, with the same training and seed.
        """
        row, own = self.variant(wildcards), f"{wildcards.paper}/{wildcards.variant}"
        if not isinstance(row, Row):
            return ""
        trained = self._trained.get((training_of(wildcards.paper, row), int(wildcards.seed)), own)
        return "" if trained == own else trained

    @functools.cached_property
    def _trained(self) -> dict[tuple[str, int], str]:
        """The first run of each training and seed, `paper/variant`."""
        first: dict[tuple[str, int], str] = {}
        for paper, variant, seed in self.runs(self.project.every):
            training = training_of(paper, self.project.every[paper].variants[variant])
            first.setdefault((training, seed), f"{paper}/{variant}")
        return first

    def timing_sets(self, wildcards: Any) -> dict[str, list[str]]:
        """Return the training set of each variant of a timing, by the variant's name."""
        timed = self.project.timed(wildcards.paper, wildcards.timing).items()
        return {name: self.dataset_files(self.project.resolve(variant.data)) for name, variant in timed}

    def read_sets(self, wildcards: Any) -> list[str]:
        """Return the sets that a trained model is read on."""
        variant = self.variant(wildcards)
        names = {*(snapshot_of(name)[0] for name in variant.latents), *([variant.test] if variant.probes else [])}
        return [file for name in sorted(map(self.project.resolve, names)) for file in self.dataset_files(name)]

    def shown(self, paper: str, outputs: Collection[Output]) -> list[str]:
        """Return the inputs of some tables or figures: the paper's metrics, and the records of the variants shown."""
        variants = self.project.every[paper].matching(tuple(name for each in outputs for name in each.needs))
        timings = dict.fromkeys(name for each in outputs for name in each.timings)
        return [str(self.files.metrics(paper)), *self._records(paper, variants, timings)]

    def metrics_inputs(self, wildcards: Any) -> list[str]:
        """Return the records of all runs of a paper, and its timings."""
        settings = self.project.every[wildcards.paper]
        return self._records(wildcards.paper, settings.variants, settings.timings)

    # Settings of the rules

    def preparation(self, wildcards: Any) -> dict[str, Any]:
        """Return what a prepared set depends on, besides official files: the arguments of `preparation.prepare`."""
        name, mine = self.project.origin(wildcards.dataset)
        data = self.project.own[mine] if mine else None
        return {
            "like": name,
            "stand_in": self.project.scale.stand_in and mine is None,
            "options": catalogue.resolve(name, self.project.scale.options_of(name)),
            "own": data and {"name": mine, **data.model_dump(mode="json"), "state": own.state(Path(data.path))},
        }

    def training(self, wildcards: Any) -> dict[str, Any]:
        """Return the settings that a run depends on, besides seed and data."""
        return self.variant(wildcards).model_dump(mode="json", include=TRAINED)

    def checkpoints(self, wildcards: Any) -> str:
        """Return the folder of a run's checkpoints and lease."""
        return str(self.files.checkpoints(wildcards.paper, wildcards.variant, wildcards.seed))

    def timing(self, wildcards: Any) -> dict[str, Any]:
        """Return the options of a timing, and the settings of `training` for each of its variants."""
        timed = self.project.timed(wildcards.paper, wildcards.timing).items()
        timing = self.project.every[wildcards.paper].timings[wildcards.timing]
        variants = {name: variant.model_dump(mode="json", include=TRAINED) for name, variant in timed}
        return timing.model_dump(mode="json", exclude={"networks"}) | {"variants": variants}

    def measured_inputs(self, wildcards: Any) -> list[str]:
        """Return what the record of a run is made of: its files, the sets of its data, and the runs beside it."""
        runs = {wildcards.variant: int(wildcards.seed), **self.beside(wildcards)}
        made = [self.of_run(wildcards.paper, *run) for run in runs.items()]
        sets = [self.project.resolve(name) for name in self.variant(wildcards).images]
        return [
            *(file for each in made for kind in ("trained", "read", "heads") for file in each[kind]),
            *(file for name in sets for file in self.dataset_files(name)),
        ]

    def reading(self, wildcards: Any) -> dict[str, Any]:
        """Return what is read from a model: latents, probes (their images are of `test`), and heads without a fit.

        Latents are given by the names of their sets at this scale, with the number of images; None means all images.
        """
        variant = self.variant(wildcards)
        latents: dict[str, int | None] = {}
        for name, n in variant.latents.items():
            used = self.project.resolve(name)
            known = latents.get(used, 0)
            latents[used] = None if n is None or known is None else max(n, known)
        return {
            "latents": latents,
            "probes": dict(variant.probes),
            "test": self.project.resolve(variant.test),
            "heads": self.fitted_heads(wildcards, fitted=False),
        }

    def fitted_heads(self, wildcards: Any, *, fitted: bool = True) -> dict[str, Any]:
        """Return the settings of a variant's heads by head and protocol, with the names of the sets at this scale."""
        settings = self.project.every[wildcards.paper]
        return {
            head: {name: self._evaluation(settings, settings.head(wildcards.variant, head), name) for name in protocols}
            for head, protocols in self.variant(wildcards).heads.items()
            if (settings.head(wildcards.variant, head).kind != "argmax") == fitted
        }

    def _evaluation(self, paper: Paper, head: Head, protocol: str) -> dict[str, Any]:
        # Its title may change without a new fit; the report takes it from the configuration.
        rules = paper.protocols[protocol].model_dump(mode="json") | {"title": protocol}
        if head.kind == "argmax":
            rules["fit"] = None
        for part in filter(None, (rules["fit"], rules["test"])):
            share = self._share_of_usual_size(part["set"])
            part["set"] = self.project.resolve(part["set"])
            part["start"] = int(share * part["start"])
            part["count"] = part["count"] and max(1, int(share * part["count"]))
        return {"head": head.model_dump(mode="json"), "protocol": rules}

    def _share_of_usual_size(self, set_name: str) -> Fraction:
        """Return the size of own or held-out images relative to the set that they replace, at most 1; 1 for others."""
        name, split = snapshot_of(self.project.resolve(set_name))[0].split("/")
        like, mine = self.project.origin(name)
        base, part = catalogue.base_of(like, split)
        if mine is None and part not in catalogue.PARTS:
            return Fraction(1)
        usual = catalogue.STAND_IN_COUNTS if self.project.scale.stand_in else catalogue.entry(base).counts
        own = self._own_sizes[mine] if mine else usual
        found = catalogue.part_size(own["train"], part) if part in catalogue.PARTS else own[part]
        return min(Fraction(found, usual[{"learn": "train", "held_out": "test"}.get(part, part)]), Fraction(1))

    @functools.cached_property
    def _own_sizes(self) -> dict[str, dict[str, int]]:
        """The number of images in each split of the user's own data."""
        return {name: own.sizes(Path(each.path), each.test_fraction) for name, each in self.project.own.items()}

    def settings(self, paper: str | None = None, **changes: Any) -> dict[str, Any]:
        """Return the configuration without the settings that change no number.

        With the name of a paper, the result has only what its metrics, tables and figures depend on: this paper, with
        changed parts if there are `changes`, and neither `left_out`, which no drawing shows, nor `elsewhere`.
        """
        project = self.project
        if paper:
            kind = "studies" if paper in project.studies else "papers"
            alone = {paper: project.every[paper].model_copy(update=changes)}
            project = project.model_copy(update={"papers": {}, "studies": {}, kind: alone})
        values = project.model_dump(mode="json", exclude={"config": MACHINE})
        if paper:
            del values["left_out"], values["elsewhere"]
            values["scale"]["description"] = ""
        return values

    def measured(self, wildcards: Any) -> dict[str, Any]:
        """Return the settings of a paper without its tables and figures: these change no metric."""
        values = self.settings(wildcards.paper, tables={}, figures={})
        for study in values["studies"].values():
            study |= {"study": {}, "changes": {}}
        return values

    def measured_variant(self, wildcards: Any) -> dict[str, Any]:
        """Return the settings of a paper with the run's variant and those beside it alone."""
        variants = self.with_beside(wildcards)
        return self.settings(wildcards.paper, variants=variants, timings={}, tables={}, figures={})

    def with_beside(self, wildcards: Any) -> dict[str, Variant]:
        """Return a run's variant and those that its record needs."""
        every = self.project.every[wildcards.paper].variants
        return {name: every[name] for name in (wildcards.variant, *every[wildcards.variant].beside)}

    def drawing(self, paper: str, kind: str) -> dict[str, Callable[[Any], Any]]:
        """Return the parameters of the rule that draws a paper's `tables` or `figures`."""
        outputs: Mapping[str, Output] = getattr(self.project.every[paper], kind)
        return {
            "identity": lambda wildcards: self.identity(f"draw_{kind}")(Names(paper=paper)),
            "captions": lambda wildcards: {name: self._caption(paper, output) for name, output in outputs.items()},
        }

    def drawn(self, paper: str, kind: str) -> dict[str, Any]:
        """Return what tables or figures depend on: the paper's settings without the others, and what it prints."""
        others = "figures" if kind == "tables" else "tables"
        return self.settings(paper, **{others: {}}) | {"printed": checks.printed_by(paper)}

    def judging(self, wildcards: Any) -> dict[str, Any]:
        """Return what the scorecard depends on: claims, what is left out, and the user's own data by paper."""
        own = {paper: self.project.own_data(paper) for paper in self.project.papers}
        return {
            "left_out": {name: lost.model_dump(mode="json") for name, lost in self.project.left_out.items()},
            "own": {paper: names for paper, names in own.items() if names},
            "claims": {file: digest_of(Path(file)) for file in self.written("claims.yaml")},
        }

    def gpus(self, wildcards: Any) -> int:
        """Return the GPUs of a job: one if it asks for CUDA, or would use a GPU of this machine."""
        # Without the seconds that PyTorch takes to load.
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all") not in ("", "-1") and any(DEVICES.glob("nvidia[0-9]*"))
        return int({"cuda": True, "cpu": False}.get(self.project.config.device, visible))

    def training_minutes(self, wildcards: Any, attempt: int) -> int:
        """Return the minutes to ask a cluster for: twice what its steps took when measured, and more with each attempt.

        Devices differ, and others may use them at the same time. If its steps were not measured, the slowest ones of
        the model's family count, and `UNKNOWN_MINUTES` is the least.
        """
        variant = self.variant(wildcards)
        work, family, steps = step_times.work_of(variant), variant.model.family, variant.training.steps
        if self.has_model_of(wildcards):
            seconds, least = 0.0, 0
        elif variant.training.minutes:
            seconds, least = 60 * variant.training.minutes, 0
        elif work in self._step_seconds:
            seconds, least = steps * self._step_seconds[work], 0
        else:
            seconds, least = steps * self._step_seconds.get(family, 0.0), UNKNOWN_MINUTES
        minutes = max(least, MORE_MINUTES + round(2 * seconds / 60))
        return min(attempt * minutes, self.project.config.max_training_minutes)

    @functools.cached_property
    def _step_seconds(self) -> dict[str, float]:
        """The measured seconds of a step by work, and of the slowest step by family; on GPUs if trainings use one."""
        times = step_times.merged(step_times.published(), step_times.measured())
        found = step_times.slowest(times, gpu=bool(self.gpus(None)))
        families: dict[str, float] = {}
        for variant in (each for paper in self.project.every.values() for each in paper.variants.values()):
            seconds, family = found.get(step_times.work_of(variant), 0.0), variant.model.family
            families[family] = max(seconds, families.get(family, 0.0))
        return found | families

    def head_threads(self, wildcards: Any) -> int:
        """Return the threads of a job that fits heads: two for SVMs, whose pairs of classes are solved side by side."""
        paper, heads = self.project.every[wildcards.paper], self.variant(wildcards).heads
        kinds = {paper.head(wildcards.variant, head).kind for head in heads}
        return 2 if "svm" in kinds and not self.project.scale.stand_in else 1

    # Jobs

    @functools.cached_property
    def jobs(self) -> list[Job]:
        """All jobs, each after those whose outputs it needs."""
        return jobs.every(self)

    def jobs_of(self, paper: str, variant: str, seed: int) -> list[Job]:
        """Return the jobs that make the files of a run."""
        files = self.files_of(paper, variant, seed)
        return [job for job in self.jobs if not set(job.outputs).isdisjoint(files)]

    # Names of files

    def sets(self, papers: Iterable[str]) -> list[str]:
        """Return the sets that papers and studies use, by the names of their replacements at this scale."""
        used = {name for paper in papers for name in self.project.every[paper].used_sets}
        return sorted(map(self.project.resolve, used))

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
        if any(self.project.stand_in(name) for name in self.project.every[paper].used_sets):
            note += " STAND-IN DATA: the numbers show only that everything runs."
        return f"{output.title}. {output.caption}{note}"

    def variant(self, wildcards: Any) -> Variant:
        paper = self.project.every[wildcards.paper]
        if wildcards.variant not in paper.variants:
            where = checks.paper_file(wildcards.paper, "paper.yaml")
            raise UserError(f"{where}: no variant '{wildcards.variant}'{nearest(wildcards.variant, paper.variants)}")
        return paper.variants[wildcards.variant]


def _show_library_to_jobs() -> None:
    """Let jobs in their own conda environment (`--sdm conda`) import this library."""
    source = Path(__file__).resolve().parents[2]
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if source.name == "src" and str(source) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(source), *filter(None, paths)])
