"""Checksums of what was made, kept beside it: a file that changed afterwards is found before anything is made of it.

Each job's outputs have one file in the folder `.sha256` beside them, as `sha256sum` writes it; so by hand it is
`cd <folder> && sha256sum --check .sha256/*`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from recaps.digests import digest_of
from recaps.errors import TryAgain, UserError
from recaps.io import write_text

FOLDER = ".sha256"


@contextmanager
def receipt(outputs: Sequence[Path]) -> Iterator[None]:
    """Around what makes `outputs`: the old checksums go before, the new ones come when the block ends well."""
    place = _place(outputs[0])
    place.unlink(missing_ok=True)
    yield
    folder = outputs[0].parent
    lines = [f"{digest_of(file)}  {os.path.relpath(file, folder)}\n" for file in outputs if file.exists()]
    with suppress(TryAgain):  # the disk is full; what was made is not lost for that
        write_text(place, "".join(lines))


def check(folder: Path) -> None:
    """Compare all outputs below `folder` with their checksums; those that are older than these were seen before.

    Raises:
        UserError: outputs that have changed since they were made. A missing one is no mistake.
    """
    changed = [file for place in sorted(_places(folder)) for file in _changed(place)]
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise UserError(
            f"{changed[0]}{more}: changed since made; `rm` it to have it made again, or bring it back from where you "
            f"keep a copy (`dvc checkout --force {changed[0]}`)"
        )


def _place(first: Path) -> Path:
    return first.parent / FOLDER / first.name


def _places(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        if os.path.basename(parent) == FOLDER:
            yield from (Path(parent) / name for name in names if not name.endswith(".part"))


def _changed(place: Path) -> list[Path]:
    """The files of one receipt that are not as they were made; where there are none, it is newer than they afterwards.

    A job that makes them anew meanwhile takes the receipt away first.
    """
    if (written := _time(place)) is None:
        return []
    lines = place.read_text(encoding="utf-8", errors="replace").splitlines()
    digests = {Path(os.path.normpath(place.parents[1] / line[66:])): line[:64] for line in lines}
    newer = {file: time for file in digests if (time := _time(file)) is not None and time >= written}
    changed = [file for file in newer if _digest(file) not in (digests[file], None)]
    if _time(place) != written:
        return []
    if newer and not changed:
        with suppress(OSError):  # another user's results, or a disk that can only be read
            os.utime(place, ns=(max(newer.values()) + 1,) * 2)
    return changed


def _time(file: Path) -> int | None:
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def _digest(file: Path) -> str | None:
    try:
        return digest_of(file)
    except FileNotFoundError:
        return None
