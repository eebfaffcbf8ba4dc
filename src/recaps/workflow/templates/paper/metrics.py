"""Metrics of the paper `example`: every number that its claims, tables and figures need."""

from __future__ import annotations

import pandas as pd

from recaps.npz import Array
from recaps.report.results import Results, head_metrics, mean_row, metric_rows


def metrics(results: Results) -> pd.DataFrame:
    """Return the accuracy of each head, and the mean length of the longest capsule."""
    test = results.resolve("mnist/test")
    rows = [
        mean_row(variant, seed, "longest", _scores(results, variant, seed).max(1), "ratio", test)
        for variant in results.paper.variants
        for seed in results.own_seeds[variant]
    ]
    return pd.concat([head_metrics(results), metric_rows(rows)], ignore_index=True)


def _scores(results: Results, variant: str, seed: int) -> Array:
    return results.latents(variant, "mnist/test", "scores", seed=seed)["scores"]
