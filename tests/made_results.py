"""A small tree of results for tests of papers: each test file fills it with numbers of its choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from recaps import io, layout, npz
from recaps.config.load import Project, load
from recaps.evaluation import record
from recaps.layout import Layout
from recaps.npz import Array
from recaps.papers import FOLDER
from recaps.report import draw
from recaps.report.claims import Claim, printed, read
from recaps.report.collect import metrics as write_metrics
from recaps.report.contents import MOST_EMBEDDED
from recaps.report.measured import collect
from recaps.report.results import Results
from recaps.report.scorecard import scorecard

CONFIG = Path(__file__).parents[1] / "config"


@cache
def claims(paper: str) -> tuple[Claim, ...]:
    """The claims of one paper that its own variants measure, not those of a study."""
    return tuple(claim for claim in read(FOLDER / paper / "claims.yaml") if not claim.study)


def without_own_seeds(paper: str, changes: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Changes of variants at the scale `desk`, with which no variant but those of `changes` has seeds of its own."""
    own = {name: {"seeds": None} for name in load({"scale": "desk", "papers": [paper]}, CONFIG).papers[paper].variants}
    return {name: own.get(name, {}) | dict(changes.get(name, {})) for name in {**own, **changes}}


def frame(
    folder: Path, project: Project, name: str, seeds: tuple[int, ...], fill: Callable[[Results, str, Any, int], None]
) -> Results:
    """A paper's results at the scale `desk`; `fill(results, variant, model, seed)` writes each run.

    `seeds` are those of the variants without their own.
    """
    paper = project.papers[name]
    results = Results(
        name=name,
        paper=paper,
        files=Layout(folder / "desk"),
        own_seeds={variant: settings.seeds or seeds for variant, settings in paper.variants.items()},
        resolve=project.resolve,
        printed=printed(claims(name)),
        stand_in=False,
    )
    for variant, settings in paper.variants.items():
        for seed in results.own_seeds[variant]:
            fill(results, variant, settings.model.model_dump(mode="json"), seed)
            _add_settings(results, variant, seed)
    return results


def _add_settings(results: Results, variant: str, seed: int) -> None:
    """Add the settings of heads and protocols to a run's results of heads."""
    run, paper = results.run(variant, seed), results.paper
    for file in (each for each in (layout.scores(run), layout.heads(run)) if each.exists()):
        known = io.read_json(file)
        for head, protocols in known.items():
            for protocol, result in protocols.items():
                about = paper.protocols[protocol].model_dump(mode="json")
                for part in filter(None, (about["fit"], about["test"])):
                    part["set"] = results.resolve(part["set"])
                result |= {"head": paper.heads[head].model_dump(mode="json"), "protocol": about}
        io.write_json(file, known)


def add_latents(run: Path, set_name: str, arrays: Mapping[str, Array]) -> None:
    """Add a set to the latents of a run."""
    _add(layout.latents(run), set_name, arrays)


def add_probe(run: Path, name: str, arrays: Mapping[str, Array]) -> None:
    """Add a probe to those of a run."""
    _add(layout.probes(run), name, arrays)


def _add(file: Path, part: str, arrays: Mapping[str, Array]) -> None:
    known = npz.read(file) if file.exists() else {}
    npz.save(file, known | {f"{part}/{name}": each for name, each in arrays.items()})


def add_head(run: Path, head: str, protocol: str, result: Mapping[str, Any]) -> None:
    """Add the result of a head to those of a run, whether the head is fitted or not."""
    for file in (layout.scores(run), layout.heads(run)):
        known = io.read_json(file) if file.exists() else {}
        io.write_json(file, known | {head: {**known.get(head, {}), protocol: dict(result)}})


def datasets(results: Results) -> Path:
    """The folder of the prepared sets."""
    return results.files.folder / "datasets"


def timed(results: Results, seconds: Mapping[str, list[float]], batch_size: int) -> None:
    """Write seconds per training step, in two rounds each."""
    timing = {"device": "a machine", "rounds": 2, "steps": 3, "batch_size": dict.fromkeys(seconds, batch_size)}
    io.write_json(results.files.timing(results.name, "steps"), timing | {"seconds_per_step": dict(seconds)})


def run_of(results: Results, variant: str, seed: int) -> record.Run:
    """A run with those beside it, as the workflow reads it."""

    def one(name: str, seed: int, beside: Mapping[str, record.Run]) -> record.Run:
        folder = results.run(name, seed)
        return record.Run(folder, results.name, results.paper, name, seed, datasets(results), results.resolve, beside)

    seeds = {name: results.own_seeds[name] for name in results.paper.variants[variant].beside}
    others = {name: one(name, seed if seed in each else each[0], {}) for name, each in seeds.items()}
    return one(variant, seed, others)


def measured(results: Results) -> Results:
    """The same results after the records of their runs and the paper's metrics have been written."""
    for variant, seeds in results.own_seeds.items():
        for seed in seeds:
            record.write(run_of(results, variant, seed))
    write_metrics(results)
    results.__dict__.pop("metrics", None)
    return results


def values(table: pd.DataFrame, variant: str, metric: str) -> list[float]:
    """A metric of a variant, by seed."""
    return list(table[(table["variant"] == variant) & (table["metric"] == metric)]["value"])


def verdicts(paper: str, table: pd.DataFrame) -> dict[str, str]:
    """Verdicts by claim; the metrics must hold every measure of the paper's claims, in the claim's unit."""
    measures = table.assign(paper=paper, stand_in=False)
    known, own = collect(measures), claims(paper)
    for claim in own:
        for measure in claim.measures:
            assert known[paper, measure.variant, measure.metric].unit == claim.unit, claim.id
    found: dict[str, str] = scorecard(own, measures).set_index("id")["verdict"].to_dict()
    assert "not run at this scale" not in found.values()
    return found


def canvas(axis: Axes) -> Array:
    """The only image on an axis; NaN where it has no pixels."""
    (image,) = axis.get_images()
    return np.ma.filled(image.get_array(), np.nan)


def drawn(results: Results, folder: Path) -> dict[str, pd.DataFrame]:
    """Draw all figures and tables into a folder; each must have data that can be published.

    Returns:
        This data, by the name of the figure or table.
    """
    if not results.files.metrics(results.name).exists():
        measured(results)
    # The smoke workflow saves all figures as PDF, too.
    with patch.object(draw, "PICTURES", ("png",)):
        for name in results.paper.figures:
            draw.figure(name, results, folder)
    for name in results.paper.figures:
        assert (folder / f"{name}.png").stat().st_size > 5000
        assert (folder / f"{name}.csv").stat().st_size < MOST_EMBEDDED, "the page would not hold it"
    for name in results.paper.tables:
        draw.table(name, results, folder)
    data = {name: pd.read_csv(folder / f"{name}.csv") for name in results.paper.outputs}
    assert all(map(len, data.values()))
    return data
