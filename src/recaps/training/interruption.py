"""Being asked to stop."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from recaps.errors import TryAgain


class Interrupted(TryAgain):
    """The run was asked to stop, has saved its state, and can be tried again."""


class StopRequests:
    """While entered, SIGTERM only sets a flag; the earlier handlers are restored on leaving."""

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
