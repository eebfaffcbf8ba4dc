"""Numbers that papers compute from saved arrays: of error curves, coefficients, pictures and activities."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.special import entr

from recaps.config.training import Training
from recaps.models.schedule import learning_rate
from recaps.npz import Array

#: Values below this count as almost zero.
NEAR_ZERO = 0.01


def steps_to_reach(curve: pd.DataFrame, level: float) -> int:
    """The first step whose error is at most `level`; the last step if there is none.

    Args:
        curve: columns `step` and `test_error`.
    """
    reached = curve.loc[curve["test_error"] <= level, "step"]
    return int(reached.iloc[0] if len(reached) else curve["step"].iloc[-1])


def travel(training: Training, factor: float) -> float:
    """Roughly how far Adam can move a parameter during a training.

    Args:
        training: steps, learning rate and its decay.
        factor: multiplies the learning rate.
    """
    rates = np.array([learning_rate(training, step) for step in range(training.steps)])
    return float(np.maximum(factor * rates, training.lr_floor).sum())


def early_mean(curve: pd.DataFrame, steps: int) -> float:
    """The mean test error over the first tenth of `steps`, at least its first value."""
    early = curve["step"] <= max(steps / 10, curve["step"].iloc[0])
    return float(curve.loc[early, "test_error"].mean())


def last_fifth(history: pd.DataFrame, name: str = "loss") -> float:
    """By how many percent the mean loss of the last fifth of a training is below that of the fifth before."""
    logged = history[["step", name]].dropna()
    share = logged["step"] / logged["step"].iloc[-1]
    before, after = (logged.loc[share.gt(low) & share.le(low + 0.2), name].mean() for low in (0.6, 0.8))
    return float(100 * (1 - after / before))


def negative_share(values: Array) -> float:
    """Share of the values below zero."""
    return float((values < 0).mean())


def near_zero_share(values: Array) -> float:
    """Share of the values that are almost zero."""
    return float((np.abs(values) < NEAR_ZERO).mean())


def bin_edges(values: Sequence[Array], bins: int = 60) -> Array:
    """Edges of bins for all values but a thousandth at either end; zero is the middle of a bin."""
    low, high = np.quantile(np.concatenate([each.ravel() for each in values]), [0.001, 0.999])
    width = max((high - low) / bins, 0.002)
    first, last = math.floor(low / width - 0.5), math.ceil(high / width + 0.5)
    return np.asarray(width * (np.arange(first, last + 1) + 0.5))


def histogram(values: Array, edges: Array) -> Array:
    """Share of the values in each bin; values outside are counted in the first or last bin."""
    inside = np.clip(values.ravel(), edges[0], edges[-1])
    return np.asarray(np.histogram(inside, edges)[0] / values.size)


def squared_error(pictures: Array, images: Array) -> Array:
    """Squared error of each picture, summed over its pixels: [N, H, W], [N, H, W] to [N]."""
    return np.asarray(np.square(pictures - images).sum((1, 2)))


def beyond_class_mean(errors: Array, images: Array, labels: Array) -> Array:
    """Whether a picture is further from its image than the mean image of the class, [N].

    Args:
        errors: squared error of each picture, summed over its pixels, [N].
        images: [N, H, W], also used for the class means.
        labels: [N].
    """
    means = np.empty_like(images)
    for label in np.unique(labels):
        means[labels == label] = images[labels == label].mean(0)
    return np.asarray(errors > squared_error(means, images))


def first_of_each(labels: Array, count: int) -> Array:
    """Positions of the first `count` images of each class, class by class."""
    places = [np.flatnonzero(labels == label)[:count] for label in np.unique(labels)]
    return np.concatenate(places) if places else np.empty(0, np.intp)


def usage(activity: Array) -> float:
    """Effective fraction of the units that are active: the exponential of the entropy of their means, over all units.

    Args:
        activity: [N, units], not negative.

    Returns:
        1 if all units have the same mean, 1 / units if a single unit is active, 0 if none is ever active.
    """
    means = activity.mean(0, dtype=np.float64)
    return float(np.exp(entr(means / means.sum()).sum()) / len(means)) if means.any() else 0.0


def class_means(activity: Array, labels: Array) -> Array:
    """Mean activity of each unit on each class that occurs: [N, units], [N] to [classes, units]."""
    return np.stack([activity[labels == label].mean(0, dtype=np.float64) for label in np.unique(labels)])


def selectivity(activity: Array, labels: Array) -> Array:
    """How much a unit prefers one class: (best - others) / (best + others) of its mean activities.

    `best` is the mean on the class with the highest mean, `others` the mean over the other classes. Every class has the
    same weight, whatever its number of images.

    Args:
        activity: [N, units], not negative.
        labels: [N], of two or more classes.

    Returns:
        [units], from 0 (no preference) to 1 (inactive on all other classes); 0 for a unit that is never active.
    """
    means = class_means(activity, labels)
    best = means.max(0)
    others = (means.sum(0) - best) / (len(means) - 1)
    return np.divide(best - others, best + others, out=np.zeros_like(best), where=best > 0)


def correlation(a: Array, b: Array) -> Array:
    """Pearson correlation over the pixels of two pictures: [N, ...], [N, ...] to [N]; 0 if one is constant."""
    a, b = (each.reshape(len(each), -1).astype(np.float64) for each in (a, b))
    vary = (np.ptp(a, 1) > 0) & (np.ptp(b, 1) > 0)
    a, b = (each - each.mean(1, keepdims=True) for each in (a, b))
    lengths = np.sqrt(np.square(a).sum(1) * np.square(b).sum(1))
    return np.divide((a * b).sum(1), lengths, out=np.zeros(len(a)), where=vary)
