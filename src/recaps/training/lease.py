"""A lease on a folder of checkpoints, so that only one process trains a run."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from recaps import io
from recaps.errors import TryAgain, UserError

FILE = "lease.json"
#: Seconds between two touches.
TOUCHED = 15
#: Seconds by which a process's start time may differ between two readings.
CLOCK = 5.0


class Lease:
    """A file that names the process that trains a run; the process touches the file while it runs.

    The lease is free if its holder is a process on this host that has ended, or an earlier start of the same cluster
    job on another host. Otherwise, on another host, it is free if nobody touches it for `patience` seconds; entering
    waits for that, and says so. A file that is no lease is replaced.

    Args:
        folder: the folder that it protects.
        patience: seconds without a touch after which a holder on another host counts as dead.

    Raises:
        TryAgain: on entry, if another process trains the run; on `touch`, if another process has taken the lease, or
            if it was removed.
        UserError: on entry, if the file system has no hard links; on `touch`, if the folder cannot be written.
    """

    def __init__(self, folder: Path, patience: float = 120) -> None:
        self.file = folder / FILE
        self.patience = patience
        job = os.environ.get("SLURM_JOB_ID")
        self.me = {**this_process(), "job": job, "token": uuid.uuid4().hex}
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
            with suppress(OSError):  # the folder can no longer be written; the lease of an ended process is free
                self.file.unlink()

    def touch(self) -> None:
        """Signal that the holder is alive. Call it often; it acts every `TOUCHED` seconds."""
        now = time.monotonic()
        if now - self._touched < TOUCHED:
            return
        self._touched = now
        try:
            if _read(self.file).get("token") != self.me["token"] and self._time():
                raise TryAgain(f"{self.file}: another process has taken over this run; this one stops without saving")
            os.utime(self.file)
        except FileNotFoundError as error:
            raise TryAgain(f"{self.file}: was removed during the run, perhaps with its folder; run again") from error
        except OSError as error:
            raise io.explain(error, self.file) from error

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Touch the lease from a thread of its own meanwhile, for work that cannot call `touch`."""
        done = threading.Event()

        def keep() -> None:
            while not done.wait(TOUCHED) and _read(self.file).get("token") == self.me["token"]:
                with suppress(OSError):
                    os.utime(self.file)

        thread = threading.Thread(target=keep, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _evict(self) -> None:
        """Remove the lease of a holder that has ended. On another host, wait to find out."""
        holder, touched = _read(self.file), self._time()
        if touched and not {"host", "pid", "started"} <= holder.keys():
            print(f"recaps: {self.file}: names no process, so it is no lease; replaced", file=sys.stderr, flush=True)
        elif (lives := self._lives(holder)) is None:
            self._wait(holder, touched)
        elif lives:
            self._refuse(holder)
        removed = self.file.with_name(f".lease.{self.me['token']}.old")
        try:
            os.rename(self.file, removed)
        except FileNotFoundError:
            return
        taken = _read(removed)
        if taken != holder:  # another process was faster; this is its lease
            os.link(removed, self.file)
        removed.unlink()

    def _lives(self, holder: dict[str, Any]) -> bool | None:
        """Return whether the holder still runs; None if it is on another host."""
        try:
            there = lives(holder)
        except (TypeError, ValueError):  # no process can have such an id or time
            return False
        earlier = holder.get("job") and holder["job"] == self.me["job"]
        return False if there is None and earlier else there

    def _wait(self, holder: dict[str, Any], touched: float) -> None:
        """Wait until nobody has touched the lease for `patience` seconds; refuse it if somebody does.

        The clocks of hosts differ: a touch in the future counts as one of now.
        """
        left = self.patience - max(0.0, time.time() - touched)
        if left <= 0:
            return
        print(
            f"recaps: {self.file}: waiting {left:.0f} s to see if {_name(holder)}, which trained this run, has ended",
            file=sys.stderr,
            flush=True,
        )
        end = time.monotonic() + left
        while (now := self._time()) and time.monotonic() < end:
            if now != touched or _read(self.file) != holder:
                self._refuse(_read(self.file))
            time.sleep(min(1.0, self.patience / 10))

    def _refuse(self, holder: dict[str, Any]) -> None:
        seen = max(0.0, time.time() - self._time())
        raise TryAgain(
            f"{self.file}: {_name(holder)} trains this run (last seen {seen:.0f} s ago); wait until it ends, or stop"
            " it and try again"
        )

    def _time(self) -> float:
        """Return the time of the last touch; 0 if there is no lease."""
        try:
            return self.file.stat().st_mtime
        except FileNotFoundError:
            return 0.0


def holder(folder: Path) -> dict[str, Any]:
    """Return host, process and Slurm job that train with the checkpoints in `folder`; empty if there is none."""
    return _read(folder / FILE)


def this_process() -> dict[str, Any]:
    """Return `host`, `pid` and `started` of this process, as the system reuses ids."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": _started(os.getpid())}


def lives(process: Mapping[str, Any]) -> bool | None:
    """Return whether the process, as given by `this_process`, still runs; None if it is on another host."""
    if process.get("host") != socket.gethostname():
        return None
    started = _started(process["pid"])
    # The start time is counted from the boot, whose time shifts when the clock is set.
    return started is not None and abs(started - process["started"]) < CLOCK


def _started(pid: int) -> float | None:
    import psutil

    try:
        process = psutil.Process(pid)
        return process.create_time() if process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def _name(holder: dict[str, Any]) -> str:
    return f"process {holder.get('pid')} on {holder.get('host')}"


def _read(file: Path) -> dict[str, Any]:
    """Return the content of a lease; empty if there is none, or if it is none."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
