"""Probes of the comparison: arrays of trained models for its figures."""

from __future__ import annotations

import torch
from torch import Tensor

from recaps.models.model import Model
from recaps.papers.comparison.noise import TRIALS
from recaps.training.randomness import generator

#: Noisy images per batch; does not change the result.
BATCH = 250


def reconstructions(model: Model, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The `images` and what a model with a decoder makes of them, `decoded`: [B, C, H, W] each."""
    return {"images": images, "decoded": model.reconstruct(images)}


def noise(model: Model, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Whether the model's class scores are right, bool [B], in each trial of `recaps.papers.comparison.noise`.

    Images are [B, 1, H, W], in 0..1, labels are [B]. The noise is always the same.
    """
    drawn = torch.randn(images.shape, generator=generator(0, "noise trials")).to(images.device)
    found = {}
    for name, change in TRIALS.items():
        batches = change(images, drawn).split(BATCH)
        scores = torch.cat([model.latents(batch)["scores"] for batch in batches])
        found[name] = scores.argmax(1) == labels
    return found
