"""CIFAR-10's binary archive: records of a label byte and 3,072 pixels (red, green and blue plane)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from recaps.datasets.archive import broken, members

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_FOLDER = "cifar-10-batches-bin"
_BATCHES = {"train": tuple(f"data_batch_{k}.bin" for k in range(1, 6)), "test": ("test_batch.bin",)}
_RECORD = 1 + 3 * 32 * 32


def read(path: Path, split: str, *, expected_n: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Read a split from `cifar-10-binary.tar.gz`: images `[N, 3, 32, 32]` and labels `[N]`, in the order of batches.

    Raises:
        UserError: the archive is damaged or unsafe, a batch is missing or has a wrong size, or a label is out of range.
    """
    names = [f"{_FOLDER}/{batch}" for batch in _BATCHES[split]]
    found = dict(members(path, lambda name: name in names))
    for name in names:
        if name not in found:
            raise broken(path, f"no member {name}")
        if len(found[name]) % _RECORD:
            raise broken(path, f"{name} has {len(found[name])} bytes, not a multiple of {_RECORD}")
    records = np.frombuffer(b"".join(found[name] for name in names), np.uint8).reshape(-1, _RECORD)
    if len(records) != expected_n:
        raise broken(path, f"{len(records)} images in split {split!r}, expected {expected_n}")
    labels = records[:, 0].astype(np.int64)
    if labels.size and labels.max() >= len(CLASSES):
        raise broken(path, f"label {labels.max()} out of range 0 to {len(CLASSES) - 1}")
    return records[:, 1:].reshape(-1, 3, 32, 32), labels
