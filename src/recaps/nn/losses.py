"""Losses, and the accuracy of class scores."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import one_hot


def margin_loss(
    lengths: Tensor, labels: Tensor, present: float = 0.9, absent: float = 0.1, weight: float = 0.5
) -> Tensor:
    """Margin loss, *Dynamic Routing Between Capsules*, eq. 4: one term per image and class.

    Args:
        lengths: lengths of the class capsules, [B, classes].
        labels: int64, [B], or [B, n] if each image shows n classes.
        present: lower margin m+ of the length of a present class.
        absent: upper margin m- of the length of an absent class.
        weight: weight of the absent classes.

    Returns:
        [B, classes].
    """
    is_label = present_classes(labels, lengths.shape[1]).to(lengths.dtype)
    too_short = (present - lengths).clamp_min(0).square()
    too_long = (lengths - absent).clamp_min(0).square()
    return is_label * too_short + weight * (1 - is_label) * too_long


def present_classes(labels: Tensor, classes: int) -> Tensor:
    """Labels, int64 [B] or [B, n], to int64 [B, classes]: 1 for a present class, else 0."""
    return one_hot(labels.reshape(len(labels), -1), classes).amax(1)


def correct(scores: Tensor, labels: Tensor) -> Tensor:
    """Return whether each image is classified correctly: [B, classes] and [B] or [B, n] to bool [B].

    An image with n labels is correct if its labels have the n highest scores, in any order.
    """
    labels = labels.reshape(len(labels), -1)
    highest = scores.topk(labels.shape[1], dim=1).indices
    return (present_classes(highest, scores.shape[1]) == present_classes(labels, scores.shape[1])).all(1)


def spread_loss(activations: Tensor, labels: Tensor, margin: float) -> Tensor:
    """Spread loss, *Matrix Capsules with EM Routing*, eq. 3: one value per image.

    Args:
        activations: of the class capsules, [B, classes].
        labels: int64, [B].
        margin: the activation of the label should exceed every other by this much.

    Returns:
        [B]: sum of the squared shortfalls over the other classes.
    """
    own = activations.gather(1, labels.unsqueeze(1))
    shortfall = (margin - (own - activations)).clamp_min(0).square()
    return (shortfall * (1 - one_hot(labels, activations.shape[1]))).sum(1)


def summed_squared_error(reconstructions: Tensor, images: Tensor) -> Tensor:
    """Sum of squared errors over the pixels of each image: [B, ...] and [B, ...] to [B]."""
    return (reconstructions - images).square().flatten(1).sum(1)
