"""Options of the floor of the comparison. Imports no PyTorch."""

from __future__ import annotations

from typing import ClassVar, Literal

from recaps.config.families import ModelOptions


class PixelsOptions(ModelOptions):
    """The image itself, as a floor for all models: heads are fitted on its pixels."""

    module: ClassVar[str] = "recaps.papers.comparison.pixels"
    family: Literal["pixels"] = "pixels"
