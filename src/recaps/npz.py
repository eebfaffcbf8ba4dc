"""Named arrays in a file (npz), without pickled objects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recaps import io
from recaps.errors import UserError

Array = npt.NDArray[Any]


def save(file: Path, arrays: dict[str, Array]) -> None:
    """Write arrays atomically."""
    writer: Callable[..., None] = np.savez
    with io.atomic(file) as temporary, open(temporary, "wb") as handle:
        writer(handle, allow_pickle=False, **arrays)


def read(file: Path, names: tuple[str, ...] | None = None) -> dict[str, Array]:
    """Read all arrays of a file, or only those in `names`.

    Raises:
        UserError: the file is missing or damaged, or lacks an array.
    """
    try:
        with np.load(file, allow_pickle=False) as archive:
            missing = set(names or ()) - set(archive.files)
            if missing:
                raise UserError(f"{file}: has no array '{missing.pop()}' (has: {', '.join(archive.files)})")
            return {name: archive[name] for name in names or archive.files}
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"{file}: no such file; first run the stage that writes it") from error
    except Exception as error:
        raise UserError(f"{file}: truncated or damaged ({error}); delete it and run again") from error
