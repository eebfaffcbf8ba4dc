"""Which classes an image shows, and whether they are found."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import one_hot


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
