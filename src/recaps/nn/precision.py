"""Arithmetic where autocast would be too coarse."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor


def float32(values: Tensor) -> AbstractContextManager[None]:
    """No autocast on the device of `values`, for what is too fine for bfloat16, such as poses and densities."""
    return torch.autocast(values.device.type, enabled=False)
