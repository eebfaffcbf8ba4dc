"""Fetch one official file: mirror first, then the official addresses; the checksum decides, not the source."""

from __future__ import annotations

import errno
import http.client
import logging
import os
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from recaps import io
from recaps.datasets import checksums
from recaps.datasets.formats import affnist
from recaps.datasets.sources import SourceFile
from recaps.digests import digest_of
from recaps.errors import UserError

MIRROR_VARIABLE = "RECAPS_MIRROR"
#: Seconds without a byte after which a connection is given up.
TIMEOUT = 30.0
#: Attempts in a row that bring no new byte before the next source is tried.
ATTEMPTS = 3
#: Seconds before the second attempt; doubled before each further one.
BACKOFF = 1.0

Progress = Callable[[int, "int | None"], None]

_BLOCK = 1 << 18
_log = logging.getLogger(__name__)


class _SourceFailedError(Exception):
    """This source cannot give the file; the next one is tried."""


class _WrongContentError(_SourceFailedError):
    """This source gives another file."""


def fetch(file: SourceFile, destination_dir: Path, mirror: str | None = None, progress: Progress | None = None) -> Path:
    """Put the verified official file into `destination_dir` and return its path.

    A file already there is verified and kept; a damaged one is set aside as `<name>.corrupt` and fetched again.
    Bytes go to `<name>.part`, which a later call continues; the file appears under its own name only once verified.

    Args:
        mirror: folder or URL (http, https, file) that holds `<dataset>/<name>`, tried first. By default the
            environment variable RECAPS_MIRROR.
        progress: called with (bytes so far, bytes in all or None). By default a line on stderr about every 10%.

    Raises:
        UserError: no source could be reached, every source had another file, the disk is full or cannot be written.
    """
    folder = Path(destination_dir)
    target = folder / file.name
    with _disk(target):
        folder.mkdir(parents=True, exist_ok=True)
        if target.exists() and _keep(file, target):
            return target
        failures: list[tuple[str, _SourceFailedError]] = []
        for source in _sources(file, mirror):
            try:
                _obtain(file, source, target, progress or _reporter(file))
                return target
            except _SourceFailedError as error:
                _log.warning("%s: %s: %s; trying the next source", file.path, source, error)
                failures.append((source, error))
    raise _all_failed(file, target, failures)


def _keep(file: SourceFile, target: Path) -> bool:
    """Whether the file in place is good; otherwise it is set aside."""
    problem = _problem(file, target, target.parent)
    if problem is None:
        _trust(file, target)
        return True
    aside = target.with_name(f"{file.name}.corrupt")
    os.replace(target, aside)
    _log.warning("%s: %s; set aside as %s and fetched again", target, problem, aside.name)
    return False


def _sources(file: SourceFile, mirror: str | None) -> list[str]:
    """URLs and local paths to try, in order."""
    mirror = mirror or os.environ.get(MIRROR_VARIABLE)
    if not mirror:
        return list(file.urls)
    if re.match(r"https?://", mirror):
        return [f"{mirror.rstrip('/')}/{file.path}", *file.urls]
    if mirror.startswith("file://"):
        mirror = urllib.request.url2pathname(urllib.parse.urlsplit(mirror).path)
    return [str(Path(mirror).expanduser() / file.path), *file.urls]


def _obtain(file: SourceFile, source: str, target: Path, progress: Progress) -> None:
    """Bring the file from one source to `target`, or raise _SourceFailedError.

    A finished file that fails its check is fetched once more from its first byte when it was a continued one: the old
    part may be what was wrong.
    """
    part = target.with_name(f"{file.name}.part")
    continued = _usable_part(file, part) > 0
    _transfer(file, source, part, progress)
    problem = _problem(file, part, target.parent)
    if problem and continued:
        part.unlink()
        _transfer(file, source, part, progress)
        problem = _problem(file, part, target.parent)
    if problem:
        part.unlink()
        raise _WrongContentError(problem)
    os.replace(part, target)
    _trust(file, target)


def _problem(file: SourceFile, path: Path, folder: Path) -> str | None:
    problem = checksums.mismatch(file, path, folder)
    if problem is None and checksums.expected_digest(file, folder) is None:
        return affnist.problem(path)
    return problem


def _trust(file: SourceFile, target: Path) -> None:
    """Store the digest of a file that has no official one, the first time it is seen."""
    if checksums.expected_digest(file, target.parent) is not None:
        return
    digest = digest_of(target)
    beside = checksums.sidecar(file, target.parent)
    io.write_text(beside, f"{digest}  {file.name}\n")
    _log.warning("%s: no official checksum exists; %s is trusted from now on (kept in %s)", target, digest, beside.name)


def _usable_part(file: SourceFile, part: Path) -> int:
    """Bytes of the partial file to continue from; one that is too long is deleted."""
    done = part.stat().st_size if part.exists() else 0
    if file.size is not None and done > file.size:
        part.unlink()
        return 0
    return done


