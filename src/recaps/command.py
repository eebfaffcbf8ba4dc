"""What the command lines share: how a mistake ends, and the type of an option."""

from __future__ import annotations

import argparse
import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec

from recaps import checkout
from recaps.errors import STOPPED, UserError

Arguments = ParamSpec("Arguments")


def command(main: Callable[Arguments, int]) -> Callable[Arguments, int]:
    """Decorate the `main` of a command line: UserError ends in one line on stderr and the exit status of the error.

    In a checkout of this project, the command must be that checkout's own. A reader of the output who stops early ends
    it as shells expect, without a traceback. Figures are drawn to files, whatever backend the environment names.
    """

    @functools.wraps(main)
    def reported(*arguments: Arguments.args, **options: Arguments.kwargs) -> int:
        os.environ["MPLBACKEND"] = "agg"
        try:
            if Path("src", "recaps", "__init__.py").is_file():
                checkout.require(Path.cwd(), "python")
            status = main(*arguments, **options)
            print(end="", flush=True)
            return status
        except UserError as error:
            print(f"recaps: {error}", file=sys.stderr)
            return error.status
        except KeyboardInterrupt:
            print("recaps: stopped", file=sys.stderr)
            return STOPPED
        except BrokenPipeError:  # the reader has stopped, as in `python -m recaps list | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains when it exits
            return 128 + signal.SIGPIPE

    return reported


def at_least_one(text: str) -> int:
    """Return a whole number from 1. It is the `type` of an option."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of 1 or more")
    return int(text)
