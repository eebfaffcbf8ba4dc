"""Identify processes by host, process id and start time, as the system reuses ids."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any


def this() -> dict[str, Any]:
    """Return `host`, `pid` and `started` of this process."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": _started(os.getpid())}


def lives(process: Mapping[str, Any]) -> bool | None:
    """Return whether the process, as given by `this`, still runs; None if it is on another host."""
    if process.get("host") != socket.gethostname():
        return None
    return bool(_started(process["pid"]) == process["started"])


def _started(pid: int) -> float | None:
    import psutil

    try:
        process = psutil.Process(pid)
        return process.create_time() if process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None
