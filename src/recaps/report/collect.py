"""The metrics of a paper as files; apart from the drawings, so that a change of style computes no metric again."""

from __future__ import annotations

import importlib
from pathlib import Path

import pandas as pd

from recaps import io, npz
from recaps.report.results import Results
from recaps.workflow.layout import METRICS_FILES


def metrics(results: Results, folder: Path) -> None:
    """Write a paper's `metrics.npz` and `metrics.csv` to `folder`.

    `metrics.npz` holds the arrays of the paper's function `arrays`, if it has one. They are written first, so that the
    metrics can be computed from them. `metrics.csv` has one row per variant, seed and metric.
    """
    module = importlib.import_module(f"recaps.papers.{results.name}.metrics")
    npz.save(folder / METRICS_FILES[1], module.arrays(results) if hasattr(module, "arrays") else {})
    values: pd.DataFrame = module.metrics(results)
    values.insert(0, "paper", results.name)
    values["stand_in"] = results.stand_in
    io.write_text(folder / METRICS_FILES[0], values.to_csv(index=False, float_format="%.8g"))
