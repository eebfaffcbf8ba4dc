"""Requests to stop a run (SIGTERM, Ctrl-C, or a terminal that is closed)."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from recaps.errors import TryAgain


class Interrupted(TryAgain):
    """The run was asked to stop and has saved its state. Run it again to continue."""


class StopRequests:
    """A context in which SIGTERM, SIGHUP and the first SIGINT only set `requested`. Leaving it restores the handlers.

    A process that ignores SIGINT, as in the background of a script, or SIGHUP, as with `nohup`, continues to do so.
    """

    def __init__(self) -> None:
        self.requested = False
        self._earlier: dict[int, Any] = {}

    def __enter__(self) -> StopRequests:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN:
                    self._earlier[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for number, handler in self._earlier.items():
            if handler is not None:
                signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True
