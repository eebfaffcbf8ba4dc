"""The stages of the workflow: one function per rule, of the same name.

The rules' script and `python -m recaps run` call them. A stage gets a job with `input`, `output`, `params`,
`wildcards`, `config`, `resources`, `threads` and `scriptdir`, as Snakemake passes them to scripts, and calls one
function of the library. Each stage imports that function itself: this keeps other stages' code out of its identity, and
lets `recaps.plan.job` open the log and set the number of threads first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from recaps.errors import TryAgain, UserError
from recaps.io import sweep
from recaps.locks import alone
from recaps.plan.job import device, given, project_root, shared
from recaps.plan.modules import edited
from recaps.plan.receipts import changed, file_of, known, receipt, refuse
from recaps.training.lease import Lease

#: What PyTorch and NumPy say of arrays that are too large.
_TOO_LARGE = r"allocate|out of memory|size calculation overflowed|array is too big|Maximum allowed dimension"


def make(stage: str, job: Any) -> None:
    """Make the outputs of a stage, with a receipt.

    Its inputs are compared with theirs first, byte by byte. The folder of a run is locked meanwhile, so that nobody
    else, with whatever settings, changes the run at the same time.

    Raises:
        TryAgain: another process makes a part of the same run, or an input; or its code was edited since the start.
        UserError: an input has changed since it was made; or see the stage.
    """
    outputs, folder = [Path(file) for file in _flat(job.output)], Path(job.config["results"], job.config["scale"])
    inputs = [Path(file) for file in dict.fromkeys(_flat(job.input))]
    with _locked(stage, job) as lease:
        with alone(outputs[0].parent) if stage == "prepare_dataset" else nullcontext():
            sweep([*outputs, file_of(outputs)])
        refuse(changed(inputs))
        if names := edited(job.params.identity["modules"]):
            raise TryAgain(f"{stage}: {', '.join(names)} was edited since this start; run again")
        data = known(folder, inputs)
        with receipt(outputs, job.params.identity | {"data": data}), _enough_memory():
            globals()[stage](job, lease) if stage == "train_variant" else globals()[stage](job)
            if known(folder, inputs) != data:
                raise TryAgain(f"{stage}: another process changed an input meanwhile; run again")


def fetch_file(job: Any) -> None:
    """Fetch one official file and verify its checksum."""
    from recaps.datasets.download import fetch
    from recaps.datasets.sources import file

    # The mirror is no parameter of the rule: another source is no reason to fetch a file again.
    source = file(job.wildcards.dataset, job.wildcards.file)
    fetch(source, Path(job.output.file).parent, mirror=job.config.get("mirror"))


def prepare_dataset(job: Any) -> None:
    """Prepare one split of one data set."""
    from recaps.datasets.preparation import prepare

    source = job.params.identity["settings"]
    prepare(
        source["like"],
        job.wildcards.split,
        Path(job.config.get("data", "data")),
        Path(job.output.record).parents[2],
        stand_in=source["stand_in"],
        options=source["options"],
        own=source["own"],
    )


def train_variant(job: Any, lease: Lease) -> None:
    """Train one variant of one paper with one seed. `lease` is that on the run."""
    from recaps.training.run import take_over, train

    names = job.wildcards
    identity = {"paper": names.paper, "variant": names.variant, "scale": names.scale}
    settings = job.params.identity["settings"]
    if job.params.has_model_of:
        take_over(Path(job.input.start[0]).parent, settings, identity, Path(job.output.model).parent)
        return
    train(
        settings,
        identity=identity,
        seed=int(names.seed),
        dataset=Path(job.input.dataset[0]).parent,
        test=Path(job.input.test[0]).parent if job.input.test else None,
        start=Path(job.input.start[0]) if job.input.start else None,
        modules=job.params.identity["modules"],
        out=Path(job.output.model).parent,
        checkpoints=Path(job.params.checkpoints),
        lease=lease,
        device=device(job),
        threads=job.threads,
        # No parameter of the rule, like the device: another interval is no reason to train again.
        checkpoint_seconds=job.config.get("checkpoint_seconds", 120),
        project=project_root(job),
        given=given(job),
    )


def time_steps(job: Any) -> None:
    """Time the training steps of several variants side by side."""
    from recaps.training.timing import time_variants

    settings = job.params.identity["settings"]
    time_variants(
        datasets={name: Path(files[0]).parent for name, files in job.input.items() if name in settings["variants"]},
        out=Path(job.output.timing),
        **settings,
        device=device(job),
        threads=job.threads,
        project=project_root(job),
    )


def read_model(job: Any) -> None:
    """Compute latents and probes with one trained model, and evaluate its own class scores."""
    from recaps.config.base import snapshot_of
    from recaps.evaluation.heads import evaluate_all
    from recaps.evaluation.inference import read_model
    from recaps.layout import Layout

    run, settings = Path(job.output.latents).parent, job.params.identity["settings"]
    folder = Layout(run.parents[3]).dataset
    read_model(
        run,
        latents={name: (folder(snapshot_of(name)[0]), limit) for name, limit in settings["latents"].items()},
        probes={name: (folder(settings["test"]), images) for name, images in settings["probes"].items()},
        codes=job.params.codes,
        device=device(job),
        threads=job.threads,
    )
    evaluate_all(Path(job.output.latents), settings["heads"], Path(job.output.scores))


def evaluate_heads(job: Any) -> None:
    """Fit classifiers on the latents of one run and test them."""
    from recaps.evaluation.heads import evaluate_all
    from recaps.identity import key
    from recaps.layout import HEADS

    identity = job.params.identity
    evaluate_all(
        Path(job.input.latents),
        identity["settings"],
        Path(job.output.heads),
        kept=Path(job.params.checkpoints, HEADS),  # no output: Snakemake deletes the outputs of a failed job
        code=key({"modules": identity["modules"]}),
        threads=job.threads or 1,  # `python -m recaps run` may leave it to PyTorch
    )


def record_run(job: Any) -> None:
    """Measure all that tables and figures need of one run, and keep it as a small record."""
    from recaps.config.load import Project
    from recaps.evaluation.record import Run, write
    from recaps.layout import Layout

    names, folder = job.wildcards, Path(job.output.numbers).parent
    project, files = Project.model_validate(job.params.project), Layout(folder.parents[3])

    def run(variant: str, seed: int, beside: dict[str, Run]) -> Run:
        return Run(
            folder=files.run(names.paper, variant, seed),
            name=names.paper,
            paper=project.every[names.paper],
            variant=variant,
            seed=seed,
            datasets=files.folder / "datasets",
            resolve=project.resolver(names.paper),
            beside=beside,
        )

    others = {variant: run(variant, seed, {}) for variant, seed in job.params.beside.items()}
    write(run(names.variant, int(names.seed), others))


def collect_metrics(job: Any) -> None:
    """Collect the numbers of one paper's runs."""
    from recaps.report.collect import metrics

    metrics(saved_results(job))


