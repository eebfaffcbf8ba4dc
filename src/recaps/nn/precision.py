"""Regions of float32 arithmetic."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor


def float32(values: Tensor) -> AbstractContextManager[None]:
    """Disable autocast on the device of `values`. Poses and densities need more precision than bfloat16 has."""
    return torch.autocast(values.device.type, enabled=False)
