"""Every number measured for *Training products of expert capsules*."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from recaps.arrays import Arrays
from recaps.npz import Array
from recaps.papers.experts.judge import (
    Judge,
    Judged,
    bootstrap_error,
    confidence,
    coverage,
    frechet_distance,
    negatives,
)
from recaps.papers.experts.variants import DOMAINS, by_dataset, of_family
from recaps.report.metrics import correlation, selectivity, usage
from recaps.report.results import MetricRow, Results, head_metrics, mean_row, metric_rows

#: The latents that hold the activity of a family's units; `capsules` for other families.
ACTIVITY = {"experts": "lengths", "vae": "mean"}

#: Samples of each domain that are judged, and images that they are compared with.
JUDGED = 2000


def arrays(results: Results) -> dict[str, Array]:
    """Correlate the pictures of samples x with those of -x.

    Returns:
        For each variant of the family `experts`, `opposite-<variant>` [seeds, n, J]: the correlation over pixels.
    """
    found = {}
    for variant in of_family(results.paper, "experts"):
        probes = [results.probe(variant, "samples", seed) for seed in results.own_seeds[variant]]
        pairs = [(flat(probe["complete"]), flat(probe["opposite"])) for probe in probes]
        values = [correlation(*pair) for pair in pairs]
        found[f"opposite-{variant}"] = np.stack(values).reshape(len(probes), *probes[0]["complete"].shape[:2])
    return found


def metrics(results: Results) -> pd.DataFrame:
    """Head accuracies, reconstruction errors, use of the capsules, quality of samples, sizes, and training time."""
    rows: list[MetricRow] = []
    for seed, part in results.by_seed():
        rows += _code_metrics(part, seed)
        rows += _sample_metrics(results, part, seed)
        rows += _opposite_metrics(results, part, seed)
        rows += _time_metrics(part, seed)
    return pd.concat([head_metrics(results), metric_rows(rows), combined(results)], ignore_index=True)


def combined(results: Results) -> pd.DataFrame:
    """Sizes of the network, which do not depend on training. `publish --add` computes them again."""
    return metric_rows(_size_metrics(results))


# Errors and capsules


def _code_metrics(results: Results, seed: int) -> list[MetricRow]:
    """Reconstruction errors of test images, and the usage and selectivity of units."""
    families = dict.fromkeys(variant.model.family for variant in results.paper.variants.values())
    rows: list[MetricRow] = []
    for family in families:
        for variant in of_family(results.paper, family) if family != "convnet" else ():
            test, on = results.paper.variants[variant].test, results.test_set(variant)
            activity = ACTIVITY.get(family, "capsules")
            errors = {"chain-error": "reconstruction_error"}
            if family == "experts":
                errors["autoencoder-error"] = "autoencoder_error"
            latents = results.latents(variant, test, activity, "labels", *errors.values(), seed=seed)
            rows += [
                mean_row(variant, seed, metric, latents[name], "squared error", on) for metric, name in errors.items()
            ]
            active = np.abs(latents[activity])
            preference = float(selectivity(active, latents["labels"]).mean())
            rows.append((variant, seed, "usage", usage(active), math.nan, 0, "ratio", on))
            rows.append((variant, seed, "selectivity", preference, math.nan, 0, "ratio", on))
    return rows


def _size_metrics(results: Results) -> list[MetricRow]:
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


def _time_metrics(results: Results, seed: int) -> list[MetricRow]:
    rows: list[MetricRow] = []
    for variant in of_family(results.paper, "experts"):
        minutes, on = results.record(variant, seed)["wall_seconds"] / 60, results.paper.variants[variant].data
        rows.append((variant, seed, "training-minutes", minutes, math.nan, 0, "minutes", results.resolve(on)))
    return rows


# Samples


def _sample_metrics(results: Results, part: Results, seed: int) -> list[MetricRow]:
    """What a judge, a ConvNet, measures on test images and on the samples of all models of a seed.

    The judge has the same seed if it was trained with it, else its first.
    """
    variants, rows = results.paper.variants, []
    for names in by_dataset(results.paper).values():
        judges = [name for name in names if variants[name].model.family == "convnet"]
        for name in judges[:1]:
            known = seed in results.own_seeds[name]
            judge, on = Judge(results.run(name, seed if known else None)), results.test_set(name)
            train, test = (_images(results.split(each)) for each in (variants[name].data, variants[name].test))
            real = judge(test)
            if known:
                rows += _judged(name, seed, "images", real, judge(train), negatives(test, train), on)
            for variant in (each for each in names if each in part.own_seeds and "samples" in variants[each].probes):
                probe = results.probe(variant, "samples", seed)
                for domain in (each for each in DOMAINS if each in probe):
                    samples = _first(probe[domain])
                    pictures = flat(samples)
                    seen = judge(pictures)
                    rows += _judged(variant, seed, domain, seen, real, negatives(pictures, train), on)
                    if domain == "restricted":
                        rows += _agreement(variant, seed, seen.decisions.reshape(samples.shape[:2]), on)
            vaes = [name for name in names if variants[name].model.family == "vae"]
            rows += _beside_vae([row for row in rows if row[0] in names], vaes)
    return rows


def _beside_vae(rows: Sequence[MetricRow], vaes: Sequence[str]) -> list[MetricRow]:
    """The Fréchet distances of restricted samples, divided by that of the VAE's samples; none without a VAE."""
    distances = [row for row in rows if row[0] in vaes and row[2] == "samples-frechet"]
    ratios = []
    for _, _, _, distance, error, *_ in distances[:1]:
        for variant, seed, metric, own, own_error, n, _, on in rows:
            if metric == "restricted-frechet":
                ratio_error = own / distance * math.hypot(own_error / own, error / distance)
                ratios.append((variant, seed, "frechet-beside-vae", own / distance, ratio_error, n, "ratio", on))
    return ratios


