"""Numbers that papers make of saved arrays: how fast errors fall, how coefficients and pictures are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.special import entr

from recaps.config.training import Training
from recaps.npz import Array

#: Values this close to zero count as zero.
NEAR_ZERO = 0.01


def steps_to_level(*curves: pd.DataFrame) -> list[int]:
    """For each run the first step at which its error is no higher than the highest of their final errors.

    Args:
        curves: runs that are compared, each with columns `step` and `test_error`.
    """
    level = max(float(curve["test_error"].iloc[-1]) for curve in curves)
    return [int(curve.loc[curve["test_error"] <= level, "step"].iloc[0]) for curve in curves]


def travel(training: Training, rate: float) -> float:
    """How far Adam can about move a parameter at `rate` times the learning rate: the sum over a training's steps."""
    steps = np.arange(training.steps)
    rates = training.learning_rate * training.lr_decay ** (steps / training.lr_decay_steps)
    return float(np.maximum(rate * np.maximum(rates, training.lr_floor), training.lr_floor).sum())


def early_error(curve: pd.DataFrame) -> float:
    """The `test_error` at the evaluation nearest to a tenth of the training."""
    distance = (curve["step"] - curve["step"].iloc[-1] / 10).abs()
    return float(curve.loc[distance.idxmin(), "test_error"])


def negative_share(values: Array) -> float:
    """Share of the values below zero."""
    return float((values < 0).mean())


def near_zero_share(values: Array) -> float:
    """Share of the values that are almost zero."""
    return float((np.abs(values) < NEAR_ZERO).mean())


def bin_edges(values: Sequence[Array], bins: int = 60) -> Array:
    """Edges of bins that hold all but a thousandth of the values at either end; zero is the middle of a bin."""
    low, high = np.quantile(np.concatenate([each.ravel() for each in values]), [0.001, 0.999])
    width = max((high - low) / bins, 0.002)
    first, last = math.floor(low / width - 0.5), math.ceil(high / width + 0.5)
    return np.asarray(width * (np.arange(first, last + 1) + 0.5))


def histogram(values: Array, edges: Array) -> Array:
    """Share of the values in each bin; what lies outside is counted in the first and the last."""
    inside = np.clip(values.ravel(), edges[0], edges[-1])
    return np.asarray(np.histogram(inside, edges)[0] / values.size)


def squared_error(pictures: Array, images: Array) -> Array:
    """Of each picture, summed over its pixels: [N, H, W], [N, H, W] to [N]."""
    return np.asarray(np.square(pictures - images).sum((1, 2)))


def beyond_class_mean(errors: Array, images: Array, labels: Array) -> Array:
    """Whether a picture is further from its image than the mean image of the class is, [N].

    Args:
        errors: squared error of each picture, summed over its pixels, [N].
        images: [N, H, W]; the means are over these.
        labels: [N].
    """
    means = np.empty_like(images)
    for label in np.unique(labels):
        means[labels == label] = images[labels == label].mean(0)
    return np.asarray(errors > squared_error(means, images))


def first_of_each(labels: Array, count: int) -> Array:
    """Places of the first `count` images of each class, class by class."""
    places = [np.flatnonzero(labels == label)[:count] for label in np.unique(labels)]
    return np.concatenate(places) if places else np.empty(0, np.intp)


def usage(activity: Array) -> float:
    """How many units share the activity, as a fraction of all: the exponential of the entropy of its means.

    Args:
        activity: [N, units], not negative.

    Returns:
        1 where all units have the same mean, 1 / units where one has it all; 0 where none is ever active.
    """
    means = activity.mean(0, dtype=np.float64)
    return float(np.exp(entr(means / means.sum()).sum()) / len(means)) if means.any() else 0.0


def class_means(activity: Array, labels: Array) -> Array:
    """Mean activity of each unit on each class that there is: [N, units], [N] to [classes, units]."""
    return np.stack([activity[labels == label].mean(0, dtype=np.float64) for label in np.unique(labels)])


def selectivity(activity: Array, labels: Array) -> Array:
    """How much a unit prefers one class: its mean on the class that it likes best, less that on the others, over both.

    Args:
        activity: [N, units], not negative.
        labels: [N], of two classes or more.

    Returns:
        [units], from 0 (no preference) to 1 (silent on all others); 0 where a unit is never active. All classes count
        alike, however many images they have.
    """
    means = class_means(activity, labels)
    best = means.max(0)
    others = (means.sum(0) - best) / (len(means) - 1)
    return np.divide(best - others, best + others, out=np.zeros_like(best), where=best > 0)


def correlation(a: Array, b: Array) -> Array:
    """Pearson correlation over the pixels of two pictures: [N, ...], [N, ...] to [N]; 0 where one is constant."""
    a, b = (each.reshape(len(each), -1).astype(np.float64) for each in (a, b))
    vary = (np.ptp(a, 1) > 0) & (np.ptp(b, 1) > 0)
    a, b = (each - each.mean(1, keepdims=True) for each in (a, b))
    lengths = np.sqrt(np.square(a).sum(1) * np.square(b).sum(1))
    return np.divide((a * b).sum(1), lengths, out=np.zeros(len(a)), where=vary)
