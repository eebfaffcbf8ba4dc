"""A lock on a file or folder that several processes may make at once."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from recaps import io

#: Seconds to wait before telling the user.
PATIENCE = 3.0

#: Another process has the lock, or its file has just been removed (ESTALE: on a network file system).
_TAKEN = (errno.EAGAIN, errno.EACCES, errno.ENOENT, errno.ESTALE)
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)


@contextmanager
def alone(target: Path) -> Iterator[None]:
    """Let one process at a time make `target`, while others wait. The system releases the lock of a killed process.

    The lock is a hidden file beside `target`, and is removed at the end. A file system without locks lets all pass.

    Raises:
        TryAgain: the disk is full.
        UserError: the folder is not writable.
    """
    file = target.with_name(f".{target.name}.lock")
    tell = time.monotonic() + PATIENCE
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        while (held := _take(file)) is None:
            if time.monotonic() > tell:
                print(f"recaps: {target}: another process is making it; waiting until it ends", file=sys.stderr)
                tell = float("inf")
            time.sleep(0.05)
    except OSError as error:
        raise io.explain(error, target) from error
    try:
        yield
    finally:
        with suppress(OSError):
            file.unlink()  # before the release, so that no process takes a lock on a removed file for the lock
        os.close(held)


def _take(file: Path) -> int | None:
    """Return an open file that holds the lock; None if it is taken."""
    held = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(held), os.stat(file)):
            return held
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return held
        if error.errno not in _TAKEN:
            os.close(held)
            raise
    os.close(held)
    return None
