"""Model families, one module each, a complete statement of one model.

The module of a family has a function `build(options, image_shape, classes) -> Model`; its options are in the module of
the same name in `recaps.config.models`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from recaps.config.base import Section

if TYPE_CHECKING:
    from recaps.models.model import Model


def build(options: Section, image_shape: tuple[int, int, int], classes: int) -> Model:
    """Build the model that `options` describe, for images of `image_shape` (channels, height, width)."""
    family = importlib.import_module(f"recaps.models.{options.family}")  # type: ignore[attr-defined]
    model: Model = family.build(options, image_shape, classes)
    return model
