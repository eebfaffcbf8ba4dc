"""Processes, told from one another by host, number and time of start: a number alone may have been reused."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any


def this() -> dict[str, Any]:
    """`host`, `pid` and `started` of this process."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": _started(os.getpid())}


def lives(process: Mapping[str, Any]) -> bool | None:
    """Whether a process that `this` told of runs still; None if it is another host's, where nobody here can tell."""
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
