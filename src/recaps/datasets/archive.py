"""Read gzip files, and members of zip and tar archives, into memory. Nothing is unpacked to disk."""

from __future__ import annotations

import gzip
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from recaps.errors import UserError


def gunzip(path: Path) -> bytes:
    """Decompress a `.gz` file. Raises UserError if it is missing, truncated or not gzip."""
    try:
        with gzip.open(path, "rb") as file:
            return file.read()
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file; run `snakemake data` first") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise broken(path, f"a truncated or damaged gzip file ({error})") from error


def members(path: Path, wanted: Callable[[str], object]) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the regular files for which `wanted(name)` is true, in the archive's order.

    A file named `*.zip` is read as zip, any other as gzipped tar. An archive is refused if any member is an absolute
    path, a path with `..`, a link or a device.

    Raises:
        UserError: the archive is missing, truncated, damaged or unsafe.
    """
    reader = _zip_members if path.suffix == ".zip" else _tar_members
    try:
        yield from reader(path, wanted)
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file; run `snakemake data` first") from error
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError, RuntimeError) as error:
        raise broken(path, f"a truncated or damaged archive ({error})") from error


def listing(path: Path) -> list[str]:
    """Return the names of all members. Raises the errors of `members`."""
    names: list[str] = []
    list(members(path, names.append))  # `append` returns None: no content is read
    return names


def zip_problem(path: Path) -> str | None:
    """Return why a download is not a whole zip archive, or None."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except Exception as error:  # zipfile raises many kinds for broken bytes
        return f"not a whole zip archive ({error})"
    return damaged and f"member {damaged} is damaged"


def is_file(name: str, ending: str) -> bool:
    """Return whether a member's name has this ending. macOS adds hidden files with the same endings."""
    return name.endswith(ending) and not PurePosixPath(name).name.startswith(".")


def broken(path: Path, problem: str) -> UserError:
    """Return the error for an invalid raw file; `problem` may be several lines."""
    return UserError(f"{path}: {' '.join(problem.split())}; delete it and run `snakemake data` again")


def _check_name(path: Path, name: str) -> None:
    pure = PurePosixPath(name.replace("\\", "/"))
    if pure.is_absolute() or ".." in pure.parts or ":" in name or "\0" in name:
        raise UserError(f"{path}: unsafe member {name!r} (it points outside the archive); do not use this file")


def _zip_members(path: Path, wanted: Callable[[str], object]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            _check_name(path, info.filename)
            if stat.S_ISLNK(info.external_attr >> 16):
                raise UserError(f"{path}: unsafe member {info.filename!r} (a link); do not use this file")
        for info in archive.infolist():
            if not info.is_dir() and wanted(info.filename):
                yield info.filename, archive.read(info)


def _tar_members(path: Path, wanted: Callable[[str], object]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path, "r:gz") as archive:
        for info in archive:
            _check_name(path, info.name)
            if not (info.isreg() or info.isdir()):
                raise UserError(f"{path}: unsafe member {info.name!r} (a link or a device); do not use this file")
            content = archive.extractfile(info) if info.isreg() and wanted(info.name) else None
            if content is not None:
                yield info.name, content.read()
