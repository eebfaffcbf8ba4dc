"""Metrics of *Capsule Networks, a Probabilistic Perspective*: the numbers behind its tables, figures and claims."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from safetensors import SafetensorError, safe_open

from recaps.errors import UserError
from recaps.evaluation.heads import classifier, features
from recaps.npz import Array
from recaps.papers.probabilistic.templates import affine_fits, same_template, signed
from recaps.report.results import MetricRow, Results, head_metrics, mean_row, metric_rows
from recaps.report.statistics import proportion_error

#: Largest rotations of digits to either side, in degrees, and the protocols that test models of upright digits on them.
ROTATED = (45, 90, 135, 180)
UPRIGHT = {0: "mnist", **{degrees: f"mnist-{degrees}" for degrees in ROTATED}}

#: A rotation up to the first angle in degrees is small; one from the second angle on is large.
SMALL, LARGE = 30, 90

#: Variants that double a setting of `capsules`.
DOUBLED = "capsules-double-"

#: Two templates at a distance below this are nearly affine maps of each other.
NEARLY = 0.1

#: Pixels above this value are ink.
INK = 0.5

#: Learned numbers that are counted: variant, metric, and the beginning of the names of the parameters.
SIZES = (("capsules", "generative-parameters", "generative."), ("vae-small", "decoder-parameters", "decoder."))


def arrays(results: Results) -> dict[str, Array]:
    """The comparisons of templates, for each variant and seed that has the probes, as `<variant>-seed-<seed>-<name>`.

    From the probe `rotations`, A angles and B images: `shares` and `by-chance` [A, B], as in `Agreement`. From the
    probe `templates`, n templates: `nearest` [n], the index of the nearest template; `distances` [n] to it; and
    `mapped` [n, C, h, w], the nearest template mapped to each template.
    """
    made: dict[str, Array] = {}
    for variant, settings in results.paper.variants.items():
        for seed in results.own_seeds[variant]:
            if "rotations" in settings.probes:
                probe = results.probe(variant, "rotations", seed)
                agreement = same_template(probe["owner"], probe["angles"], probe["images"][0, :, 0] > INK)
                made[f"{variant}-seed-{seed}-shares"] = agreement.shares
                made[f"{variant}-seed-{seed}-by-chance"] = agreement.by_chance
            if "templates" in settings.probes:
                probe = results.probe(variant, "templates", seed)
                fits = affine_fits(probe["templates"] * probe["alphas"])
                nearest, distances = fits.nearest()
                made[f"{variant}-seed-{seed}-nearest"] = nearest
                made[f"{variant}-seed-{seed}-distances"] = distances
                made[f"{variant}-seed-{seed}-mapped"] = fits.mapped[np.arange(len(nearest)), nearest]
    return made


def metrics(results: Results) -> pd.DataFrame:
    """Accuracies of all heads, and the values of table 2 and of the claims."""
    tables = [head_metrics(results), metric_rows([*_findings(results)]), combined(results)]
    return pd.concat(tables, ignore_index=True)


def combined(results: Results) -> pd.DataFrame:
    """Leads over the VAE and effects of doubling. `publish --add` computes them again from all runs."""
    return metric_rows([*_leads(results), *_changes(results)])


def trained_on_rotations(results: Results) -> dict[tuple[str, str], dict[int, tuple[str, str]]]:
    """The lines of figure 4: variant and protocol by the largest rotation of the training digits, for family and head.

    A family is the variant `name`, trained on upright digits, and the variants `name-rotated-45`, `name-rotated-90` and
    so on. All are tested on digits like those that they were trained on.
    """
    lines: dict[tuple[str, str], dict[int, tuple[str, str]]] = {}
    for variant, settings in results.paper.variants.items():
        match = re.fullmatch(r"(.+)-rotated-(\d+)", variant)
        family, degrees = (match[1], int(match[2])) if match else (variant, 0)
        own = (f"rotated-{degrees}",) if degrees else ("mnist", "mnist-40")
        for head, protocols in settings.heads.items():
            for protocol in protocols:
                if protocol in own:
                    lines.setdefault((family, head), {})[degrees] = (variant, protocol)
    return {line: points for line, points in lines.items() if len(points) > 1}


# Findings


def _findings(results: Results) -> list[MetricRow]:
    rows: list[MetricRow] = []
    for seed, part in results.by_seed():
        variants = part.paper.variants
        for variant, settings in variants.items():
            if "rotations" in settings.probes:
                rows += _rotation_metrics(results, variant, seed)
            if "templates" in settings.probes:
                rows += _template_metrics(results, variant, seed)
        for variant, settings in variants.items():
            if "free-form" in settings.probes:
                rows += _free_form_metrics(results, variant, seed)
        for variant, settings in variants.items():
            if getattr(settings.model, "poses", None) == "gaussian" and "mnist/test" in settings.latents:
                rows.append(_bound(results, variant, seed))
        for variant, settings in variants.items():
            if "free-form-rotations" in settings.probes:
                rows += _twos_metrics(results, variant, seed) + _error_metrics(results, variant, seed)
        rows += [_size(results, variant, seed, *counted) for variant, *counted in SIZES if variant in variants]
    return rows


def _tested_on(results: Results, protocol: str) -> str:
    return results.resolve(results.paper.protocols[protocol].test.set)


def _rotation_metrics(results: Results, variant: str, seed: int) -> list[MetricRow]:
    """Share of the ink that the same template draws after a rotation, as means over rotations and images."""
    shares, by_chance = (results.arrays[f"{variant}-seed-{seed}-{name}"] for name in ("shares", "by-chance"))
    turns = np.abs(signed(results.probe(variant, "rotations", seed)["angles"]))
    on = results.test_set(variant)
    chosen = {
        "same-template-small": shares[(turns > 0) & (turns <= SMALL)],
        "same-template-large": shares[turns >= LARGE],
        "same-template-by-chance": by_chance[turns >= LARGE],
    }
    means = {metric: _mean(values.T) for metric, values in chosen.items()}
    return [
        mean_row(variant, seed, metric, values[np.isfinite(values)], "fraction", on)
        for metric, values in means.items()
        if np.isfinite(values).any()
    ]


def _template_metrics(results: Results, variant: str, seed: int) -> list[MetricRow]:
    """Distances of the templates from their nearest templates."""
    distances = results.arrays[f"{variant}-seed-{seed}-distances"]
    near = float((distances < NEARLY).mean())
    return [
        (variant, seed, "near-copies", near, math.nan, len(distances), "fraction", ""),
        mean_row(variant, seed, "nearest-template", distances, "ratio", ""),
    ]


def _free_form_metrics(results: Results, variant: str, seed: int) -> list[MetricRow]:
    """The effect of free-form inference on the bound and on the accuracy of classifiers of presences."""
    probe, on = results.probe(variant, "free-form", seed), results.test_set(variant)
    right = _right(results, variant, probe, seed)
    n = len(probe["labels"])
    rows: list[MetricRow] = [
        (variant, seed, f"{name}-accuracy", 100 * float(each.mean()), math.nan, n, "percent", on)
        for name, each in right.items()
    ]
    rows.append((variant, seed, "free-form-refitted", _refitted(results, probe), math.nan, n, "percent", on))
    gain = 100 * (right["free-form"].astype(float) - right["amortised"])
    rows.append(mean_row(variant, seed, "free-form-gain", gain, "percent", on))
    before, after = probe["bound_along"][0], probe["bound_along"][-1]
    rows.append(mean_row(variant, seed, "bound-amortised", before, "nats", on))
    rows.append(mean_row(variant, seed, "bound-free-form", after, "nats", on))
    rows.append((variant, seed, "bound-raised", float((after > before).mean()), math.nan, n, "fraction", on))
    return rows


def _right(results: Results, variant: str, probe: Mapping[str, Array], seed: int) -> dict[str, Array]:
    """Whether a classifier of amortised presences is right on amortised and on free-form presences, bool [N] each."""
    head, part = results.paper.heads["presence"], results.paper.protocols["mnist"].fit
    assert part is not None  # the head is fitted
    known = results.latents(variant, part.set, *head.features, "labels", seed=seed)
    rows = slice(part.start, None if part.count is None else part.start + part.count)
    fitted = classifier(head).fit(features(known, head)[rows], known["labels"][rows])
    answers = {"amortised": probe, "free-form": {name: probe[f"{name}_free"] for name in head.features}}
    return {name: fitted.predict(features(each, head)) == probe["labels"] for name, each in answers.items()}


def _refitted(results: Results, probe: Mapping[str, Array]) -> float:
    """Accuracy in percent of a classifier of free-form presences, by cross-validation in five parts."""
    from sklearn.model_selection import KFold, cross_val_predict

    head = results.paper.heads["presence"]
    free = features({name: probe[f"{name}_free"] for name in head.features}, head)
    predicted = cross_val_predict(classifier(head), free, probe["labels"], cv=KFold(5))
    return 100 * float((predicted == probe["labels"]).mean())


def _bound(results: Results, variant: str, seed: int) -> MetricRow:
    """The bound of the amortised posterior of test images, with one draw each."""
    bounds = results.latents(variant, "mnist/test", "bound", seed=seed)["bound"]
    return mean_row(variant, seed, "bound-mnist", bounds, "nats", results.resolve("mnist/test"))


def _twos_metrics(results: Results, variant: str, seed: int) -> list[MetricRow]:
    """Errors of amortised and free-form reconstructions of a rotated 2."""
    twos, on = results.probe(variant, "free-form-rotations", seed), results.test_set(variant)
    rows = []
    for name, chain in (("amortised", "chain"), ("free-form", "chain_free")):
        errors = np.square(twos[chain] - twos["images"]).sum((1, 2, 3))
        rows.append(mean_row(variant, seed, f"twos-error-{name}", errors, "squared error", on))
    return rows


def _error_metrics(results: Results, variant: str, seed: int) -> list[MetricRow]:
    """Errors of amortised reconstructions of rotated digits."""
    rows = []
    for degrees, protocol in UPRIGHT.items():
        on = results.paper.protocols[protocol].test.set
        errors = results.latents(variant, on, "reconstruction_error", seed=seed)["reconstruction_error"]
        metric = f"reconstruction-error-{degrees}"
        rows.append(mean_row(variant, seed, metric, errors, "squared error", results.resolve(on)))
    return rows


def _size(results: Results, variant: str, seed: int, metric: str, prefix: str) -> MetricRow:
    """The number of parameters whose names begin with `prefix`. It has no uncertainty."""
    file = results.run(variant, seed) / "model.safetensors"
    try:
        with safe_open(file, framework="numpy") as tensors:
            names = [name for name in tensors.keys() if name.startswith(prefix)]  # noqa: SIM118
            count = sum(math.prod(tensors.get_slice(name).get_shape()) for name in names)
    except FileNotFoundError as error:
        raise UserError(f"{file}: no such file; first run the stage that writes it") from error
    except SafetensorError as error:
        raise UserError(f"{file}: cannot be read ({error}); delete the run and train again") from error
    if not names:
        raise UserError(f"{file}: has no weights '{prefix}*'; the run is of another model, train again")
    return variant, seed, metric, float(count), 0.0, 0, "count", ""


def _leads(results: Results) -> list[MetricRow]:
    """Smallest lead of each line of figure 4 over the VAE, in percent, over all rotations of the training digits."""
    rows: list[MetricRow] = []
    for seed, part in results.by_seed():
        lines = trained_on_rotations(part)
        vae = lines.get(("vae", "linear"), {})
        for (family, head), points in lines.items():
            if family == "vae" or not {0, *ROTATED} <= {*points} or not {*ROTATED} <= {*vae}:
                continue
            leads = []
            for degrees in ROTATED:
                (variant, protocol), (other, others) = points[degrees], vae[degrees]
                [ours], [theirs] = part.head(variant, head, protocol), part.head(other, "linear", others)
                gap, error = _difference(ours, theirs)
                leads.append((gap, error, ours["n"], _tested_on(results, protocol)))
            least, error, n, on = min(leads)
            rows.append((family, seed, f"least-lead-{head}", least, error, n, "percent", on))
    return rows


def _changes(results: Results) -> list[MetricRow]:
    """Absolute change of the accuracy of presences, in percent, of each variant in which a setting is doubled."""
    rows: list[MetricRow] = []
    for seed, part in results.by_seed():
        for variant in part.paper.variants:
            if variant.startswith(DOUBLED) and "capsules" in part.paper.variants:
                [ours], [before] = (part.head(name, "presence", "mnist") for name in (variant, "capsules"))
                change, error = _difference(ours, before)
                on = _tested_on(results, "mnist")
                rows.append((variant, seed, "presence-change", abs(change), error, ours["n"], "percent", on))
    return rows


def _difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[float, float]:
    """The difference of the accuracies of two heads in percent, and its standard error over the test images."""
    errors = [proportion_error(each["accuracy"], each["n"]) for each in (ours, theirs)]
    return 100 * (ours["accuracy"] - theirs["accuracy"]), 100 * math.hypot(*errors)


def _mean(values: Array) -> Array:
    """Mean over the last axis without NaN; NaN where there are no other values."""
    known = np.isfinite(values)
    count = known.sum(-1)
    return np.where(count > 0, np.where(known, values, 0).sum(-1) / np.maximum(count, 1), np.nan)
