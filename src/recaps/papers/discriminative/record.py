"""The record of a run: errors, convergence, learned coefficients, and the pictures of figure 2."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from recaps.config.variant import Variant
from recaps.evaluation.heads import highest_are_labels
from recaps.evaluation.latents import latents_of
from recaps.evaluation.record import MetricRow, Record, Run, pictures
from recaps.npz import Array
from recaps.papers.discriminative.variants import DECODED_SET, DECODER, OTHER, learns_coefficients
from recaps.report.metrics import (
    beyond_class_mean,
    first_of_each,
    last_fifth,
    near_zero_share,
    negative_share,
    squared_error,
    travel,
)
from recaps.training.images import images_of

#: Figure 2 shows this many images of each class.
SHOWN = 10
#: Its pictures have this many steps from black to white: more make the record larger, and no picture better.
GREYS = 31
#: Figure 5 draws the distribution of at most this many coefficients of a run.
COEFFICIENTS = 4000


def record(run: Run) -> Record:
    """Return all numbers of a run, the distribution of its coefficients, and the decoded images of `OTHER`."""
    rows = _errors(run)
    arrays: dict[str, dict[str, Array]] = {}
    if learns_coefficients(run.paper, run.variant):
        values = run.weight("coefficients")
        shares = {"negative": negative_share(values), "near-zero": near_zero_share(values)}
        if _can_reach_zero(run.settings):
            rows += [run.number(f"coefficients-{name}", share, "fraction") for name, share in shares.items()]
        arrays["coefficients"] = {"values": spread(values)} | {name: np.array(share) for name, share in shares.items()}
    decoder = run.beside.get(DECODER) if run.variant == OTHER and run.has(DECODED_SET) else None
    if decoder is not None and decoder.seed == run.seed and decoder.has(DECODED_SET):
        found, arrays["decoded"] = _decoded(run, decoder)
        rows += found
    return Record(rows, arrays)


def _errors(run: Run) -> list[MetricRow]:
    """The test error after training, and what the run's own curves tell of its convergence."""
    rows = []
    if protocols := run.settings.heads.get("argmax"):
        result, on = run.head("argmax", protocols[0]), run.test_set
        n = int(result["n"])
        rows.append(run.number("error", 100 - 100 * result["accuracy"], "percent", on, n=n))
        if run.settings.training.evaluate_every:
            watched = n if (chosen := run.settings.training.evaluate_images) is None else min(chosen, n)
            rows.append(run.number("lowest-error", run.evaluations()["test_error"].min(), "percent", on, n=watched))
    return [*rows, run.number("loss-last-fifth", last_fifth(run.history()), "percent")]


def margin_loss(run: Run) -> list[MetricRow]:
    """The margin loss of training, without that of a decoder: the mean over all steps."""
    return [run.number("margin-loss", run.history()["margin"].mean(), "loss")]


# Coefficients


def _can_reach_zero(variant: Variant) -> bool:
    """Whether training is long enough for a coefficient to move from its initial value to zero.

    Adam moves a coefficient by about its learning rate in a step. In a shorter training, the schedule decides how many
    coefficients are negative or near zero, not the algorithm.
    """
    model = variant.model
    far = {"plain": math.inf, "adam": travel(variant.training, model.ascent_rate), "none": 0.0}
    return far[model.ascent] >= abs(model.initial)


def without_negatives(run: Run) -> list[MetricRow]:
    """The test error after all negative coefficients are set to 0; nothing if no coefficient can become negative."""
    if not _can_reach_zero(run.settings):
        return []
    model: Any = run.model()
    for coefficients in model.all_coefficients():
        coefficients.data.clamp_(min=0)
    split, cpu = run.split(run.settings.test), torch.device("cpu")
    made = latents_of(model, images_of(split, cpu), range(len(split.labels)), run.settings.training, cpu)
    right = highest_are_labels(made["scores"], made["labels"])
    return [run.number("error-without-negatives", 100 - 100 * right.mean(), "percent", run.test_set, n=len(right))]


