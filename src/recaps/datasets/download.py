"""Download an official file from a mirror or its official addresses, and verify its checksum."""

from __future__ import annotations

import http.client
import logging
import os
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from recaps import io
from recaps.datasets import checksums
from recaps.datasets.archive import zip_problem
from recaps.datasets.formats import affnist, norbparquet
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

#: What checks the first download of a file without an official digest, by data set; for others, affNIST's check.
_CHECKS = {"smallnorb-parquet": norbparquet.problem, "smallnorb-zip": zip_problem}
_BLOCK = 1 << 18
_log = logging.getLogger(__name__)


class _SourceFailedError(Exception):
    """A source cannot deliver the file; the next source is tried."""


class _WrongContentError(_SourceFailedError):
    """A source delivers a different file."""


def fetch(file: SourceFile, destination_dir: Path, mirror: str | None = None) -> Path:
    """Download the official file to `destination_dir`, verify it, and return its path.

    An existing file is verified and kept; a damaged one is renamed to `<name>.corrupt` and downloaded again. Data goes
    to `<name>.part`, which a later call continues, and is renamed after verification. One process at a time downloads a
    file; others wait, and find it. A line on stderr follows about every 10%.

    Args:
        file: the file to download.
        destination_dir: folder to write to.
        mirror: folder or URL (http, https, file) of a mirror that holds `<dataset>/<name>`; it is tried first. Default:
            the environment variable RECAPS_MIRROR.

    Raises:
        TryAgain: the disk is full.
        UserError: no source is reachable, all sources deliver a different file, or the disk is not writable.
    """
    target = Path(destination_dir) / file.name
    failures: list[tuple[str, _SourceFailedError]] = []
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if _problem(file, target) is None:  # no lock, which a read-only folder cannot have
            return target
        with alone(target):
            if (problem := _problem(file, target)) is None:
                return target
            if target.exists():
                aside = target.with_name(f"{file.name}.corrupt")
                os.replace(target, aside)
                _log.warning("%s: %s; renamed to %s; downloading it again", target, problem, aside.name)
            for source in _sources(file, mirror):
                try:
                    _obtain(file, source, target)
                    return target
                except _SourceFailedError as error:
                    _log.warning("%s: %s: %s; trying the next source", file.path, _shown(source), error)
                    failures.append((source, error))
    except OSError as error:
        raise io.explain(error, target, "the download will continue") from error
    raise _all_failed(file, target, failures)


def _problem(file: SourceFile, path: Path) -> str | None:
    """Return why `path`, in the folder of the official file, is not this file; None if it is.

    The digest of a file without an official digest is stored when it is first seen.
    """
    try:
        problem = checksums.mismatch(file, path)
    except FileNotFoundError:
        return "no such file"
    if problem or checksums.expected_digest(file, path.parent) is not None:
        return problem
    if problem := _CHECKS.get(file.dataset, affnist.problem)(path):
        return problem
    digest, beside = io.digest_of(path), checksums.sidecar(file, path.parent)
    io.write_text(beside, f"{digest}  {file.name}\n")
    _log.warning(
        "%s: there is no official checksum; %s is expected from now on (stored in %s)", path, digest, beside.name
    )
    return None


def _sources(file: SourceFile, mirror: str | None) -> list[str]:
    """Return the addresses to try, in order."""
    mirror = mirror or os.environ.get(MIRROR_VARIABLE)
    if not mirror:
        return list(file.urls)
    if "://" not in mirror:
        mirror = Path(mirror).expanduser().absolute().as_uri()
    elif not re.match(r"(https?|file)://", mirror, re.IGNORECASE):
        raise UserError(
            f"{MIRROR_VARIABLE}: {_shown(mirror)}: give a folder, or an address with http://, https:// or file://"
        )
    return [f"{mirror.rstrip('/')}/{file.path}", *file.urls]


