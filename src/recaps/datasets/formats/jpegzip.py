"""CIFAR-10 as a zip of JPEG files: `<split>/<class>/NNNN.jpg`."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt

from recaps.datasets.archive import broken, members
from recaps.datasets.formats.cifar import CLASSES
from recaps.datasets.formats.picture import decode

_SIZE = 32


def read(path: Path, split: str, *, expected_n: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Read a split: images `[N, 3, 32, 32]`, labels `[N]` in CIFAR-10's class order (airplane ... truck).

    Images are sorted by number, then by class, so that the first n contain all classes equally often.

    Raises:
        UserError: the archive is damaged or unsafe, a class is unknown, an image is not a 32x32 colour JPEG, or the
            number of images is wrong.
    """
    found: list[tuple[int, int, npt.NDArray[np.uint8]]] = []
    for name, content in members(path, lambda name: name.startswith(f"{split}/")):
        match = re.fullmatch(rf"{split}/([^/]+)/(\d+)\.jpg", name)
        if match is None or match[1] not in CLASSES:
            raise broken(path, f"unexpected member {name}, expected {split}/<class>/NNNN.jpg of a CIFAR-10 class")
        found.append((int(match[2]), CLASSES.index(match[1]), decode(path, name, content, "JPEG", "RGB", _SIZE)))
    if len(found) != expected_n:
        raise broken(path, f"{len(found)} images in split {split!r}, expected {expected_n}")
    found.sort(key=lambda item: item[:2])
    images = np.stack([pixels.transpose(2, 0, 1) for _, _, pixels in found])
    return images, np.array([label for _, label, _ in found], np.int64)
