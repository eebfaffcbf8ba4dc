"""Receptive fields of capsule layers: convolutional, or one that holds every input capsule."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Fields(NamedTuple):
    """Receptive fields of P output positions with n input capsules each.

    Input capsules are numbered in the order row, column, type.
    """

    children: Tensor
    """Indices of the input capsules, int64 [P, n]; slots in the order row, column, type."""
    parents: Tensor
    """Number of positions whose field holds each input capsule, int64 [inputs]."""
    height: int
    """Rows of output positions."""
    width: int
    """Columns of output positions."""

    @property
    def inputs(self) -> int:
        """Number of input capsules."""
        return len(self.parents)


def convolutional(height: int, width: int, types: int, kernel: int, stride: int) -> Fields:
    """Square fields, without padding, over height x width locations with `types` capsules each."""
    numbers = torch.arange(height * width * types).view(height, width, types)
    windows = numbers.unfold(0, kernel, stride).unfold(1, kernel, stride)  # [h, w, types, k, k]
    children = windows.permute(0, 1, 3, 4, 2).flatten(2).flatten(0, 1).contiguous()
    parents = children.flatten().bincount(minlength=numbers.numel())
    return Fields(children, parents, windows.shape[0], windows.shape[1])


def everything(inputs: int) -> Fields:
    """A single position whose field holds all input capsules."""
    return Fields(torch.arange(inputs)[None], torch.ones(inputs, dtype=torch.int64), 1, 1)
