"""Regions of float32 arithmetic."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor


def float32(values: Tensor) -> AbstractContextManager[None]:
    """Disable autocast on the device of `values`. Poses and densities need more precision than bfloat16 has."""
    return torch.autocast(values.device.type, enabled=False)


def backward(loss: Tensor) -> None:
    """Compute gradients in the precision of the forward pass.

    Under autocast, gradients of what ran in float32 would be rounded to bfloat16.
    """
    with float32(loss):
        loss.backward()
