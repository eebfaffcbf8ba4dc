"""Measures of samples, mostly by a classifier (the judge) that was trained on images of the same data set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.special import entr

from recaps.errors import UserError
from recaps.npz import Array

#: Pictures that are classified at a time.
BATCH = 500


class Judged(NamedTuple):
    """The output of a classifier for N pictures."""

    probabilities: Array
    """Softmax of the class scores, [N, classes]."""
    features: Array
    """The hidden layer before the scores, [N, hidden]."""

    @property
    def confidence(self) -> Array:
        """The highest probability, [N]."""
        return np.asarray(self.probabilities.max(1))

    @property
    def decisions(self) -> Array:
        """The most probable class, [N]."""
        return np.asarray(self.probabilities.argmax(1))


class Judge:
    """The ConvNet of a run, on the CPU.

    Raises:
        UserError: the files of the run are missing or damaged, or its model is not a ConvNet.
    """

    def __init__(self, run: Path) -> None:
        import torch

        from recaps.config.training import Training
        from recaps.models.convnet import ConvNet
        from recaps.training.saved import load_model

        model, config = load_model(run, torch.device("cpu"))
        if not isinstance(model, ConvNet):
            raise UserError(f"{run}: the judge of samples must be a ConvNet; this model is of another family")
        self.run, self.model, self.shape = run, model, tuple(config["image_shape"])
        self.training = Training.model_validate(config["training"])

    def __call__(self, pictures: Array) -> Judged:
        """Classify pictures [N, C, H, W], float32 in 0..1.

        Raises:
            UserError: the ConvNet was trained on images of another shape.
        """
        import torch

        from recaps.training.batches import view, view_shape

        if view_shape(pictures.shape[1:], self.training) != self.shape:
            raise UserError(f"{self.run}: trained on {self.shape}, but the pictures are {pictures.shape[1:]}")
        parts = []
        with torch.no_grad():
            for start in range(0, len(pictures), BATCH):
                batch = torch.from_numpy(np.ascontiguousarray(pictures[start : start + BATCH], np.float32))
                features = self.model.features(view(batch, self.training))
                parts.append((self.model.scores(features).softmax(1).numpy(), features.numpy()))
        return Judged(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def coverage(probabilities: Array) -> float:
    """Return the effective number of predicted classes, of [N, classes]: exp of the entropy of the decisions."""
    shares = np.bincount(probabilities.argmax(1)) / len(probabilities)
    return float(np.exp(entr(shares).sum()))


def frechet_distance(a: Array, b: Array) -> float:
    """Return the Fréchet distance of Gaussians with the means m and covariances C of two sets of features.

    It is |m_a - m_b|^2 + tr(C_a + C_b - 2 (C_a C_b)^(1/2)). Features are [N, D] and [M, D], two rows or more each.
    """
    (mean_a, root_a), (mean_b, root_b) = _gaussian(a), _gaussian(b)
    # With C = R R' the square roots of the eigenvalues of C_a C_b are the singular values of R_a' R_b.
    overlap = np.linalg.svd(root_a.T @ root_b, compute_uv=False).sum()
    return float(np.square(mean_a - mean_b).sum() + np.square(root_a).sum() + np.square(root_b).sum() - 2 * overlap)


def _gaussian(features: Array) -> tuple[Array, Array]:
    """Return the mean [D], and R [D, D] with covariance R R'."""
    values, axes = np.linalg.eigh(np.cov(features, rowvar=False, dtype=np.float64))
    return features.mean(0, dtype=np.float64), axes * np.sqrt(np.maximum(values, 0))


def negatives(pictures: Array, images: Array) -> Array:
    """Return whether the negative 1 - picture is nearer to its nearest image than the picture is to its own: bool [N].

    The distance is the squared error. Pictures [N, ...] and images [M, ...] are in 0..1.
    """
    return np.asarray(_nearest(1 - pictures, images) < _nearest(pictures, images))


