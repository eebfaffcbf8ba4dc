"""Runs of one paper from two places as one folder of results: new ones, and published ones of other seeds or variants.

A record may grow: seeds or variants that were trained at different times, or on different machines, are published
together. Tables and figures are drawn anew from all runs. The record has no weights, latents or probes, so a figure
that needs those of a run that was published earlier stays as it was. If it lacks new runs, its caption says so. Metrics
that combine runs or come from a timing, and need no more than the record, are computed anew (the function `combined` of
a paper's metrics).
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd

from recaps import io
from recaps.config.families import families
from recaps.config.heads import Head, Part, Protocol
from recaps.config.load import Project, check
from recaps.config.training import Training
from recaps.config.variant import Output, Paper, Variant
from recaps.errors import UserError
from recaps.papers import FOLDER
from recaps.report import draw
from recaps.report.claims import printed, read
from recaps.report.collect import DIGITS, metric_table
from recaps.report.measured import head_results, measured_seeds
from recaps.report.results import Results
from recaps.workflow.layout import METRICS_FILES, Layout


def merge(
    results: Path, published: Path, name: str, project: Project, into: Path, older: Collection[str] = ()
) -> list[str]:
    """Make a folder of results in `into` from all runs of a paper, and draw its tables and figures.

    Args:
        results: the folder of a scale with the new runs. They replace published runs of the same variant and seed.
        published: the record of the scale.
        name: the paper.
        project: the configuration of today, with the data sets that the new runs used, else those of the record.
        into: a new folder; it refers to `results` by links.
        older: figures of the record that lack runs of the record.

    Returns:
        The figures that lack runs, because they cannot be drawn from the record.

    Raises:
        UserError: a published run was trained or measured with other settings, or its variant is left out; no timing
            has all variants; or a figure can neither be drawn nor kept.
    """
    paper = project.papers[name]
    new, old, files = Layout(results), Layout(published), Layout(into)
    trained, before = measured_seeds(new.metrics(name)[0]), measured_seeds(old.metrics(name)[0])
    left_out = project.left_out[name].variants if name in project.left_out else {}
    for variant in before:
        if variant in left_out:
            raise UserError(f"{published}: {name}/{variant} is published; to keep it, remove it from --without")
    kept = {
        variant: [seed for seed in seeds if seed not in trained.get(variant, ())]
        for variant, seeds in before.items()
        if variant in paper.variants
    }
    for variant, seeds in kept.items():
        for seed in seeds:
            run = old.run(name, variant, seed)
            _check_settings(run, paper.variants[variant], paper, project)
            shutil.copytree(run, files.run(name, variant, seed))
    for variant, seeds in trained.items():
        for seed in seeds:
            _link(new.run(name, variant, seed), files.run(name, variant, seed))
    _link(new.folder / "datasets", files.folder / "datasets")
    own_seeds = {
        variant: sorted([*kept.get(variant, ()), *trained.get(variant, ())])
        for variant in paper.variants
        if variant in kept or variant in trained
    }
    for timing in paper.timings:
        source = _timing(
            timing, name, [old, new] if any(kept.values()) else [new], {*project.timed(name, timing)} & own_seeds.keys()
        )
        _link(source.timing(name, timing), files.timing(name, timing))
    if all(own_seeds[variant][0] in seeds for variant, seeds in trained.items()):
        # Figures show the arrays of the first seed. The file has those of new runs.
        _link(new.metrics(name)[1], files.metrics(name)[1])
    present = paper.model_copy(update={"variants": {variant: paper.variants[variant] for variant in own_seeds}})
    merged = Results(
        name=name,
        paper=present,
        files=files,
        own_seeds=own_seeds,
        resolve=project.resolve,
        printed=printed(read(FOLDER / name / "claims.yaml")),
        stand_in=False,
    )
    _add_metrics(new, old, merged, kept)
    for table in paper.tables:
        draw.table(table, merged, files.paper(name))
    return [
        figure
        for figure, output in paper.figures.items()
        if not _draw(figure, merged, old.figure(name, figure))
        and (figure in older or changes(output, paper, trained, own_seeds))
    ]


def changes(
    output: Output, paper: Paper, trained: Mapping[str, Collection[int]], own_seeds: Mapping[str, Sequence[int]]
) -> bool:
    """Whether an output shows new runs. `trained`: their seeds, by variant. `own_seeds`: all seeds, in order."""
    shown = trained.keys() & set(paper.matching(output.needs))
    return any(not output.first_seed or own_seeds[variant][0] in trained[variant] for variant in shown)


def _check_settings(run: Path, variant: Variant, paper: Paper, project: Project) -> None:
    """Raise a UserError if a published run was not trained and measured as the variant is today."""
    config = io.read_json(run / "config.json")
    again = "publish all runs of the paper anew, without --add"
    model = families().get(config["model"]["family"])
    try:
        was = model and (check(model, config["model"], ""), check(Training, config["training"], ""))
    except UserError:
        was = None  # an option that is no more
    if was != (variant.model, variant.training):
        raise UserError(f"{run}: trained with other settings than the variant has today; {again}")
    data, now = io.read_json(run / "record.json")["dataset"]["name"], project.resolve(variant.data).split("/")[0]
    if data != now:
        raise UserError(f"{run}: trained on {data}, not on {now}; {again}")
    for head, protocol, result in head_results(run):
        if protocol in variant.heads.get(head, ()) and not _same(result, head, protocol, paper, project):
            what = f"head {head}, protocol {protocol}"
            raise UserError(f"{run}: {what}: measured with other settings or data than today; {again}")


def _same(result: Mapping[str, Any], head: str, protocol: str, paper: Paper, project: Project) -> bool:
    """Whether a head's result was measured with the settings and on the data of today."""
    try:
        was = check(Head, result["head"], ""), check(Protocol, result["protocol"], "")
    except UserError:
        return False  # an option that is no more
    now = paper.heads[head], paper.protocols[protocol]
    # A head that is not fitted ignores what it could be fitted on.
    parts = ("test",) if now[0].kind == "argmax" else ("fit", "test")
    return was[0] == now[0] and all(
        getattr(was[1], part) == _resolved(getattr(now[1], part), project) for part in parts
    )


