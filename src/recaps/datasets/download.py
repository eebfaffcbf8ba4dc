"""Download an official file from a mirror or its official addresses, and verify its checksum."""

from __future__ import annotations

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
from recaps.errors import UserError
from recaps.locks import alone

MIRROR_VARIABLE = "RECAPS_MIRROR"
#: Seconds without data after which a connection is closed.
TIMEOUT = 30.0
#: Consecutive attempts without new data before the next source is tried.
ATTEMPTS = 3
#: Seconds before the second attempt; they double before each further one.
BACKOFF = 1.0

Progress = Callable[[int, "int | None"], None]

_BLOCK = 1 << 18
_log = logging.getLogger(__name__)


class _SourceFailedError(Exception):
    """A source cannot deliver the file; the next source is tried."""


class _WrongContentError(_SourceFailedError):
    """A source delivers a different file."""


def fetch(file: SourceFile, destination_dir: Path, mirror: str | None = None, progress: Progress | None = None) -> Path:
    """Download the official file to `destination_dir`, verify it, and return its path.

    An existing file is verified and kept; a damaged one is renamed to `<name>.corrupt` and downloaded again. Data goes
    to `<name>.part`, which a later call continues, and is renamed after verification. One process at a time downloads a
    file; others wait, and find it.

    Args:
        file: the file to download.
        destination_dir: folder to write to.
        mirror: folder or URL (http, https, file) of a mirror that holds `<dataset>/<name>`; it is tried first. Default:
            the environment variable RECAPS_MIRROR.
        progress: called with (bytes so far, total bytes or None). Default: print a line on stderr about every 10%.

    Raises:
        TryAgain: the disk is full.
        UserError: no source is reachable, all sources deliver a different file, or the disk is not writable.
    """
    folder = Path(destination_dir)
    target = folder / file.name
    with _disk(target):
        folder.mkdir(parents=True, exist_ok=True)
        if _is_valid(file, target):  # no lock, which a read-only folder cannot have
            return target
        failures: list[tuple[str, _SourceFailedError]] = []
        with alone(target):
            if target.exists() and _keep(file, target):
                return target
            for source in _sources(file, mirror):
                try:
                    _obtain(file, source, target, progress or _reporter(file))
                    return target
                except _SourceFailedError as error:
                    _log.warning("%s: %s: %s; trying the next source", file.path, _shown(source), error)
                    failures.append((source, error))
    raise _all_failed(file, target, failures)


def _is_valid(file: SourceFile, target: Path) -> bool:
    """Return whether the file exists and is the official one."""
    try:
        problem = _problem(file, target, target.parent)
    except FileNotFoundError:
        return False
    if problem is None:
        _trust(file, target)
    return problem is None


def _keep(file: SourceFile, target: Path) -> bool:
    """Return whether the existing file is valid; otherwise rename it."""
    problem = _problem(file, target, target.parent)
    if problem is None:
        _trust(file, target)
        return True
    aside = target.with_name(f"{file.name}.corrupt")
    os.replace(target, aside)
    _log.warning("%s: %s; renamed to %s; downloading it again", target, problem, aside.name)
    return False


def _sources(file: SourceFile, mirror: str | None) -> list[str]:
    """Return the URLs and local paths to try, in order."""
    mirror = mirror or os.environ.get(MIRROR_VARIABLE)
    if not mirror:
        return list(file.urls)
    if re.match(r"https?://", mirror, re.IGNORECASE):
        return [f"{mirror.rstrip('/')}/{file.path}", *file.urls]
    if mirror.startswith("file://"):
        mirror = urllib.request.url2pathname(urllib.parse.urlsplit(mirror).path)
    elif "://" in mirror:
        raise UserError(
            f"{MIRROR_VARIABLE}: {_shown(mirror)}: give a folder, or an address with http://, https:// or file://"
        )
    return [str(Path(mirror).expanduser() / file.path), *file.urls]


def _obtain(file: SourceFile, source: str, target: Path, progress: Progress) -> None:
    """Get the file from one source, or raise _SourceFailedError.

    If a download that continued a partial file fails verification, it is repeated from the start, because the old part
    may have been damaged.
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
    """Store the digest of a file without an official digest when it is first downloaded."""
    if checksums.expected_digest(file, target.parent) is not None:
        return
    digest = io.digest_of(target)
    beside = checksums.sidecar(file, target.parent)
    io.write_text(beside, f"{digest}  {file.name}\n")
    _log.warning(
        "%s: there is no official checksum; %s is expected from now on (stored in %s)", target, digest, beside.name
    )


def _usable_part(file: SourceFile, part: Path) -> int:
    """Return the size of the partial file; delete it if it is too long, or a link to some other file."""
    if part.is_symlink() or (part.exists() and part.stat().st_nlink > 1):
        part.unlink()
    done = part.stat().st_size if part.exists() else 0
    if file.size is not None and done > file.size:
        part.unlink()
        return 0
    return done


def _transfer(file: SourceFile, source: str, part: Path, progress: Progress) -> None:
    """Complete the partial file from one source, with retries, or raise _SourceFailedError."""
    if not source.lower().startswith(("http://", "https://")):
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
    """Download from byte `start` and append to the partial file; start over if the server sends the whole file."""
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
                    break  # too long; verification reports it
                progress(done, total or file.size)
            _sync(out)
    if done < (total or file.size or 0):
        raise ConnectionError(f"the connection broke at byte {done}")


def _connect(url: str, start: int) -> Any:
    """Open the URL at byte `start`. Errors other than an HTTP status become ConnectionError."""
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
    """Return the first byte that the server sends, and the size of the whole file if it is given."""
    length = reply.headers.get("Content-Length", "")
    if reply.status != 206:
        return 0, int(length) if length.isdigit() else None
    given = reply.headers.get("Content-Range", "")
    found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", given.strip())
    if not found or int(found[1]) != start:
        part.unlink(missing_ok=True)
        raise ConnectionError(f"requested bytes from {start}, got {given!r}; starting over")
    return start, None if found[3] == "*" else int(found[3])


def _blocks(source: Any) -> Iterator[bytes]:
    """Yield the content of a response or file. Read errors become ConnectionError, to tell them from write errors."""
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
    """Turn a full disk into TryAgain, and a read-only one into UserError. The partial file stays for the next call."""
    try:
        yield
    except OSError as error:
        raise io.explain(error, target, "the download will continue") from error


def _all_failed(file: SourceFile, target: Path, failures: list[tuple[str, _SourceFailedError]]) -> UserError:
    for source, error in failures:
        if isinstance(error, _WrongContentError):
            hint = ""
            if file.sha256 is None and checksums.sidecar(file, target.parent).exists():
                hint = f", or delete {checksums.sidecar(file, target.parent)} if the official file has changed"
            return UserError(
                f"{file.path}: {error}, from {_shown(source)}; put the official file at {target}, "
                f"or set {MIRROR_VARIABLE} to a mirror that has it{hint}"
            )
    tried = "; ".join(f"{_shown(source)}: {error}" for source, error in failures) or "it has no official address"
    return UserError(
        f"{file.path}: no network and no mirror has it ({tried}); set {MIRROR_VARIABLE} to a folder that contains "
        f"{file.path}, or put the file at {target}"
    )


def _shown(source: str) -> str:
    """Return an address without user and password."""
    return re.sub(r"(?<=://)[^/@]*@", "", source)


def _reporter(file: SourceFile) -> Progress:
    """Report progress on stderr: on a terminal by updating a line, else by a line about every 10%."""
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
