"""Options of the model families of the paper `probabilistic`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from recaps.config.families import ModelOptions

#: Options of free-form inference.
FREE = ("free_steps", "free_rate", "free_pairs", "free_draws", "free_ascent", "free_presences_only", "free_samples")


class GenerativeOptions(ModelOptions):
    """Objects with parts at relative poses, parts drawn as templates, and networks that infer both.

    The defaults of options marked "Reading" are not in the paper; its README gives the reasons.
    """

    module: ClassVar[str] = "recaps.papers.probabilistic.capsules"
    of_probes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "free-form": FREE,
        "free-form-rotations": FREE,
        "samples": ("samples",),
    }
    family: Literal["generative"] = "generative"
    objects: int = Field(16, ge=1)
    """Number n0 of object capsules, the upper layer."""
    parts: int = Field(16, ge=1)
    """Number n1 of part capsules. Each has its own template, unless `occurrences` is more than 1."""
    occurrences: int = Field(1, ge=1)
    """Parts that share a template, so that it can occur as often in an image. The paper has one, and names this as a
    reason why templates copy each other (section 5.4)."""
    template_size: int = Field(12, ge=2)
    """Rows and columns of a template."""
    pixel_deviation: float = Field(0.2, gt=0)
    """Standard deviation sigma of eq. 7."""
    pose_deviation_floor: float = Field(0.1, gt=0)
    """Reading. Smallest value of c in eq. 5, a standard deviation in the unit of poses (`extent`). Section 2.1 and
    appendix B use both "variance" and "standard deviation"."""
    temperature: float = Field(1.0, gt=0)
    """Temperature of the concrete distributions of presences."""
    temperature_start: float | None = Field(None, gt=0)
    """Temperature at the start of training, from which it goes to `temperature` in a geometric progression. null: it is
    always the same, as in the paper."""
    draws: int = Field(1, ge=1)
    """Draws for each image in training. With several, the objective is the importance weighted bound (Burda et al.,
    2016), which is tighter; the paper has one."""
    poses: Literal["delta", "gaussian"] = "delta"
    """Posterior of poses: a point, or a Gaussian. Reading: the Gaussian has a learned standard deviation for each
    number of the pose of each capsule, shared by all images; by appendix B it may depend on the image. The paper calls
    training with Gaussians from the start extremely difficult, and finds a tighter bound if training begins with
    points."""
    extent: float | None = Field(None, gt=0)
    """Reading. Half the canvas in the unit of poses. null: the unit is half a template, so that the identity draws a
    template at its own size. 1: the unit is half the canvas."""
    relaxed_pose: Literal["mixture", "geometric", "moments"] = "mixture"
    """Reading. Density of the pose of a part with relaxed presence t, between eqs. 5 and 6. `mixture`: their mixture
    with weights t and 1 - t. `geometric`: the product of their powers t and 1 - t, normalised. `moments`: a Gaussian
    with interpolated mean and standard deviation."""
    object_probability: float = Field(0.1, gt=0, lt=1)
    """Reading. Prior presence p of an object in eq. 1, or its initial value."""
    learned_probability: bool = False
    """Reading. Whether p is learned, for each object."""
    presences_from_labels: float | None = Field(None, gt=0)
    """Control. In training, the log odds of object k are this number for images of class k, and minus this number
    otherwise, instead of those that the network infers. A bound that is no higher with labels than without does not
    teach classes. null: no control."""
    dummy_affinity: float = Field(0.1, gt=0)
    """Reading. Affinity rho of the dummy in eq. 3. Those of objects start near 1."""
    dummy_deviation: float = Field(1.0, gt=0)
    """Reading. Standard deviation c of the dummy in eq. 5, in the unit of poses (`extent`)."""
    absent_deviation: float = Field(1.0, gt=0)
    """Reading. Standard deviation lambda_off of the pose of an absent part in eq. 6, in the unit of poses
    (`extent`)."""
    template_start: Literal["alike", "orthogonal"] = "alike"
    """Reading. Initial templates. `alike`: bright squares that fade out, with some noise. `orthogonal`: orthogonal
    random values with even alphas, as in the released code of SCAE."""
    part_pose: Literal["linear", "bounded"] = "linear"
    """Reading. The pose of a part from the output of the pooling. `linear`: an offset from a learned start. `bounded`:
    scales between 0.01 and 1.01 halves of the canvas, a rotation, a bounded shear and translation, as in SCAE."""
    part_scale: float = Field(1.0, gt=0)
    """Reading. Half the initial side of a part, in the unit of poses (`extent`). 1 is the template's own size if
    `extent` is null."""
    part_spread: float = Field(0.4, ge=0)
    """Reading. Largest initial distance of parts from the centre along each axis, in halves of the canvas."""
    relation_spread: float = Field(0.1, ge=0)
    """Reading. Standard deviation of the initial M of eq. 5 about the initial poses of the parts, in the unit of poses
    (`extent`)."""
    affinity_spread: float = Field(0.1, ge=0)
    """Reading. Standard deviation of the initial log rho of eq. 3."""
    affinity_bound: float = Field(1.0, gt=0)
    """Reading. Largest absolute value of log rho of objects in eq. 3."""
    appearance: float = 1.0
    """Reading. Initial log odds of gamma in eq. 4."""
    pose_deviation: float = Field(0.5, gt=0)
    """Reading. Initial c in eq. 5, in the unit of poses (`extent`)."""
    deltas_first: float = Field(0.5, ge=0, le=1)
    """Reading. Fraction of the training steps in which Gaussian poses are still points."""
    gaussian_start: float = -3.0
    """Reading. Initial log standard deviation of Gaussian poses."""
    gaussian_from: Literal["shared", "image"] = "shared"
    """Reading. Log standard deviations of Gaussian poses. `shared`: a learned number for each number of the pose of
    each capsule, the same for all images. `image`: the networks compute an offset from it for each image."""
    channels: int = Field(32, ge=1)
    """Filters in each of the four convolutions."""
    padding: Literal["same", "valid"] = "same"
    """Reading. Padding of the convolutions: with zeros, or none, as in the released code of SCAE."""
    place_bias: bool = True
    """Reading. Whether to add a learned bias for each place before the attentive pooling, as in the released code of
    SCAE."""
    part_reach: float = Field(0.5, gt=0)
    """Reading. Change of a pose per unit of the output of the pooling, in halves of the canvas."""
    identity: Literal["projection", "one_hot", "none"] = "projection"
    """Reading. How the set transformer identifies a part. `projection`: each part has its own linear input layer.
    `one_hot`: all parts share that layer, and each part adds its own learned vector. `none`: parts are not
    identified."""
    attention: Literal["all", "present"] = "all"
    """Reading. What the set transformer attends to. `all`: all parts alike. `present`: the logarithm of the presence of
    a part is added to its scores."""
    pose_zoom: float = Field(5.0, gt=0)
    """Reading. Scale of poses in the input of the set transformer. It receives their offsets from the initial poses,
    scaled so that half the canvas is this number."""
    width: int = Field(128, ge=1)
    """Width of the set transformer."""
    heads: int = Field(4, ge=1)
    """Attention heads. The width is divided among them."""
    points: int = Field(32, ge=1)
    """Inducing points of the set transformer."""
    point_deviation: float = Field(1.0, gt=0)
    """Reading. Standard deviation of the initial inducing points and of the seeds that pool the objects."""
    layers: int = Field(4, ge=1)
    """Induced set attention blocks."""
    encoding: int = Field(32, ge=1)
    """Size of the set transformer's output for an object."""
    hidden: int = Field(128, ge=1)
    """Hidden units of the networks that compute presences and poses of objects from that output."""
    object_layers: Literal["shared", "own"] = "shared"
    """Reading. Whether all objects share the networks from the set transformer's output to presence and pose, or each
    object has its own ("independent" networks in SCAE)."""
    arrangement_rate: float = Field(5.0, gt=0)
    """Reading. Factor on the learning rate of M, gamma and c."""
    template_rate: float = Field(10.0, gt=0)
    """Reading. Factor on the learning rate of the templates and their alphas."""
    object_rate: float = Field(0.5, gt=0)
    """Reading. Factor on the learning rate of the network that infers objects."""
    free_steps: int = Field(500, ge=1)
    """Steps of free-form inference. The paper has hundreds or thousands of steps."""
    free_ascent: Literal["adam", "plain", "lbfgs"] = "adam"
    """Reading. How free-form inference follows the gradient. The paper has "basic gradient descent": `plain`. Adam
    moves numbers on which the bound hardly depends as fast as others."""
    free_rate: float = Field(0.02, gt=0)
    """Reading. First learning rate of free-form inference. It falls linearly to zero, but for `lbfgs`. 0.02 suits Adam;
    `plain` needs about 0.0003, and `lbfgs` 1."""
    free_pairs: int = Field(1, ge=1)
    """Reading. Pairs of antithetic draws per step of free-form inference."""
    free_draws: str = "free-form"
    """Name of the random draws of free-form inference. Another name gives other draws."""
    free_presences_only: bool = False
    """Whether free-form inference changes only the log odds of the objects' presences."""
    free_samples: int = Field(8, ge=1)
    """Draws that the reported bound of free-form inference is averaged over."""
    samples: int = Field(100, ge=1)
    """Number of samples of the probe `samples`."""

    @model_validator(mode="after")
    def _check(self) -> GenerativeOptions:
        if self.width % self.heads:
            raise ValueError(f"width: {self.width} cannot be shared by {self.heads} heads")
        if self.pose_deviation <= self.pose_deviation_floor:
            raise ValueError(f"pose_deviation: {self.pose_deviation} is not above pose_deviation_floor")
        if self.parts % self.occurrences:
            raise ValueError(f"occurrences: {self.parts} parts cannot be shared out by {self.occurrences}")
        return self


