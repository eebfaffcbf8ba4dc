"""Options of the model families of the paper `example`. This module does not import PyTorch."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from recaps.models.options import ClassCapsules, RoutedNetwork


class ExampleOptions(ClassCapsules, RoutedNetwork):
    """A capsule per class, trained by margin loss."""

    module: ClassVar[str] = "recaps.plan.templates.paper.model"
    family: Literal["example"] = "example"
    decoder: tuple[int, ...] | None = None
    """Widths of the decoder's hidden layers; null: no decoder."""
    absent: float = Field(0.5, ge=0)
    """Weight of the absent classes in the margin loss."""
