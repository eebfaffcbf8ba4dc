"""Mistakes that a user can mend, told in one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: Exit statuses: a mistake, which would be made again; an error that is no user's, as BSD has it; and what the same
#: command may manage later, likewise.
MISTAKE, BROKEN, TRY_AGAIN = 1, 70, 75


class UserError(Exception):
    """A mistake that the user can mend: one line saying what, where and how to mend it.

    Front ends (the command line, the workflow scripts) print the message without a traceback.
    """

    status = MISTAKE


class TryAgain(UserError):
    """Nothing is wrong with what was asked: the same command may go well later, and goes on from what is saved."""

    status = TRY_AGAIN


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" for the valid name nearest to `name`, else the valid names."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f" (did you mean '{close[0]}'?)" if close else f" (valid: {', '.join(names)})"
