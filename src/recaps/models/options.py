"""Options of the model families that several papers share. This module does not import PyTorch."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from recaps.config.base import Positive
from recaps.config.families import ModelOptions
from recaps.errors import UserError
from recaps.nn.routing import registry

VoteRouting: Any = registry.settings("VoteRouting")


class Network(ModelOptions):
    """A convolution, primary capsules, class or latent capsules, and a decoder."""

    conv_channels: int = Field(256, ge=1)
    """Channels of the first convolution."""
    activation: Literal["relu", "leaky_relu"] = "relu"
    """Activation of the first convolution."""
    leaky_slope: float = Field(0.2, ge=0)
    """Reading. Slope of `leaky_relu` for negative inputs. No paper states it; 0.2 is TensorFlow's default."""
    padding: Literal["valid", "same"] = "valid"
    """Padding of both convolutions. `same` pads as TensorFlow does; SUPCAPS used it on CIFAR-10."""
    primary_types: int = Field(32, ge=1)
    """Types of primary capsules at each location."""
    primary_dim: int = Field(8, ge=1)
    """Dimensions of a primary capsule."""
    capsules: int = Field(10, ge=2)
    """Number of class capsules (one per class), or of latent capsules in an unsupervised model."""
    capsule_dim: int = Field(16, ge=1)
    """Dimensions of a class or latent capsule."""
    decoder: tuple[Positive, ...] | None = (512, 1024)
    """Widths of the decoder's hidden layers. null: no decoder and no reconstruction loss."""


class RoutedNetwork(Network):
    """A network with a routing algorithm from `recaps.nn.routing`."""

    routing: VoteRouting = Field("dynamic", validate_default=True)
    """Routing algorithm: its `name` and its options, or its name alone."""

    @property
    def modules(self) -> list[str]:
        return [*super().modules, registry.module(self.routing)]


class ClassCapsules(Network):
    """A network with one capsule per class."""

    def check_classes(self, classes: int) -> None:
        if self.capsules != classes:
            raise UserError(
                f"model.capsules: {self.capsules}, but the data has {classes} classes; set one capsule per class"
            )


class Supervised(ClassCapsules):
    """A network with one capsule per class, trained by margin loss."""

    loss_scale: Literal["released", "paper"] = "released"
    """Reading. `paper`: the margin loss is a sum over classes, as printed. `released`: half of its mean over classes,
    as in the released code. With 10 classes the reconstruction loss then weighs 20 times more."""
    reconstruction_weight: float = Field(0.0005, ge=0)
    """Weight of the squared error of the reconstruction, summed over pixels."""


class ConvNetOptions(ModelOptions):
    """Convolutions, hidden layers, and class scores."""

    module: ClassVar[str] = "recaps.models.convnet"
    family: Literal["convnet"] = "convnet"
    channels: tuple[Positive, ...] = (512, 256)
    """Channels of the convolutions. A ReLU follows each."""
    pooling: bool = True
    """2x2 max pooling after the ReLU of each convolution."""
    kernel: int = Field(5, ge=1)
    """Side of the convolutions' kernels, in pixels."""
    hidden: Positive | Annotated[tuple[Positive, ...], Field(min_length=1)] = 1024
    """Width of the hidden layer, or a list of the widths of several. A ReLU follows each."""
    dropout: float = Field(0, ge=0, lt=1)
    """Probability of dropping a value of the last hidden layer in training."""
    loss: Literal["cross_entropy", "margin"] = "cross_entropy"
    """Reading. Loss on the class scores. `margin`: the margin loss of class capsules, half of its mean over classes, by
    default in the code released with SUPCAPS."""
    initial: Literal["pytorch", "released"] = "pytorch"
    """Reading. Initial weights and biases. `pytorch`: its default, uniform and scaled by the number of inputs.
    `released`: truncated normal weights with a standard deviation of 0.05 in convolutions and 0.1 in full layers, and
    biases of 0.1, as in the code released with SUPCAPS."""
    classes: int = Field(10, ge=2)
    """Number of classes."""

    def check_classes(self, classes: int) -> None:
        if self.classes != classes:
            raise UserError(f"model.classes: {self.classes}, but the data has {classes} classes")


class SupCapsOptions(Supervised, RoutedNetwork):
    """SUPCAPS: one capsule per class, margin loss, and reconstruction from the label's capsule."""

    module: ClassVar[str] = "recaps.models.supcaps"
    family: Literal["supcaps"] = "supcaps"


class VAEOptions(ModelOptions):
    """A variational autoencoder with fully connected layers, Gaussian latents and a Bernoulli likelihood per pixel."""

    module: ClassVar[str] = "recaps.models.vae"
    family: Literal["vae"] = "vae"
    latent_dim: int = Field(10, ge=1)
    """Dimensions of the latent Gaussian."""
    hidden: tuple[Positive, ...] = (128,)
    """Widths of the encoder's hidden layers, with ReLU. The decoder has the same widths in reverse."""
    features: Literal["mean", "mean_and_deviation"] = "mean"
    """Input of the heads: the mean of the latent Gaussian, or its mean and standard deviation."""
    samples: int = Field(2000, ge=1)
    """Number of samples that the probe `samples` draws."""
