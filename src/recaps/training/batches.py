"""Batches made on the device: the whole set lies there as bytes, and augmentation is one operation per batch."""

from __future__ import annotations

import torch
from torch import Tensor

from recaps.config.training import Training
from recaps.models.model import Batch
from recaps.training.randomness import batch_indices, generator


class Batches:
    """The training batches of a run, as a function of the step.

    Args:
        images: uint8 [N, C, H, W].
        labels: int64 [N].
    """

    def __init__(self, images: Tensor, labels: Tensor, training: Training, seed: int, device: torch.device) -> None:
        self.images, self.labels = images.to(device), labels.to(device)
        self.training, self.seed, self.device = training, seed, device

    def __call__(self, step: int) -> Batch:
        size, shift = self.training.batch_size, self.training.shift
        indices = batch_indices(len(self.labels), size, self.seed, step).to(self.device)
        images = self.images[indices]
        if shift:
            offsets = torch.randint(-shift, shift + 1, (size, 2), generator=generator(self.seed, "shift", step))
            images = shifted(images, offsets.to(self.device))
        return {"images": as_float(images), "labels": self.labels[indices]}


def as_float(images: Tensor) -> Tensor:
    """uint8 0..255 to float32 0..1, channels last in memory, as the convolutions like it."""
    return images.float().div_(255).contiguous(memory_format=torch.channels_last)


def shifted(images: Tensor, offsets: Tensor) -> Tensor:
    """Shift every image by its own whole number of pixels, filling with zeros.

    Args:
        images: [B, C, H, W].
        offsets: int64 [B, 2], down and right.
    """
    batch, _, height, width = images.shape
    rows = torch.arange(height, device=images.device) - offsets[:, :1]
    columns = torch.arange(width, device=images.device) - offsets[:, 1:]
    inside = ((rows >= 0) & (rows < height)).unsqueeze(2) & ((columns >= 0) & (columns < width)).unsqueeze(1)
    which = torch.arange(batch, device=images.device)[:, None, None]
    moved = images.permute(0, 2, 3, 1)[
        which, rows.clamp(0, height - 1).unsqueeze(2), columns.clamp(0, width - 1).unsqueeze(1)
    ]
    return moved.permute(0, 3, 1, 2) * inside.unsqueeze(1)