def _judged(
    variant: str, seed: int, domain: str, seen: Judged, beside: Judged, negative: Array, on: str
) -> list[MetricRow]:
    """Metrics of the pictures `seen` in a domain, and their distance from as many of the pictures `beside`."""
    n = len(seen.features)
    others = beside.features[:n]
    classes, distance = coverage(seen.probabilities), frechet_distance(seen.features, others)
    by_decisions = bootstrap_error(coverage, seen.probabilities)
    by_features = bootstrap_error(frechet_distance, seen.features, others)
    return [
        mean_row(variant, seed, f"{domain}-confidence", confidence(seen.probabilities), "fraction", on),
        (variant, seed, f"{domain}-coverage", classes, by_decisions, n, "count", on),
        (variant, seed, f"{domain}-frechet", distance, by_features, n, "squared distance", on),
        (variant, seed, f"{domain}-negatives", float(negative.mean()), math.nan, n, "fraction", on),
    ]


def _agreement(variant: str, seed: int, decisions: Array, on: str) -> list[MetricRow]:
    """Agreement of decisions [n, J]: on samples of one capsule, mean over capsules, and on all samples together."""
    first, second = np.array_split(decisions, 2)
    each = agreement(first, second)
    overall = float(agreement(first.reshape(-1, 1), second.reshape(-1, 1))[0])
    error = math.sqrt((each * (1 - each) / len(decisions)).sum()) / len(each)
    return [
        (variant, seed, "capsule-agreement", float(each.mean()), error, decisions.size, "fraction", on),
        (variant, seed, "overall-agreement", overall, math.nan, decisions.size, "fraction", on),
    ]


def agreement(first: Array, second: Array) -> Array:
    """Return the share of the most frequent class in each column of decisions: [n, J], [m, J] to [J].

    One half chooses the class and the other half gives its share; the result is the mean of both ways. Counting both on
    the same decisions would overestimate the share, because in few samples some class is frequent by chance.
    """
    shares = [
        [(b == np.bincount(a).argmax()).mean() for a, b in zip(x.T, y.T, strict=True)]
        for x, y in ((first, second), (second, first))
    ]
    return np.mean(shares, axis=0)


def _opposite_metrics(results: Results, part: Results, seed: int) -> list[MetricRow]:
    rows = []
    for variant in of_family(part.paper, "experts"):
        values = results.arrays[f"opposite-{variant}"][list(results.own_seeds[variant]).index(seed)].ravel()
        rows.append(mean_row(variant, seed, "opposite-correlation", values, "ratio", results.test_set(variant)))
    return rows


def _images(split: Arrays) -> Array:
    """The first `JUDGED` images of a set, in 0..1, [N, C, H, W]."""
    return np.asarray(split.images[:JUDGED], np.float32) / 255


def _first(samples: Array) -> Array:
    """The first `JUDGED` samples, the same number from each capsule: [n, C, H, W] or [n, J, C, H, W]."""
    return samples[: max(1, JUDGED // math.prod(samples.shape[1:-3]))]


def flat(pictures: Array) -> Array:
    """[..., C, H, W] to [N, C, H, W]."""
    return pictures.reshape(-1, *pictures.shape[-3:])
