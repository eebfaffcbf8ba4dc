"""The capsules' non-linearity and its inverse."""

from __future__ import annotations

import torch
from torch import Tensor

from recaps.nn.kernels import SQUASH

#: `unsquash` clamps lengths to between `TINY` and 1 - `EDGE`.
TINY, EDGE = 1e-12, 1e-6


def squash(vectors: Tensor, epsilon: float = SQUASH) -> Tensor:
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


def unsquash(vectors: Tensor) -> Tensor:
    """Return the vectors that `squash` maps to `vectors`: sqrt(|x| / (1 - |x|)) x/|x|.

    *Training products of expert capsules*, eq. 6. Zero stays zero. No squashed vector has a length of 1 or more; such a
    vector gets a length of 1000. Computed in float32 at least.

    Args:
        vectors: [..., D], of lengths below 1.

    Returns:
        [..., D].
    """
    if vectors.element_size() < 4:
        vectors = vectors.float()
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True).clamp(TINY, 1 - EDGE)
    return vectors / (length * (1 - length)).sqrt()
