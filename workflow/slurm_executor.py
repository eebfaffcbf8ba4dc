"""Snakemake's plugin for Slurm with three mends.

`attend` replaces the plugin's executor by `Executor`. The plugin's command line, profiles and documentation stay valid,
except that states come from `squeue` and from receipts alone: no accounting database is needed, and the setting
`slurm-status-command` has no effect. Written for the pinned version of the plugin. The mends:

1. No lost jobs. While Slurm does not answer, the plugin drops all jobs, and counts those that it submits as failed.
   Here, all of them wait.
2. No endless waits. The plugin waits forever for a job that was preempted or lost its node and was not put back into
   the queue, and for one that Slurm has forgotten. Here, it has ended after `LOOKS` queries; a receipt tells how.
3. No duplicate jobs. A Snakemake that was killed leaves its jobs behind, and the plugin submits them again. Here, a
   start ends with the command that cancels them.

Also, a job that would fail again is not submitted again, and the terminal tells each change of a state and why a job
failed.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import shared_gpu
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from recaps.errors import MISTAKE
from recaps.plan.job import failure, title_of
from recaps.plan.receipts import file_of

#: A job leaves these states at once if Slurm puts it back into the queue, and never otherwise. Empty: not in the queue.
UNCERTAIN = ("PREEMPTED", "NODE_FAIL", "")
FAILED = ("BOOT_FAIL", "CANCELLED", "DEADLINE", "FAILED", "OUT_OF_MEMORY", "TIMEOUT")
#: Queries after which it has ended: at the profile's 15 seconds, a shared file system shows the receipt by then.
LOOKS = 5
#: Seconds for which Slurm counts as available after an answer.
RECENT = 15
#: The job names that the plugin gives: a prefix that the user may choose, and a UUID for each start of Snakemake.
NAME = re.compile(r"([\w-]{1,50}_)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

#: A job in Slurm's queue: state, node or reason, name, folder.
Entry = tuple[str, str, str, str]
GONE: Entry = ("", "", "", "")


def attend() -> None:
    """Make `--executor slurm` use `Executor`."""
    ExecutorPluginRegistry().plugins["slurm"].executor = Executor


class Executor(shared_gpu.Executor):
    """The plugin's executor with the mends above."""

    def __init__(self, workflow: Any, logger: Any) -> None:
        # Before the base class starts the thread that uses them.
        self._told: dict[Any, tuple[str, str]] = {}
        self._uncertain: Counter[str] = Counter()
        self._before: dict[Any, int] = {}
        self._silent = False
        self._answered: float | None = None
        super().__init__(workflow, logger)

    def run_jobs(self, jobs: list[Any]) -> None:
        """Like the plugin's; before the first job, look for jobs of another start."""
        if self._answered is None:
            self._refuse_leftovers()
        super().run_jobs(jobs)

    def _refuse_leftovers(self) -> None:
        here = os.path.realpath(self.workflow.workdir_init)
        left = [
            number
            for number, (state, _, name, folder) in self._await_queue().items()
            if state not in (*UNCERTAIN, *FAILED, "COMPLETED") and name != self.run_uuid
            if NAME.fullmatch(name) and os.path.realpath(folder) == here
        ]
        if left:
            raise WorkflowError(
                f"Slurm still has {len(left)} jobs of another Snakemake in this folder. If it was killed, cancel them"
                f" (scancel {' '.join(left)}) and start again: trainings save their state and continue"
            )

    def run_job(self, job: Any) -> None:
        """Like the plugin's, but an unavailable controller does not count as a failure of the job."""
        try:
            if self._answered is None or time.monotonic() - self._answered > RECENT:
                self._await_queue()
            if self._ending.is_set():
                return
            for log in _logs(job):  # of an earlier attempt
                log.unlink(missing_ok=True)
            self._before |= {member: _made(member) for member in _members(job)}
        except Exception as error:  # it would get lost in the thread that submits
            self._report_job_error_threadsafe(SubmittedJobInfo(job), f"Job submission failed: {error}")
            return
        super().run_job(job)

    async def check_active_jobs(self, active_jobs: list[SubmittedJobInfo]) -> AsyncIterator[SubmittedJobInfo]:
        """Report the jobs that have ended, and yield the others."""
        settings = self.workflow.executor_settings
        self.next_seconds_between_status_checks = settings.init_seconds_before_status_checks
        if not active_jobs:
            return
        async with self.status_rate_limiter:
            queue = self._queue(f"--name={self.run_uuid}", f"{len(active_jobs)} jobs: still waiting for them")
        if queue is None:
            for info in active_jobs:
                yield info
            return
        for number in {str(info.external_jobid) for info in active_jobs}:  # several trainings may share a job
            state = queue.setdefault(number, GONE)[0]
            self._uncertain[number] = self._uncertain[number] + 1 if state in UNCERTAIN else 0
        for info in active_jobs:
            number, log = str(info.external_jobid), (info.aux or {}).get("slurm_logfile")
            state, where, *_ = queue[number]
            if state and self._told.get(info.job) != (number, state):
                self._told[info.job] = number, state
                self.logger.info(f"{title(info.job)}: {state} {where} (Slurm job {number})".replace("  ", " "))
            if state == "COMPLETED":
                self.report_job_success(info)
                if log and not settings.keep_successful_logs:
                    log.unlink(missing_ok=True)
            elif state in FAILED or self._uncertain[number] >= LOOKS:
                end = f"is {state}{', and was not put back into the queue' if state in UNCERTAIN else ''}"
                told = f"Slurm job {number} {end}. " if state else f"Slurm no longer knows job {number}. "
                self.report_job_error(info, msg=told, aux_logs=[str(log)] if log else [])
            else:
                yield info

    def report_job_error(self, job_info: SubmittedJobInfo, msg: str | None = None, **more: Any) -> None:
        """Like the plugin's, with the cause. A job that failed because of a user's mistake has no further attempts.

        One that made its outputs has not failed: Slurm has forgotten it, or its job failed because of another training.
        """
        number, job = job_info.external_jobid, job_info.job
        if number is not None:  # it was submitted
            if self._is_done(job):
                self.report_job_success(job_info)
                return
            ends = {log: (title(each), failure(log)) for each in _members(job) for log in _logs(each)}
            for log, (name, end) in ends.items():
                if end:
                    again = "; not tried again, as it would fail again" if end[1] == MISTAKE else ""
                    self.logger.error(f"recaps: {name}: {end[0]} (log: {log}; Slurm job {number}){again}")
                    job.attempt = job.restart_times + 1 if again else job.attempt
            if not any(end for _, end in ends.values()):
                logs = ", ".join(map(str, ends))
                cause = f"ended without a message; it may have been killed (log: {logs})"
                self.logger.error(f"recaps: {title(job)}: {cause}")
        super().report_job_error(job_info, msg=msg, **more)

    def _is_done(self, job: Any) -> bool:
        """Return whether a job has made its outputs since it was submitted. Its receipt is written last."""
        made = all(_made(each) not in (0, self._before.get(each)) for each in _members(job))
        return made and not any(map(failure, _logs(job)))

    def _queue(self, which: str, meanwhile: str) -> dict[str, Entry] | None:
        """Return the jobs that squeue lists with an option. If Slurm does not answer, warn once and return None."""
        answer = _output("squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%R|%j|%Z", which)
        if (answer is None) != self._silent:
            self._silent = answer is None
            self.logger.warning(f"Slurm does not answer; {meanwhile}" if self._silent else "Slurm answers again")
        if answer is None:
            return None
        self._answered = time.monotonic()
        rows = (line.split("|", 4) for line in answer.splitlines())
        return {row[0]: (row[1], row[2], row[3], row[4]) for row in rows if len(row) == 5}

    def _await_queue(self) -> dict[str, Entry]:
        """Return the user's jobs once Slurm answers. Empty if Snakemake ends first."""
        while (queue := self._queue("--me", "new jobs wait to be submitted")) is None:
            if self._ending.wait(5):
                return {}
        return queue


def title(job: Any) -> str:
    """Return the name of a job for the terminal."""
    if job.is_group():
        return f"{len(job.jobs)} jobs {', '.join(sorted({each.rule.name for each in job.jobs}))}"
    return title_of(job.rule.name, job.wildcards_dict)


def _members(job: Any) -> Iterator[Any]:
    yield from job.jobs if job.is_group() else [job]


def _logs(job: Any) -> Iterator[Path]:
    for member in _members(job):
        yield from (Path(str(log)) for log in member.log)


def _made(job: Any) -> int:
    """Return when a job's receipt was written; 0 if there is none."""
    with suppress(FileNotFoundError):
        return file_of(map(Path, job.output)).stat().st_mtime_ns
    return 0


def _output(*command: str) -> str | None:
    """Return the output of a command of Slurm; None if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60, check=False)
    except FileNotFoundError as error:
        raise WorkflowError(f"no '{command[0]}' on the path: run this where Slurm's commands are") from error
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.returncode == 0 else None
