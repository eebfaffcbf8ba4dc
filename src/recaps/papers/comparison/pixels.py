"""The image itself in the place of a model."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from recaps.config.training import Training
from recaps.models.model import Batch, Model
from recaps.papers.comparison.options import PixelsOptions


class Pixels(Model):
    """Has no parameters, learns nothing, and returns its images."""

    def configure(self, training: Training) -> None:
        self.training_options = training

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {}

    def schedule(self, step: int) -> Hashable:
        return None

    def work(self, batch: Batch) -> dict[str, Tensor]:
        return {"loss": batch["images"].new_zeros(())}

    def reconstruct(self, images: Tensor) -> Tensor:
        return images

    def latents(self, images: Tensor) -> dict[str, Tensor]:
        """`capsules`, the name that heads read: the pixels, [B, C * H * W]."""
        return {"capsules": images.flatten(1)}


def build(options: PixelsOptions, image_shape: tuple[int, int, int], classes: int) -> Pixels:
    return Pixels()