def _transfer(file: SourceFile, source: str, part: Path, progress: Progress) -> None:
    """Complete the partial file from one source, with retries; raise _SourceFailedError when it cannot be."""
    if not source.startswith(("http://", "https://")):
        _copy(Path(source), part, progress)
        return
    failed = 0
    while True:
        before = _usable_part(file, part)
        if before and before == file.size:
            return
        try:
            _download(file, source, part, before, progress)
            return
        except urllib.error.HTTPError as error:
            if error.code == 416 and error.headers.get("Content-Range") == f"bytes */{before}":
                return
            if error.code == 416:
                part.unlink(missing_ok=True)
            elif error.code < 500 and error.code not in (408, 429):
                raise _SourceFailedError(f"HTTP {error.code} {error.reason}") from error
            reason = f"HTTP {error.code} {error.reason}"
        except (ConnectionError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
        failed = 0 if part.exists() and part.stat().st_size > before else failed + 1
        if failed == ATTEMPTS:
            raise _SourceFailedError(reason)
        time.sleep(BACKOFF * 2 ** max(failed - 1, 0))


def _copy(source: Path, part: Path, progress: Progress) -> None:
    try:
        reading = source.open("rb")
    except OSError as error:
        raise _SourceFailedError(error.strerror or str(error)) from error
    done = 0
    with reading, open(part, "wb") as out:
        total = os.fstat(reading.fileno()).st_size
        try:
            for block in _blocks(reading):
                out.write(block)
                done += len(block)
                progress(done, total)
        except ConnectionError as error:
            raise _SourceFailedError(str(error)) from error
        _sync(out)


def _download(file: SourceFile, url: str, part: Path, start: int, progress: Progress) -> None:
    """One connection: append to the partial file what follows byte `start`, or all of it when the server insists."""
    with _connect(url, start) as reply:
        start, total = _agreed(reply, part, start)
        if file.size is not None and total not in (None, file.size):
            raise _WrongContentError(f"expected {file.size} bytes, found {total}")
        with open(part, "ab" if start else "wb") as out:
            done = start
            for block in _blocks(reply):
                out.write(block)
                done += len(block)
                if file.size is not None and done > file.size:
                    break  # too long; the check of the whole says so
                progress(done, total or file.size)
            _sync(out)
    if done < (total or file.size or 0):
        raise ConnectionError(f"the connection broke at byte {done}")


def _connect(url: str, start: int) -> Any:
    """Open the URL at byte `start`; every trouble but an HTTP status is a ConnectionError."""
    headers = {"User-Agent": "recaps", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError:
        raise
    except (OSError, ValueError) as error:
        raise ConnectionError(str(getattr(error, "reason", error))) from error


def _agreed(reply: Any, part: Path, start: int) -> tuple[int, int | None]:
    """From which byte the server sends, and how long the whole file is, if it says so."""
    length = reply.headers.get("Content-Length", "")
    if reply.status != 206:
        return 0, int(length) if length.isdigit() else None
    given = reply.headers.get("Content-Range", "")
    found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", given.strip())
    if not found or int(found[1]) != start:
        part.unlink(missing_ok=True)
        raise ConnectionError(f"asked for bytes from {start}, got {given!r}; starting over")
    return start, None if found[3] == "*" else int(found[3])


def _blocks(source: Any) -> Iterator[bytes]:
    """What a reply or an open file holds; trouble in reading it is never mistaken for trouble in writing."""
    while True:
        try:
            block = source.read(_BLOCK)
        except OSError as error:
            raise ConnectionError(str(error) or type(error).__name__) from error
        if not block:
            return
        yield block


def _sync(out: IO[bytes]) -> None:
    out.flush()
    os.fsync(out.fileno())


@contextmanager
def _disk(target: Path) -> Iterator[None]:
    """Tell in one line when the disk is full or cannot be written; the partial file stays for the next call."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = "free some space and run again (it continues where it stopped)"
            raise UserError(f"{target}: the disk is full; {hint}") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise UserError(f"{target}: cannot be written ({error.strerror}); choose another folder") from error
        raise


def _all_failed(file: SourceFile, target: Path, failures: list[tuple[str, _SourceFailedError]]) -> UserError:
    for source, error in failures:
        if isinstance(error, _WrongContentError):
            hint = ""
            if file.sha256 is None and checksums.sidecar(file, target.parent).exists():
                hint = f", or delete {checksums.sidecar(file, target.parent)} if the official file has changed"
            return UserError(
                f"{file.path}: {error}, from {source}; put the official file at {target}, "
                f"or name a mirror that has it in {MIRROR_VARIABLE}{hint}"
            )
    tried = "; ".join(f"{source}: {error}" for source, error in failures) or "it has no official address"
    return UserError(
        f"{file.path}: no network and no mirror has it ({tried}); set {MIRROR_VARIABLE} to a folder that holds "
        f"{file.path}, or put the file at {target}"
    )


def _reporter(file: SourceFile) -> Progress:
    """Progress on stderr: one line rewritten on a terminal, else a line about every 10%."""
    terminal = sys.stderr.isatty()
    shown = -1

    def report(done: int, total: int | None) -> None:
        nonlocal shown
        step = 100 * done // total if total else done // (1 << 24)
        step = step if terminal or not total else step // 10
        if step == shown:
            return
        shown = step
        share = f" of {total / 1e6:.1f} MB ({100 * done // total}%)" if total else " MB"
        start, end = ("\r", "\n" if done == total else "") if terminal else ("", "\n")
        sys.stderr.write(f"{start}{file.path}: {done / 1e6:.1f}{share}{end}")
        sys.stderr.flush()

    return report
