"""Table 1 of *Training products of expert capsules* (not in the paper)."""

from __future__ import annotations

import pandas as pd

from recaps.papers.experts.variants import DATASETS, DOMAINS, by_dataset
from recaps.report.results import Results

#: Columns of a model, with their metrics.
OF_MODEL = {
    "chain error": "chain-error",
    "autoencoder error": "autoencoder-error",
    "usage": "usage",
    "selectivity": "selectivity",
    "linear %": "linear-{protocol}",
}

#: Columns of a domain of samples, with the ends of their metrics.
OF_DOMAIN = {
    "confidence": "confidence",
    "classes": "coverage",
    "Fréchet distance": "frechet",
    "negatives %": "negatives",
}


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
    return pd.DataFrame(rows, columns=["data set", "model", *OF_MODEL, *OF_DOMAIN, "seeds"])


def _row(results: Results, variant: str, domain: str) -> dict[str, object]:
    settings = results.paper.variants[variant]
    titles = {"samples": settings.title, "images": "test images"}
    metrics = {column: f"{domain}-{metric}" for column, metric in OF_DOMAIN.items()}
    if domain != "restricted":  # the row above has the same model
        protocol = next(iter(settings.heads.get("linear", ())), "")
        metrics |= {column: metric.format(protocol=protocol) for column, metric in OF_MODEL.items()}
    found = {column: results.measured(variant, metric)["value"].mean() for column, metric in metrics.items()}
    found["negatives %"] *= 100
    title = titles.get(domain, f"{settings.title} ({domain} domain)")
    return {"model": title, **found, "seeds": len(results.own_seeds[variant])}
