"""Options of the model families that several papers share; free of PyTorch, so that checking a configuration stays fast."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from recaps.config.families import ModelOptions
from recaps.nn.routing import registry

VoteRouting: Any = registry.settings("VoteRouting")


class Network(ModelOptions):
    """Convolution, primary capsules, class or latent capsules, decoder."""

    conv_channels: int = Field(256, ge=1)
    """Channels of the first convolution."""
    activation: Literal["relu", "leaky_relu"] = "relu"
    """Of the first convolution."""
    leaky_slope: float = Field(0.2, ge=0)
    """Reading. Slope of `leaky_relu` below zero: TensorFlow's default, where no paper gives one."""
    padding: Literal["valid", "same"] = "valid"
    """Of both convolutions; `same` as TensorFlow pads, which SUPCAPS used on CIFAR-10."""
    primary_types: int = Field(32, ge=1)
    """Types of primary capsules at each location."""
    primary_dim: int = Field(8, ge=1)
    """Dimensions of a primary capsule."""
    capsules: int = Field(10, ge=2)
    """Class capsules, one per class; in the unsupervised models latent capsules."""
    capsule_dim: int = Field(16, ge=1)
    """Dimensions of a class or latent capsule."""
    decoder: tuple[int, ...] | None = (512, 1024)
    """Widths of the decoder's hidden layers; null: no decoder, so no reconstruction."""

    @property
    def leaky(self) -> bool:
        """Whether coupling is shared with one more output, which is dropped."""
        return False


class RoutedNetwork(Network):
    """A network whose routing is an algorithm of its own."""

    routing: VoteRouting = Field("dynamic", validate_default=True)
    """How votes become capsules: the algorithm's `name` and its options."""

    @model_validator(mode="before")
    @classmethod
    def _take_old_keys(cls, values: Any) -> Any:
        old = {"iterations": "iterations", "leaky_routing": "leaky", "routing_gradient": "gradient"}
        return registry.moved(values, old, default="dynamic")

    @property
    def leaky(self) -> bool:
        return bool(getattr(self.routing, "leaky", False))

    @property
    def modules(self) -> list[str]:
        return [*super().modules, registry.module(self.routing)]


class Supervised(Network):
    """A network with a capsule per class."""

    loss_scale: Literal["released", "paper"] = "released"
    """Reading. `released`: margin loss halved and averaged over the classes, as the released code does, so that
    reconstruction weighs 20 times more than in `paper`, the sum over classes that the paper prints."""
    reconstruction_weight: float = Field(0.0005, ge=0)
    """Weight of the summed squared pixel error."""


class ConvNetOptions(ModelOptions):
    """Convolutions with max pooling, one hidden layer, a softmax over classes."""

    module: ClassVar[str] = "recaps.models.convnet"
    family: Literal["convnet"] = "convnet"
    channels: tuple[int, ...] = (512, 256)
    """Channels of the convolutions, each followed by ReLU and a 2x2 max pooling."""
    kernel: int = Field(5, ge=1)
    """Side of the convolutions' kernels."""
    hidden: int = Field(1024, ge=1)
    """Width of the hidden layer."""
    classes: int = Field(10, ge=2)
    """Classes told apart."""


class SupCapsOptions(Supervised, RoutedNetwork):
    """A capsule per class by dynamic routing, margin loss, reconstruction from the label's capsule."""

    module: ClassVar[str] = "recaps.models.supcaps"
    family: Literal["supcaps"] = "supcaps"


class VAEOptions(ModelOptions):
    """Fully connected encoder to a Gaussian of few dimensions, mirrored decoder, Bernoulli likelihood per pixel."""

    module: ClassVar[str] = "recaps.models.vae"
    family: Literal["vae"] = "vae"
    latent_dim: int = Field(10, ge=1)
    """Dimensions of the latent Gaussian."""
    hidden: tuple[int, ...] = (128,)
    """Widths of the encoder's hidden layers, with ReLU; the decoder has the same in reverse."""
    features: Literal["mean", "mean_and_deviation"] = "mean"
    """What heads see of an image: the mean of its latent Gaussian, or mean and standard deviation."""
    samples: int = Field(2000, ge=1)
    """Pictures that the probe `samples` makes."""
