"""Errors whose message is one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from recaps.errors import UserError


@contextmanager
def one_line(match: str, error: type[Exception] = UserError) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Expect an error, as `pytest.raises` does, whose message is one line."""
    with pytest.raises(error, match=match) as raised:
        yield raised
    assert "\n" not in str(raised.value)
