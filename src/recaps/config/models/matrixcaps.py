"""Options of the family `matrixcaps`: matrix capsules under one of three routings."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from recaps.config.base import Section


class Options(Section):
    """Convolution, primary capsules, two convolutional capsule layers, class capsules; poses are 4x4 matrices."""

    family: Literal["matrixcaps"] = "matrixcaps"
    routing: Literal["em", "similarity", "connectionist"] = "em"
    """EM (*Matrix Capsules with EM Routing*), similarity learning (section 4.1) or the LSTM cell (section 4.2)."""
    conv_channels: int = Field(64, ge=1)
    """Channels of the first convolution."""
    types: tuple[int, int, int] = (8, 16, 16)
    """Types of capsules in the primary and the two convolutional layers."""
    iterations: int = Field(3, ge=1)
    """Routing iterations."""
    coordinates: bool = True
    """Reading. Add its place to the pose of every input capsule, as the author's final architectures do; the paper does
    not mention it."""
    loss: Literal["spread", "cross_entropy"] = "spread"
    """Reading. The paper names no loss; the author's code has both. EM gives probabilities, so it takes `spread`."""
    final_temperature: float = Field(0.01, gt=0)
    """EM: lambda of iteration t is this times 1 - 0.95^(t+1)."""
    kernels: tuple[int, int, int] = (4, 4, 10)
    """Similarity: Gaussians Q in the kernel of each capsule layer."""
    kernel_width: float = Field(1.0, gt=0)
    """Reading (similarity). Initial width l; the author's 0.1 leaves the class layer's kernel near zero for good."""
    lambda_init: tuple[float, float] = (12.0, 1.0)
    """Reading (similarity). Initial lambda_1 and lambda_2, from the author's last version."""
    class_scale: float = 0.0
    """Reading (similarity). Initial theta_1 of the class layer, by which agreement, a number from 0 to 1, becomes a
    score; the author's 0, with a spread of 0.1, gives all classes nearly the same score for long."""
    compatibility_layers: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] = ((), (32, 32), (64, 64))
    """Connectionist: hidden layers of the compatibility network of each capsule layer (table 2)."""
    activation_layers: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] = ((), (64, 64), (124, 124))
    """Connectionist: hidden layers of the activation network (table 2)."""
    lstm_units: int = Field(16, ge=1)
    """Connectionist: size of the cell's hidden and cell state (table 2)."""

    @model_validator(mode="after")
    def _check(self) -> Options:
        if self.routing == "em" and self.loss == "cross_entropy":
            raise ValueError("loss: EM routing gives probabilities, not logits for a softmax; use spread")
        return self
