"""Options of the family `scae`: a stacked capsule autoencoder, to which a paper's model is compared."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from recaps.config.base import Section


class Options(Section):
    """Parts with a pose, found by a convolutional network and drawn as templates, that objects explain by their votes.

    Weights of the losses are those of the released script for MNIST.
    """

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
