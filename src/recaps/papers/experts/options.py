"""Options of the families `experts` and `rbm`; without PyTorch, so that checking a configuration is fast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from recaps.config.base import Positive
from recaps.config.families import ModelOptions


class ExpertsOptions(ModelOptions):
    """Autoencoder, capsule encoder W and capsule decoder U, each learned in its own phase with the rest fixed."""

    module: ClassVar[str] = "recaps.papers.experts.experts"
    of_probes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "samples": ("restricted", "gaussian", "sample_coupling", "samples")
    }
    family: Literal["experts"] = "experts"
    channels: tuple[Positive, Positive] = (128, 128)
    """Filters of the two convolutions: 9x9 with stride 1 and 9x9 with stride 2."""
    primary_dim: int = Field(8, ge=1)
    """Dimensions of an input capsule: this many consecutive channels of the code at one location."""
    capsules: int = Field(20, ge=1)
    """Output capsules."""
    capsule_dim: int = Field(16, ge=1)
    """Dimensions of an output capsule."""
    layers: Literal[1, 2] = 1
    """Layers of experts; the paper has one. With two, the first is trained before, in the run that this one starts
    from, and W and U are those of the second."""
    upper_capsules: int = Field(10, ge=1)
    """Capsules of the second layer, of `capsule_dim` dimensions."""
    flat_dim: int = Field(0, ge=0)
    """Dimensions of an output capsule that are homogeneous coordinates of a point r of a flat space, |r| <= 1, which
    has one dimension less; the others are those of a sphere. 0: all are, as in the paper."""
    iterations: int = Field(3, ge=1)
    """Reading. Iterations of cosine routing; the paper gives none."""
    coupling_axis: Literal["inputs", "outputs"] = "inputs"
    """Reading. What the couplings of W sum to one over. `inputs`: the sum over i of section 2.2. `outputs`: the sum
    over j, as in SUPCAPS. The text says that "each lower layer capsule can only make a finite amount of
    predictions"."""
    decoder_axis: Literal["outputs", "inputs"] = "outputs"
    """Reading. What the couplings of U sum to one over: the output capsules that send, or the input capsules that
    receive."""
    mixing: Literal["mean", "drawn"] = "mean"
    """Reading. Output capsules while W mixes. `mean`: as they are, as algorithm 1 is written. `drawn`: each is on or
    off, with its length as the probability, as the hidden units of a restricted Boltzmann machine."""
    bias: bool = False
    """Reading. Biases in the autoencoder. The paper lists filters only. Without biases, a code of zeros is an even grey
    and the opposite code is about the negative of the picture, as in the paper's figure 2. With biases, reconstructions
    are better and few samples are negatives."""
    leaky_slope: float = Field(0.2, ge=0)
    """Reading. Slope of the leaky ReLUs below zero: TensorFlow's default; the paper gives none."""
    dropout: float = Field(0.5, ge=0, lt=1)
    """Reading. Probability of dropping a value of the code while the autoencoder learns; the paper gives neither
    probability nor layer."""
    loss: Literal["bce", "squared"] = "bce"
    """Reading. Loss of the autoencoder, summed over pixels: cross-entropy, which fits a sigmoid per pixel, or squared
    error. The paper names none."""
    code_length: float | None = Field(0.25, gt=0)
    """Reading. Mean length of input capsules before the squash. The code is scaled to it when W begins to learn, by the
    mean over the first batch, and scaled back before decoding. null: no scaling. The paper gives no scale, but results
    depend on it. U's rule compares z / (1 + z^2), which is equal for a length and its inverse: U tends to the smaller
    one and diverges for lengths above 1."""
    decoder_scale: float = Field(0.45, gt=0)
    """Reading. A further factor of the code for U, divided out after U. U's rule is at rest where its capsules x~_j are
    as long as those of W. With 1, the decoded code is half as long as it should be, and U diverges if W has learned for
    long."""
    autoencoder: float = Field(0.5, ge=0, le=1)
    """Reading. Fraction of the training steps in which the autoencoder learns."""
    encoder: float = Field(0.25, ge=0, le=1)
    """Reading. Fraction of the training steps, after those, in which W learns. U learns in the rest. Phases end at rows
    of the history, at multiples of `training.log_every`."""
    initial: float = Field(0.01, gt=0)
    """Reading. Standard deviation of the initial W and U; the paper says N(0, 0.01). With 0.1, which takes 0.01 as the
    variance, the initial noise stays visible in samples."""
    encoder_rate: float = Field(40.0, gt=0)
    """Reading. Learning rate of W at the start of its phase, per input capsule. Lambda of algorithm 1 is this times the
    number of input capsules, because couplings that sum to one over them are about one divided by this number."""
    decoder_rate: float = Field(0.3, gt=0)
    """Reading. Learning rate of U at the start of its phase, per output capsule."""
    rate_end: float = Field(0.1, gt=0, le=1)
    """Reading. Factor of both learning rates at the end of a phase, reached by exponential decay."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Reading. Momentum of W and U."""
    encoder_decay: float = Field(1e-4, ge=0, lt=1)
    """Reading. L2 regularisation of W: the fraction of W that a step removes, before momentum and at the initial
    learning rate."""
    decoder_decay: float = Field(1e-4, ge=0, lt=1)
    """Reading. L2 regularisation of U, in the same unit."""
    restricted: Literal["mean_direction", "nearest"] = "mean_direction"
    """Reading. The half of the sphere that is the restricted domain. `mean_direction`: the half around the mean of a
    capsule's outputs in training. `nearest`: of a sample and its opposite, the one nearer to any of the last 128
    outputs. The paper only says that training visited it."""
    gaussian: Literal["standard", "visited"] = "visited"
    """Reading. The 16-dimensional Gaussian that samples are drawn from, always with mean zero. `standard`, which the
    paper's x ~ N(0, 1) suggests: its covariance is the identity, and samples are squashed to a length of about 0.94,
    twice the mean length of capsules. `visited`, our choice: its covariance is the mean of x x' over the capsule's last
    128 outputs in training, so that samples have their lengths and directions."""
    sample_coupling: Literal["routed", "alone", "matched"] = "alone"
    """Reading. The coupling of a capsule while all others are zero. `routed`: by cosine routing, in which capsules of
    zero take part; it is 0.28 with 20 capsules and 3 iterations. `alone`: 1, because couplings sum to one over the
    capsules that are on. `matched`: such that the input capsules of a sample have the mean length `code_length`, as
    those of an image have."""
    samples: int = Field(100, ge=1)
    """Samples from each capsule in the probe `samples`; figure 2 shows the first four."""

    @model_validator(mode="after")
    def _check(self) -> ExpertsOptions:
        if self.channels[1] % self.primary_dim:
            raise ValueError(f"channels: {self.channels[1]} is not a multiple of primary_dim ({self.primary_dim})")
        if self.flat_dim == 1 or self.flat_dim > self.capsule_dim:
            raise ValueError(f"flat_dim: {self.flat_dim} is not 0, nor between 2 and capsule_dim ({self.capsule_dim})")
        if self.flat_dim and self.layers == 2:
            raise ValueError("flat_dim: only a single layer has flat dimensions; remove it, or write `layers: 1`")
        if self.sample_coupling == "matched" and self.code_length is None:
            raise ValueError("sample_coupling: matched needs a code_length; write `alone`")
        if self.autoencoder + self.encoder > 1:
            raise ValueError("autoencoder, encoder: their sum is greater than 1")
        return self


class RBMOptions(ModelOptions):
    """Binary hidden units on pixels taken as probabilities, trained by persistent contrastive divergence."""

    module: ClassVar[str] = "recaps.papers.experts.rbm"
    of_probes: ClassVar[Mapping[str, tuple[str, ...]]] = {"samples": ("samples", "gibbs_steps")}
    family: Literal["rbm"] = "rbm"
    hidden: int = Field(320, ge=1)
    """Hidden units; 320 is the number of values in 20 capsules of 16 dimensions."""
    samples: int = Field(2000, ge=1)
    """Samples in the probe `samples`, each from its own Gibbs chain."""
    gibbs_steps: int = Field(1000, ge=1)
    """Steps of each Gibbs chain."""
