"""Batches made on the device, and how a model sees an image: in training under random changes, otherwise as it is."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from recaps.config.training import Training
from recaps.errors import UserError
from recaps.models.model import Batch
from recaps.training.images import Pairs, Samples, shifted
from recaps.training.randomness import batch_indices, generator


class Batches:
    """The training batches of a run, as a function of the step."""

    def __init__(self, samples: Samples, training: Training, seed: int, device: torch.device) -> None:
        changes = ("pad", "shift", "crop", "flip", "brightness", "contrast", "standardise")
        if isinstance(samples, Pairs) and (set_ := [name for name in changes if getattr(training, name)]):
            raise UserError(
                f"training.{set_[0]}: cannot be had on pairs of digits, whose parts would not follow; unset it"
            )
        self.samples, self.training, self.seed, self.device = samples, training, seed, device

    def __call__(self, step: int) -> Batch:
        size, samples = self.training.batch_size, self.samples
        indices = batch_indices(len(samples.labels), size, self.seed, step, samples.versions)
        batch = samples(indices.to(self.device))
        changed = {"images": self._changed(batch["images"], step)}
        if "parts" in batch:
            changed["parts"] = as_float(batch["parts"].flatten(0, 1)).unflatten(0, batch["parts"].shape[:2])
        return batch | changed

    def _changed(self, images: Tensor, step: int) -> Tensor:
        """Images in the random view of a step: padded, shifted, cropped, mirrored, changed in brightness, then in
        contrast; standardised once they are padded, after all else, or not at all."""
        training, size = self.training, len(images)
        images = padded(images, training.pad)
        first = training.standardise == "first"
        if first:
            images = standardised(as_float(images))
        if shift := training.shift:
            offsets = torch.randint(-shift, shift + 1, (size, 2), generator=generator(self.seed, "shift", step))
            images = shifted(images, offsets.to(self.device))
        if crop := training.crop:
            spare = torch.tensor(images.shape[2:]) - crop + 1
            corners = torch.rand(size, 2, generator=generator(self.seed, "crop", step)) * spare
            images = cropped(images, corners.long().to(self.device), crop)
        if training.flip:
            mirror = torch.rand(size, generator=generator(self.seed, "flip", step)) < 0.5
            images = torch.where(mirror.to(self.device)[:, None, None, None], images.flip(3), images)
        images = as_float(images)
        if training.brightness:
            images = images + self._uniform("brightness", step, -1, 1) * training.brightness / (1 if first else 255)
        if training.contrast:
            mean = images.mean((2, 3), keepdim=True)
            images = mean + (images - mean) * self._uniform("contrast", step, *training.contrast)
        return standardised(images) if training.standardise == "last" else images

    def _uniform(self, purpose: str, step: int, low: float, high: float) -> Tensor:
        """A number for every image, [B, 1, 1, 1]."""
        values = torch.rand(self.training.batch_size, generator=generator(self.seed, purpose, step))
        return (low + (high - low) * values).to(self.device)[:, None, None, None]


def view(images: Tensor, training: Training) -> Tensor:
    """Images as the trained model is shown them: uint8 [B, C, H, W] to float32 [B, C, h, w]."""
    images = padded(images, training.pad)
    if training.standardise == "first":
        images = standardised(as_float(images))
    if crop := training.crop:
        corner = [(side - crop) // 2 for side in images.shape[2:]]
        images = images[:, :, corner[0] : corner[0] + crop, corner[1] : corner[1] + crop]
    images = as_float(images)
    return standardised(images) if training.standardise == "last" else images


def view_shape(image_shape: tuple[int, int, int], training: Training) -> tuple[int, int, int]:
    """Shape (C, H, W) of what the model sees of images of a shape."""
    channels, height, width = image_shape
    height, width = height + 2 * training.pad, width + 2 * training.pad
    if training.crop and training.crop > min(height, width):
        raise UserError(f"training.crop: {training.crop}, but the images are only {height}x{width}")
    return (channels, training.crop or height, training.crop or width)


def as_float(images: Tensor) -> Tensor:
    """uint8 0..255 to float32 0..1, channels last in memory, as the convolutions like it; floats keep their values."""
    images = images if images.is_floating_point() else images.float().div_(255)
    return images.contiguous(memory_format=torch.channels_last)


def padded(images: Tensor, border: int) -> Tensor:
    """Images [B, C, H, W] in the middle of a larger canvas of zeros."""
    return pad(images, 4 * (border,)) if border else images


def cropped(images: Tensor, corners: Tensor, side: int) -> Tensor:
    """Cut a square from every image, each at its own place.

    Args:
        images: [B, C, H, W].
        corners: int64 [B, 2], first row and first column.
        side: of the squares, in pixels.
    """
    along = torch.arange(side, device=images.device)
    rows, columns = ((corners[:, axis : axis + 1] + along) for axis in (0, 1))
    which = torch.arange(len(images), device=images.device)[:, None, None]
    return images.permute(0, 2, 3, 1)[which, rows.unsqueeze(2), columns.unsqueeze(1)].permute(0, 3, 1, 2)


def standardised(images: Tensor) -> Tensor:
    """Mean 0 and standard deviation 1 in every image, deviations below 1/sqrt(numbers) counting as that."""
    centred = images - images.mean((1, 2, 3), keepdim=True)
    deviation = centred.square().mean((1, 2, 3), keepdim=True).sqrt()
    return centred / deviation.clamp_min(images[0].numel() ** -0.5)