def _nearest(pictures: Array, images: Array) -> Array:
    """Return the squared error between each picture and its nearest image, [N]."""
    own, others = _pixels(pictures), _pixels(images)
    return np.asarray((np.square(others).sum(1) - 2 * own @ others.T).min(1) + np.square(own).sum(1))


def resembles_one(pictures: Array, images: Array) -> Array:
    """Return whether a picture resembles one of the images more than the mean of all: bool [N].

    Likeness is the cosine of the pixels. It tells the negative of an object from a white picture with a black spot: the
    negative of the spot resembles the mean image more. A small or uneven spot may pass. Pictures [N, ...] and images
    [M, ...] are in 0..1.
    """
    pixels, each = _directions(pictures), _directions(images)
    mean = _directions(images.mean(0, keepdims=True))
    return np.asarray((pixels @ each.T).max(1) > (pixels @ mean.T)[:, 0])


def _directions(pictures: Array) -> Array:
    """The pixels of each picture, divided by their norm: [N, pixels]; 0 for a black picture."""
    pixels = _pixels(pictures)
    return np.asarray(pixels / np.linalg.norm(pixels, axis=1, keepdims=True).clip(1e-9))


def _pixels(pictures: Array) -> Array:
    """[N, ...] to [N, pixels], in double precision."""
    return pictures.reshape(len(pictures), -1).astype(np.float64)


def blank(pictures: Array, images: Array) -> Array:
    """Return whether a picture has less contrast than 99 % of the images: bool [N].

    Contrast is the standard deviation of the pixels without the border, see `border_error`. Pictures [N, C, H, W] and
    images [M, C, H, W] are in 0..1.
    """
    own, others = (each[..., :-1, :-1].std((1, 2, 3)) for each in (pictures, images))
    return np.asarray(own < np.quantile(others, 0.01))


def border_error(pictures: Array, images: Array) -> Array:
    """Return the squared error in the last row and the last column, summed: [N, C, H, W], [N, C, H, W] to [N].

    No filter of the decoder of expert capsules reaches these pixels in images of 28x28.
    """
    errors = np.square(pictures.astype(np.float64) - images)
    return np.asarray(errors[..., -1, :].sum((1, 2)) + errors[..., :-1, -1].sum((1, 2)))


def stroke_mass(pictures: Array) -> Array:
    """Return the share of ink, pixels above 0.5: [N, C, H, W] to [N]."""
    return np.asarray((pictures.mean(1) > 0.5).mean((1, 2)))


def slant(pictures: Array) -> Array:
    """Return by how many pixels the ink moves to the right in a row upwards: [N, C, H, W] to [N].

    It is the slope of the regression of columns on rows, over pixels above 0.5; 0 if they lie in fewer than two rows.
    """
    ink = (pictures.mean(1) > 0.5).astype(np.float64)
    rows, columns = np.indices(ink.shape[1:])
    total = ink.sum((1, 2)).clip(1)[:, None, None]
    rows, columns = (each - (ink * each).sum((1, 2), keepdims=True) / total for each in (rows, columns))
    covariance, variance = (ink * rows * columns).sum((1, 2)), (ink * rows**2).sum((1, 2))
    return np.divide(-covariance, variance, out=np.zeros(len(ink)), where=variance > 1e-9)


def spread_within(values: Array, labels: Array) -> float:
    """Return the standard deviation of values [N] within a class, a mean over the classes in labels [N]."""
    return float(np.mean([values[labels == label].std() for label in np.unique(labels)]))


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


def bootstrap_error(statistic: Callable[..., float], *sets: Array, resamples: int = 20) -> float:
    """Return the bootstrap standard error of a statistic of independent sets.

    Rows of each set are drawn with replacement; the draws are the same in every call.
    """
    draw = np.random.default_rng(0)
    values = [statistic(*(each[draw.integers(len(each), size=len(each))] for each in sets)) for _ in range(resamples)]
    return float(np.std(values, ddof=1))


def flat(pictures: Array) -> Array:
    """[..., C, H, W] to [N, C, H, W]."""
    return pictures.reshape(-1, *pictures.shape[-3:])
