"""Read and write files. A file is either whole or absent: writers fill a temporary file and rename it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from recaps.errors import TryAgain, UserError


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`, and rename it to `path` if the block succeeds.

    Raises:
        TryAgain: the disk is full; no file is left behind.
        UserError: the folder is not writable, or the file is larger than the system allows.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch(exist_ok=False)
    except OSError as error:
        raise explain(error, path) from error
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise explain(error, path) from error
    finally:
        with suppress(OSError):  # the folder can no longer be written
            temporary.unlink()


def sweep(paths: Iterable[Path]) -> None:
    """Remove what killed writers of `paths` have left; a name may be `*`. Nobody else may write them meanwhile."""
    for path in paths:
        for left in path.parent.glob(f".{path.name}.*.part"):
            left.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file. Serialise tensors to bytes first, because PyTorch's writers hide the error of a full disk."""
    with atomic(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, sort_keys=True, default=str) + "\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file; first run the stage that writes it") from error
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON ({error}); delete it and run again") from error


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def short(path: Path) -> Path:
    """Return the path relative to the working directory if it is inside, else unchanged."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else Path(relative)


def explain(error: OSError, path: Path, partial: str = "no partial file was kept") -> Exception:
    """Return TryAgain or UserError for what a user can mend, such as a full disk; else the error itself.

    `partial` says what has become of the unfinished file.
    """
    number = error.errno
    if number is None and "requested and" in str(error):  # NumPy wrote a part only, and does not say why
        limited = resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY
        number = errno.EFBIG if limited else errno.ENOSPC
    if number in (errno.ENOSPC, errno.EDQUOT):
        return TryAgain(f"{path}: the disk is full; free some space and run again ({partial})")
    if number == errno.EFBIG:
        return UserError(f"{path}: larger than a file may be here (`ulimit -f`); raise the limit and run again")
    if number == errno.ENOENT and not path.parent.exists():
        return TryAgain(f"{path}: its folder was removed meanwhile; run again")
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return UserError(
            f"{path}: cannot write ({error.strerror}); choose a folder that you can write to (`results` and `data` in"
            " config.yaml)"
        )
    return error
