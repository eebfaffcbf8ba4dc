"""Run a script's one function: log to the rule's file, tell a mistake in one line, exit with a status that fits."""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from recaps.errors import TRY_AGAIN, UserError

#: Exit status after Ctrl-C, as shells have it.
STOPPED = 130


@contextmanager
def job(snakemake: Any, *, show: bool = False) -> Iterator[None]:
    """The body of a script; `snakemake` is the object that Snakemake puts into it.

    Import what is heavy inside: the log is open by then, and the number of threads is set.

    - What is logged or written to stderr goes to the rule's log; with `show` to the terminal as well.
    - UserError: one line on stderr, exit 1. Interrupted: likewise, exit 75 (try again).
    - Any other error: the traceback goes to the log; stderr names the error and the log. Exit 1.
    """
    os.environ["OMP_NUM_THREADS"] = str(snakemake.threads)
    path = Path(snakemake.log[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    terminal = sys.stderr
    with open(path, "w", encoding="utf-8", buffering=1) as log:
        both = _Both(terminal, log)
        sys.stderr = both if show else log
        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", force=True)
        logging.getLogger("recaps").setLevel(logging.INFO)
        try:
            yield
        except KeyboardInterrupt:
            raise SystemExit(STOPPED) from None
        except UserError as error:
            _leave(both, snakemake.rule, str(error), 1)
        except Exception as error:
            if type(error).__name__ == "Interrupted":  # its module imports PyTorch
                _leave(both, snakemake.rule, str(error), TRY_AGAIN)
            log.write(traceback.format_exc())
            _leave(both, snakemake.rule, f"{type(error).__name__}: {error} (traceback in {path})", 1)
        finally:
            sys.stderr = terminal


def project_root(snakemake: Any) -> Path:
    """The checkout that the workflow runs from."""
    return Path(snakemake.scriptdir).resolve().parents[1]


def device(snakemake: Any) -> str:
    """Where the job computes: on a GPU if it was given one, else as the configuration says.

    Read from the configuration, not from the rule's params: another device is no reason to run a job again.
    """
    return "cuda" if snakemake.resources.get("gpu", 0) else str(snakemake.config.get("device", "auto"))


def _leave(stream: _Both, rule: str, message: str, status: int) -> None:
    print(f"recaps: {rule}: {' '.join(message.split())}", file=stream, flush=True)
    raise SystemExit(status)


class _Both(io.TextIOBase):
    """A stream that writes to the terminal and to the log."""

    def __init__(self, terminal: TextIO, log: TextIO) -> None:
        self._streams = (terminal, log)

    def write(self, text: str) -> int:
        for stream in self._streams:
            stream.write(text)
        return len(text)

    def flush(self) -> None:
        for stream in self._streams:
            stream.flush()

    def isatty(self) -> bool:
        return self._streams[0].isatty()
