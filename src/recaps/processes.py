"""Identify processes by host, process id and start time, as the system reuses ids."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

#: Seconds by which a process's start time may differ between two readings.
CLOCK = 5.0


def this() -> dict[str, Any]:
    """Return `host`, `pid` and `started` of this process."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": _started(os.getpid())}


def lives(process: Mapping[str, Any]) -> bool | None:
    """Return whether the process, as given by `this`, still runs; None if it is on another host."""
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
