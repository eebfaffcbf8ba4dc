"""Options of the model family of *Learning to compute inner consensus*. Imports no PyTorch."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from recaps.config.base import Positive
from recaps.config.families import ModelOptions
from recaps.nn.routing import registry

PoseRouting: Any = registry.settings("PoseRouting")


class MatrixCapsOptions(ModelOptions):
    """Convolution, primary capsules, two convolutional capsule layers and class capsules. Poses are 4x4 matrices."""

    module: ClassVar[str] = "recaps.papers.consensus.matrixcaps"
    family: Literal["matrixcaps"] = "matrixcaps"
    routing: PoseRouting = Field("em", validate_default=True)
    """Routing algorithm: its `name` and its options, or its name alone."""
    conv_channels: int = Field(64, ge=1)
    """Channels of the first convolution."""
    types: tuple[Positive, Positive, Positive] = (8, 16, 16)
    """Types of capsules in the primary capsule layer and the two convolutional capsule layers."""
    coordinates: bool = True
    """Reading. Add the row and the column of every input capsule to its pose. The author's final architectures do so in
    the class layer, with the type; in convolutional layers they add the row and the column of the output capsule, and
    the place in its field. The paper does not mention it."""
    loss: Literal["spread", "cross_entropy"] = "cross_entropy"
    """Reading. The paper names no loss. The author's code has both; its script uses cross-entropy by default."""
    compiled: bool = True
    """Use compiled kernels for the routing on a CPU. A machine compiles each routing once, in half a minute, which may
    be longer than a short training. A layer with more than 16 types of output capsules runs without."""

    @property
    def modules(self) -> list[str]:
        return [*super().modules, registry.module(self.routing)]
