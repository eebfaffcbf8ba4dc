"""Initial values, drawn as TensorFlow 1 does."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def truncated_normal(*shape: int, std: float, mean: float = 0.0) -> Tensor:
    """Draw from a normal distribution truncated at two standard deviations from the mean."""
    return nn.init.trunc_normal_(torch.empty(*shape), mean, std, mean - 2 * std, mean + 2 * std)


def initialise(module: Layer, std: float, bias: float = 0.1) -> Layer:
    """Set truncated normal weights and a constant bias in place, and return the module."""
    with torch.no_grad():
        module.weight.copy_(truncated_normal(*module.weight.shape, std=std))
        if module.bias is not None:
            nn.init.constant_(module.bias, bias)
    return module
