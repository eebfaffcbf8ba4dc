"""How jobs that fail are shown: the line that each prints itself, and Snakemake's summary.

Snakemake would also print its own exception, and after Ctrl-C the files of each job. A job that was killed prints
nothing, so its line comes from here. Written for Snakemake's pinned version.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from typing import Any

from snakemake.logging import logger
from snakemake.script import PythonScript
from snakemake_interface_logger_plugins.common import LogEvent

from recaps.errors import STOPPED
from recaps.plan.job import title_of


def attend() -> None:
    """Show jobs that fail from now on as above."""
    run = PythonScript.execute_script

    def execute(script: Any, name: str, edit: bool = False) -> None:
        try:
            run(script, name, edit)
        except subprocess.CalledProcessError as error:
            if cause := killed(error.returncode):
                logger.error(f"recaps: {title_of(script.rulename, script.wildcards)}: {cause} (log: {script.log})")
            raise

    PythonScript.execute_script = execute
    logger.addFilter(Shown())


def end_with_the_terminal(scheduler: Any) -> None:
    """When the terminal is closed, let the jobs save their state, wait for them and unlock; not with `nohup`."""

    def hang_up(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        os.killpg(0, number)
        scheduler.exit_gracefully()

    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, hang_up)


def killed(status: int) -> str:
    """Return how a process with this exit status, its own or that of a shell, was killed; empty if it was not."""
    number = -status if status < 0 else status - 128
    if number <= 0 or status == STOPPED or number not in set(signal.Signals):
        return ""
    if number == signal.SIGKILL:
        return "killed, perhaps because memory ran out; close other programs or use fewer cores, and run again"
    return f"killed by {signal.Signals(number).name}; run again"


class Shown(logging.Filter):
    """Drops the exceptions of scripts, and after Ctrl-C also the summaries of the jobs that it stopped."""

    stopped = False

    def filter(self, record: logging.LogRecord) -> bool:
        text = str(record.msg)
        self.stopped |= text.startswith("Terminating processes on user request")
        of_job = getattr(record, "event", None) == LogEvent.JOB_ERROR
        return not (text.startswith("RuleException:\nCalledProcessError") or (of_job and self.stopped))
