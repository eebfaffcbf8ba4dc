"""Options of the model families of the paper `consensus`; free of PyTorch, so that checking a configuration stays fast."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from recaps.config.families import ModelOptions
from recaps.nn.routing import registry

PoseRouting: Any = registry.settings("PoseRouting")

#: Options of routings that stood beside `routing` before it was a section.
OLD_KEYS = (
    "iterations",
    "final_temperature",
    "kernels",
    "kernel_width",
    "lambda_init",
    "class_scale",
    "compatibility_layers",
    "activation_layers",
    "lstm_units",
)


class MatrixCapsOptions(ModelOptions):
    """Convolution, primary capsules, two convolutional capsule layers, class capsules; poses are 4x4 matrices."""

    module: ClassVar[str] = "recaps.papers.consensus.matrixcaps"
    family: Literal["matrixcaps"] = "matrixcaps"
    routing: PoseRouting = Field("em", validate_default=True)
    """How poses become poses of the next layer: the algorithm's `name` and its options."""
    conv_channels: int = Field(64, ge=1)
    """Channels of the first convolution."""
    types: tuple[int, int, int] = (8, 16, 16)
    """Types of capsules in the primary and the two convolutional layers."""
    coordinates: bool = True
    """Reading. Add its place to the pose of every input capsule, as the author's final architectures do; the paper does
    not mention it."""
    loss: Literal["spread", "cross_entropy"] = "spread"
    """Reading. The paper names no loss; the author's code has both. EM gives probabilities, so it takes `spread`."""

    @model_validator(mode="before")
    @classmethod
    def _take_old_keys(cls, values: Any) -> Any:
        return registry.moved(values, {key: key for key in OLD_KEYS}, default="em")

    @property
    def modules(self) -> list[str]:
        return [*super().modules, registry.module(self.routing)]

    @model_validator(mode="after")
    def _check(self) -> MatrixCapsOptions:
        if self.routing.name == "em" and self.loss == "cross_entropy":
            raise ValueError("loss: EM routing gives probabilities, not logits for a softmax; use spread")
        return self
