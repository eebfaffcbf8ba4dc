"""Errors that the user can correct, reported in one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: Exit statuses: a user's mistake; an internal error (BSD's EX_SOFTWARE); a temporary failure (BSD's EX_TEMPFAIL);
#: stopped by the user, as shells have it.
MISTAKE, BROKEN, TRY_AGAIN, STOPPED = 1, 70, 75, 130


class UserError(Exception):
    """A mistake that the user can correct. The message is one line: what is wrong, where, and how to correct it.

    The command line and the workflow scripts print it without a traceback.
    """

    status = MISTAKE


class Missing(UserError):
    """A file, or a part of it, that is not there, because no stage wrote it."""


class TryAgain(UserError):
    """A temporary failure: the same command may succeed later and continues from the saved state."""

    status = TRY_AGAIN


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" for the valid name nearest to `name`, else the valid names."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f" (did you mean '{close[0]}'?)" if close else f" (valid: {', '.join(names)})"
