"""Jobs on Slurm by Snakemake's plugin, without what the plugin alone loses, hangs on or does twice.

`attend` puts `Executor` into the place of the plugin's own, so
that command line, profiles and documentation of the plugin stay as they are. Written for the pinned version of the
plugin; what it changes is told at each method.
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
from pathlib import Path
from typing import Any

import snakemake_executor_plugin_slurm as plugin
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from recaps import processes
from recaps.errors import MISTAKE, UserError
from recaps.io import read_json, write_json
from recaps.training import lease
from recaps.workflow.job import failure

#: States that a job leaves at once if Slurm puts it back into the queue, and never if not.
REQUEUED = ("PREEMPTED", "NODE_FAIL")

#: Looks at the queue in which a job must be in such a state, or unknown, before it counts as failed.
LOOKS = 3

#: States of a job that waits or runs.
ALIVE = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "STOPPED")

#: Seconds for which an answer of Slurm counts as a sign that it is there.
RECENT = 15

#: The job names that the plugin gives: a prefix that the user may choose, and a UUID for each start of Snakemake.
NAME = re.compile(r"([\w-]{1,50}_)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

#: A job in Slurm's queue: state, node or reason, name, folder.
Entry = tuple[str, str, str, str]


def attend() -> None:
    """Let `--executor slurm` mean `Executor`."""
    ExecutorPluginRegistry().plugins["slurm"].executor = Executor


class Executor(plugin.Executor):  # type: ignore[misc]
    """The plugin's executor, which:

    - takes over the trainings of a Snakemake that was killed, and cancels the other jobs that it has left;
    - waits while Slurm does not answer, instead of losing jobs or counting them as failed;
    - submits a job again that was preempted or whose node died, where Slurm itself does not put it back;
    - does not submit a job again that would fail again;
    - says what becomes of each job, and why one failed.
    """

    def __init__(self, workflow: Any, logger: Any) -> None:
        # Before the base class starts the thread that uses them.
        self._left: dict[str, str] | None = None
        self._told: dict[str, str] = {}
        self._strange: Counter[str] = Counter()
        self._settled: set[str] = set()
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
        """As the plugin's; before the first one, look for jobs of an earlier start."""
        if self._left is None:
            write_json(_start_file(self.run_uuid), processes.this())
            self._left = self._take_stock()
        super().run_jobs(jobs)

    def run_job(self, job: Any) -> None:
        """As the plugin's, which would count a controller that is away as a failure of the job."""
        try:
            if time.monotonic() - self._answered > RECENT:
                self._await_queue("--me")
            if self._ending.is_set():
                return
            number = (self._left or {}).pop(_checkpoints(job), None)
            if number is not None and self._take_over(job, number):
                return
            for log in _logs(job):  # an earlier attempt's, which is not to be taken for this one's
                log.unlink(missing_ok=True)
        except Exception as error:  # it would get lost in the thread that submits
            self._report_job_error_threadsafe(SubmittedJobInfo(job), f"Job submission failed: {error}")
            return
        super().run_job(job)

    def _take_stock(self) -> dict[str, str]:
        """Slurm's job numbers of trainings that run already and are still wanted, by their folders of checkpoints.

        They belong to a start in this folder that is dead. The checkpoints' folder tells settings, code and options of
        the data, so such a training is the very one that would be submitted, unless its data are to be made anew. All
        other jobs of dead starts are cancelled, as two jobs would write the same files.
        """
        here = os.path.realpath(self.workflow.workdir_init)
        left = {
            number: state
            for number, (state, _, name, folder) in self._await_queue("--me").items()
            if state in ALIVE and NAME.fullmatch(name) and os.path.realpath(folder) == here and self._is_dead(name)
        }
        kept = {}
        for job in self.workflow.dag.needrun_jobs() if left and not self.array_jobs else ():
            folder = _checkpoints(job)
            number = str(lease.holder(Path(folder)).get("job")) if folder else ""
            if left.get(number) == "RUNNING" and not any(
                map(self.workflow.dag.needrun, self.workflow.dag.dependencies[job])
            ):
                kept[folder] = number
        self._cancel(left.keys() - kept.values())
        return kept

    def _is_dead(self, name: str) -> bool:
        """Whether the start that gave this name to its jobs is gone; if nobody can tell, say so and leave it alone."""
        try:
            start = read_json(_start_file(name))
        except UserError:
            start = {}
        if (alive := processes.lives(start)) is not None:
            return not alive
        self.logger.warning(
            f"Jobs named {name} are of a Snakemake on {start.get('host', 'an unknown host')}; left alone"
        )
        return False

    def _cancel(self, numbers: Collection[str]) -> None:
        """Cancel jobs of an earlier start, and wait until they are gone."""
        if not numbers:
            return
        self.logger.warning(f"Cancelling {len(numbers)} Slurm jobs of a killed start: {', '.join(sorted(numbers))}")
        deadline = time.monotonic() + 300
        while not self._ending.is_set():
            queue = self._await_queue("--me")
            alive = sorted(number for number in numbers if number in queue and queue[number][0] in ALIVE)
            if not alive:
                return
            if time.monotonic() > deadline:
                raise WorkflowError(
                    f"Slurm jobs {', '.join(alive)} of a killed start cannot be cancelled; do it by hand"
                )
            _slurm("scancel", *alive)
            self._ending.wait(2)

    def _take_over(self, job: Any, number: str) -> bool:
        """Go on with a Slurm job of a killed start, under this one's name; else cancel it. Whether it is taken over."""
        details = _slurm("scontrol", "--oneliner", "show", "job", number)
        renamed = _slurm("scontrol", "update", f"JobId={number}", f"JobName={self.run_uuid}")
        if details is None or renamed is None:
            self._cancel([number])
            return False
        words = dict(word.split("=", 1) for word in details.split() if "=" in word)
        self.logger.info(f"{title(job)}: runs already, as Slurm job {number} of an earlier start; it is waited for")
        log = {"slurm_logfile": Path(words.get("StdOut", os.devnull))}
        self._report_job_submission_threadsafe(SubmittedJobInfo(job, external_jobid=number, aux=log))
        return True

    # ---- While jobs run ----------------------------------------------------------------------------------------------

    async def check_active_jobs(self, active_jobs: list[SubmittedJobInfo]) -> AsyncIterator[SubmittedJobInfo]:
        """As the plugin's, which drops all jobs when its queries fail, and waits for ever for some that have ended."""
        pause = self.workflow.executor_settings.init_seconds_before_status_checks
        self.next_seconds_between_status_checks = pause
        if not active_jobs:
            return
        queue = self._queue(f"--name={self.run_uuid}", f"{len(active_jobs)} jobs are kept, and asked for again")
        if queue is None:
            for info in active_jobs:
                yield info
            return
        self._tell(active_jobs, queue)
        self._settled.clear()
        async for _ in super().check_active_jobs(active_jobs):
            pass  # which jobs have ended is heard by the reports below; all others are still waited for
        self.next_seconds_between_status_checks = pause  # the plugin's grows up to three minutes
        for info in active_jobs:
            number = str(info.external_jobid)
            if number in self._settled:
                continue
            reason = self._strange_end(number, queue)
            if reason is None:
                yield info
            elif number not in queue and _is_done(info.job):
                self.report_job_success(info)
            else:
                self.report_job_error(info, msg=reason)

    def _strange_end(self, number: str, queue: Mapping[str, Entry]) -> str | None:
        """Why a job that the plugin still waits for has ended."""
        state = queue[number][0] if number in queue else None
        # Old jobs are missing in the queue, but `sacct` knows them; without it nobody does.
        lost = state is None and (number in self._strange or self.get_status_command() == "squeue")
        if state not in REQUEUED and not lost:
            self._strange.pop(number, None)
            return None
        self._strange[number] += 1
        if self._strange[number] < LOOKS:
            return None
        return f"Slurm job {number} is {state}, and was not put back. " if state else f"Slurm forgot job {number}. "

    def _tell(self, active_jobs: list[SubmittedJobInfo], queue: Mapping[str, Entry]) -> None:
        """One line for each job whose state has changed."""
        for info in active_jobs:
            number = str(info.external_jobid)
            if number in queue and self._told.get(number) != queue[number][0]:
                state, where, *_ = queue[number]
                self._told[number] = state
                self.logger.info(f"{title(info.job)}: {state} {where} (Slurm job {number})".replace("  ", " "))

    # ---- When jobs end -----------------------------------------------------------------------------------------------

    def report_job_success(self, job_info: SubmittedJobInfo) -> None:
        self._settled.add(str(job_info.external_jobid))
        super().report_job_success(job_info)

    def report_job_error(self, job_info: SubmittedJobInfo, msg: str | None = None, **more: Any) -> None:
        """As the plugin's, with the cause; a job that made a mistake has no further attempts."""
        if job_info.external_jobid is None:  # it was never submitted
            super().report_job_error(job_info, msg=msg, **more)
            return
        number = str(job_info.external_jobid)
        self._settled.add(number)
        told = False
        for job in _members(job_info.job):
            for log in _logs(job):
                if ended := failure(log):
                    told = True
                    cause, status = ended
                    again = "" if status != MISTAKE else "; not tried again, as it would fail again"
                    self.logger.error(f"recaps: {title(job)}: {cause} (log: {log}; Slurm job {number}){again}")
                    if status == MISTAKE:
                        job_info.job.attempt = job_info.job.restart_times + 1
        if not told:
            logs = ", ".join(map(str, _logs(job_info.job)))
            self.logger.error(f"recaps: {title(job_info.job)}: ended without a word, as if killed (log: {logs})")
        super().report_job_error(job_info, msg=msg, **more)

    # ---- Slurm -------------------------------------------------------------------------------------------------------

    def _queue(self, which: str, meanwhile: str) -> dict[str, Entry] | None:
        """Jobs that Slurm has in memory, by an option of squeue; None if it does not answer, which is told once."""
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
        """As `_queue`, once Slurm answers; empty if Snakemake is to end before."""
        while (queue := self._queue(which, "what is to be submitted waits")) is None:
            if self._ending.wait(5):
                return {}
        return queue


