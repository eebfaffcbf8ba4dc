"""What the capsule networks that build on SUPCAPS share: layers and their sizes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from recaps.config.base import Section


class Network(Section):
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
    iterations: int = Field(3, ge=1)
    """Iterations of dynamic routing."""
    leaky_routing: bool = False
    """Add a logit of zero that takes coupling away from all capsules, as SUPCAPS did on CIFAR-10."""
    decoder: tuple[int, ...] | None = (512, 1024)
    """Widths of the decoder's hidden layers; null: no decoder, so no reconstruction."""
    routing_gradient: Literal["all", "last"] = "all"
    """Reading. `all`: gradients flow through every routing iteration, as in the released code of SUPCAPS. `last`: the
    coupling coefficients are constants, as most PyTorch versions have it."""


class Supervised(Network):
    """A network with a capsule per class."""

    loss_scale: Literal["released", "paper"] = "released"
    """Reading. `released`: margin loss halved and averaged over the classes, as the released code does, so that
    reconstruction weighs 20 times more than in `paper`, the sum over classes that the paper prints."""
    reconstruction_weight: float = Field(0.0005, ge=0)
    """Weight of the summed squared pixel error."""
