"""Table 1 of *Training products of expert capsules* (not in the paper)."""

from __future__ import annotations

import pandas as pd

from recaps.papers.experts.variants import DATASETS, DOMAINS, by_dataset
from recaps.report.results import Results

COLUMNS = (
    "data set",
    "model",
    "chain error",
    "autoencoder error",
    "usage",
    "selectivity",
    "linear %",
    "confidence",
    "classes",
    "Fréchet distance",
    "negatives %",
    "seeds",
)


def table_1(results: Results) -> pd.DataFrame:
    """Reconstruction, capsules and samples in numbers, means over seeds; a row per variant and domain of samples."""
    rows: list[dict[str, object]] = []
    for dataset, variants in by_dataset(results.paper).items():
        found = [
            (variant, domain)
            for variant in variants
            for domain in (*DOMAINS, "images")
            if len(results.metric(variant, f"{domain}-confidence"))
        ]
        for variant, domain in sorted(found, key=lambda pair: pair[1] == "images"):  # real images last
            rows.append({"data set": DATASETS.get(dataset, dataset)} | _row(results, variant, domain))
    return pd.DataFrame(rows, columns=COLUMNS)


def _row(results: Results, variant: str, domain: str) -> dict[str, object]:
    settings = results.paper.variants[variant]
    titles = {"samples": settings.title, "images": "test images"}
    row: dict[str, object] = {"model": titles.get(domain, f"{settings.title} ({domain} domain)")}
    metrics = {
        "confidence": f"{domain}-confidence",
        "classes": f"{domain}-coverage",
        "Fréchet distance": f"{domain}-frechet",
    }
    if domain != "restricted":  # the row above has the same model
        protocol = next(iter(settings.heads.get("linear", ())), "")
        metrics |= {"chain error": "chain-error", "autoencoder error": "autoencoder-error"}
        metrics |= {"usage": "usage", "selectivity": "selectivity", "linear %": f"linear-{protocol}"}
    row |= {column: _mean(results, variant, metric) for column, metric in metrics.items()}
    share = _mean(results, variant, f"{domain}-negatives")
    return row | {"negatives %": None if share is None else 100 * share, "seeds": len(results.own_seeds[variant])}


def _mean(results: Results, variant: str, metric: str) -> float | None:
    """The mean of a metric over seeds; None where it was not measured."""
    values = results.metric(variant, metric)
    return float(values.mean()) if len(values) else None
