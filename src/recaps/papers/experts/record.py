"""The record of a run of *Training products of expert capsules*: its numbers, and what figures show of it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from recaps.evaluation.record import MetricRow, Record, Run, pictures
from recaps.npz import Array
from recaps.papers.experts.judge import (
    Judge,
    Judged,
    agreement,
    blank,
    bootstrap_error,
    border_error,
    coverage,
    flat,
    frechet_distance,
    negatives,
    resembles_one,
    slant,
    spread_within,
    stroke_mass,
)
from recaps.papers.experts.variants import DOMAINS
from recaps.report.metrics import class_means, correlation, first_of_each, selectivity, squared_error, usage

#: The latents that hold the activity of a family's units; `capsules` for other families.
ACTIVITY = {"experts": "lengths", "vae": "mean"}

#: Samples of each domain that are judged, and images that they are compared with.
JUDGED = 2000

#: A capsule is specific if at least this share of its samples is of one class, at this mean confidence.
AGREED, CONFIDENT = 0.8, 0.9

#: Samples that figures show: of each capsule, or of a model without capsules.
OF_CAPSULE, OF_MODEL = 4, 40


def record(run: Run) -> Record:
    """Return the accuracies of heads, errors, the use of the units, and the quality of samples.

    The arrays are what figures 2 to 5 and 7 show: `samples`, `opposite`, `chain` and `lengths`.
    """
    rows, arrays = run.accuracies(), dict[str, Mapping[str, Array]]()
    family, probes = run.settings.model.family, run.settings.probes
    if family == "convnet":
        return Record([*rows, *_image_metrics(run)], arrays)
    if run.has(run.settings.test):
        rows += _code_metrics(run)
    if "chain" in probes:
        probe = run.probe("chain")
        rows += _border_metrics(run, probe)
        arrays["chain"] = _chain(probe)
    if "samples" in probes:
        probe = run.probe("samples")
        rows += _sample_metrics(run, probe)
        arrays["samples"] = _samples([probe[domain] for domain in DOMAINS if domain in probe])
        if "opposite" in probe:
            values = correlation(flat(probe["complete"]), flat(probe["opposite"]))
            rows.append(run.mean("opposite-correlation", values, "ratio", run.test_set))
            # The first sample -x of each capsule, [J, H, W], and the correlation of all with x, [n, J].
            values = values.reshape(probe["opposite"].shape[:2]).astype(np.float32)
            arrays["opposite"] = {"pictures": pictures(probe["opposite"][0, :, 0]), "correlation": values}
    if family == "experts":
        minutes, on = run.training_record()["wall_seconds"] / 60, run.resolve(run.settings.data)
        rows.append(run.number("training-minutes", minutes, "minutes", on))
        if run.has(run.settings.test):
            arrays["lengths"] = _lengths(run)
    return Record(rows, arrays)


# Errors and capsules


def _code_metrics(run: Run) -> list[MetricRow]:
    """Reconstruction errors of test images, and the usage and selectivity of units."""
    family, on = run.settings.model.family, run.test_set
    activity = ACTIVITY.get(family, "capsules")
    errors = {"chain-error": "reconstruction_error"}
    if family == "experts":
        errors["autoencoder-error"] = "autoencoder_error"
    latents = run.latents(run.settings.test, activity, "labels", *errors.values())
    active = np.abs(latents[activity])
    preference = selectivity(active, latents["labels"]).mean()
    return [
        *(run.mean(metric, latents[name], "squared error", on) for metric, name in errors.items()),
        run.number("usage", usage(active), "ratio", on),
        run.number("selectivity", preference, "ratio", on),
    ]


def _border_metrics(run: Run, probe: Mapping[str, Array]) -> list[MetricRow]:
    """The part of the chain's error in the last row and column, over the images of the probe `chain`."""
    border, on = border_error(probe["chain"], probe["images"]), run.test_set
    share = border.sum() / np.square(probe["chain"] - probe["images"]).sum()
    return [
        run.mean("border-error", border, "squared error", on),
        run.number("border-share", share, "fraction", on, n=len(border)),
    ]


# Samples


def _image_metrics(run: Run) -> list[MetricRow]:
    """What a judge measures on real images; nothing for a ConvNet without `images`, which is no judge."""
    if not run.settings.images:
        return []
    judge, (train, test) = Judge(run.folder), _real(run)
    return [
        *_judged(run, "images", judge(test), judge(train), run.test_set),
        *_looks(run, "images", test, train, run.test_set),
    ]


def _sample_metrics(run: Run, probe: Mapping[str, Array]) -> list[MetricRow]:
    """What the judge beside the run measures on its samples; nothing if the judge was left out."""
    rows: list[MetricRow] = []
    for beside in list(run.beside.values())[:1]:
        judge, on, (train, test) = Judge(beside.folder), beside.test_set, _real(beside)
        real = judge(test)
        for domain in (each for each in DOMAINS if each in probe):
            samples = _first(probe[domain])
            seen = judge(flat(samples))
            rows += _judged(run, domain, seen, real, on)
            rows += _looks(run, domain, flat(samples), train, on)
            if domain == "restricted":
                decisions = seen.decisions.reshape(samples.shape[:2])
                rows += [*_agreement(run, decisions, on), _specific(run, seen, decisions, on)]
                labels = beside.split(beside.settings.test).labels[:JUDGED]
                rows += _variation(run, samples, test, labels, on)
    return rows


