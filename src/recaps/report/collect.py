"""The metrics of a paper: the numbers of all its runs, and those that combine runs."""

from __future__ import annotations

import importlib.util

import pandas as pd

from recaps import io
from recaps.config.studies import Studied
from recaps.evaluation.record import MetricRow, metric_rows
from recaps.report.results import Results


def metrics(results: Results) -> None:
    """Write a paper's `metrics.csv`: a row for each variant, seed and metric.

    The paper's module `metrics`, if it has one, computes in `metrics(results) -> rows` what needs several runs or a
    timing.
    """
    runs = [(name, seed) for seed in results.seeds for name, seeds in results.own_seeds.items() if seed in seeds]
    tables = [results.numbers(*run) for run in runs]
    table = pd.concat([*tables, metric_rows(_combined(results))], ignore_index=True)
    table.insert(0, "paper", results.name)
    table["stand_in"] = results.stand_in
    io.write_text(results.files.metrics(results.name), table.to_csv(index=False, float_format="%.8g"))


def _combined(results: Results) -> list[MetricRow]:
    path = f"recaps.papers.{results.name}.metrics"
    if isinstance(results.paper, Studied) or not importlib.util.find_spec(path):
        return []
    rows: list[MetricRow] = importlib.import_module(path).metrics(results)
    return rows
