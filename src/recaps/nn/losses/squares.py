"""The squared error of reconstructions."""

from __future__ import annotations

from torch import Tensor


def summed_squared_error(reconstructions: Tensor, images: Tensor) -> Tensor:
    """Sum of squared errors over the pixels of each image: [B, ...] and [B, ...] to [B]."""
    return (reconstructions - images).square().flatten(1).sum(1)