def _resolved(part: Part | None, project: Project) -> Part | None:
    """The images of a part, with the set that replaces its own."""
    return part and part.model_copy(update={"set": project.resolve(part.set)})


def _timing(timing: str, name: str, places: Sequence[Layout], variants: Collection[str]) -> Layout:
    """The first place whose timing has all variants: times of different jobs are not compared."""
    for place in places:
        if (file := place.timing(name, timing)).exists() and variants <= io.read_json(file)["seconds_per_step"].keys():
            return place
    file = places[-1].timing(name, timing)
    how = f"make this file without `without`: snakemake --profile profiles/local ... -- {file}"
    raise UserError(f"{file}: neither this timing nor the published one has all of {', '.join(variants)}; {how}")


def _add_metrics(new: Layout, old: Layout, merged: Results, kept: Mapping[str, Iterable[int]]) -> None:
    """Write the metrics of the new runs and of those that are kept."""
    name = merged.name
    tables = [pd.read_csv(new.metrics(name)[0], dtype=str, keep_default_na=False)]
    if old.metrics(name)[0].exists():
        rows = pd.read_csv(old.metrics(name)[0], dtype=str, keep_default_na=False)
        of_kept = [
            int(seed) in kept.get(variant, ()) for variant, seed in zip(rows["variant"], rows["seed"], strict=True)
        ]
        tables.insert(0, rows[of_kept])
    if any(kept.values()):
        combined = metric_table(merged, "combined")
        tables = [table[~table["metric"].isin(combined["metric"])] for table in tables]
        tables.append(
            pd.read_csv(StringIO(combined.to_csv(index=False, float_format=DIGITS)), dtype=str, keep_default_na=False)
        )
    every = pd.concat(tables, ignore_index=True).fillna("")
    # In the order in which one job would have written them, by variant and seed.
    order = every.assign(place=every["seed"].astype(int)).sort_values("place", kind="stable").index
    io.write_text(merged.folder / METRICS_FILES[0], every.loc[order].to_csv(index=False))


def _draw(figure: str, results: Results, published: list[Path]) -> bool:
    """Draw a figure. If it needs what the record lacks, keep the published one and return False."""
    try:
        draw.figure(figure, results, results.folder)
        return True
    except UserError:
        there = [file for file in published if file.exists()]
        if not there:
            raise
        for file in there:
            shutil.copyfile(file, results.folder / file.name)
        return False


def _link(source: Path, target: Path) -> None:
    if source.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source.resolve())
