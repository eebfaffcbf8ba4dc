"""IDX, the format of MNIST and Fashion-MNIST: big-endian header, then unsigned bytes."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from recaps.datasets.archive import broken, gunzip


def read(path: Path, *, dimensions: int) -> npt.NDArray[np.uint8]:
    """Read a gzipped IDX file of unsigned bytes with the given number of dimensions.

    The header is two zero bytes, the type (8: unsigned byte), the number of dimensions, then each as uint32.

    Raises:
        UserError: the file is truncated, has a wrong magic number, or its length does not match its dimensions.
    """
    content = gunzip(path)
    magic = bytes((0, 0, 8, dimensions))
    if content[:4] != magic:
        raise broken(path, f"magic number {content[:4].hex()}, expected {magic.hex()} (IDX of bytes)")
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise broken(path, "the IDX header is cut short")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    expected = start + int(np.prod(shape, dtype=object))
    if len(content) != expected:
        raise broken(path, f"dimensions {shape} need {expected} bytes, found {len(content)}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_images(path: Path, *, expected_n: int) -> npt.NDArray[np.uint8]:
    """Read images `[N, 1, 28, 28]`. Raises UserError unless there are `expected_n` of this size."""
    images = read(path, dimensions=3)
    if images.shape != (expected_n, 28, 28):
        raise broken(path, f"images of shape {images.shape}, expected {(expected_n, 28, 28)}")
    return images[:, None]


def read_labels(path: Path, *, expected_n: int) -> npt.NDArray[np.int64]:
    """Read labels `[N]`. Raises UserError unless there are `expected_n`, all below 10."""
    labels = read(path, dimensions=1).astype(np.int64)
    if labels.shape != (expected_n,):
        raise broken(path, f"{len(labels)} labels, expected {expected_n}")
    if labels.size and labels.max() >= 10:
        raise broken(path, f"label {labels.max()} out of range 0 to 9")
    return labels
