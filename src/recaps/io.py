"""Files that are either whole or absent: write beside, then rename."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recaps.errors import TryAgain, UserError


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path in `path`'s folder; rename it to `path` when the block ends well.

    Raises:
        TryAgain: the disk is full; nothing is left behind.
        UserError: the folder cannot be written.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        os.close(handle)
    except OSError as error:
        raise _explain(error, path) from error
    temporary = Path(name)
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise _explain(error, path) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole. Tensors should be serialised to bytes first: PyTorch's own writers hide a full disk."""
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
        raise UserError(f"{path}: no such file; run the stage that makes it first") from error
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON ({error}); delete it and run again") from error


def _explain(error: OSError, path: Path) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return TryAgain(f"{path}: the disk is full; free some space and run again (nothing half-written was kept)")
    if error.errno in (errno.EACCES, errno.EROFS):
        return UserError(f"{path}: cannot write here ({error.strerror}); choose another folder in config.yaml")
    return error