def title(job: Any) -> str:
    """A job as the terminal names it: its rule, and its wildcards but the scale."""
    if job.is_group():
        return f"{len(job.jobs)} jobs {', '.join(sorted({each.rule.name for each in job.jobs}))}"
    names = {key: f"seed-{value}" if key == "seed" else value for key, value in job.wildcards_dict.items()}
    return f"{job.rule.name} {'/'.join(value for key, value in names.items() if key != 'scale')}"


def _members(job: Any) -> Iterator[Any]:
    yield from job.jobs if job.is_group() else [job]


def _logs(job: Any) -> Iterator[Path]:
    for member in _members(job):
        yield from (Path(str(log)) for log in member.log)


def _checkpoints(job: Any) -> str:
    """The folder of checkpoints of a training; empty for every other job, and for groups of jobs."""
    alone = not job.is_group() and job.rule.group is None
    return str(job.params.checkpoints) if alone and job.rule.name == "train_variant" else ""


def _is_done(job: Any) -> bool:
    """Whether a job that nobody remembers has made its outputs; a job's earlier ones are deleted before it starts."""
    made = all(Path(str(file)).exists() for member in _members(job) for file in member.output)
    return made and not any(failure(log) for log in _logs(job))


def _start_file(name: str) -> Path:
    """What tells of the start of Snakemake that names its jobs so; in the working directory."""
    return Path(".snakemake") / "slurm-starts" / f"{name}.json"


def _slurm(*command: str) -> str | None:
    """What a command of Slurm prints; None if it fails.

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
