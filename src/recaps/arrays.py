"""A split of a data set: arrays in memory, and their format on disk.

This module is not part of `recaps.datasets`, so that readers of splits do not depend on the code that prepares them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from recaps import io
from recaps.errors import UserError
from recaps.layout import DATASET_FILES

*_FILES, _RECORD = DATASET_FILES


@dataclass(frozen=True)
class Arrays:
    """One split of one data set.

    Attributes:
        images: uint8 `[N, C, H, W]`; memory-mapped and read-only when loaded.
        labels: int64 `[N]`.
        factors: other attributes of the images, each `[N]` or `[N, k]`.
        record: provenance: name, split, title, stand_in, sources, options, seed, n, shape, digest.
    """

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    factors: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = len(self.images)
        if self.images.dtype != np.uint8 or self.images.ndim != 4:
            raise ValueError(f"images are {self.images.dtype} {self.images.shape}, not uint8 [N, C, H, W]")
        if self.labels.dtype != np.int64 or self.labels.shape != (n,):
            raise ValueError(f"labels are {self.labels.dtype} {self.labels.shape}, not int64 [{n}]")
        for name, values in self.factors.items():
            if values.ndim not in (1, 2) or len(values) != n:
                raise ValueError(f"factor {name!r} is {values.shape}, not [{n}] or [{n}, k]")

    def __len__(self) -> int:
        return len(self.images)

    def take(self, rows: slice) -> Arrays:
        """Return a view of the images in `rows`, with their labels and factors."""
        factors = {name: values[rows] for name, values in self.factors.items()}
        return Arrays(self.images[rows], self.labels[rows], factors, self.record)

    def digest(self) -> str:
        """Return the SHA-256 of shape, images and labels, in hexadecimal."""
        state = hashlib.sha256(repr(self.images.shape).encode())
        for start in range(0, len(self), 4096):
            state.update(np.ascontiguousarray(self.images[start : start + 4096]).data)
        state.update(np.ascontiguousarray(self.labels).data)
        return state.hexdigest()


def save(arrays: Arrays, folder: Path) -> Path:
    """Write a split to `folder`. The record is written last; if it exists, all files are complete."""
    folder = Path(folder)
    (folder / _RECORD).unlink(missing_ok=True)
    _write(folder / "images.npy", lambda file: np.save(file, arrays.images, allow_pickle=False))
    _write(folder / "labels.npy", lambda file: np.save(file, arrays.labels, allow_pickle=False))
    _write(folder / "factors.npz", lambda file: np.savez(file, allow_pickle=False, **arrays.factors))
    shape = {"n": len(arrays), "shape": list(arrays.images.shape), "digest": arrays.digest()}
    io.write_json(folder / _RECORD, {**arrays.record, **shape})
    return folder


def read(folder: Path) -> Arrays:
    """Read a prepared split from `<root>/<name>/<split>`; images are memory-mapped.

    Raises:
        UserError: the split is not prepared, or a file is missing, truncated or inconsistent.
    """
    folder = Path(folder)
    if not (folder / _RECORD).is_file():
        raise UserError(f"{folder / _RECORD}: no such file; prepare this split first (`snakemake data`)")
    record, images, labels, factors = (_read(folder / file) for file in (_RECORD, *_FILES))
    try:
        arrays = Arrays(images, labels, factors, record)
    except (ValueError, AttributeError) as error:
        raise UserError(f"{folder}: {error}; {_MEND}") from error
    recorded = record.get("shape") if isinstance(record, dict) else record
    if list(arrays.images.shape) != recorded:
        raise UserError(f"{folder}: images are {arrays.images.shape}, but its record says {recorded}; {_MEND}")
    return arrays


_MEND = "delete the folder and run again"


def _write(path: Path, writer: Callable[[IO[bytes]], None]) -> None:
    with io.atomic(path) as temporary, open(temporary, "wb") as file:
        writer(file)


def _read(path: Path) -> Any:
    try:
        if path.suffix == ".json":
            return json.loads(path.read_text(encoding="utf-8"))
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
        return np.load(path, mmap_mode="r" if path.stem == "images" else None, allow_pickle=False)
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file; {_MEND}") from error
    except Exception as error:  # numpy, zipfile and json raise many kinds for broken bytes
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: truncated or damaged ({reason}); {_MEND}") from error
