"""Checksums of results: a result that changed after it was made is found before anything is made from it.

Each job writes one file with the checksums of its outputs to the folder `.sha256` beside them, in the format of
`sha256sum`. To check them by hand: `cd <folder> && sha256sum --check .sha256/*`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from recaps.errors import TryAgain, UserError
from recaps.io import digest_of, write_text

FOLDER = ".sha256"


@contextmanager
def receipt(outputs: Sequence[Path]) -> Iterator[None]:
    """Wrap the code that makes `outputs`: delete their old checksums first, and write new ones if it succeeds."""
    _forget(outputs)
    yield
    folder = outputs[0].parent
    lines = [f"{digest_of(file)}  {os.path.relpath(file, folder)}\n" for file in outputs if file.exists()]
    with suppress(TryAgain):  # the disk is full; keep the outputs nevertheless
        write_text(_place(outputs[0]), "".join(lines))


def check(folder: Path) -> None:
    """Compare the outputs below `folder` with their checksums. Outputs older than their checksums are skipped.

    Raises:
        UserError: outputs have changed since they were made. Missing outputs are allowed.
    """
    changed = [file for place in sorted(_places(folder)) for file in _changed(place)]
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise UserError(
            f"{changed[0]}{more}: changed since it was made; `rm` it to make it again, or restore a copy "
            f"(`dvc checkout --force {changed[0]}`)"
        )


def _forget(outputs: Sequence[Path]) -> None:
    """Delete the checksums of `outputs`, also those from a job with other outputs, such as one more figure."""
    folder = outputs[0].parent
    names = {os.path.relpath(file, folder) for file in outputs}
    for place in _places(folder / FOLDER):
        lines, time = _lines(place), _time(place)
        kept = [line for line in lines if line[66:] not in names]
        if lines and not kept:
            place.unlink(missing_ok=True)
        elif len(kept) < len(lines) and time is not None:
            write_text(place, "".join(f"{line}\n" for line in kept))
            os.utime(place, ns=(time + 1, time + 1))


def _place(first: Path) -> Path:
    return first.parent / FOLDER / first.name


def _places(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        if os.path.basename(parent) == FOLDER:
            yield from (Path(parent) / name for name in names if not name.endswith(".part"))


def _changed(place: Path) -> list[Path]:
    """Return the files of one receipt that have changed. If there are none, make the receipt newer than its files.

    A job that makes these files again at the same time first deletes the receipt, or its lines, which changes its time.
    """
    if (written := _time(place)) is None:
        return []
    lines = _lines(place)
    digests = {Path(os.path.normpath(place.parents[1] / line[66:])): line[:64] for line in lines}
    newer = {file: time for file in digests if (time := _time(file)) is not None and time >= written}
    changed = [file for file in newer if _digest(file) not in (digests[file], None)]
    if _time(place) != written:
        return []
    if newer and not changed:
        with suppress(OSError):  # another user's results, or a read-only disk
            os.utime(place, ns=(max(newer.values()) + 1,) * 2)
    return changed


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []


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
