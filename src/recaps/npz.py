"""Named arrays in a file (npz), without pickled objects. An array may belong to a part: its name is `part/array`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recaps import io
from recaps.errors import Missing, UserError

Array = npt.NDArray[Any]


def save(file: Path, arrays: dict[str, Array], *, compressed: bool = False) -> None:
    """Write arrays atomically."""
    writer: Callable[..., None] = np.savez_compressed if compressed else np.savez
    with io.atomic(file) as temporary, open(temporary, "wb") as handle:
        writer(handle, allow_pickle=False, **arrays)


def save_parts(file: Path, parts: Mapping[str, Mapping[str, Array]], *, compressed: bool = False) -> None:
    """Write several parts atomically, each with named arrays."""
    flat = {f"{part}/{name}": each for part, arrays in parts.items() for name, each in arrays.items()}
    save(file, flat, compressed=compressed)


def read(file: Path, names: tuple[str, ...] | None = None, *, part: str = "") -> dict[str, Array]:
    """Read all arrays of a file or of one of its parts, or only those in `names`.

    Raises:
        Missing: there is no such file, part or array.
        UserError: the file is damaged.
    """
    start = f"{part}/" if part else ""
    try:
        with np.load(file, allow_pickle=False) as archive:
            known = [name.removeprefix(start) for name in archive.files if name.startswith(start)]
            if not known and part:
                there = sorted({name.rpartition("/")[0] for name in archive.files})
                raise Missing(f"{file}: has no '{part}' (has: {', '.join(there)})")
            if missing := set(names or ()) - set(known):
                raise Missing(f"{file}: has no array '{start}{missing.pop()}' (has: {', '.join(known)})")
            return {name: archive[start + name] for name in names or known}
    except UserError:
        raise
    except FileNotFoundError as error:
        raise Missing(f"{file}: no such file; first run the stage that writes it") from error
    except Exception as error:
        raise UserError(f"{file}: truncated or damaged ({error}); delete it and run again") from error