def draw_tables(job: Any) -> None:
    """Draw the tables of one paper from saved results."""
    from recaps.report.draw import table

    results = saved_results(job)
    for name in results.paper.tables:
        table(name, results, results.folder)


def draw_figures(job: Any) -> None:
    """Draw the figures of one paper from saved results."""
    from recaps.report.draw import figures

    figures(saved_results(job))


def score_claims(job: Any) -> None:
    """Compare every claim of the papers with the metrics."""
    from recaps.config.without import LeftOut
    from recaps.report import scorecard

    settings = job.params.identity["settings"]
    scorecard.make(
        [Path(file) for file in job.input.claims],
        [Path(file) for file in job.input.metrics],
        [Path(file) for file in job.input.records],
        Path(job.output[0]).parent,
        scale=job.wildcards.scale,
        papers=job.params.papers,
        left_out={name: LeftOut.model_validate(lost) for name, lost in settings["left_out"].items()},
        own=settings["own"],
    )


def build_report(job: Any) -> None:
    """Build the report: the scorecard, all tables and figures, and the provenance of each number, on one page."""
    from recaps.config.load import Project
    from recaps.report.html import build

    out = Path(job.output.html)
    readmes = {Path(file).parent.name: Path(file) for file in job.input.readings}
    build(Project.model_validate(job.params.identity["settings"]["project"]), out.parent, out, readmes=readmes)


def saved_results(job: Any) -> Any:
    """Return the `Results` of a paper.

    The settings in the job's identity are the configuration of this paper alone, and what it prints. The job's first
    output is in the paper's folder.
    """
    from recaps.config.load import Project
    from recaps.layout import Layout
    from recaps.report.claims import Printed
    from recaps.report.results import of_project

    settings = dict(job.params.identity["settings"])
    printed = {claim: Printed(*each) for claim, each in settings.pop("printed", {}).items()}
    project = Project.model_validate(settings)
    [name] = project.every
    return of_project(project, name, Layout(Path(job.output[0]).parents[2]), printed)


@contextmanager
def _locked(stage: str, job: Any) -> Iterator[Lease | None]:
    """Hold the lease on the folder of a run, for the stages that write to it."""
    if not hasattr(job.params, "checkpoints"):
        yield None
        return
    lease = Lease(Path(job.params.checkpoints))
    # A training touches it at every step, so that one that hangs can be taken over.
    with lease, nullcontext() if stage == "train_variant" else lease.kept():
        yield lease


@contextmanager
def _enough_memory() -> Iterator[None]:
    """Tell in one line what no memory can hold."""
    try:
        yield
    except (MemoryError, RuntimeError, ValueError) as error:
        text = " ".join(str(error).split())
        if not isinstance(error, MemoryError) and not re.search(_TOO_LARGE, text):
            raise
        told = f"this does not fit into memory ({text[:200]})"
        if shared():  # the next attempt shares the GPU with fewer trainings
            raise TryAgain(f"{told}; set `runs_per_gpu` lower") from error
        raise UserError(f"{told}; make the network or the batch smaller") from error


def _flat(files: Any) -> Iterator[str]:
    """Yield all names of files in a job's inputs or outputs, of which some are lists or named."""
    if isinstance(files, str | Path):
        yield str(files)
        return
    for each in files.values() if isinstance(files, dict) else files:
        yield from _flat(each)
