"""Gzip files."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from recaps.datasets.archive import broken
from recaps.errors import UserError


def read(path: Path) -> bytes:
    """Decompress a `.gz` file.

    Raises:
        UserError: the file is missing, truncated or not gzip.
    """
    try:
        with gzip.open(path, "rb") as file:
            return file.read()
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file; run `snakemake data` first") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise broken(path, f"a truncated or damaged gzip file ({error})") from error
