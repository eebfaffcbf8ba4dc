"""What routings of matrix capsules share: votes, and what a routing returns."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from recaps.nn.fields import Fields

#: Most types of output capsules that compiled routings take: the lanes they are padded to.
LANES = 16


def fits(poses: Tensor, weight: Tensor) -> bool:
    """Whether a compiled routing takes these."""
    return poses.device.type == "cpu" and weight.shape[1] <= LANES


class Consensus(NamedTuple):
    """Output capsules of a layer, and how they came about."""

    poses: Tensor
    """[B, P, J, 16]."""
    activations: Tensor
    """[B, P, J]; probabilities, or logits of the class layer where a routing gives those."""
    coupling: Tensor
    """Assignment of the last iteration, [B, P, n, J]."""


def matrix_votes(poses: Tensor, weight: Tensor, fields: Fields) -> Tensor:
    """V_ij = W_ij M_i: *Learning to compute inner consensus*, eq. 1, with W already divided by its norm.

    Args:
        poses: 4x4 matrices row by row, [B, C, 16].
        weight: [n, J, 4, 4].

    Returns:
        [B, P, n, J, 16].
    """
    seen = poses.unflatten(2, (4, 4))[:, fields.children]
    return torch.einsum("njac,bpncd->bpnjad", weight, seen).flatten(4)
