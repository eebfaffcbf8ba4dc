"""Run a script's one function: log to the rule's file, tell a mistake in one line, exit with a status that fits."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TextIO

from recaps.errors import BROKEN, UserError
from recaps.receipts import receipt

#: Exit status after Ctrl-C, as shells have it.
STOPPED = 130


@contextmanager
def job(snakemake: Any, *, show: bool = False, raw: bool = False) -> Iterator[None]:
    """The body of a script; `snakemake` is the object that Snakemake puts into it.

    Import what is heavy inside: the log is open by then, and the number of threads is set.

    - When it ends well its outputs have checksums (`recaps.receipts`), but for `raw` files, which have official ones.
    - What is logged or written to stderr goes to the rule's log; with `show` to the terminal as well.
    - UserError: one line on stderr; exit 1, or 75 if the job may go well later (TryAgain).
    - Any other error: the traceback goes to the log; stderr names the error and the log. Exit 70.
    - The last lines of the log of a job that failed are that line and its exit status, see `failure`.
    - A full disk cuts the log short, and stops nothing.
    """
    os.environ["OMP_NUM_THREADS"] = str(snakemake.threads)
    path = Path(snakemake.log[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    terminal = sys.stderr
    with _Log(path) as log:
        both = _Both(terminal, log)
        sys.stderr = both if show else log
        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", force=True)
        logging.getLogger("recaps").setLevel(logging.INFO)
        try:
            with nullcontext() if raw else receipt([Path(file) for file in snakemake.output]):
                yield
        except KeyboardInterrupt:
            raise SystemExit(STOPPED) from None
        except UserError as error:
            _leave(both, log, snakemake.rule, str(error), error.status)
        except Exception as error:
            log.write(traceback.format_exc())
            _leave(both, log, snakemake.rule, f"{type(error).__name__}: {error} (traceback in {path})", BROKEN)
        finally:
            sys.stderr = terminal


def project_root(snakemake: Any) -> Path:
    """The checkout that the workflow runs from."""
    return Path(snakemake.scriptdir).resolve().parents[1]


def device(snakemake: Any) -> str:
    """Where the job computes: as the configuration says; if it leaves that open, on the GPU that the job was given.

    Read from the configuration, not from the rule's params: another device is no reason to run a job again.
    """
    configured = str(snakemake.config.get("device", "auto"))
    return "cuda" if configured == "auto" and snakemake.resources.get("gpu", 0) else configured


def given(snakemake: Any) -> dict[str, Any]:
    """What a job on a cluster was given: its number, GPUs, and minutes; empty on one machine."""
    if not (number := os.environ.get("SLURM_JOB_ID")):
        return {}
    resources = snakemake.resources
    # Some sites ask for GPUs by `gres`; what Slurm then gave is seen here.
    seen = len(list(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))))
    return {"job": number, "gpus": resources.get("gpu", 0) or seen, "minutes": resources.get("runtime", 0)}


def failure(log: Path) -> tuple[str, int] | None:
    """The cause and the exit status that the log of a failed job ends with; None if the job could write neither."""
    try:
        *_, cause, ending = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError):
        return None
    found = _ENDING.fullmatch(ending)
    return (cause.partition("recaps: ")[2].partition(": ")[2], int(found[1])) if found else None


#: The last line of a failed job's log.
_ENDING = re.compile(r"exit status (\d+)")


def _leave(both: _Both, log: _Log, rule: str, message: str, status: int) -> None:
    print(f"recaps: {rule}: {' '.join(message.split())}", file=both, flush=True)
    log.write(f"exit status {status}\n")
    raise SystemExit(status)


class _Log(io.TextIOWrapper):
    """A new log file, written line by line."""

    def __init__(self, path: Path) -> None:
        super().__init__(open(path, "wb"), encoding="utf-8", line_buffering=True)  # noqa: SIM115

    def write(self, text: str) -> int:
        # What a log does not take is no reason to lose the work that it tells of.
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()

    def close(self) -> None:
        with suppress(OSError):
            super().close()


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
