"""affNIST's MATLAB files: a struct `affNISTdata` whose `image` has one 40x40 image per column.

SciPy's parser can crash on damaged files, so the archive's CRC is checked first. This does not protect against a forged
file, because affNIST has no official checksum.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from recaps.datasets.archive import broken, is_file, listing, members, zip_problem

SIZE = 40
_HEADER = b"MATLAB 5.0 MAT-file"
_is_matrix = partial(is_file, ending=".mat")

Batch = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], dict[str, npt.NDArray[Any]]]


def problem(path: Path) -> str | None:
    """Return why a download is not an affNIST archive (a complete zip of MATLAB files), or None.

    This replaces the checksums that affNIST did not publish.
    """
    if problem := zip_problem(path):
        return problem
    with zipfile.ZipFile(path) as archive:
        matrices = [name for name in archive.namelist() if _is_matrix(name)]
        for name in matrices:
            with archive.open(name) as file:
                if file.read(len(_HEADER)) != _HEADER:
                    return f"member {name} is not a MATLAB 5 file"
    return None if matrices else "holds no .mat file"


def read(path: Path, *, versions: int | None = None) -> Iterator[Batch]:
    """Yield the batches of `test.mat.zip`, `validation.mat.zip` or a batches archive, one per .mat file.

    Batches are in the order of their numbers (1.mat, 2.mat, ...); there are at most `versions` of them.

    Yields:
        Images `[N, 1, 40, 40]`, labels `[N]`, and the factors in the file: `original` `[N]`, the index of the MNIST
        image from 0, and `transform` `[N, k]`, the columns of `human_readable_transform`.

    Raises:
        UserError: the archive is damaged or unsafe, the struct or a field is missing or malformed, or a label is out of
            range.
    """
    names = sorted(filter(_is_matrix, listing(path)), key=_number)[:versions]
    if not names:
        raise broken(path, "holds no .mat file")
    for name in names:
        ((_, content),) = members(path, {name}.__contains__)
        yield parse(path, name, content)


def parse(path: Path, name: str, content: bytes) -> Batch:
    """Parse a .mat file; `path` and `name` are for messages. Returns a batch and raises errors as `read` does."""
    where = f"{name}:"
    fields = _fields(path, where, content)
    for key in ("image", "label_int"):
        if key not in fields:
            raise broken(path, f"{where} no field {key} (it has {', '.join(sorted(fields))})")
    image = fields["image"]
    if image.dtype != np.uint8 or image.ndim != 2 or image.shape[0] != SIZE * SIZE:
        raise broken(path, f"{where} image is {image.dtype} {image.shape}, expected uint8 {SIZE * SIZE} x N")
    images = np.ascontiguousarray(image.T).reshape(-1, 1, SIZE, SIZE)
    n = len(images)
    labels = _whole(path, f"{where} label_int", fields["label_int"], n)
    if n and not 0 <= labels.min() <= labels.max() <= 9:
        raise broken(path, f"{where} label out of range 0 to 9 ({labels.min()} to {labels.max()})")
    factors: dict[str, npt.NDArray[Any]] = {}
    if ids := [key for key in fields if _is_original_id(key)]:
        originals = _whole(path, f"{where} {ids[0]}", fields[ids[0]], n)
        factors["original"] = originals - 1 if n and originals.min() >= 1 else originals
    if "human_readable_transform" in fields:
        transform = np.atleast_2d(fields["human_readable_transform"])
        if transform.ndim != 2 or transform.shape[1] != n:
            raise broken(path, f"{where} human_readable_transform is {transform.shape}, expected k x {n}")
        factors["transform"] = transform.T.astype(np.float32)
    return images, labels, factors


def _number(name: str) -> tuple[int, str]:
    digits = re.sub(r"\D", "", PurePosixPath(name).stem)
    return (int(digits) if digits else 0, name)


def _is_original_id(key: str) -> bool:
    words = re.sub(r"[^a-z]", "", key.lower())
    return "original" in words and "trans" not in words and re.sub("original", "", words).startswith("id")


def _fields(path: Path, where: str, content: bytes) -> dict[str, npt.NDArray[Any]]:
    from scipy.io import loadmat

    try:
        struct = loadmat(io.BytesIO(content), variable_names=["affNISTdata"])["affNISTdata"]
    except Exception as error:  # scipy raises many kinds for broken bytes
        raise broken(path, f"{where} no MATLAB struct affNISTdata ({error!r})") from error
    if struct.dtype.names is None or struct.size != 1:
        raise broken(path, f"{where} affNISTdata is not a single MATLAB struct")
    return {key: np.asarray(struct[key].item()) for key in struct.dtype.names}


def _whole(path: Path, where: str, values: npt.NDArray[Any], n: int) -> npt.NDArray[np.int64]:
    flat = np.ravel(values)
    if flat.shape != (n,) or flat.dtype.kind not in "iuf":
        raise broken(path, f"{where} is {values.dtype} {values.shape}, expected {n} numbers")
    whole = flat.astype(np.int64)
    if not np.array_equal(whole, flat):
        raise broken(path, f"{where} holds numbers that are not whole")
    return whole
