"""What tests of papers share: the frame of a tree of results that each test file fills with numbers of its choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from recaps import io
from recaps.config.load import Project
from recaps.report import draw
from recaps.report.results import Results
from recaps.report.claims import Claim, Number, read
from recaps.report.measured import collect
from recaps.report.publish import MOST_DATA
from recaps.report.scorecard import scorecard

CONFIG = Path(__file__).parents[2] / "config"


@cache
def claims(paper: str) -> tuple[Claim, ...]:
    """Those of one paper."""
    return tuple(claim for claim in read(CONFIG / "claims.yaml") if claim.paper == paper)


def frame(
    folder: Path, project: Project, name: str, seeds: tuple[int, ...], fill: Callable[[Results, str, Any, int], None]
) -> Results:
    """A paper's results at the scale `desk`; `fill(results, variant, model, seed)` writes each run."""
    root, paper = folder / "desk", project.papers[name]
    results = Results(
        name=name,
        paper=paper,
        runs=root / "runs" / name,
        folder=root / "papers" / name,
        seeds=seeds,
        resolve=project.resolve,
        published={claim.id: claim.published for claim in claims(name) if isinstance(claim, Number)},
        stand_in=False,
    )
    for variant, settings in paper.variants.items():
        for seed in seeds:
            fill(results, variant, settings.model.model_dump(mode="json"), seed)
    return results


def datasets(results: Results) -> Path:
    """Where the results' prepared sets lie."""
    return results.folder.parents[1] / "datasets"


def timed(results: Results, seconds: Mapping[str, list[float]], batch_size: int) -> None:
    """Write seconds per training step, in two rounds each."""
    timing = {"device": "a machine", "rounds": 2, "steps": 3, "batch_size": dict.fromkeys(seconds, batch_size)}
    io.write_json(results.folder / "timings" / "steps.json", timing | {"seconds_per_step": dict(seconds)})


def values(table: pd.DataFrame, variant: str, metric: str) -> list[float]:
    """A metric of a variant, by seed."""
    return list(table[(table["variant"] == variant) & (table["metric"] == metric)]["value"])


def verdicts(paper: str, table: pd.DataFrame) -> dict[str, str]:
    """Verdicts by claim; every claim of the paper must find what it measures, in its unit, among the metrics."""
    measured = table.assign(paper=paper, stand_in=False)
    known, own = collect(measured), claims(paper)
    for claim in own:
        for measure in claim.measures:
            assert known[paper, measure.variant, measure.metric].unit == claim.unit, claim.id
    found: dict[str, str] = scorecard(own, measured, "desk").set_index("id")["verdict"].to_dict()
    assert "not run at this scale" not in found.values()
    return found


def drawn(results: Results, folder: Path) -> dict[str, pd.DataFrame]:
    """Draw all figures and tables into a folder, and see that each is there with data that can be published: these."""
    for name in results.paper.figures:
        draw.figure(name, results, folder)
        assert (folder / f"{name}.png").stat().st_size > 5000
        assert (folder / f"{name}.csv").stat().st_size < MOST_DATA, "else it is not published"
    for name in results.paper.tables:
        draw.table(name, results, folder)
    data = {name: pd.read_csv(folder / f"{name}.csv") for name in results.paper.outputs}
    assert all(map(len, data.values()))
    return data