def spread(values: Array) -> Array:
    """Values in ascending order; if they are more than `COEFFICIENTS`, as many of them at even distances."""
    n = min(values.size, COEFFICIENTS)
    return np.asarray(np.sort(values, axis=None)[(2 * np.arange(n) + 1) * values.size // (2 * n)])


# Decoding


def _decoded(run: Run, decoder: Run) -> tuple[list[MetricRow], dict[str, Array]]:
    """Decode the test images that `OTHER` (L2/FC) classifies right, each from its label's capsule.

    The decoder is always that of `DECODER` (DR). It gets four capsules for each image: its own; that of `OTHER`; that
    of `OTHER` mapped to the coordinates of its own (`mapped`); and that of `OTHER` squashed, since it may be longer
    than 1 and the decoder's own cannot.

    Returns:
        For each of the four, the mean error of the decoded images, and the share of images whose class mean is nearer
        than the decoded picture. The first is listed under `DECODER`.
        And of the first ten images of each class: `images` [n, H, W]; `decoded` [4, n, H, W]; `errors` [4, n], squared
        errors summed over the pixels; `places` [n] in the test set; `labels` [n]. `classes` are the names of all
        classes, if the set has names.
    """
    split, other = run.split(DECODED_SET), run.latents(DECODED_SET, "capsules", "scores", "labels")
    right = np.flatnonzero(other["scores"].argmax(1) == other["labels"])
    images, labels = split.images[right, 0].astype(np.float32) / 255, other["labels"][right]
    capsules = [decoder.latents(DECODED_SET, "capsules")["capsules"][right], other["capsules"][right]]
    capsules += [mapped(capsules[1], capsules[0], labels), squashed(capsules[1])]
    decoded = np.stack([_reconstruct(decoder, each, labels) for each in capsules])
    errors = np.stack([squared_error(each, images) for each in decoded])
    rows, on = [], run.test_set
    owners, kinds = (decoder, run, run, run), ("", "", "mapped-", "squashed-")
    for owner, kind, each in zip(owners, kinds, errors, strict=True) if len(right) else ():
        beyond = beyond_class_mean(each, images, labels)
        rows.append(owner.mean(f"{kind}decoded-error", each, "squared error", on))
        rows.append(owner.number(f"{kind}poorly-decoded", beyond.mean(), "fraction", on, n=len(beyond)))
    shown = first_of_each(labels, SHOWN)
    found = {"errors": errors[:, shown], "places": right[shown], "labels": labels[shown]}
    found["classes"] = np.array(split.record.get("class_names", []))
    for name, each in (("images", images[shown]), ("decoded", decoded[:, shown])):
        found[name] = pictures(np.rint(GREYS * each) / GREYS)
    return rows, found


def squashed(capsules: Array) -> Array:
    """Capsules [N, L, D] with lengths below 1: each is scaled by s / (1 + s^2), where s is its length."""
    lengths = np.linalg.norm(capsules, axis=2, keepdims=True)
    return np.asarray(capsules * lengths / (1 + lengths**2))


def mapped(capsules: Array, targets: Array, labels: Array) -> Array:
    """Capsules, with that of the label in the coordinates of another network's, [N, L, D] and [N, L, D] to [N, L, D].

    Each class has a linear map with an offset, fitted by least squares on one half of its images and applied to the
    other half, in turn. A class with a single image keeps its capsule.
    """
    from sklearn.linear_model import LinearRegression
    from sklearn.model_selection import KFold, cross_val_predict

    found = np.array(capsules)
    for label, count in zip(*np.unique(labels, return_counts=True), strict=True):
        if count > 1:
            one = (labels == label, label)
            found[one] = cross_val_predict(LinearRegression(), capsules[one], targets[one], cv=KFold(2))
    return found


def _reconstruct(decoder: Run, capsules: Array, labels: Array) -> Array:
    """Decode each label's capsule with the decoder of a run: [N, L, D], [N] to [N, H, W]."""
    model: Any = decoder.model()
    mask = np.eye(capsules.shape[1], dtype=np.float32)[labels]
    with torch.inference_mode():
        decoded = model.decode(torch.from_numpy(capsules), torch.from_numpy(mask))
    return np.asarray(decoded[:, 0].float().numpy())
