"""Checkpoints that a run continues from, and the lease that keeps a second trainer out."""

from __future__ import annotations

import json
import os
import socket
import time
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from recaps import io
from recaps.errors import UserError

FILE = "checkpoint.pt"


def save(folder: Path, state: dict[str, Any], fingerprint: str) -> None:
    """Write `state` (tensors, numbers, strings, lists and dicts) whole, in place of the last checkpoint."""
    buffer = BytesIO()
    torch.save({"fingerprint": fingerprint, "state": state}, buffer)
    io.write_bytes(folder / FILE, buffer.getvalue())


def load(folder: Path, fingerprint: str) -> dict[str, Any] | None:
    """Return the saved state, or None where there is none.

    Raises:
        UserError: the checkpoint cannot be read, or belongs to a run with other settings.
    """
    file = folder / FILE
    if not file.exists():
        return None
    try:
        saved = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UserError(
            f"{file}: cannot be read ({type(error).__name__}); delete it to train from the start"
        ) from error
    if saved["fingerprint"] != fingerprint:
        raise UserError(f"{file}: was made with other settings, code or data; delete {folder} to train from the start")
    state: dict[str, Any] = saved["state"]
    return state


def discard(folder: Path) -> None:
    """Remove the checkpoint of a run whose results are written."""
    (folder / FILE).unlink(missing_ok=True)


class Lease:
    """Only one trainer at a time: a file that names its holder and is touched while the holder lives.

    A lease is free again when its holder's process is gone (same host), or has not touched it for `patience` seconds
    (another host: a compute node that died, a job that was cancelled).

    Raises:
        UserError: on entry, when another trainer holds it.
    """

    def __init__(self, folder: Path, patience: float = 600) -> None:
        self.file = folder / "lease.json"
        self.patience = patience
        self._touched = 0.0

    def __enter__(self) -> Lease:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        me = {"host": socket.gethostname(), "pid": os.getpid(), "started": _started(os.getpid())}
        for _ in range(2):
            try:
                handle = os.open(self.file, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                self._evict()
                continue
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(me | {"job": os.environ.get("SLURM_JOB_ID")}, file)
            return self
        raise UserError(f"{self.file}: another trainer took this run a moment ago; wait for it to end")

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.file.unlink(missing_ok=True)

    def touch(self) -> None:
        """Say that the holder lives; call often, it acts every 15 seconds."""
        now = time.monotonic()
        if now - self._touched > 15:
            self._touched = now
            self.file.touch()

    def _evict(self) -> None:
        """Remove the lease of a holder that is gone."""
        try:
            age = time.time() - self.file.stat().st_mtime
            holder = json.loads(self.file.read_text(encoding="utf-8"))
            here = holder["host"] == socket.gethostname()
            lives = _started(holder["pid"]) == holder["started"] if here else age < self.patience
        except FileNotFoundError:
            return
        except (ValueError, KeyError):
            lives, holder = age < self.patience, {"host": "unknown", "pid": "unknown"}
        if lives:
            raise UserError(
                f"{self.file}: process {holder['pid']} on {holder['host']} trains this run (last sign {age:.0f} s ago);"
                " wait for it to end, or stop it and try again"
            )
        self.file.unlink(missing_ok=True)


def _started(pid: int) -> float | None:
    """When a process of this host started, None if it is not running: a process number alone may have been reused."""
    import psutil

    try:
        process = psutil.Process(pid)
        return process.create_time() if process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None
