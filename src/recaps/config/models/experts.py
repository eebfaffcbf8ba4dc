"""Options of the family `experts`: products of expert capsules behind a tied convolutional autoencoder."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from recaps.config.base import Section


class Options(Section):
    """Autoencoder, capsule encoder W and capsule decoder U, learned one after the other with the rest held fixed."""

    family: Literal["experts"] = "experts"
    channels: tuple[int, int] = (128, 128)
    """Filters of the two convolutions, 9x9 with stride 1 and 9x9 with stride 2."""
    primary_dim: int = Field(8, ge=1)
    """Dimensions of an input capsule: so many consecutive channels of the code, at one place."""
    capsules: int = Field(20, ge=1)
    """Output capsules."""
    capsule_dim: int = Field(16, ge=1)
    """Dimensions of an output capsule."""
    iterations: int = Field(3, ge=1)
    """Reading. Iterations of cosine routing; the paper gives none."""
    leaky_slope: float = Field(0.2, ge=0)
    """Reading. Slope of the leaky ReLUs below zero: TensorFlow's default, the paper gives none."""
    dropout: float = Field(0.5, ge=0, lt=1)
    """Reading. Part of the code that is dropped while the autoencoder learns; the paper gives neither rate nor
    place."""
    loss: Literal["bce", "squared"] = "bce"
    """Reading. Of the autoencoder, summed over pixels: cross-entropy, as a sigmoid per pixel suggests, or squared
    error; the paper names none."""
    autoencoder: float = Field(0.5, ge=0, le=1)
    """Part of the training steps in which the autoencoder learns."""
    encoder: float = Field(0.25, ge=0, le=1)
    """Part of the steps after these in which W learns; U learns in the rest. Phases end at whole rows of the history
    (`training.log_every`)."""
    initial: float = Field(0.1, gt=0)
    """Reading. Standard deviation of W and U at the start. The paper's N(0, 0.01), the number taken as the variance."""
    encoder_rate: float = Field(1.0, gt=0)
    """Reading. Step size of W, lambda of algorithm 1, at the start of its phase."""
    decoder_rate: float = Field(1.0, gt=0)
    """Reading. Step size of U at the start of its phase."""
    rate_end: float = Field(0.1, gt=0, le=1)
    """Reading. What is left of either step size at the end of its phase; it shrinks exponentially."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Reading. Momentum of W and U."""
    encoder_decay: float = Field(1e-4, ge=0)
    """Reading. Strength of the L2 regularisation of W: its part of the gradient is this times W."""
    decoder_decay: float = Field(1e-4, ge=0)
    """Reading. Strength of the L2 regularisation of U."""
    restricted: Literal["mean_direction", "nearest"] = "mean_direction"
    """Reading. Which half of the sphere samples of the restricted domain are in: the half around the mean of a
    capsule's outputs in training, or, of a sample and its opposite, the one nearer to any of the last such outputs. The
    paper says no more than that it was visited during training."""
    samples: int = Field(100, ge=1)
    """Pictures that the probe `samples` makes from each capsule; figure 2 shows the first four."""

    @model_validator(mode="after")
    def _check(self) -> Options:
        if self.channels[1] % self.primary_dim:
            raise ValueError(f"channels: {self.channels[1]} do not make capsules of {self.primary_dim} dimensions")
        if self.autoencoder + self.encoder > 1:
            raise ValueError("autoencoder, encoder: together more than all training steps")
        return self
