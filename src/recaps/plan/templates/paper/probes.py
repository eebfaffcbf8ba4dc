"""Probes of the paper `example`: arrays for figures that only a trained model can give."""

from __future__ import annotations

from torch import Tensor

from recaps.plan.templates.paper.model import Example


def lengths(model: Example, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return the `lengths` of the class capsules, [B, classes]."""
    return {"lengths": model.class_scores(images)}
