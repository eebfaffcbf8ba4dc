"""How a variant is trained."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from recaps.config.base import Section


class Training(Section):
    """Optimisation, batches and precision of one training run."""

    steps: int = Field(30_000, ge=1)
    """Mini-batches to train on."""
    batch_size: int = Field(128, ge=1)
    """Images per mini-batch."""
    pad: int = Field(0, ge=0)
    """Width of the border of zeros that is put around every image before all else, in training and afterwards."""
    shift: int = Field(0, ge=0)
    """Largest random shift of a training image, in pixels along each axis, zero filled. 0: none."""
    crop: int | None = Field(None, ge=1)
    """Side of the square that is cut from each image: at random in training, from the centre otherwise. null: none."""
    flip: bool = False
    """Mirror training images left to right, each with probability 1/2."""
    brightness: float = Field(0, ge=0)
    """Largest random change of a training image's brightness, on the scale 0 to 255; with `standardise: first` in
    standard deviations of the whole image. 0: none."""
    contrast: tuple[float, float] | None = None
    """Range of the random factor of a training image's contrast, about each channel's mean. null: none."""
    standardise: Literal["first", "last"] | None = None
    """Give every image mean 0 and standard deviation 1, as TensorFlow's `per_image_standardization`. `first`: the whole
    image, before it is shifted, cropped and changed. `last`: what is left after that. null: not at all."""
    learning_rate: float = Field(1e-3, gt=0)
    """Adam's learning rate at step 0."""
    lr_decay: float = Field(0.96, gt=0, le=1)
    """Factor by which the learning rate shrinks every `lr_decay_steps`, continuously."""
    lr_decay_steps: int = Field(2000, ge=1)
    """Steps over which the learning rate shrinks by `lr_decay`."""
    lr_floor: float = Field(1e-6, ge=0)
    """The learning rate never falls below this."""
    precision: Literal["bf16", "float32"] = "bf16"
    """Arithmetic of convolutions and matrix products: bfloat16 autocast, or float32 as the reference."""
    log_every: int = Field(50, ge=1)
    """Steps between two rows of the history."""
    evaluate_every: int = Field(0, ge=0)
    """Steps between two tests on the test split. Its error goes into the history; nothing is chosen by it. 0: none."""
    evaluate_images: int | None = Field(None, ge=1)
    """Test only on the first so many images. null: all."""
