"""The inverse of the capsules' non-linearity."""

from __future__ import annotations

import torch
from torch import Tensor

#: Lengths are taken for this at least, and for one less `EDGE` at most.
TINY, EDGE = 1e-12, 1e-6


def unsquash(vectors: Tensor) -> Tensor:
    """The vectors that `squash` makes these of: sqrt(|x| / (1 - |x|)) x/|x|.

    *Training products of expert capsules*, eq. 6. Zero stays zero; a length of one or more, which no squashed vector
    has, becomes 1000. Computed in float32 at least.

    Args:
        vectors: [..., D], of lengths below 1.

    Returns:
        [..., D].
    """
    if vectors.element_size() < 4:
        vectors = vectors.float()
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True).clamp(TINY, 1 - EDGE)
    return vectors / (length * (1 - length)).sqrt()
