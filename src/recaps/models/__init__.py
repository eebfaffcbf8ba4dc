"""Models that several papers share. The models of a single paper are in its folder, `recaps.papers.<paper>`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from recaps.config.families import ModelOptions

if TYPE_CHECKING:
    from recaps.models.model import Model


def build(options: ModelOptions, image_shape: tuple[int, int, int], classes: int) -> Model:
    """Build the model of `options` for images of shape `image_shape` (channels, height, width)."""
    model: Model = importlib.import_module(options.module).build(options, image_shape, classes)
    return model
