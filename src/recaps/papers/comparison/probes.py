"""Probes of the comparison: arrays of trained models for its figures."""

from __future__ import annotations

from torch import Tensor

from recaps.models.model import Model


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
