"""Snakemake's plugin for Slurm, without the plugin's lost jobs, endless waits and duplicate jobs.

`attend` replaces the plugin's executor by `Executor`. The plugin's command line, profiles and documentation stay valid.
Written for the pinned version of the plugin; each method says what it changes.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import shared_gpu
import snakemake_executor_plugin_slurm as plugin
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from recaps import processes
from recaps.errors import MISTAKE, UserError
from recaps.io import read_json, write_json
from recaps.training import lease
from recaps.workflow.job import failure, title_of
from recaps.workflow.jobs import held
from recaps.workflow.receipts import place

#: A job leaves these states at once if Slurm puts it back into the queue, and never otherwise.
REQUEUED = ("PREEMPTED", "NODE_FAIL")

#: A job that is in such a state, or unknown, in this many queries counts as failed.
LOOKS = 3

#: States of a job that is waiting or running.
ALIVE = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "STOPPED")

#: Seconds for which Slurm counts as available after an answer.
RECENT = 15

#: Seconds in which trainings gather that may share a GPU: those of a group that failed do not come back at once.
GATHER = 3

#: The job names that the plugin gives: a prefix that the user may choose, and a UUID for each start of Snakemake.
NAME = re.compile(r"([\w-]{1,50}_)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

#: A job in Slurm's queue: state, node or reason, name, folder.
Entry = tuple[str, str, str, str]


def attend() -> None:
    """Make `--executor slurm` use `Executor`."""
    ExecutorPluginRegistry().plugins["slurm"].executor = Executor


class Executor(plugin.Executor):  # type: ignore[misc]
    """The plugin's executor, which also

    - takes over the trainings of a Snakemake that was killed, and cancels its other jobs;
    - waits while Slurm does not answer, instead of losing jobs or counting them as failed;
    - submits trainings in groups that share a GPU, if `runs_per_gpu` says so;
    - submits a job again after preemption or the death of its node, if Slurm does not requeue it;
    - does not submit a job again that would fail again;
    - reports each change of a job's state, and why a job failed.
    """

    def __init__(self, workflow: Any, logger: Any) -> None:
        # Before the base class starts the thread that uses them.
        self._left: dict[str, str] | None = None
        self._told: dict[Any, tuple[str, str]] = {}
        self._strange: Counter[str] = Counter()
        self._settled: set[Any] = set()
        self._before: dict[Any, int] = {}
        self._gathered: list[Any] = []
        self._gathering = threading.Lock()
        self._silent = False
        self._answered = -math.inf
        self._ending = threading.Event()
        super().__init__(workflow, logger)

    def cancel(self) -> None:
        self._ending.set()
        super().cancel()

    def shutdown(self) -> None:
        self._ending.set()
        super().shutdown()
        _start_file(self.run_uuid).unlink(missing_ok=True)

    # ---- Submission --------------------------------------------------------------------------------------------------

    def run_jobs(self, jobs: list[Any]) -> None:
        """Like the plugin's; before the first job, look for jobs of an earlier start."""
        if self._left is None:
            write_json(_start_file(self.run_uuid), processes.this())
            self._left = self._take_stock()
        sharing = [job for job in jobs if shared_gpu.shares(job) and _checkpoints(job) not in self._left]
        super().run_jobs([job for job in jobs if job not in sharing])
        if sharing:
            with self._gathering:
                self._gathered += sharing
            self._job_submission_executor.submit(self._run_groups)

    def _run_groups(self) -> None:
        """Submit the trainings that have gathered."""
        if self._ending.wait(GATHER):
            return
        with self._gathering:
            jobs, self._gathered = self._gathered, []
        try:
            super().run_jobs(list(shared_gpu.grouped(jobs)))
        except Exception as error:  # it would get lost in the thread that submits
            for job in jobs:
                self._report_job_error_threadsafe(SubmittedJobInfo(job), f"Job submission failed: {error}")

    def format_job_exec(self, job: Any) -> str:
        command = super().format_job_exec(job)
        return job.side_by_side(command) if isinstance(job, shared_gpu.Group) else command

    def _report_job_submission_threadsafe(self, job_info: SubmittedJobInfo) -> None:
        """Like the plugin's; Snakemake knows each training of a group that shares a GPU as a job of its own."""
        for job in _known(job_info.job):
            super()._report_job_submission_threadsafe(replace(job_info, job=job))

    def _report_job_error_threadsafe(self, job_info: SubmittedJobInfo, msg: str) -> None:
        for job in _known(job_info.job):
            super()._report_job_error_threadsafe(replace(job_info, job=job), msg)

    def run_job(self, job: Any) -> None:
        """Like the plugin's, but an unavailable controller does not count as a failure of the job."""
        try:
            if time.monotonic() - self._answered > RECENT:
                self._await_queue("--me")
            if self._ending.is_set():
                return
            number = (self._left or {}).pop(_checkpoints(job), None)
            if number is not None and self._take_over(job, number):
                return
            for log in _logs(job):  # of an earlier attempt
                log.unlink(missing_ok=True)
            self._before |= {member: _made(member) for member in _members(job)}
        except Exception as error:  # it would get lost in the thread that submits
            self._report_job_error_threadsafe(SubmittedJobInfo(job), f"Job submission failed: {error}")
            return
        super().run_job(job)

    def _take_stock(self) -> dict[str, str]:
        """Return Slurm's job numbers of running trainings that are still needed, by their folders of checkpoints.

        They belong to a dead start of Snakemake in this folder. The lease on a run says what its holder makes. A
        training with the same settings and code is the one that would be submitted, unless its data must be made again.
        All other jobs of dead starts are cancelled, because two jobs would write the same files.
        """
        here = os.path.realpath(self.workflow.workdir_init)
        left = {
            number: state
            for number, (state, _, name, folder) in self._await_queue("--me").items()
            if state in ALIVE and NAME.fullmatch(name) and os.path.realpath(folder) == here and self._is_dead(name)
        }
        kept, others = {}, set()
        for job in self.workflow.dag.needrun_jobs() if left and not self.array_jobs else ():
            folder = _checkpoints(job)
            holder = lease.holder(Path(folder)) if folder else {}
            same = folder and holder.get("what") == held("train_variant", job.params.identity)
            number = str(holder.get("job"))
            waits = any(map(self.workflow.dag.needrun, self.workflow.dag.dependencies[job]))
            if same and left.get(number) == "RUNNING" and not waits:
                kept[folder] = number
            else:
                others.add(number)
        # A group is taken over if all its trainings are still needed.
        kept = {folder: number for folder, number in kept.items() if number not in others}
        self._cancel(left.keys() - kept.values())
        return kept

    def _is_dead(self, name: str) -> bool:
        """Return whether the start that gave this name to its jobs is dead. If unknown, warn and return False."""
        try:
            start = read_json(_start_file(name))
        except UserError:
            start = {}
        if (alive := processes.lives(start)) is not None:
            return not alive
        self.logger.warning(
            f"Jobs named {name} belong to a Snakemake on {start.get('host', 'an unknown host')} and were left running;"
            " if it has ended, cancel them with scancel"
        )
        return False

    def _cancel(self, numbers: Collection[str]) -> None:
        """Cancel jobs of an earlier start, and wait until they are gone."""
        if not numbers:
            return
        self.logger.warning(
            f"Cancelling {len(numbers)} Slurm jobs left over from a Snakemake that was killed: "
            f"{', '.join(sorted(numbers))}"
        )
        deadline = time.monotonic() + 300
        while not self._ending.is_set():
            queue = self._await_queue("--me")
            alive = sorted(number for number in numbers if number in queue and queue[number][0] in ALIVE)
            if not alive:
                return
            if time.monotonic() > deadline:
                raise WorkflowError(
                    f"Slurm jobs {', '.join(alive)}, left over from a Snakemake that was killed, cannot be cancelled;"
                    " cancel them by hand"
                )
            _slurm("scancel", *alive)
            self._ending.wait(2)

    def _take_over(self, job: Any, number: str) -> bool:
        """Take over a Slurm job of a killed start under this start's name, else cancel it; return whether it worked."""
        details = _slurm("scontrol", "--oneliner", "show", "job", number)
        renamed = _slurm("scontrol", "update", f"JobId={number}", f"JobName={self.run_uuid}")
        if details is None or renamed is None:
            self._cancel([number])
            return False
        words = dict(word.split("=", 1) for word in details.split() if "=" in word)
        self.logger.info(f"{title(job)}: already runs as Slurm job {number} of an earlier start; waiting for it")
        log = {"slurm_logfile": Path(words.get("StdOut", os.devnull))}
        self._report_job_submission_threadsafe(SubmittedJobInfo(job, external_jobid=number, aux=log))
        return True

    # ---- While jobs run ----------------------------------------------------------------------------------------------

    async def check_active_jobs(self, active_jobs: list[SubmittedJobInfo]) -> AsyncIterator[SubmittedJobInfo]:
        """Like the plugin's, which drops all jobs when its queries fail, and waits forever for some that have ended."""
        pause = self.workflow.executor_settings.init_seconds_before_status_checks
        self.next_seconds_between_status_checks = pause
        if not active_jobs:
            return
        queue = self._queue(f"--name={self.run_uuid}", f"{len(active_jobs)} jobs: still waiting for them")
        if queue is None:
            for info in active_jobs:
                yield info
            return
        self._tell(active_jobs, queue)
        self._settled.clear()
        async for _ in super().check_active_jobs(active_jobs):
            pass  # the reports below record the jobs that have ended
        self.next_seconds_between_status_checks = pause  # the plugin's grows up to three minutes
        waiting = [info for info in active_jobs if info.job not in self._settled]
        numbers = {str(info.external_jobid) for info in waiting}
        reasons = {number: self._strange_end(number, queue) for number in numbers}
        for info in waiting:
            if reason := reasons[str(info.external_jobid)]:
                self.report_job_error(info, msg=reason)
            else:
                yield info

    def _strange_end(self, number: str, queue: Mapping[str, Entry]) -> str | None:
        """Return why a job that the plugin still waits for has ended; None if it has not."""
        state = queue[number][0] if number in queue else None
        # The queue does not list old jobs. `sacct` knows them, if it is available.
        lost = state is None and (number in self._strange or self.get_status_command() == "squeue")
        if state not in REQUEUED and not lost:
            self._strange.pop(number, None)
            return None
        self._strange[number] += 1
        if self._strange[number] < LOOKS:
            return None
        return (
            f"Slurm job {number} is {state}, and was not put back into the queue. "
            if state
            else f"Slurm no longer knows job {number}. "
        )

    def _tell(self, active_jobs: list[SubmittedJobInfo], queue: Mapping[str, Entry]) -> None:
        """Print one line for each job whose state has changed."""
        for info in active_jobs:
            number = str(info.external_jobid)
            if number in queue and self._told.get(info.job) != (number, queue[number][0]):
                state, where, *_ = queue[number]
                self._told[info.job] = number, state
                self.logger.info(f"{title(info.job)}: {state} {where} (Slurm job {number})".replace("  ", " "))

    # ---- When jobs end -----------------------------------------------------------------------------------------------

    def report_job_success(self, job_info: SubmittedJobInfo) -> None:
        self._settled.add(job_info.job)
        super().report_job_success(job_info)

    def report_job_error(self, job_info: SubmittedJobInfo, msg: str | None = None, **more: Any) -> None:
        """Like the plugin's, with the cause. A job that failed because of a user's mistake has no further attempts.

        One that made its outputs has not failed: Slurm has forgotten it, or its job failed because of another training.
        """
        if job_info.external_jobid is None:  # it was never submitted
            super().report_job_error(job_info, msg=msg, **more)
            return
        if self._is_done(job_info.job):
            self.report_job_success(job_info)
            return
        number = str(job_info.external_jobid)
        self._settled.add(job_info.job)
        ends = {(job, log): failure(log) for job in _members(job_info.job) for log in _logs(job)}
        for (job, log), ended in ends.items():
            if ended:
                again = "" if ended[1] != MISTAKE else "; not tried again, as it would fail again"
                self.logger.error(f"recaps: {title(job)}: {ended[0]} (log: {log}; Slurm job {number}){again}")
                if again:
                    job_info.job.attempt = job_info.job.restart_times + 1
        if not any(ends.values()):
            logs = ", ".join(str(log) for _, log in ends)
            self.logger.error(
                f"recaps: {title(job_info.job)}: ended without a message; it may have been killed (log: {logs})"
            )
        super().report_job_error(job_info, msg=msg, **more)

    def _is_done(self, job: Any) -> bool:
        """Return whether a job has made its outputs since it was submitted. Its receipt is written last."""
        made = all(_made(each) not in (0, self._before.get(each)) for each in _members(job))
        return made and not any(map(failure, _logs(job)))

    # ---- Slurm -------------------------------------------------------------------------------------------------------

    def _queue(self, which: str, meanwhile: str) -> dict[str, Entry] | None:
        """Return the jobs that squeue lists with an option. If Slurm does not answer, warn once and return None."""
        answer = _slurm("squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%R|%j|%Z", which)
        if answer is None:
            if not self._silent:
                self.logger.warning(f"Slurm does not answer; {meanwhile}")
            self._silent = True
            return None
        if self._silent:
            self.logger.info("Slurm answers again")
        self._silent, self._answered = False, time.monotonic()
        rows = (line.split("|", 4) for line in answer.splitlines())
        return {row[0]: (row[1], row[2], row[3], row[4]) for row in rows if len(row) == 5}

    def _await_queue(self, which: str) -> dict[str, Entry]:
        """Like `_queue`, but wait until Slurm answers. Empty if Snakemake ends first."""
        while (queue := self._queue(which, "new jobs wait to be submitted")) is None:
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


def _checkpoints(job: Any) -> str:
    """Return the folder of checkpoints of a training; empty for all other jobs and for groups."""
    alone = not job.is_group() and job.rule.group is None
    return str(job.params.checkpoints) if alone and job.rule.name == "train_variant" else ""


def _known(job: Any) -> Iterator[Any]:
    """Yield the jobs of a submission that Snakemake knows."""
    yield from job.jobs if isinstance(job, shared_gpu.Group) else [job]


def _made(job: Any) -> int:
    """Return when a job's receipt was written; 0 if there is none."""
    with suppress(FileNotFoundError):
        return place(map(Path, job.output)).stat().st_mtime_ns
    return 0


def _start_file(name: str) -> Path:
    """Return the file that records the start of Snakemake with these job names, in the working directory."""
    return Path(".snakemake") / "slurm-starts" / f"{name}.json"


def _slurm(*command: str) -> str | None:
    """Return the output of a command of Slurm; None if it fails.

    Raises:
        WorkflowError: there is no such command.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60, check=False)
    except FileNotFoundError as error:
        raise WorkflowError(f"no '{command[0]}' on the path: run this where Slurm's commands are") from error
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.returncode == 0 else None
