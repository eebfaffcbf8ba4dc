"""smallNORB in Parquet, as on the Hugging Face hub: a row for each scene, with two PNG pictures and five numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from recaps.datasets.archive import broken
from recaps.datasets.formats import smallnorb
from recaps.datasets.formats.picture import decode
from recaps.errors import UserError

_CAMERAS = ("image_lt", "image_rt")
_NUMBERS = ("category", *smallnorb.FACTORS)
_MARK = b"PAR1"


def problem(path: Path) -> str | None:
    """Return why a download is not a whole Parquet file, or None."""
    content = path.read_bytes()
    return None if content.startswith(_MARK) and content.endswith(_MARK) else "not a whole Parquet file"


def read(path: Path, split: str, *, expected_n: int) -> smallnorb.Scenes:
    """Read a split. Returns what `smallnorb.read` returns for the official files.

    Raises:
        UserError: `pyarrow` is missing, the file is damaged, a column is missing or has another type, a picture is not
            a grey PNG of 96x96, the number of scenes is wrong, or a label or factor is out of range.
    """
    columns = _columns(path)
    images = np.empty((len(columns["category"]), len(_CAMERAS), 96, 96), np.uint8)
    for camera, column in enumerate(_CAMERAS):
        for row, content in enumerate(columns[column]):
            images[row, camera] = decode(path, f"{column} of row {row}", content or b"", "PNG", "L", 96)
    labels, *factors = (np.array(columns[name]) for name in _NUMBERS)
    return smallnorb.scenes([path] * 3, (images, labels, np.stack(factors, 1)), split, expected_n=expected_n)


def _columns(path: Path) -> dict[str, Any]:
    """Return the columns by name: lists of the bytes of pictures, and arrays of int32."""
    try:
        import pyarrow as pa
        from pyarrow import compute, parquet
    except ImportError as error:
        raise UserError(
            f"{path}: pyarrow is missing; `pip install pyarrow` (the extra `parquet`), or use smallnorb-zip"
        ) from error
    try:
        table = parquet.ParquetFile(path).read()
        for name in (*_CAMERAS, *_NUMBERS):
            if name not in table.column_names:
                raise broken(path, f"no column {name} (it has {', '.join(table.column_names)})")
        pictures = {name: compute.struct_field(table[name], "bytes").to_pylist() for name in _CAMERAS}
        return pictures | {name: table[name].cast(pa.int32()).to_numpy() for name in _NUMBERS}
    except (pa.ArrowException, OSError) as error:
        raise broken(path, f"not a Parquet file of scenes ({error})") from error
