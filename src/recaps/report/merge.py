"""Runs of one paper from two places as one folder of results: new ones, and published ones of other seeds or variants.

A record may grow: seeds or variants that were trained at different times, or on different machines, are published
together. Tables and figures are drawn anew from all runs. The record has no weights, latents or probes, so a figure
that needs those of a run that was published earlier stays as it was.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd

from recaps import io
from recaps.config.families import families
from recaps.config.load import Project, check
from recaps.config.training import Training
from recaps.config.variant import Variant
from recaps.errors import UserError
from recaps.papers import FOLDER
from recaps.report import draw
from recaps.report.claims import printed, read
from recaps.report.results import Results
from recaps.workflow.layout import METRICS_FILES, Layout

#: Seeds by variant.
Seeds = dict[str, list[int]]


def merge(results: Path, published: Path, name: str, project: Project, into: Path) -> None:
    """Make a folder of results in `into` from all runs of a paper, and draw its tables and figures.

    Args:
        results: the folder of a scale with the new runs. They replace published runs of the same variant and seed.
        published: the record of the scale.
        name: the paper.
        project: the configuration of today.
        into: a new folder; it refers to `results` by links.

    Raises:
        UserError: a published run was trained with other settings, or a figure can neither be drawn nor kept.
    """
    paper = project.papers[name]
    new, old, files = Layout(results), Layout(published), Layout(into)
    trained = _seeds(new, name)
    kept = {
        variant: [seed for seed in seeds if seed not in trained.get(variant, ())]
        for variant, seeds in _seeds(old, name).items()
        if variant in paper.variants
    }
    for variant, seeds in kept.items():
        for seed in seeds:
            run = old.run(name, variant, seed)
            _check_settings(run, paper.variants[variant])
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
    _add_metrics(new, old, files, name, kept)
    for timing in paper.timings:
        source = old if old.timing(name, timing).exists() else new
        _link(source.timing(name, timing), files.timing(name, timing))
    if all(own_seeds[variant][0] in trained.get(variant, ()) for variant in own_seeds):
        # The arrays are those of the first seed.
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
    for table in paper.tables:
        draw.table(table, merged, files.paper(name))
    for figure in paper.figures:
        _draw_or_keep(figure, merged, old.figure(name, figure))


def _seeds(files: Layout, name: str) -> Seeds:
    """The runs in a folder."""
    found: Seeds = {}
    for record in files.folder.glob(str(Layout(Path()).run(name, "*", "*") / "record.json")):
        found.setdefault(record.parents[1].name, []).append(int(record.parent.name.removeprefix("seed-")))
    return found


def _check_settings(run: Path, variant: Variant) -> None:
    """Raise a UserError if a published run was not trained as the variant is today."""
    config = io.read_json(run / "config.json")
    again = "publish all runs of the paper anew, without --add"
    model = families().get(config["model"]["family"])
    if model is not None:
        try:
            was = check(model, config["model"], ""), check(Training, config["training"], "")
        except UserError:
            pass  # an option that is no more
        else:
            if was == (variant.model, variant.training):
                return
    raise UserError(f"{run}: trained with other settings than the variant has today; {again}")


def _add_metrics(new: Layout, old: Layout, files: Layout, name: str, kept: Mapping[str, Iterable[int]]) -> None:
    """Write the metrics of the new runs and of those that are kept."""
    tables = [pd.read_csv(new.metrics(name)[0], dtype=str, keep_default_na=False)]
    if old.metrics(name)[0].exists():
        rows = pd.read_csv(old.metrics(name)[0], dtype=str, keep_default_na=False)
        of_kept = [
            int(seed) in kept.get(variant, ()) for variant, seed in zip(rows["variant"], rows["seed"], strict=True)
        ]
        tables.insert(0, rows[of_kept])
    every = pd.concat(tables, ignore_index=True).fillna("")
    # In the order in which one job would have written them, by variant and seed.
    order = every.assign(place=every["seed"].astype(int)).sort_values("place", kind="stable").index
    io.write_text(files.paper(name) / METRICS_FILES[0], every.loc[order].to_csv(index=False))


def _draw_or_keep(figure: str, results: Results, published: list[Path]) -> None:
    """Draw a figure. If it needs what the record lacks, keep the published one."""
    try:
        draw.figure(figure, results, results.folder)
    except UserError:
        there = [file for file in published if file.exists()]
        if not there:
            raise
        for file in there:
            shutil.copyfile(file, results.folder / file.name)


def _link(source: Path, target: Path) -> None:
    if source.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source.resolve())
