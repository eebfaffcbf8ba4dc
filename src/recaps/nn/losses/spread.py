"""The spread loss of class capsules."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import one_hot


def spread_loss(activations: Tensor, labels: Tensor, margin: float | Tensor) -> Tensor:
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
