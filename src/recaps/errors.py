"""Mistakes that a user can mend, told in one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: Exit status of a run that was asked to stop and has saved its state (BSD's EX_TEMPFAIL).
TRY_AGAIN = 75


class UserError(Exception):
    """A mistake that the user can mend: one line saying what, where and how to mend it.

    Front ends (the command line, the workflow scripts) print the message without a traceback.
    """


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" for the valid name nearest to `name`, else the valid names."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f" (did you mean '{close[0]}'?)" if close else f" (valid: {', '.join(names)})"
