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
        labels: int64, [B], or [B, n] where n classes are present at once.
        present: a present class should be at least this long.
        absent: an absent class should be at most this long.
        weight: weight of the absent classes.

    Returns:
        [B, classes].
    """
    is_label = present_classes(labels, lengths.shape[1]).to(lengths.dtype)
    too_short = (present - lengths).clamp_min(0).square()
    too_long = (lengths - absent).clamp_min(0).square()
    return is_label * too_short + weight * (1 - is_label) * too_long


def present_classes(labels: Tensor, classes: int) -> Tensor:
    """Which classes are present: int64 [B] or [B, n] to int64 [B, classes], 1 for those."""
    return one_hot(labels.reshape(len(labels), -1), classes).amax(1)


def right(scores: Tensor, labels: Tensor) -> Tensor:
    """Whether the highest scores are those of the labels: [B, classes] and [B] or [B, n] to bool [B].

    Of an image with n labels, the n highest scores must be theirs, in any order.
    """
    labels = labels.reshape(len(labels), -1)
    highest = scores.topk(labels.shape[1], dim=1).indices
    return (present_classes(highest, scores.shape[1]) == present_classes(labels, scores.shape[1])).all(1)


def spread_loss(activations: Tensor, labels: Tensor, margin: float) -> Tensor:
    """Spread loss, *Matrix Capsules with EM Routing*, eq. 3: one value per image.

    Args:
        activations: of the class capsules, [B, classes].
        labels: int64, [B].
        margin: by which the label's activation should exceed every other.

    Returns:
        [B]: squared shortfalls, summed over the other classes.
    """
    own = activations.gather(1, labels.unsqueeze(1))
    shortfall = (margin - (own - activations)).clamp_min(0).square()
    return (shortfall * (1 - one_hot(labels, activations.shape[1]))).sum(1)


def summed_squared_error(reconstructions: Tensor, images: Tensor) -> Tensor:
    """Squared error of each image, summed over its pixels: [B, ...], [B, ...] to [B]."""
    return (reconstructions - images).square().flatten(1).sum(1)
