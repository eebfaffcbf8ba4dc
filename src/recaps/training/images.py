"""The images of a split on the device: as they are (`Images`), or in overlapping pairs (`ImagePairs`, MultiMNIST)."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from recaps.arrays import Arrays
from recaps.models.model import Batch
from recaps.training.device import move

_WORD = 2**63 - 1


class Images:
    """The images and labels of a split, as bytes on the device. Call it with indices to get a batch.

    Attributes:
        images: uint8 [N, C, H, W].
        labels: int64 [N].
        versions: number of versions of each image; index i + N * v is version v of image i.
    """

    versions = 1

    def __init__(self, arrays: Arrays, device: torch.device) -> None:
        self.images = move(torch.tensor(arrays.images), device)
        self.labels = move(torch.tensor(arrays.labels), device)

    def __len__(self) -> int:
        return len(self.labels) * self.versions

    def __call__(self, indices: Tensor) -> Batch:
        """Return `images`, uint8 [B, C, H, W], and `labels`, int64 [B], at indices [B]."""
        return {"images": self.images[indices], "labels": self.labels[indices]}


class ImagePairs(Images):
    """Every image of a split, overlaid with partners of other classes; both are shifted at random.

    A pair depends only on its index and on the name of the split, so that tens of millions of pairs take no memory.
    Image i has one shift in all its pairs, as in the released code of SUPCAPS. Its partner in each pair is uniform
    among the images of other classes, and has a shift of its own.
    """

    def __init__(self, arrays: Arrays, device: torch.device) -> None:
        super().__init__(arrays, device)
        parameters = arrays.record["parameters"]
        self.versions, self.shift = parameters["pairs"], parameters["shift"]
        self.seed = arrays.record["seed"]
        self.by_class = self.labels.argsort(stable=True)
        self.count = self.labels.bincount(minlength=arrays.record["classes"])
        self.start = self.count.cumsum(0) - self.count

    def __call__(self, indices: Tensor) -> Batch:
        """Return the pairs at indices [B].

        Returns:
            `images`, uint8 [B, C, H, W]: the sum of two images, clipped at 255; their `labels`, int64 [B, 2]; `parts`,
            uint8 [B, 2, C, H, W]: each of the two images alone.
        """
        base = indices % len(self.labels)
        partner = self._partner(base, indices)
        parts = [
            shifted(self.images[which], self._shifts(name, counter))
            for name, which, counter in (("base", base, base), ("partner", partner, indices))
        ]
        return {
            "images": (parts[0].short() + parts[1].short()).clamp_max(255).byte(),
            "labels": self.labels[torch.stack([base, partner], 1)],
            "parts": torch.stack(parts, 1),
        }

    def _partner(self, base: Tensor, indices: Tensor) -> Tensor:
        """An image of another class: a random place in the order by class, skipping the class of `base`."""
        label = self.labels[base]
        place = drawn(f"{self.seed}/partner", indices, len(self.labels) - self.count[label])
        return self.by_class[place + torch.where(place >= self.start[label], self.count[label], 0)]

    def _shifts(self, name: str, counters: Tensor) -> Tensor:
        each = [drawn(f"{self.seed}/{name}/{axis}", counters, 2 * self.shift + 1) for axis in ("down", "right")]
        return torch.stack(each, 1) - self.shift


def images_of(arrays: Arrays, device: torch.device) -> Images:
    """Return the images of a split on the device, in pairs if the record of the split says so."""
    kind = ImagePairs if "pairs" in arrays.record.get("parameters", {}) else Images
    return kind(arrays, device)


def drawn(seed: str, counters: Tensor, high: Tensor | int) -> Tensor:
    """Return a random integer from 0 to high - 1 for every counter (int64), by SplitMix64: equal on all devices."""
    start = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "little", signed=True)
    word = (counters + 1) * _signed(0x9E3779B97F4A7C15) + start
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        word = (word ^ _shifted_right(word, shift)) * _signed(factor)
    return ((word ^ _shifted_right(word, 31)) & _WORD) % high


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


def _shifted_right(word: Tensor, by: int) -> Tensor:
    """Shift right by `by` bits, filling with zeros."""
    return (word >> by) & (2 ** (64 - by) - 1)


def shifted(images: Tensor, offsets: Tensor) -> Tensor:
    """Shift each image by its own number of pixels, filling with zeros.

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
