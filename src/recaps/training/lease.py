"""A lease on a folder of checkpoints, so that only one process trains a run."""

from __future__ import annotations

import errno
import json
import math
import os
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from recaps import io, processes
from recaps.errors import TryAgain, UserError

FILE = "lease.json"
#: Seconds between two touches.
TOUCHED = 15


class Lease:
    """A file that names the process that trains a run; the process touches the file while it runs.

    The lease is free if its holder is a process on this host that has ended, or an earlier start of the same cluster
    job on another host. Otherwise, on another host, it is free if nobody touches it for `patience` seconds; entering
    waits for that.

    Args:
        folder: the folder that it protects.
        patience: seconds without a touch after which a holder on another host counts as dead.
        what: what the holder makes, for others to read.

    Raises:
        TryAgain: on entry, if another process trains the run; on `touch`, if another process has taken the lease.
        UserError: on entry, if the file system has no hard links.
    """

    def __init__(self, folder: Path, patience: float = 120, what: str = "") -> None:
        self.file = folder / FILE
        self.patience = patience
        job = os.environ.get("SLURM_JOB_ID")
        self.me = {**processes.this(), "job": job, "what": what, "token": uuid.uuid4().hex}
        self._touched = 0.0

    def __enter__(self) -> Lease:
        # A link appears whole, and a second link to the same name fails.
        draft = self.file.with_name(f".lease.{self.me['token']}")
        io.write_json(draft, self.me)
        try:
            while True:
                try:
                    os.link(draft, self.file)
                    return self
                except FileExistsError:
                    self._evict()
                except OSError as error:
                    if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS):
                        raise
                    raise UserError(
                        f"{self.file}: this file system has no hard links, which trainings need; set `results` to a"
                        " folder on another one"
                    ) from error
        finally:
            draft.unlink(missing_ok=True)

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if _read(self.file).get("token") == self.me["token"]:
            self.file.unlink(missing_ok=True)

    def touch(self) -> None:
        """Signal that the holder is alive. Call it often; it acts every `TOUCHED` seconds."""
        now = time.monotonic()
        if now - self._touched < TOUCHED:
            return
        self._touched = now
        if _read(self.file).get("token") != self.me["token"]:
            raise TryAgain(f"{self.file}: another process has taken over this run; this one stops without saving")
        self.file.touch()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Touch the lease from a thread of its own meanwhile, for work that cannot call `touch`."""
        done = threading.Event()

        def keep() -> None:
            while not done.wait(TOUCHED) and _read(self.file).get("token") == self.me["token"]:
                with suppress(OSError):
                    self.file.touch()

        thread = threading.Thread(target=keep, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _evict(self) -> None:
        """Remove the lease of a holder that has ended. On another host, wait to find out."""
        holder = _read(self.file)
        while self._lives(holder):
            age = self._age()
            if holder.get("host") == self.me["host"] or _read(self.file) != holder:
                self._refuse(holder, age)
            time.sleep(min(1.0, self.patience / 10))
            if self._age() < age:
                self._refuse(holder, self._age())
        removed = self.file.with_name(f".lease.{self.me['token']}.old")
        try:
            os.rename(self.file, removed)
        except FileNotFoundError:
            return
        taken = _read(removed)
        if taken != holder:  # another process was faster; this is its lease
            os.link(removed, self.file)
        removed.unlink()

    def _lives(self, holder: dict[str, Any]) -> bool:
        there = processes.lives(holder)
        if there is not None:
            return there
        if holder.get("job") and holder["job"] == self.me["job"]:
            return False
        return self._age() < self.patience

    def _refuse(self, holder: dict[str, Any], age: float) -> None:
        raise TryAgain(
            f"{self.file}: process {holder.get('pid')} on {holder.get('host')} trains this run (last seen {age:.0f} s"
            " ago); wait until it ends, or stop it and try again"
        )

    def _age(self) -> float:
        try:
            return time.time() - self.file.stat().st_mtime
        except FileNotFoundError:
            return math.inf


def holder(folder: Path) -> dict[str, Any]:
    """Return host, process and Slurm job that train with the checkpoints in `folder`; empty if there is none."""
    return _read(folder / FILE)


def _read(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError):
        return {}
