"""Options of the family `convnet`: the convolutional baseline of SUPCAPS."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from recaps.config.base import Section


class Options(Section):
    """Convolutions with max pooling, one hidden layer, a softmax over classes."""

    family: Literal["convnet"] = "convnet"
    channels: tuple[int, ...] = (512, 256)
    """Channels of the convolutions, each followed by ReLU and a 2x2 max pooling."""
    kernel: int = Field(5, ge=1)
    """Side of the convolutions' kernels."""
    hidden: int = Field(1024, ge=1)
    """Width of the hidden layer."""
    classes: int = Field(10, ge=2)
    """Classes told apart."""
