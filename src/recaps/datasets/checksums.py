"""Verify official files by size and SHA-256. A file without a published digest is trusted on first use."""

from __future__ import annotations

from pathlib import Path

from recaps.datasets.sources import SourceFile
from recaps.errors import UserError
from recaps.io import digest_of


def sidecar(file: SourceFile, folder: Path) -> Path:
    """Return the path of the stored digest of a file without an official digest."""
    return folder / f"{file.name}.sha256"


def expected_digest(file: SourceFile, folder: Path) -> str | None:
    """Return the official digest of `file`, else the one stored in `folder` on first use, else None."""
    if file.sha256 is not None:
        return file.sha256
    try:
        words = sidecar(file, folder).read_text(encoding="ascii", errors="replace").split()
    except FileNotFoundError:
        return None
    if not words or len(words[0]) != 64:
        raise UserError(f"{sidecar(file, folder)}: not a SHA-256 digest; delete it and run `snakemake data` again")
    return words[0]


def mismatch(file: SourceFile, path: Path) -> str | None:
    """Return the mismatch of the file at `path` ("SHA-256 expected ..., found ..."), or None.

    Its folder may hold a digest stored on first use.
    """
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        return f"expected {file.size} bytes, found {size}"
    expected = expected_digest(file, path.parent)
    if expected is None:
        return None
    found = digest_of(path)
    return None if found == expected else f"SHA-256 expected {expected}, found {found}"


def require(file: SourceFile, folder: Path) -> str:
    """Return the SHA-256 of an official file in `folder`. Raise UserError if it is missing or another one."""
    path = folder / file.name
    if not path.is_file():
        raise UserError(f"{path}: no such file; run `snakemake data` first")
    if problem := mismatch(file, path):
        raise UserError(f"{path}: {problem}; delete it and run `snakemake data` again")
    return file.sha256 or digest_of(path)
