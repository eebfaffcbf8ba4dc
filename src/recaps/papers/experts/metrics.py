"""Numbers of *Training products of expert capsules* that need several runs, or no training."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from recaps.evaluation.record import MetricRow
from recaps.papers.experts.variants import by_dataset, of_family
from recaps.report.results import Results


def metrics(results: Results) -> list[MetricRow]:
    """Sizes of the network, distances of samples beside that of the VAE, and how specific capsules are."""
    rows = _sizes(results)
    for seed, part in results.by_seed():
        for names in by_dataset(part.paper).values():
            rows += _beside_vae(part, names, seed)
        for variant in of_family(part.paper, "experts"):
            rows += _specificity(part.numbers(variant, seed), variant, seed)
    return rows


def _sizes(results: Results) -> list[MetricRow]:
    """Sizes of the network, recorded under each variant's first seed."""
    rows: list[MetricRow] = []
    for variant in of_family(results.paper, "experts"):
        from recaps.papers.experts.experts import build
        from recaps.papers.experts.options import ExpertsOptions

        config = results.config(variant)
        model = build(ExpertsOptions.model_validate(config["model"]), tuple(config["image_shape"]), config["classes"])
        outputs, output_dim, inputs, input_dim = model.decoder.weight.shape
        sizes = {"input-capsules": inputs, "input-dim": input_dim, "output-capsules": outputs, "output-dim": output_dim}
        first = results.own_seeds[variant][0]
        rows += [(variant, first, name, float(n), math.nan, 0, "count", "") for name, n in sizes.items()]
    return rows


def _beside_vae(results: Results, names: Sequence[str], seed: int) -> list[MetricRow]:
    """The Fréchet distances of restricted samples, divided by that of the VAE's samples; none without a VAE."""
    rows = pd.concat([results.numbers(name, seed) for name in names])
    vaes = rows[rows["variant"].isin(of_family(results.paper, "vae")) & (rows["metric"] == "samples-frechet")]
    ratios: list[MetricRow] = []
    for vae in vaes[:1].to_dict("records"):
        for own in rows[rows["metric"] == "restricted-frechet"].to_dict("records"):
            ratio = own["value"] / vae["value"]
            error = ratio * math.hypot(own["se"] / own["value"], vae["se"] / vae["value"])
            where = own["n"], "ratio", own["measured_on"]
            ratios.append((own["variant"], seed, "frechet-beside-vae", ratio, error, *where))
    return ratios


def _specificity(numbers: pd.DataFrame, variant: str, seed: int) -> list[MetricRow]:
    """The gap between the agreement within capsules and that of all samples, as a share of the largest possible gap."""
    rows = numbers.set_index("metric").to_dict("index")
    if "capsule-agreement" not in rows:
        return []
    own, overall = rows["capsule-agreement"], rows["overall-agreement"]["value"]
    possible = max(1 - overall, 1e-9)  # no gap is possible if all samples show one class
    value, error = (own["value"] - overall) / possible, own["se"] / possible
    return [(variant, seed, "capsule-specificity", value, error, own["n"], "ratio", own["measured_on"])]
