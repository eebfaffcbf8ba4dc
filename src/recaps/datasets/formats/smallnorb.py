"""smallNORB's "binary matrix": little-endian magic number, dimensions, at least three size words, then the data.

Each official file is a gzipped matrix. A copy on the Hugging Face hub has the matrices of a split in a zip archive.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recaps.datasets.archive import broken, gunzip, is_file, members

_TYPES = {0x1E3D4C51: "<f4", 0x1E3D4C53: "<f8", 0x1E3D4C54: "<i4", 0x1E3D4C55: "u1", 0x1E3D4C56: "<i2"}
FACTORS = ("instance", "elevation", "azimuth", "lighting")
_ALLOWED = {"elevation": range(9), "azimuth": range(0, 36, 2), "lighting": range(6)}
INSTANCES = {"train": (4, 6, 7, 8, 9), "test": (0, 1, 2, 3, 5)}

#: Images, labels and factors.
Scenes = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], dict[str, npt.NDArray[np.int64]]]


def read_matrix(path: Path) -> npt.NDArray[Any]:
    """Read a gzipped binary matrix of any documented type and shape.

    Raises:
        UserError: the file is truncated, has an unknown magic number, or its length does not match its dimensions.
    """
    return _parsed(path, gunzip(path))


def _parsed(path: Path, content: bytes) -> npt.NDArray[Any]:
    if len(content) < 8:
        raise broken(path, "the header is cut short")
    magic, dimensions = struct.unpack("<Ii", content[:8])
    if magic not in _TYPES:
        raise broken(path, f"magic number {magic:08x} is none of a smallNORB matrix")
    if not 1 <= dimensions <= 8:
        raise broken(path, f"{dimensions} dimensions")
    start = 8 + 4 * max(3, dimensions)
    if len(content) < start:
        raise broken(path, "the header is cut short")
    shape = struct.unpack(f"<{dimensions}i", content[8 : 8 + 4 * dimensions])
    if min(shape) < 0:
        raise broken(path, f"negative dimensions {shape}")
    dtype = np.dtype(_TYPES[magic])
    expected = start + int(np.prod(shape, dtype=object)) * dtype.itemsize
    if len(content) != expected:
        raise broken(path, f"dimensions {shape} need {expected} bytes, found {len(content)}")
    return np.frombuffer(content, dtype, offset=start).reshape(shape)


def read(paths: Sequence[Path], split: str, *, expected_n: int) -> Scenes:
    """Read a split from its `dat`, `cat` and `info` files.

    Returns:
        Images `[N, 2, 96, 96]` (left and right camera), labels `[N]` (animal, human, plane, truck, car), and the
        factors instance (0-9), elevation (0-8 for 30 to 70 degrees), azimuth (0, 2, ..., 34, in tens of degrees) and
        lighting (0-5).

    Raises:
        UserError: a file is malformed, the number of images is wrong, or a label or factor is out of range.
    """
    return scenes(paths, [read_matrix(path) for path in paths], split, expected_n=expected_n)


def read_zip(path: Path, split: str, *, expected_n: int) -> Scenes:
    """Read a split from a zip archive of its matrices, `*-dat.mat`, `*-cat.mat` and `*-info.mat`, as `read` does."""
    matrices = []
    for ending in ("-dat.mat", "-cat.mat", "-info.mat"):
        found = list(members(path, partial(is_file, ending=ending)))
        if len(found) != 1:
            raise broken(path, f"{len(found)} files *{ending}, expected 1")
        matrices.append(_parsed(path, found[0][1]))
    return scenes([path] * 3, matrices, split, expected_n=expected_n)


def scenes(paths: Sequence[Path], matrices: Sequence[npt.NDArray[Any]], split: str, *, expected_n: int) -> Scenes:
    """Check the matrices `dat`, `cat` and `info` of a split, and return what `read` does. `paths` are for messages."""
    dat, cat, info = paths
    images = _shaped(dat, matrices[0], np.uint8, (expected_n, 2, 96, 96))
    labels = _shaped(cat, matrices[1], np.int32, (expected_n,)).astype(np.int64)
    table = _shaped(info, matrices[2], np.int32, (expected_n, 4)).astype(np.int64)
    _check(cat, "label", labels, range(5))
    factors = {name: table[:, k].copy() for k, name in enumerate(FACTORS)}
    for name, allowed in {"instance": INSTANCES[split], **_ALLOWED}.items():
        _check(info, name, factors[name], allowed)
    return images, labels, factors


def _shaped(path: Path, matrix: npt.NDArray[Any], dtype: type[np.generic], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    if matrix.dtype != dtype or matrix.shape != shape:
        raise broken(path, f"{matrix.dtype} {matrix.shape}, expected {np.dtype(dtype)} {shape}")
    return matrix


def _check(path: Path, what: str, values: npt.NDArray[np.int64], allowed: Sequence[int]) -> None:
    wrong = values[~np.isin(values, np.asarray(allowed))]
    if wrong.size:
        raise broken(path, f"{what} {wrong[0]} is none of {', '.join(map(str, allowed))}")
