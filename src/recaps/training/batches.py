"""Training batches with random changes of the images, and the unchanged view of images in evaluation."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from recaps.config.training import Training
from recaps.errors import UserError
from recaps.models.model import Batch
from recaps.training.device import move
from recaps.training.images import ImagePairs, Images, shifted
from recaps.training.randomness import ShufflingQueue, batch_indices, generator

Drawn = dict[str, Tensor]
"""The random numbers of a batch by what they change, each [B, ...]."""


class Batches:
    """The training batches of a run; a batch is a function of the step.

    `draw` makes the random numbers of a batch on the host, `make` the batch from them on the device.
    """

    def __init__(self, images: Images, training: Training, seed: int, device: torch.device) -> None:
        changes = ("pad", "shift", "queue", "crop", "flip", "brightness", "contrast", "standardise")
        if isinstance(images, ImagePairs) and (set_ := [name for name in changes if getattr(training, name)]):
            raise UserError(
                f"training.{set_[0]}: not supported for pairs of images, as it would not change their parts; remove it"
            )
        self.images, self.training, self.seed, self.device = images, training, seed, device
        self.queue = ShufflingQueue(training.queue, seed) if training.queue else None

    def __call__(self, step: int) -> Batch:
        return self.make({name: move(values, self.device) for name, values in self.draw(step).items()})

    def draw(self, step: int) -> Drawn:
        """Draw, on the host, what a step's batch is made from.

        Returns:
            `indices` of images, int64 [B]; and, if they change, `offsets` of the shift in pixels, int64 [B, 2]; first
            row and column of the `crop`, int64 [B, 2]; whether they `flip`, bool [B]; `brightness`, from -1 to 1, and
            `contrast`, [B].
        """
        training, size = self.training, self.training.batch_size
        indices, offsets = self._images_and_shifts(step)
        drawn = {"indices": indices}
        if training.shift:
            drawn["offsets"] = offsets
        if training.crop:
            _, height, width = self.images.images.shape[1:]
            spare = torch.tensor([height, width]) + 2 * training.pad - training.crop + 1
            drawn["crop"] = (torch.rand(size, 2, generator=generator(self.seed, "crop", step)) * spare).long()
        if training.flip:
            drawn["flip"] = torch.rand(size, generator=generator(self.seed, "flip", step)) < 0.5
        if training.brightness:
            drawn["brightness"] = self._uniform("brightness", step, -1, 1)
        if training.contrast:
            drawn["contrast"] = self._uniform("contrast", step, *training.contrast)
        return drawn

    def make(self, drawn: Drawn) -> Batch:
        """Make a batch, on the device, from what `draw` returned."""
        batch = self.images(drawn["indices"])
        changed = {"images": self._changed(batch["images"], drawn)}
        if "parts" in batch:
            changed["parts"] = as_float(batch["parts"].flatten(0, 1)).unflatten(0, batch["parts"].shape[:2])
        return batch | changed

    def _images_and_shifts(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the indices [B] of a step's images and their shifts in pixels, [B, 2].

        In the queue, record i * V + v is image i with shift v; an image has V shifts.
        """
        shift, size, n = self.training.shift, self.training.batch_size, len(self.images.labels)
        if self.queue:
            side = 2 * shift + 1
            records = self.queue(step * size, (step + 1) * size)
            shifts = records % side**2
            return records // side**2 % n, torch.stack((shifts // side, shifts % side), 1) - shift
        random = generator(self.seed, "shift", step)
        indices = batch_indices(n, size, self.seed, step, self.images.versions)
        return indices, torch.randint(-shift, shift + 1, (size, 2), generator=random)

    def _changed(self, images: Tensor, drawn: Drawn) -> Tensor:
        """Change images at random: pad, shift, crop, flip, brightness, contrast, in this order.

        Images are standardised after padding (`first`), after all changes (`last`), or not at all.
        """
        training = self.training
        images = padded(images, training.pad)
        first = training.standardise == "first"
        if first:
            images = standardised(as_float(images))
        if training.shift:
            images = shifted(images, drawn["offsets"])
        if training.crop:
            images = cropped(images, drawn["crop"], training.crop)
        if training.flip:
            images = torch.where(drawn["flip"][:, None, None, None], images.flip(3), images)
        images = as_float(images)
        if training.brightness:
            images = images + drawn["brightness"][:, None, None, None] * training.brightness / (1 if first else 255)
        if training.contrast:
            mean = images.mean((2, 3), keepdim=True)
            images = mean + (images - mean) * drawn["contrast"][:, None, None, None]
        return standardised(images) if training.standardise == "last" else images

    def _uniform(self, purpose: str, step: int, low: float, high: float) -> Tensor:
        """Draw a number for every image, [B]."""
        values = torch.rand(self.training.batch_size, generator=generator(self.seed, purpose, step))
        return low + (high - low) * values


def view(images: Tensor, training: Training) -> Tensor:
    """Return images [B, C, H, W], uint8 or floats in 0..1, as a model sees them in evaluation: float32 [B, C, h, w]."""
    images = padded(images, training.pad)
    if training.standardise == "first":
        images = standardised(as_float(images))
    if crop := training.crop:
        corner = [(side - crop) // 2 for side in images.shape[2:]]
        images = images[:, :, corner[0] : corner[0] + crop, corner[1] : corner[1] + crop]
    images = as_float(images)
    return standardised(images) if training.standardise == "last" else images


def view_shape(image_shape: tuple[int, int, int], training: Training) -> tuple[int, int, int]:
    """Return the shape (C, H, W) that the model sees of images of shape `image_shape`."""
    channels, height, width = image_shape
    height, width = height + 2 * training.pad, width + 2 * training.pad
    if training.crop and training.crop > min(height, width):
        raise UserError(f"training.crop: {training.crop}, but the images are only {height}x{width}")
    return (channels, training.crop or height, training.crop or width)


def as_float(images: Tensor) -> Tensor:
    """Convert uint8 in 0..255 to float32 in 0..1; floats keep their values. The memory format is channels last."""
    images = images if images.is_floating_point() else images.float().div_(255)
    return images.contiguous(memory_format=torch.channels_last)


def padded(images: Tensor, border: int) -> Tensor:
    """Pad images [B, C, H, W] with a border of zeros."""
    return pad(images, 4 * (border,)) if border else images


def cropped(images: Tensor, corners: Tensor, side: int) -> Tensor:
    """Crop a square from each image at its own place.

    Args:
        images: [B, C, H, W].
        corners: first row and first column of the squares, int64 [B, 2].
        side: side of the squares, in pixels.
    """
    along = torch.arange(side, device=images.device)
    rows, columns = ((corners[:, axis : axis + 1] + along) for axis in (0, 1))
    which = torch.arange(len(images), device=images.device)[:, None, None]
    return images.permute(0, 2, 3, 1)[which, rows.unsqueeze(2), columns.unsqueeze(1)].permute(0, 3, 1, 2)


def standardised(images: Tensor) -> Tensor:
    """Scale every image to mean 0 and standard deviation 1, as TensorFlow's `per_image_standardization`.

    The divisor is max(sd, 1 / sqrt(n)), n being the number of values in the image.
    """
    centred = images - images.mean((1, 2, 3), keepdim=True)
    sd = centred.square().mean((1, 2, 3), keepdim=True).sqrt()
    return centred / sd.clamp_min(images[0].numel() ** -0.5)
