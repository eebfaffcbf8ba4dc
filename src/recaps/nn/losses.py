"""Losses that several papers share."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import one_hot


def margin_loss(
    lengths: Tensor, labels: Tensor, present: float = 0.9, absent: float = 0.1, weight: float = 0.5
) -> Tensor:
    """Margin loss, *Dynamic Routing Between Capsules*, eq. 4: one term per image and class.

    Args:
        lengths: lengths of the class capsules, [B, classes].
        labels: int64, [B].
        present: a present class should be at least this long.
        absent: an absent class should be at most this long.
        weight: weight of the absent classes.

    Returns:
        [B, classes].
    """
    is_label = one_hot(labels, lengths.shape[1]).to(lengths.dtype)
    too_short = (present - lengths).clamp_min(0).square()
    too_long = (lengths - absent).clamp_min(0).square()
    return is_label * too_short + weight * (1 - is_label) * too_long


def summed_squared_error(reconstructions: Tensor, images: Tensor) -> Tensor:
    """Squared error of each image, summed over its pixels: [B, ...], [B, ...] to [B]."""
    return (reconstructions - images).square().flatten(1).sum(1)
