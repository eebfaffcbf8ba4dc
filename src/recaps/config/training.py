"""Settings of a training run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from recaps.config.base import Range, Section, Steps


class Training(Section):
    """Batches, optimiser and precision of a training run."""

    steps: int = Field(30_000, ge=1)
    """Number of training steps; each trains on one mini-batch."""
    minutes: float | None = Field(None, gt=0)
    """Processor time of the whole training, instead of `steps`: as many steps as fit, which are timed at the start.
    `lr_decay_steps` and `snapshots` change in proportion. For comparisons of networks of other sizes."""
    batch_size: int = Field(128, ge=1)
    """Images per mini-batch."""
    pad: int = Field(0, ge=0, le=256)
    """Width of a border of zeros around every image, in pixels. Padding comes first, in training and evaluation."""
    shift: int = Field(0, ge=0)
    """Largest random shift of a training image along each axis, in pixels; zeros fill the gap. 0: no shift."""
    queue: int | None = Field(None, ge=1)
    """Reading. Number of shifted images in a shuffling queue. The set is read in file order, with all shifts of an
    image one after the other, and passes through the queue. null: batches run through the images in random order, and
    each image gets a random shift."""
    crop: int | None = Field(None, ge=1)
    """Side of the square that is cut from each image: at a random place in training, from the centre in evaluation.
    null: no crop."""
    flip: bool = False
    """Mirror each training image left to right with probability 1/2."""
    brightness: float = Field(0, ge=0, le=255)
    """Largest random change of a training image's brightness, on the scale 0 to 255. With `standardise: first` the unit
    is the standard deviation of the whole image. 0: no change."""
    contrast: Range | None = None
    """Smallest and largest random factor that multiplies a training image's contrast about each channel's mean. null:
    no change."""
    standardise: Literal["first", "last"] | None = None
    """Give every image mean 0 and standard deviation 1, as TensorFlow's `per_image_standardization`. `first`: the whole
    image, before shift, crop and all other changes. `last`: the result of these changes. null: do not standardise."""
    learning_rate: float = Field(1e-3, gt=0)
    """Initial learning rate of the optimiser. The family `generative` multiplies it by factors; in `experts` it applies
    to the autoencoder only."""
    warmup: int = Field(0, ge=0)
    """Number of steps in which the learning rate rises linearly to that of the schedule. 0: no warm-up.
    In `experts`, only the autoencoder has it."""
    lr_decay: float = Field(0.96, gt=0, le=1)
    """Factor by which the learning rate decays every `lr_decay_steps` steps. The decay is continuous."""
    lr_decay_steps: int = Field(2000, ge=1)
    """Number of steps in which the learning rate decays by `lr_decay`."""
    lr_floor: float = Field(1e-6, ge=0)
    """Smallest learning rate after the warm-up."""
    precision: Literal["auto", "bf16", "float32"] = "auto"
    """Precision of convolutions and matrix products in training. `bf16`: bfloat16 autocast. `float32`: the reference.
    `auto`: `bf16` on GPUs since 2020 and on CPUs with AMX, else `float32`. Trained models are evaluated in float32."""
    graph: bool = False
    """On a GPU, record the operations of a training step once as a CUDA graph and replay it, which saves the time that
    the host needs to launch them. Other devices, and models that cannot be recorded, take ordinary steps."""
    log_every: int = Field(50, ge=1)
    """Steps between two rows of the history."""
    tensorboard: bool = False
    """Write each row of the history, and a grid of reconstructions, for TensorBoard (docs/running.md, Watching). It
    changes no number and makes no run new."""
    snapshots: Steps = {}
    """Steps after which the weights are kept beside the final ones: a list, or a mapping from names to steps. In
    `latents` and `protocols`, `mnist/test@1000` names the latents of the snapshot after 1,000 steps, and
    `mnist/test@early` those of the snapshot `early`."""
    evaluate_every: int = Field(0, ge=0)
    """Steps between two evaluations on the test split. The history records the test error; nothing is selected by it.
    0: no evaluation."""
    evaluate_images: int | None = Field(None, ge=1)
    """Number of test images, from the first, that each evaluation uses. null: all."""

    @model_validator(mode="after")
    def _check_snapshots(self) -> Training:
        if self.lr_floor > self.learning_rate:
            raise ValueError(f"lr_floor: {self.lr_floor:g} is above the learning_rate, {self.learning_rate:g}")
        last = max(self.snapshots.values(), default=0)
        if last > self.steps:
            raise ValueError(f"snapshots: {last} is after the last step, {self.steps}")
        return self
