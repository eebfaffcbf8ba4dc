"""Decode pictures of a known kind and size."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import numpy.typing as npt

from recaps.datasets.archive import broken


def decode(path: Path, name: str, content: bytes, kind: str, mode: str, size: int) -> npt.NDArray[np.uint8]:
    """Return the pixels of the picture `name` in the file `path`, `[size, size]` or `[size, size, 3]`.

    Raises:
        UserError: it is no whole picture of this kind (such as `JPEG`), mode (such as `RGB`) and size.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=[kind]) as picture:
            if picture.size != (size, size) or picture.mode != mode:
                raise broken(path, f"{name} is {picture.mode} {picture.size}, expected {mode} {(size, size)}")
            return np.asarray(picture)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise broken(path, f"{name} is not a whole {kind} picture ({error})") from error
