"""Run a stage as a job of Snakemake: log to the rule's file, report a mistake in one line, set the exit status."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from recaps.errors import BROKEN, STOPPED, UserError


@contextmanager
def job(snakemake: Any, *, show: bool = False) -> Iterator[None]:
    """Run the body of a script as a job; `snakemake` is the object that Snakemake passes to the script.

    Heavy imports belong inside the body: by then the log is open and the number of threads is set.

    - Log messages and stderr go to the rule's log; with `show` also to the terminal.
    - UserError: one line on stderr; exit status 1, or 75 if the job may succeed later (TryAgain).
    - Ctrl-C: likewise; exit status 130.
    - Any other error: the traceback goes to the log, and stderr names the error and the log. Exit status 70.
    - The log of a failed job ends with that line and the exit status; `failure` reads them.
    - A full disk truncates the log but does not stop the job.
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
            yield
        except KeyboardInterrupt:
            _leave(both, log, snakemake, "stopped; run again to continue", STOPPED)
        except UserError as error:
            _leave(both, log, snakemake, str(error), error.status)
        except Exception as error:
            log.write(traceback.format_exc())
            _leave(both, log, snakemake, f"{type(error).__name__}: {error} (traceback in {path})", BROKEN)
        finally:
            sys.stderr = terminal


def device(job: Any) -> str:
    """Return the device of the configuration; if that is `auto`, the GPU that a cluster gave to the job, if any.

    On one machine, `auto` stays: PyTorch may be unable to use the GPU, because of its build or of an old driver. It is
    no parameter of a rule: another device is no reason to run a job again.
    """
    configured = str(job.config.get("device", "auto"))
    if configured != "auto" or not job.resources.get("gpu", 0):
        return configured
    if os.environ.get("SLURM_JOB_ID"):
        return "cuda"
    import torch

    if not torch.cuda.is_available():
        print(
            "recaps: PyTorch cannot use the GPU of this machine and uses the CPU; set `device: cpu` to train several"
            " runs side by side",
            file=sys.stderr,
        )
    return configured


def project_root(job: Any) -> Path:
    """Return the checkout that the workflow runs from."""
    return Path(job.scriptdir).resolve().parents[1]


def given(job: Any) -> dict[str, Any]:
    """Return what a cluster gave to the job: number, GPUs (or its share of one), minutes. Empty on a single machine."""
    if not (number := os.environ.get("SLURM_JOB_ID")):
        return {}
    # Some sites ask for GPUs by `gres`. The environment then shows the GPUs that Slurm gave.
    seen = len(list(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))))
    gpus, minutes = job.resources.get("gpu", 0) or seen, job.resources.get("runtime", 0)
    if runs := shared():
        gpus, minutes = gpus / runs, int(os.environ["RECAPS_MINUTES"])
    return {"job": number, "gpus": gpus, "minutes": minutes}


def shared() -> int:
    """Return the number of trainings in a Slurm job that shares a GPU; 0 in any other job."""
    return int(os.environ.get("RECAPS_RUNS", 0))


def failure(log: Path) -> tuple[str, int] | None:
    """Return the cause and the exit status from the log of a failed job; None if it could not write them."""
    try:
        *_, cause, ending = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError):
        return None
    found = re.fullmatch(r"exit status (\d+)", ending)
    return (cause.partition("recaps: ")[2].partition(": ")[2], int(found[1])) if found else None


def title_of(rule: str, wildcards: Mapping[str, str]) -> str:
    """Return the name of a job for the terminal: its rule, and its wildcards without the scale."""
    names = [f"seed-{value}" if key == "seed" else value for key, value in wildcards.items() if key != "scale"]
    return f"{rule} {'/'.join(names)}".rstrip()


def _leave(both: _Both, log: _Log, job: Any, message: str, status: int) -> None:
    if both.isatty():
        print(end="\r\x1b[K", file=sys.__stderr__)  # the line of progress, if there is one
    print(f"recaps: {title_of(job.rule, job.wildcards)}: {' '.join(message.split())}", file=both, flush=True)
    log.write(f"exit status {status}\n")
    raise SystemExit(status)


class _Log(io.TextIOWrapper):
    """A log file, written line by line."""

    def __init__(self, path: Path) -> None:
        super().__init__(open(path, "wb"), encoding="utf-8", line_buffering=True)  # noqa: SIM115

    def write(self, text: str) -> int:
        # A log that cannot be written is no reason to lose the job's work.
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
