"""The metrics of a paper as files; apart from the drawings, so that a change of style computes no metric again."""

from __future__ import annotations

import importlib
from pathlib import Path

import pandas as pd

from recaps import io, npz
from recaps.report.results import Results, metric_rows
from recaps.workflow.layout import METRICS_FILES

#: Digits of a number in `metrics.csv`.
DIGITS = "%.8g"


def metrics(results: Results, folder: Path) -> None:
    """Write a paper's `metrics.npz` and `metrics.csv` to `folder`.

    `metrics.npz` holds the arrays of the paper's function `arrays`, if it has one. They are written first, so that the
    metrics can be computed from them. `metrics.csv` has one row per variant, seed and metric.
    """
    module = importlib.import_module(f"recaps.papers.{results.name}.metrics")
    npz.save(folder / METRICS_FILES[1], module.arrays(results) if hasattr(module, "arrays") else {})
    io.write_text(folder / METRICS_FILES[0], metric_table(results).to_csv(index=False, float_format=DIGITS))


def metric_table(results: Results, function: str = "metrics") -> pd.DataFrame:
    """The table that a function of the paper's module `metrics` returns, in all columns of `metrics.csv`.

    It has no rows if the module has no such function: `combined`, the metrics that combine runs, is optional.
    """
    module = importlib.import_module(f"recaps.papers.{results.name}.metrics")
    values: pd.DataFrame = getattr(module, function)(results) if hasattr(module, function) else metric_rows([])
    values.insert(0, "paper", results.name)
    return values.assign(stand_in=results.stand_in)
