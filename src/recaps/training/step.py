"""What a training computes: a model with its initial weights, and its steps.

The digests of this module and of all that it imports, except for housekeeping, are part of what identifies a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from recaps.config.families import families
from recaps.models import build
from recaps.models.model import Model
from recaps.training.batches import Batches
from recaps.training.device import arithmetic
from recaps.training.randomness import generator


def fresh_model(settings: Mapping[str, Any], image_shape: tuple[int, int, int], classes: int, seed: int) -> Model:
    """Build a model with the initial weights of a seed."""
    options = families()[settings["model"]["family"]].model_validate(settings["model"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator(seed, "initial weights").initial_seed())
        return build(options, image_shape, classes)


def take_step(model: Model, batches: Batches, step: int) -> dict[str, Tensor]:
    """Train `model` for step number `step`, in the precision of its training. Return the step's metrics."""
    with arithmetic(batches.device, model.training_options.precision):
        return model.training_step(batches(step), step)
