"""Options of the model families of the paper `probabilistic`; free of PyTorch, so that checking a configuration stays fast."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from recaps.config.families import ModelOptions


class GenerativeOptions(ModelOptions):
    """Objects with parts at relative poses, parts drawn as templates, and networks that infer both."""

    module: ClassVar[str] = "recaps.papers.probabilistic.capsules"
    family: Literal["generative"] = "generative"
    objects: int = Field(16, ge=1)
    """Object capsules, the upper layer."""
    parts: int = Field(16, ge=1)
    """Part capsules, each with a template of its own."""
    template_size: int = Field(12, ge=2)
    """Rows and columns of a template."""
    pixel_deviation: float = Field(0.2, gt=0)
    """sigma of eq. 7."""
    pose_deviation_floor: float = Field(0.1, gt=0)
    """The least c of eq. 5."""
    temperature: float = Field(1.0, gt=0)
    """Of the concrete distributions that stand for presences."""
    poses: Literal["delta", "gaussian"] = "delta"
    """Posterior of poses: a point, or a Gaussian with a deviation for each number of each capsule's pose, the same for
    all images. The paper begins with points, and got no further when it began with Gaussians."""
    extent: float | None = Field(None, gt=0)
    """Reading. Half the canvas in the unit of poses. null: in halves of a template, so that under the identity a
    template is drawn at its own size. With 1 the canvas would be the unit, the floor of c 1.4 pixels on 28x28, and one
    arrangement of parts loose enough for all digits."""
    relaxed_pose: Literal["mixture", "geometric", "moments"] = "mixture"
    """Reading. Density of the pose of a part that is present to the degree t, between eqs. 5 and 6: their mixture with
    weights t and 1 - t; the product of their powers t and 1 - t, made a density again; or a Gaussian with mean and
    deviation in between."""
    object_probability: float = Field(0.1, gt=0, lt=1)
    """Reading. p of eq. 1."""
    dummy_affinity: float = Field(0.1, gt=0)
    """Reading. rho of the dummy parent, where those of objects begin at 1."""
    dummy_deviation: float = Field(1.0, gt=0)
    """Reading. c of the dummy parent."""
    absent_deviation: float = Field(1.0, gt=0)
    """Reading. Deviation of the pose of an absent part, lambda_off of eq. 6."""
    part_scale: float = Field(1.0, gt=0)
    """Reading. Size of parts at the start, in the unit of poses."""
    part_spread: float = Field(0.4, ge=0)
    """Reading. How far from the middle parts may begin, in halves of the canvas."""
    relation_spread: float = Field(0.1, ge=0)
    """Reading. Standard deviation at the start of M of eq. 5 about the places where parts begin."""
    affinity_spread: float = Field(0.1, ge=0)
    """Reading. Standard deviation of log rho at the start."""
    affinity_bound: float = Field(1.0, gt=0)
    """Reading. Bound of log rho of objects to either side. Without one, most parts come to have an object each, whose
    pose then says all of the part's, and presences say next to nothing."""
    appearance: float = 1.0
    """Reading. Log odds of gamma of eq. 4 at the start."""
    pose_deviation: float = Field(0.5, gt=0)
    """Reading. c of eq. 5 at the start."""
    deltas_first: float = Field(0.5, ge=0, le=1)
    """Reading. Part of the training steps in which Gaussian poses are points still."""
    gaussian_start: float = -3.0
    """Reading. Logarithm of the deviations of Gaussian poses at the start."""
    channels: int = Field(32, ge=1)
    """Filters of each of the four convolutions."""
    place_bias: bool = True
    """Reading. Adds a learned bias for each place before the pooling, as the released code of SCAE does, whose pooling
    this is."""
    part_reach: float = Field(0.5, gt=0)
    """Reading. By how much poses move where what the pooling gives changes by one, in halves of the canvas."""
    identity: Literal["projection", "one_hot", "none"] = "projection"
    """Reading. How the set transformer knows which part is which, without which it could not infer what M, rho, gamma
    and c tell apart: each part's presence and pose enter by a linear layer of its own; by the same one, with a vector
    added that is the part's own (a layer on a one-hot code); or it does not."""
    pose_zoom: float = Field(5.0, gt=0)
    """Reading. In what unit poses enter the set transformer: half the canvas is so many, from where the part began.
    Poses change by a tenth of that between images; as they are they would be lost beside what is the same in all."""
    width: int = Field(128, ge=1)
    """Width of the set transformer."""
    heads: int = Field(4, ge=1)
    """Attention heads; they share the width."""
    points: int = Field(32, ge=1)
    """Inducing points."""
    point_deviation: float = Field(1.0, gt=0)
    """Reading. Standard deviation at the start of inducing points, and of the seeds that objects are pooled with. With
    the 0.02 to 0.03 of the set transformer's authors all objects begin as one, and long remain nearly so."""
    layers: int = Field(4, ge=1)
    """Induced set attention blocks."""
    encoding: int = Field(32, ge=1)
    """Numbers in which the set transformer tells of an object."""
    hidden: int = Field(128, ge=1)
    """Hidden units of the networks that make presences and poses of those."""
    arrangement_rate: float = Field(5.0, gt=0)
    """Reading. By how much faster than the networks and rho M, gamma and c learn."""
    template_rate: float = Field(10.0, gt=0)
    """Reading. By how much faster templates and their alphas do."""
    object_rate: float = Field(0.5, gt=0)
    """Reading. By how much faster the network does that infers objects. Where it learns fast it may stop looking at its
    input, and does not begin again."""
    warmup_steps: int = Field(50, ge=1)
    """Reading. Steps in which all rates rise from zero."""
    free_steps: int = Field(500, ge=1)
    """Steps of gradient ascent in free-form inference."""
    free_rate: float = Field(0.02, gt=0)
    """Reading. Adam's learning rate in these."""
    free_samples: int = Field(8, ge=1)
    """Samples that the bound is averaged over where it is reported along them."""
    samples: int = Field(100, ge=1)
    """Pictures that the probe `samples` makes."""

    @model_validator(mode="after")
    def _check(self) -> GenerativeOptions:
        if self.width % self.heads:
            raise ValueError(f"width: {self.width} cannot be shared by {self.heads} heads")
        if self.pose_deviation <= self.pose_deviation_floor:
            raise ValueError(f"pose_deviation: {self.pose_deviation} is not above pose_deviation_floor")
        return self


