"""Inputs of compiled routings of matrix capsules: their arrays, the votes in a field, and the gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from recaps.nn.fields import Fields
from recaps.nn.kernels import LANES
from recaps.nn.kernels.compiled import POSE, array, compiled, lanes
from recaps.nn.kernels.poses import vote


class Inputs(NamedTuple):
    """Poses [B, C, 16], activations or their logarithms [B, C], `Fields.children` [P, n] and weight [n, 16, LANES]."""

    poses: Any
    activations: Any
    children: Any
    weight: Any


def inputs_of(poses: Tensor, activations: Tensor, weight: Tensor, fields: Fields) -> Inputs:
    """Convert poses [B, C, 16], activations [B, C] and weight [n, J, 4, 4] to arrays in float32."""
    matrices = lanes(weight.float().flatten(2).transpose(1, 2))
    return Inputs(array(poses.float()), array(activations.float()), array(fields.children.int()), matrices)


def no_gradients(inputs: Inputs) -> Inputs:
    """Return gradients that are zero. Each part of the batch has its own gradient of the weight."""
    poses, activations, children, weight = inputs
    by_part = np.zeros((torch.get_num_threads(), *weight.shape), weight.dtype)
    return Inputs(np.zeros_like(poses), np.zeros_like(activations), children, by_part)


def gradients_of(inputs: Inputs, outputs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Convert gradients to tensors with the shapes of poses, activations and weight."""
    poses, activations, _, weight = inputs
    matrices = torch.from_numpy(weight).sum(0)[..., :outputs].transpose(1, 2).unflatten(2, (4, 4))
    return torch.from_numpy(poses), torch.from_numpy(activations), matrices


@compiled
def field_votes(poses: Any, children: Any, weight: Any, votes: Any) -> None:
    """Write the votes [n, 16, LANES] of one image at one position."""
    for s in range(len(children)):
        vote(weight, s, poses[children[s]], votes, s * POSE * LANES, LANES)
