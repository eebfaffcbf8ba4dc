"""Options of the family `vae`: a variational autoencoder, the baseline of two papers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from recaps.config.base import Section


class Options(Section):
    """Fully connected encoder to a Gaussian of few dimensions, mirrored decoder, Bernoulli likelihood per pixel."""

    family: Literal["vae"] = "vae"
    latent_dim: int = Field(10, ge=1)
    """Dimensions of the latent Gaussian."""
    hidden: tuple[int, ...] = (128,)
    """Widths of the encoder's hidden layers, with ReLU; the decoder has the same in reverse."""
    features: Literal["mean", "mean_and_deviation"] = "mean"
    """What heads see of an image: the mean of its latent Gaussian, or mean and standard deviation."""
    samples: int = Field(2000, ge=1)
    """Pictures that the probe `samples` makes."""
