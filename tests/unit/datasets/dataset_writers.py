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


def matrix(values: np.ndarray, magic: int) -> bytes:
    sizes = [*values.shape, *[1] * (3 - values.ndim)]
    return struct.pack(f"<Ii{len(sizes)}i", magic, values.ndim, *sizes) + values.tobytes()


def norb(path: Path, values: np.ndarray, magic: int) -> Path:
    path.write_bytes(gzip.compress(matrix(values, magic)))
    return path


def norb_zip(path: Path, images: np.ndarray, labels: np.ndarray, info: np.ndarray) -> Path:
    """Write the scenes of a split as the hub's zip archives have them."""
    parts = {"dat": (images, 0x1E3D4C55), "cat": (labels, 0x1E3D4C54), "info": (info, 0x1E3D4C54)}
    return zipped(path, {f"smallnorb-{name}.mat": matrix(*part) for name, part in parts.items()})


def norb_parquet(path: Path, images: np.ndarray, labels: np.ndarray, info: np.ndarray, **change: Any) -> Path:
    """Write the scenes of a split as the hub's Parquet files have them. `change` replaces columns, or omits them."""
    import pyarrow as pa
    from pyarrow import parquet

    columns: dict[str, Any] = {
        name: pa.array([{"bytes": png(scene[camera]), "path": None} for scene in images])
        for camera, name in enumerate(("image_lt", "image_rt"))
    }
    columns |= {"category": labels, **dict(zip(("instance", "elevation", "azimuth", "lighting"), info.T, strict=True))}
    columns = {name: column for name, column in {**columns, **change}.items() if column is not None}
    parquet.write_table(pa.table(columns), path)
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


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def jpeg(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()
