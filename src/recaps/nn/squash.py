"""The capsules' non-linearity."""

from __future__ import annotations

from torch import Tensor


def squash(vectors: Tensor, epsilon: float = 1e-8) -> Tensor:
    """Shrink vectors to a length below 1 and keep their direction: (s/|s|) |s|^2/(1+|s|^2).

    *Dynamic Routing Between Capsules*, eq. 1. Computed in float32 at least. The released code has no epsilon and gives
    NaN, in value and gradient, for a vector that is exactly zero.

    Args:
        vectors: [..., D].
        epsilon: added to the squared length.

    Returns:
        [..., D].
    """
    if vectors.element_size() < 4:
        vectors = vectors.float()
    squared = vectors.square().sum(-1, keepdim=True) + epsilon
    return vectors * (squared.sqrt() / (1 + squared))
