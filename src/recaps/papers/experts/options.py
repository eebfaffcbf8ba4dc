"""Options of the model families of the paper `experts`; free of PyTorch, so that checking a configuration stays fast."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from recaps.config.families import ModelOptions


class ExpertsOptions(ModelOptions):
    """Autoencoder, capsule encoder W and capsule decoder U, learned one after the other with the rest held fixed."""

    module: ClassVar[str] = "recaps.papers.experts.experts"
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
    bias: bool = False
    """Reading. Biases in the autoencoder. The paper lists filters alone, and only without biases is a code of zeros an
    even grey, and the opposite of a code about the negative of its picture, as in its figure 2. With biases pictures
    are much better and no sample is a negative."""
    leaky_slope: float = Field(0.2, ge=0)
    """Reading. Slope of the leaky ReLUs below zero: TensorFlow's default, the paper gives none."""
    dropout: float = Field(0.5, ge=0, lt=1)
    """Reading. Part of the code that is dropped while the autoencoder learns; the paper gives neither rate nor
    place."""
    loss: Literal["bce", "squared"] = "bce"
    """Reading. Of the autoencoder, summed over pixels: cross-entropy, as a sigmoid per pixel suggests, or squared
    error; the paper names none."""
    code_length: float | None = Field(0.25, gt=0)
    """Reading. Mean length of input capsules before they are squashed: the code is scaled to it when the autoencoder
    has learned, and back on the way out. null: as the autoencoder leaves it. The paper names no scale, but much depends
    on it: in trials at 0.5 and 1, W made all capsules be on alike for every image; and U, whose rule compares
    z / (1 + z^2), which a length shares with its inverse, is drawn to the smaller of the two and runs away beyond 1."""
    decoder_scale: float = Field(0.45, gt=0)
    """Reading. By what the code is multiplied once more for U, and divided on the way out. U's rule is at rest where
    its own capsules x~_j are as long as W's; with 1 that leaves the code half as long as it should be, and U runs away
    when W has learned for long."""
    autoencoder: float = Field(0.5, ge=0, le=1)
    """Part of the training steps in which the autoencoder learns."""
    encoder: float = Field(0.25, ge=0, le=1)
    """Part of the training steps, after those, in which W learns; U learns in the rest. Phases end where rows of the
    history do, at multiples of `training.log_every`."""
    initial: float = Field(0.01, gt=0)
    """Reading. Standard deviation of W and U at the start, where the paper says N(0, 0.01). With 0.1, the number taken
    as the variance, the noise of the start stays visible in samples."""
    encoder_rate: float = Field(40.0, gt=0)
    """Reading. Step size of W at the start of its phase, for each input capsule: lambda of algorithm 1 is this times
    their number, because couplings are about one divided by it."""
    decoder_rate: float = Field(0.3, gt=0)
    """Reading. Step size of U at the start of its phase, for each output capsule."""
    rate_end: float = Field(0.1, gt=0, le=1)
    """Reading. What is left of either step size at the end of its phase; it shrinks exponentially."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Reading. Momentum of W and U."""
    encoder_decay: float = Field(1e-4, ge=0, lt=1)
    """Reading. L2 regularisation of W: the part of it that a step takes off, before momentum and while the step size is
    that of the start."""
    decoder_decay: float = Field(1e-4, ge=0, lt=1)
    """Reading. L2 regularisation of U, likewise."""
    restricted: Literal["mean_direction", "nearest"] = "mean_direction"
    """Reading. Which half of the sphere samples of the restricted domain are in: the half around the mean of a
    capsule's outputs in training, or, of a sample and its opposite, the one nearer to any of the last such outputs. The
    paper says no more than that it was visited during training."""
    samples: int = Field(100, ge=1)
    """Pictures that the probe `samples` makes from each capsule; figure 2 shows the first four."""

    @model_validator(mode="after")
    def _check(self) -> ExpertsOptions:
        if self.channels[1] % self.primary_dim:
            raise ValueError(f"channels: {self.channels[1]} do not make capsules of {self.primary_dim} dimensions")
        if self.autoencoder + self.encoder > 1:
            raise ValueError("autoencoder, encoder: together more than all training steps")
        return self


class RBMOptions(ModelOptions):
    """Binary hidden units on pixels taken as probabilities, trained by persistent contrastive divergence."""

    module: ClassVar[str] = "recaps.papers.experts.rbm"
    family: Literal["rbm"] = "rbm"
    hidden: int = Field(320, ge=1)
    """Hidden units: as many as 20 capsules of 16 dimensions have numbers."""
    samples: int = Field(2000, ge=1)
    """Pictures that the probe `samples` makes, each by a Gibbs chain of its own."""
    gibbs_steps: int = Field(1000, ge=1)
    """Steps of these chains."""