def _judged(run: Run, domain: str, seen: Judged, beside: Judged, on: str) -> list[MetricRow]:
    """Metrics of the pictures `seen` in a domain, and their distance from as many of the pictures `beside`."""
    n = len(seen.features)
    others = beside.features[:n]
    classes, distance = coverage(seen.probabilities), frechet_distance(seen.features, others)
    by_decisions = bootstrap_error(coverage, seen.probabilities)
    by_features = bootstrap_error(frechet_distance, seen.features, others)
    return [
        run.mean(f"{domain}-confidence", seen.confidence, "fraction", on),
        run.number(f"{domain}-coverage", classes, "count", on, n=n, se=by_decisions),
        run.number(f"{domain}-frechet", distance, "squared distance", on, n=n, se=by_features),
    ]


def _looks(run: Run, domain: str, pictures: Array, train: Array, on: str) -> list[MetricRow]:
    """Shares of the pictures [N, C, H, W] that are negatives, negatives of objects, and blank."""
    negative = negatives(pictures, train)
    found = {
        "negatives": negative,
        "negative-objects": negative & resembles_one(1 - pictures, train),
        "blank": blank(pictures, train),
    }
    n = len(pictures)
    return [run.number(f"{domain}-{name}", each.mean(), "fraction", on, n=n) for name, each in found.items()]


def _variation(run: Run, samples: Array, test: Array, labels: Array, on: str) -> list[MetricRow]:
    """How much strokes vary over the samples [n, J, C, H, W] of a capsule, beside test images [N, C, H, W] of a class.

    Nothing where the images of a class are alike.
    """
    n, capsules = samples.shape[:2]
    rows = []
    for name, measure in {"mass": stroke_mass, "slant": slant}.items():
        within = spread_within(measure(test), labels)
        if within > 1e-6:
            ratios = measure(flat(samples)).reshape(n, capsules).std(0) / within
            error = ratios.std(ddof=1) / math.sqrt(capsules) if capsules > 1 else math.nan
            rows.append(run.number(f"{name}-within-capsules", ratios.mean(), "ratio", on, n=n * capsules, se=error))
    return rows


def _agreement(run: Run, decisions: Array, on: str) -> list[MetricRow]:
    """Agreement of decisions [n, J]: on samples of one capsule, mean over capsules, and on all samples together."""
    first, second = np.array_split(decisions, 2)
    each = agreement(first, second)
    overall = agreement(first.reshape(-1, 1), second.reshape(-1, 1))[0]
    error = math.sqrt((each * (1 - each) / len(decisions)).sum()) / len(each)
    return [
        run.number("capsule-agreement", each.mean(), "fraction", on, n=decisions.size, se=error),
        run.number("overall-agreement", overall, "fraction", on, n=decisions.size),
    ]


def _specific(run: Run, seen: Judged, decisions: Array, on: str) -> MetricRow:
    """The number of capsules whose samples are of one class, and look like it to the judge; decisions [n, J]."""
    first, second = np.array_split(decisions, 2)
    sure = seen.confidence.reshape(decisions.shape).mean(0) >= CONFIDENT
    count = ((agreement(first, second) >= AGREED) & sure).sum()
    return run.number("specific-capsules", float(count), "count", on, n=decisions.size)


def _real(judge: Run) -> list[Array]:
    """The first `JUDGED` training images of a judge, and as many test images, in 0..1, [N, C, H, W] each."""
    splits = (judge.split(name) for name in (judge.settings.data, judge.settings.test))
    return [np.asarray(split.images[:JUDGED], np.float32) / 255 for split in splits]


def _first(samples: Array) -> Array:
    """The first `JUDGED` samples, the same number from each capsule: [n, C, H, W] or [n, J, C, H, W]."""
    return samples[: max(1, JUDGED // math.prod(samples.shape[1:-3]))]


# What figures show: the first channel of pictures


def _samples(domains: list[Array]) -> dict[str, Array]:
    """The first samples of each domain, [n, C, H, W] or, by capsule, [n, J, C, H, W], and their brightness.

    Returns:
        `pictures` [n, domains, H, W] or [n, domains, J, H, W]; `mean` and `sd` of their pixels, [n, domains] or
        [n, domains, J].
    """
    count = OF_CAPSULE if domains[0].ndim == 5 else OF_MODEL
    # A sample that is the same in both domains compresses to one if they are neighbours.
    shown = np.stack([samples[:count] for samples in domains], axis=1)
    pixels = (-3, -2, -1)
    return {"pictures": pictures(shown[..., 0, :, :]), "mean": shown.mean(pixels), "sd": shown.std(pixels)}


def _chain(probe: Mapping[str, Array]) -> dict[str, Array]:
    """The first image of each class, and its reconstructions.

    Returns:
        `place` [N] and `label` [N]; for each of `images`, `autoencoder` and `chain` the pictures [N, H, W], and their
        squared error, `<name>-error` [N].
    """
    places = first_of_each(probe["labels"], 1)
    shown = {name: probe[name][places, 0] for name in ("images", "autoencoder", "chain") if name in probe}
    errors = {f"{name}-error": squared_error(each, shown["images"]) for name, each in shown.items()}
    return {
        "place": places,
        "label": probe["labels"][places],
        **{name: pictures(each) for name, each in shown.items()},
        **errors,
    }


def _lengths(run: Run) -> dict[str, Array]:
    """The mean length of each capsule for each class.

    Returns:
        `means` [K, J]; the `classes` [K] that occur in the test set; the `names` of all classes, if the set has them.
    """
    latents = run.latents(run.settings.test, "lengths", "labels")
    means = class_means(latents["lengths"], latents["labels"]).astype(np.float32)
    record = run.split(run.settings.test).record
    names = {"names": np.array(record["class_names"])} if "class_names" in record else {}
    return {"means": means, "classes": np.unique(latents["labels"]), **names}