class SCAEOptions(ModelOptions):
    """Parts with a pose, found by a convolutional network and drawn as templates, that objects explain by their votes.

    Weights of the losses are those of the released script for MNIST.
    """

    module: ClassVar[str] = "recaps.papers.probabilistic.scae"
    family: Literal["scae"] = "scae"
    parts: int = Field(24, ge=1)
    """Part capsules, each with a template of its own."""
    objects: int = Field(24, ge=1)
    """Object capsules."""
    template_size: int = Field(11, ge=1)
    """Rows and columns of a template."""
    features: int = Field(16, ge=1)
    """Special features of a part: its template's colour in an image is made of them, and objects see them."""
    channels: int = Field(128, ge=1)
    """Filters of each of the four convolutions."""
    width: int = Field(16, ge=1)
    """Dimensions of a part between the layers of the object encoder."""
    layers: int = Field(3, ge=0)
    """Self-attention layers of the object encoder."""
    object_width: int = Field(256, ge=1)
    """Dimensions of an object as it leaves the object encoder."""
    object_dim: int = Field(32, ge=1)
    """Dimensions of an object capsule, of which its votes are made."""
    hidden: int = Field(128, ge=1)
    """Width of the hidden layers of the object decoder, of which every object has its own."""
    noise_scale: float = Field(4.0, ge=0)
    """Width of the uniform noise that is added to the logits of presences. 0: none."""
    noise_at_test: bool = False
    """Reading. That noise in latents too, as in the released code, which has no switch. Without it what is found in an
    image depends on the image alone."""
    attention: Literal["most_present", "weighted"] = "most_present"
    """Reading. How presences of parts enter attention between them: 1e32 times what each lacks to one comes off its
    score, as in the released code, so that everything looks at the part with the greatest presence; or the presence's
    logarithm is added."""
    dynamic_weight: float = Field(10.0, ge=0)
    """Weight of the squared deviations of an object's parts in an image from where it always has them."""
    posterior_within: float = Field(0.7, ge=0)
    """Weight of the entropy of an image's parts over the objects that explain them; the SCAE paper has 10."""
    posterior_between: float = Field(0.2, ge=0)
    """Weight of the same entropy of a whole batch, which is to be large; the SCAE paper has 10."""
    prior_within: float = Field(2.0, ge=0)
    """Weight of the squared difference of the objects present in an image from `within_constant`; the SCAE paper
    has 1."""
    prior_between: float = Field(0.35, ge=0)
    """Weight of the squared difference of an object's presences in a batch from the images of a class; the SCAE paper
    has 1."""
    within_constant: float | None = Field(None, gt=0)
    """Reading. How many objects should be present in an image. null: as many as there are for each class. That is what
    the released code comes to, though its script says 4.3, which never reaches the model."""