class SCAEOptions(ModelOptions):
    """Stacked capsule autoencoder: parts are drawn as templates, and objects explain the poses of parts by votes.

    The default weights of the losses are those of the released script for MNIST.
    """

    module: ClassVar[str] = "recaps.papers.probabilistic.scae"
    family: Literal["scae"] = "scae"
    parts: int = Field(24, ge=1)
    """Part capsules. Each has its own template."""
    objects: int = Field(24, ge=1)
    """Object capsules."""
    template_size: int = Field(11, ge=1)
    """Rows and columns of a template."""
    features: int = Field(16, ge=1)
    """Special features of a part. They determine the colour of its template and are input to the object encoder."""
    channels: int = Field(128, ge=1)
    """Filters in each of the four convolutions."""
    width: int = Field(16, ge=1)
    """Dimensions of a part between the layers of the object encoder."""
    layers: int = Field(3, ge=0)
    """Self-attention layers of the object encoder."""
    object_width: int = Field(256, ge=1)
    """Dimensions of an object in the output of the object encoder."""
    object_dim: int = Field(32, ge=1)
    """Dimensions of an object capsule. Its votes are computed from them."""
    hidden: int = Field(128, ge=1)
    """Width of the hidden layers of the object decoder. Every object has its own layers."""
    noise_scale: float = Field(4.0, ge=0)
    """Width of the uniform noise that training adds to the logits of presences. 0: none."""
    noise_at_test: bool = False
    """Reading. Whether to add this noise in tests too, as the released code does. Without it, latents depend on the
    image alone."""
    attention: Literal["most_present", "weighted"] = "most_present"
    """Reading. How the presences of parts change the attention scores. `most_present`: 1e32 times (1 - presence) is
    subtracted, as in the released code, so that only the most present part is attended to. `weighted`: the logarithm of
    the presence is added."""
    dynamic_weight: float = Field(10.0, ge=0)
    """Weight of half the sum of the squared image-dependent offsets of the relations between objects and parts, as a
    mean over images."""
    posterior_within: float = Field(0.7, ge=0)
    """Weight of the mean entropy, for single images, of posterior presences over objects. The SCAE paper has 10."""
    posterior_between: float = Field(0.2, ge=0)
    """Weight of that entropy for the whole batch, which is maximised. The SCAE paper has 10."""
    prior_within: float = Field(2.0, ge=0)
    """Weight of the squared difference between the sum of prior presences in an image and `within_constant`. The SCAE
    paper has 1."""
    prior_between: float = Field(0.35, ge=0)
    """Weight of the squared difference between the sum of prior presences of an object in a batch and the number of
    images per class (without labels: as if there were ten). The SCAE paper has 1."""
    within_constant: float | None = Field(None, gt=0)
    """Reading. Expected number of objects in an image. null: number of objects per class (without labels: as if there
    were ten), as in the released code. Its script sets 4.3, but this value never reaches the model."""
