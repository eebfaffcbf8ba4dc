"""The stages of the workflow: one function per rule, of the same name.

The rules' script and `python -m recaps run` call them. A stage gets a job with `input`, `output`, `params`,
`wildcards`, `config`, `resources`, `threads` and `scriptdir`, as Snakemake passes them to scripts, and calls one
function of the library. Each stage imports that function itself: this keeps other stages' code out of its fingerprint,
and lets `recaps.workflow.job` open the log and set the number of threads first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recaps.workflow.job import device, given, project_root


def fetch_file(job: Any) -> None:
    """Fetch one official file and verify its checksum."""
    from recaps.datasets.download import fetch
    from recaps.datasets.sources import file

    # The mirror is no parameter of the rule: another source is no reason to fetch a file again.
    fetch(
        file(job.wildcards.dataset, job.wildcards.file),
        Path(job.output.file).parent,
        mirror=job.config.get("mirror"),
    )


def prepare_dataset(job: Any) -> None:
    """Prepare one split of one data set."""
    from recaps.datasets.preparation import prepare

    prepare(
        job.wildcards.dataset,
        job.wildcards.split,
        Path(job.config.get("data", "data")),
        Path(job.output.record).parents[2],
        stand_in=job.params.stand_in,
        options=job.params.options,
    )


def train_variant(job: Any) -> None:
    """Train one variant of one paper with one seed."""
    from recaps.training.run import train

    names = job.wildcards
    test = [Path(file).parent for file in job.input.test]
    train(
        job.params.settings,
        identity={"paper": names.paper, "variant": names.variant, "scale": names.scale},
        seed=int(names.seed),
        dataset=Path(job.input.dataset[0]).parent,
        test=test[0] if test else None,
        out=Path(job.output.model).parent,
        checkpoints=Path(job.params.checkpoints),
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

    time_variants(
        job.params.variants,
        {variant: Path(files[0]).parent for variant, files in job.input.items()},
        Path(job.output.timing),
        **job.params.options,
        device=device(job),
        threads=job.threads,
        project=project_root(job),
    )


def extract_latents(job: Any) -> None:
    """Extract the latents of one trained model on one split."""
    from recaps.evaluation.latents import extract

    extract(
        Path(job.input.model).parent,
        Path(job.input.dataset[0]).parent,
        Path(job.output.latents),
        limit=job.params.limit,
        device=device(job),
        threads=job.threads,
    )


def read_probe(job: Any) -> None:
    """Compute one probe of one trained model."""
    from recaps.evaluation.probes import probe

    probe(
        Path(job.input.model).parent,
        Path(job.input.dataset[0]).parent,
        Path(job.output.probe),
        name=job.wildcards.probe,
        images=job.params.images,
        device=device(job),
        threads=job.threads,
    )


def evaluate_head(job: Any) -> None:
    """Fit one head on latents and test it."""
    from recaps.evaluation.heads import evaluate

    protocol = job.params.protocol
    latents = {protocol[role]["set"]: Path(file) for role, file in job.input.items()}
    evaluate(latents, job.params.head, protocol, Path(job.output.result))


def collect_metrics(job: Any) -> None:
    """Compute the metrics of one paper from its runs."""
    from recaps.report.collect import metrics

    metrics(saved_results(job), Path(job.output[0]).parent)


def draw_table(job: Any) -> None:
    """Draw one table of one paper from saved results."""
    from recaps.report.draw import table

    table(job.wildcards.table, saved_results(job), Path(job.output[0]).parent)


def draw_figure(job: Any) -> None:
    """Draw one figure of one paper from saved results."""
    from recaps.report.draw import figure

    figure(job.wildcards.figure, saved_results(job), Path(job.output[0]).parent)


def score_claims(job: Any) -> None:
    """Compare every claim of the papers with the metrics."""
    from recaps.config.without import LeftOut
    from recaps.report.scorecard import make

    make(
        [Path(file) for file in job.input.claims],
        [Path(file) for file in job.input.metrics],
        [Path(file) for file in job.input.records],
        Path(job.output[0]).parent,
        scale=job.wildcards.scale,
        papers=job.params.papers,
        left_out={name: LeftOut.model_validate(lost) for name, lost in job.params.left_out.items()},
    )


def build_report(job: Any) -> None:
    """Build the report: the scorecard, all tables and figures, and the provenance of each number, on one page."""
    from recaps.config.load import Project
    from recaps.report.html import build

    out = Path(job.output.html)
    readmes = {Path(file).parent.name: Path(file) for file in job.input.readings}
    build(Project.model_validate(job.params.project), out.parent, out, readmes=readmes)


def saved_results(job: Any) -> Any:
    """Return the `Results` of the paper in the wildcards.

    The job has the params `project` (the configuration) and `printed`, and its first output is in the paper's folder.
    """
    from recaps.config.load import Project
    from recaps.report.claims import Printed
    from recaps.report.results import Results
    from recaps.workflow.layout import Layout

    project = Project.model_validate(job.params.project)
    name = job.wildcards.paper
    return Results(
        name=name,
        paper=project.papers[name],
        files=Layout(Path(job.output[0]).parents[2]),
        seeds=project.seeds,
        resolve=project.resolve,
        printed={claim: Printed(*each) for claim, each in job.params.printed.items()},
        stand_in=project.scale.stand_in,
    )
