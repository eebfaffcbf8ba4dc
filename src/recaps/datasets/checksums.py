"""Is this file the official one? Size and SHA-256, or trust on first use where nobody published them."""

from __future__ import annotations

from pathlib import Path

from recaps.datasets.sources import SourceFile
from recaps.digests import digest_of
from recaps.errors import UserError


def sidecar(file: SourceFile, folder: Path) -> Path:
    """Where the digest of a file without an official one is kept."""
    return folder / f"{file.name}.sha256"


def expected_digest(file: SourceFile, folder: Path) -> str | None:
    """The digest demanded of `file` in `folder`: the official one, else the one stored at first use, else None."""
    if file.sha256 is not None:
        return file.sha256
    try:
        words = sidecar(file, folder).read_text(encoding="ascii", errors="replace").split()
    except FileNotFoundError:
        return None
    if not words or len(words[0]) != 64:
        raise UserError(f"{sidecar(file, folder)}: not a SHA-256 digest; delete it and run `snakemake data` again")
    return words[0]


def mismatch(file: SourceFile, path: Path, folder: Path) -> str | None:
    """What is wrong with the file at `path`, in words ("SHA-256 expected ..., found ..."), or None.

    `folder` is where the file belongs, which is where a digest stored at first use is looked up.
    """
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        return f"expected {file.size} bytes, found {size}"
    expected = expected_digest(file, folder)
    if expected is None:
        return None
    found = digest_of(path)
    return None if found == expected else f"SHA-256 expected {expected}, found {found}"


def require(file: SourceFile, folder: Path) -> str:
    """Check the file in its place and return its SHA-256.

    Raises:
        UserError: it is missing, or not the official file.
    """
    path = folder / file.name
    if not path.is_file():
        raise UserError(f"{path}: no such file; run `snakemake data` first")
    problem = mismatch(file, path, folder)
    if problem:
        raise UserError(f"{path}: {problem}; delete it and run `snakemake data` again")
    return file.sha256 or digest_of(path)
