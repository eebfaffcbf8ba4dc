"""Write small files in the official formats, for tests."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy.io import savemat


def idx(path: Path, values: np.ndarray, *, magic: bytes | None = None) -> Path:
    header = (magic or bytes((0, 0, 8, values.ndim))) + struct.pack(f">{values.ndim}I", *values.shape)
    path.write_bytes(gzip.compress(header + values.astype(np.uint8).tobytes()))
    return path


def norb(path: Path, values: np.ndarray, magic: int) -> Path:
    sizes = [*values.shape, *[1] * (3 - values.ndim)]
    header = struct.pack(f"<Ii{len(sizes)}i", magic, values.ndim, *sizes)
    path.write_bytes(gzip.compress(header + values.tobytes()))
    return path


def cifar(path: Path, batches: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in batches.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def zipped(path: Path, contents: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return path


def mat(fields: Mapping[str, Any], name: str = "affNISTdata") -> bytes:
    buffer = io.BytesIO()
    savemat(buffer, {name: dict(fields)}, do_compression=True)
    return buffer.getvalue()


def affnist_fields(n: int, seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    labels = random.integers(0, 10, n)
    return {
        "affine_trans_to_original": random.normal(size=(9, n)),
        "image": random.integers(0, 256, (1600, n), dtype=np.uint8),
        "id": np.arange(1, n + 1, dtype=np.float64)[None],
        "label_one_of_n": np.eye(10, dtype=np.uint8)[labels].T,
        "label_int": labels.astype(np.uint8)[None],
        "human_readable_transform": random.normal(size=(6, n)),
        "original_id": np.arange(1, n + 1, dtype=np.uint32)[None] % 7 + 1,
    }


def jpeg(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()
