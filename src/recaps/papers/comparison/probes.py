"""Probes of the comparison: arrays of trained models for its figures."""

from __future__ import annotations

from torch import Tensor

from recaps.models.model import Model
from recaps.papers.comparison.noise import correct


def reconstructions(model: Model, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The model's pictures of images.

    Args:
        model: a model with a decoder.
        images: [B, C, H, W].
        labels: not used.

    Returns:
        `images` and `decoded`, [B, C, H, W].
    """
    return {"images": images, "decoded": model.reconstruct(images)}


def noise(model: Model, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Whether the model's class scores are right with each kind of noise of `recaps.papers.comparison.noise`.

    Args:
        model: a model with class scores.
        images: [B, 1, H, W], in 0..1.
        labels: [B].

    Returns:
        bool [B] by the name of the kind.
    """
    return correct(model, images, labels)