def _obtain(file: SourceFile, source: str, target: Path) -> None:
    """Get the file from one source, or raise _SourceFailedError.

    If a download that continued a partial file fails verification, it is repeated from the start, because the old part
    may have been damaged.
    """
    part = target.with_name(f"{file.name}.part")
    continued = _usable_part(file, part) > 0
    _transfer(file, source, part)
    problem = _problem(file, part)
    if problem and continued:
        part.unlink()
        _transfer(file, source, part)
        problem = _problem(file, part)
    if problem:
        part.unlink()
        raise _WrongContentError(problem)
    os.replace(part, target)


def _usable_part(file: SourceFile, part: Path) -> int:
    """Return the size of the partial file; delete it if it is too long, or a link to some other file."""
    if part.is_symlink() or (part.exists() and part.stat().st_nlink > 1):
        part.unlink()
    done = part.stat().st_size if part.exists() else 0
    if file.size is not None and done > file.size:
        part.unlink()
        return 0
    return done


def _transfer(file: SourceFile, source: str, part: Path) -> None:
    """Complete the partial file from one source, with retries, or raise _SourceFailedError."""
    failed, reason = 0, ""
    while failed < ATTEMPTS:
        before = _usable_part(file, part)
        if before and before == file.size:
            return
        try:
            _download(file, source, part, before)
            return
        except urllib.error.HTTPError as error:
            reason = f"HTTP {error.code} {error.reason}"
            if error.code == 416 and error.headers.get("Content-Range") == f"bytes */{before}":
                return
            if error.code == 416:
                part.unlink(missing_ok=True)
            elif error.code < 500 and error.code not in (408, 429):
                raise _SourceFailedError(reason) from error
        except ConnectionError as error:
            reason = str(error)
            if source.lower().startswith("file:"):
                raise _SourceFailedError(reason) from error
        failed = 0 if part.exists() and part.stat().st_size > before else failed + 1
        if failed < ATTEMPTS:
            time.sleep(BACKOFF * 2 ** max(failed - 1, 0))
    raise _SourceFailedError(reason)


def _download(file: SourceFile, url: str, part: Path, start: int) -> None:
    """Download from byte `start` and append to the partial file; start over if the source sends the whole file."""
    with _connect(url, start) as reply:
        if reply.status != 206:
            start = 0
        elif not (given := reply.headers.get("Content-Range", "")).startswith(f"bytes {start}-"):
            part.unlink(missing_ok=True)
            raise ConnectionError(f"requested bytes from {start}, got {given!r}; starting over")
        length = reply.headers.get("Content-Length", "")
        total = start + int(length) if length.isdigit() else file.size
        if file.size is not None and total != file.size:
            raise _WrongContentError(f"expected {file.size} bytes, found {total}")
        done, report = start, _reporter(file, total)
        with open(part, "ab" if start else "wb") as out:
            for block in _blocks(reply):
                out.write(block)
                done += len(block)
                if file.size is not None and done > file.size:
                    break  # too long; verification reports it
                report(done)
            out.flush()
            os.fsync(out.fileno())
    if done < (total or 0):
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
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ConnectionError(str(getattr(error, "reason", error)) or type(error).__name__) from error


def _blocks(source: Any) -> Iterator[bytes]:
    """Yield the content of a response. Read errors become ConnectionError, to tell them from write errors."""
    while True:
        try:
            block = source.read(_BLOCK)
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionError(str(error) or type(error).__name__) from error
        if not block:
            return
        yield block


def _all_failed(file: SourceFile, target: Path, failures: list[tuple[str, _SourceFailedError]]) -> UserError:
    for source, error in failures:
        if isinstance(error, _WrongContentError):
            beside = checksums.sidecar(file, target.parent)
            changed = file.sha256 is None and beside.exists()
            hint = f", or delete {beside} if the official file has changed" if changed else ""
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


def _reporter(file: SourceFile, total: int | None) -> Callable[[int], None]:
    """Return a function that prints a line on stderr about every 10%, or every 16 MB."""
    shown = -1

    def report(done: int) -> None:
        nonlocal shown
        step = 10 * done // total if total else done // (1 << 24)
        if step != shown:
            shown = step
            share = f" of {total / 1e6:.1f} MB ({100 * done // total}%)" if total else " MB"
            print(f"{file.path}: {done / 1e6:.1f}{share}", file=sys.stderr, flush=True)

    return report
