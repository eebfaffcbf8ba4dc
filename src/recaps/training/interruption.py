"""Requests to stop a run (SIGTERM)."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from recaps.errors import TryAgain


class Interrupted(TryAgain):
    """The run was asked to stop and has saved its state. Run it again to continue."""


class StopRequests:
    """A context in which SIGTERM only sets `requested`. Leaving it restores the earlier handler."""

    def __init__(self) -> None:
        self.requested = False
        self._earlier: Any = None

    def __enter__(self) -> StopRequests:
        if threading.current_thread() is threading.main_thread():
            self._earlier = signal.signal(signal.SIGTERM, self._request)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._earlier is not None:
            signal.signal(signal.SIGTERM, self._earlier)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
