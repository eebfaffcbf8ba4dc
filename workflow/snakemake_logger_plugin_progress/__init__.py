"""One line with the share of the jobs that is done and an estimate of the time left.

Use it as `PYTHONPATH=workflow snakemake --logger progress`.

Messages about single jobs are left out, except errors. On a terminal the line is rewritten in place, and names the loss
and the time left of a running training, from its log; elsewhere, as in a log of CI, a new line follows every twentieth
of the jobs.
"""

from __future__ import annotations

import logging
import re
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

#: Messages of these events go into the line instead.
COUNTED = (LogEvent.JOB_INFO, LogEvent.JOB_STARTED, LogEvent.JOB_FINISHED, LogEvent.PROGRESS, LogEvent.SHELLCMD)
#: Lines where there is no terminal.
LINES = 20
#: Seconds between two looks at the logs of trainings.
SECONDS = 2
#: A row of a training's log.
ROW = re.compile(r"^step +\d+/\d+ .*? (\d+) s left .*?loss (\S+)", re.MULTILINE)
#: Starts of the messages at the end of a run. Others, such as "Select jobs to execute...", come with each job.
LAST = ("Complete log", "Elapsed time")


class LogHandler(LogHandlerBase):
    """Writes to the terminal in place of Snakemake's own handler, with its formatter."""

    writes_to_stream = True
    writes_to_file = False
    has_filter = False
    has_formatter = False
    needs_rulegraph = False

    def __post_init__(self) -> None:
        self._stream = sys.stdout if self.common_settings.stdout else sys.stderr
        self._terminal = self._stream.isatty()
        self._progress: Progress | None = None
        self._shown = 0
        if self._terminal:
            threading.Thread(target=self._refresh, daemon=True).start()

    def _refresh(self) -> None:
        while not threading.Event().wait(SECONDS):
            if self._progress and self._progress.running:
                self._draw(self._progress)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._show(record)
        except Exception:
            self.handleError(record)

    def _show(self, record: Any) -> None:
        event = getattr(record, "event", None)
        if self.common_settings.dryrun:
            self._print(self.format(record))
        elif event == LogEvent.RUN_INFO:
            self._progress = Progress(record.stats["total"], time.monotonic())
        elif event in COUNTED:
            self._count(record, event)
        else:
            if event == LogEvent.JOB_ERROR and self._progress:
                self._progress.running.pop(record.jobid, None)
            text = self.format(record)
            if record.levelno > logging.INFO or self._progress is None or text.startswith(LAST):
                self._print(text)

    def _count(self, record: Any, event: LogEvent | None) -> None:
        if self._progress is None:
            return
        if event == LogEvent.JOB_INFO:
            self._progress.running[record.jobid] = record.rule_msg or record.rule_name
            self._progress.logs[record.jobid] = [Path(file) for file in getattr(record, "log", None) or ()]
        elif event == LogEvent.JOB_FINISHED:
            self._progress.running.pop(record.job_id)
            self._progress.done += 1
            lines = LINES * self._progress.done // self._progress.total
            if not self._terminal and lines > self._shown:
                self._shown = lines
                self._print(self._progress.line(time.monotonic()))
        if self._terminal:
            self._draw(self._progress)

    def _draw(self, progress: Progress) -> None:
        """Rewrite the line of the terminal."""
        line = progress.line(time.monotonic())[: shutil.get_terminal_size().columns - 1]
        self._stream.write(_CLEAR + line + "\n" * progress.complete)
        self._stream.flush()

    def _print(self, text: str) -> None:
        """Print text in place of the line."""
        self._stream.write(f"{_CLEAR if self._terminal else ''}{text}\n" if text else "")
        self._stream.flush()


#: Moves to the start of the line and clears it.
_CLEAR = "\r\x1b[K"


class Progress:
    """The jobs that have finished and those that run, and an estimate of the time left."""

    def __init__(self, total: int, started: float) -> None:
        self.total, self.started = total, started
        self.done = 0
        #: Messages of the jobs that run.
        self.running: dict[int, str] = {}
        #: Their log files.
        self.logs: dict[int, list[Path]] = {}

    @property
    def complete(self) -> bool:
        return self.done >= self.total

    def line(self, now: float) -> str:
        """Return the line. The jobs left are expected to take as long as those that are done took on average."""
        passed = now - self.started
        times = f"{_clock(passed)} so far"
        if 0 < self.done < self.total:
            times += f", about {_clock(passed * (self.total - self.done) / self.done)} left"
        shown = f"{100 * self.done // self.total:3d} %  {self.done} of {self.total} jobs"
        jobs = list(self.running.items())[::-1]
        trainings = [(self._training(job), message) for job, message in jobs]
        return "  ".join([shown, times, *next((each for each in trainings if each[0]), [text for _, text in jobs[:1]])])

    def _training(self, job: int) -> str:
        """Return the loss and the time left of a training, from the last row of its log; empty for other jobs."""
        for log in self.logs.get(job, ()):
            if log.is_file() and (rows := ROW.findall(log.read_text(encoding="utf-8", errors="replace")[-2000:])):
                left, loss = rows[-1]
                return f"loss {loss}, {_clock(float(left))} left:"
        return ""


def _clock(seconds: float) -> str:
    """Return minutes and seconds, or hours and minutes, as `2:07 min` or `1:05 h`."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d} min"
    return f"{minutes // 60}:{minutes % 60:02d} h"
