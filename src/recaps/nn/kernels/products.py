"""Dot products and weighted sums of votes, each as one batched matrix product.

Votes are by far the largest tensor of a capsule network, and reading them takes most of the time. With J vectors on a
block diagonal, the product [J, J*D] x [J*D, I] gives all dot products. The diagonal blocks of the product [J, I] x
[I, J*D] are the weighted sums. Both products do more arithmetic than the equations need, and are still much faster than
multiplication and summation of broadcast tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor


def dots(flat: Tensor, vectors: Tensor) -> Tensor:
    """Dot product of each vote with the vector of its output: [B, I, J*D] and [B, J, D] to [B, J, I]."""
    return torch.bmm(block_diagonal(vectors.to(flat.dtype)).transpose(1, 2), flat.transpose(1, 2))


def weighted_sum(weights: Tensor, flat: Tensor) -> Tensor:
    """Weighted sum of the votes for each output: [B, J, I] and [B, I, J*D] to [B, J, D], in float32 at least."""
    every = torch.bmm(weights, flat).unflatten(2, (weights.shape[1], -1))
    own = every.diagonal(dim1=1, dim2=2).transpose(1, 2)
    return own.float() if own.element_size() < 4 else own


def block_diagonal(vectors: Tensor) -> Tensor:
    """[B, J, D] to [B, J*D, J]: vector j in rows j*D to j*D+D-1 of column j, zeros elsewhere."""
    return torch.diag_embed(vectors.transpose(1, 2), dim1=1, dim2=3).flatten(1, 2)


def spread(values: Tensor, dim: int) -> Tensor:
    """Repeat each value for all dimensions of its vote: [B, I, J] to [B, I, J*D]. Faster than broadcasting."""
    ones = block_diagonal(values.new_ones(1, values.shape[2], dim))[0].t()
    return torch.matmul(values, ones)
