"""Several trainings as one job of Slurm, side by side on one GPU.

Snakemake's own groups do not fit: if one member fails, they delete the outputs of all and fail as a whole, they add up
the GPUs of their members, and they combine members in an arbitrary order. Here, each training stays a job of its own
for Snakemake; only the submission is shared.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import snakemake_executor_plugin_slurm as plugin
from snakemake.jobs import GroupJob
from snakemake.resources import SizedResources
from snakemake_executor_plugin_slurm_jobstep import get_cpu_setting
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

#: What a group needs as often as it has members. Of all else, such as the GPU, it needs as much as one member.
ADDED = ("_cores", "cpus_per_gpu", "cpus_per_task", "disk_mb", "disk_mib", "mem_mb", "mem_mib")

#: Seconds in which trainings gather that may share a GPU: those of a group that failed do not come back at once.
GATHER = 3


class Group(GroupJob):  # type: ignore[misc]
    """Trainings that Slurm gets as one job."""

    def __init__(self, jobs: list[Any]) -> None:
        super().__init__("shared_gpu", frozenset(jobs), None)
        self.rule = jobs[0].rule  # the plugin asks for it when a submission fails
        self._attempt = jobs[0].attempt
        self._resources = dict(_same(jobs[0]))
        for name in {*ADDED} & {*jobs[0].resources.keys()}:
            self._resources[name] = sum(job.resources[name] for job in jobs)
        longest = max(job.resources.runtime for job in jobs)
        self._resources["runtime"] = -(-longest * jobs[0].resources.shared_time_percent // 100)
        self.finalize()

    def side_by_side(self, command: str) -> str:
        """Return the command of the Slurm job, given Snakemake's for this group.

        One Snakemake runs the members as local jobs. The plugin would start another Snakemake for each, one by one.
        """
        about = f"RECAPS_RUNS={len(self)} RECAPS_MINUTES={self.resources.runtime}"
        step = f"srun --ntasks=1 --nodes=1 --cpu-bind=q {get_cpu_setting(self, True)}"
        script = Path(__file__).with_name("under_mps.sh")
        return f"{about} {step} bash {script} {command} --executor local --cores {self.threads} --jobs {len(self)}"


class Executor(plugin.Executor):  # type: ignore[misc]
    """The plugin's executor, which gathers trainings that share a GPU. Each stays a job of its own for Snakemake."""

    def __init__(self, workflow: Any, logger: Any) -> None:
        # Before the base class starts the thread that uses them.
        self._gathered: list[Any] = []
        self._gathering = threading.Lock()
        self._ending = threading.Event()
        super().__init__(workflow, logger)

    def cancel(self) -> None:
        self._ending.set()
        super().cancel()

    def shutdown(self) -> None:
        self._ending.set()
        super().shutdown()

    def run_jobs(self, jobs: list[Any]) -> None:
        sharing = [job for job in jobs if shares(job)]
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
            super().run_jobs(list(grouped(jobs)))
        except Exception as error:  # it would get lost in the thread that submits
            for job in jobs:
                self._report_job_error_threadsafe(SubmittedJobInfo(job), f"Job submission failed: {error}")

    def format_job_exec(self, job: Any) -> str:
        command: str = super().format_job_exec(job)
        return job.side_by_side(command) if isinstance(job, Group) else command

    def _report_job_submission_threadsafe(self, job_info: SubmittedJobInfo) -> None:
        for job in _members(job_info.job):
            super()._report_job_submission_threadsafe(replace(job_info, job=job))

    def _report_job_error_threadsafe(self, job_info: SubmittedJobInfo, msg: str) -> None:
        for job in _members(job_info.job):
            super()._report_job_error_threadsafe(replace(job_info, job=job), msg)


def _members(job: Any) -> Iterable[Any]:
    """Return the jobs of a submission that Snakemake knows."""
    return job.jobs if isinstance(job, Group) else [job]


def shares(job: Any) -> bool:
    """Return whether a job is a training that shares a GPU.

    Raises:
        WorkflowError: its resource `runs_per_gpu` or `shared_time_percent` makes no sense.
    """
    if job.is_group() or job.rule.name != "train_variant":
        return False
    for name, least in {"runs_per_gpu": 1, "shared_time_percent": 100}.items():
        value = job.resources[name]
        if not isinstance(value, int) or value < least:
            raise WorkflowError(f"set-resources: train_variant: {name}: {value!r} is not a number of at least {least}")
    has_gpu = job.resources.get("gpu") or job.resources.get("gpu_model") or "gpu" in job.resources.get("gres", "")
    return bool(has_gpu) and job.resources.runs_per_gpu > 1


def grouped(jobs: Iterable[Any]) -> Iterator[Any]:
    """Yield trainings that share GPUs, in groups of `runs_per_gpu`; one that is left over stays alone.

    At the second attempt, groups are half as large, at the third a third: each training requests more memory then, and
    its first attempt may have failed for lack of it. The members of a group request the same, except for memory, cores
    and time. They are sorted by time, so that those of a group end at about the same time.
    """
    alike: dict[Hashable, list[Any]] = defaultdict(list)
    for job in sorted(jobs, key=lambda job: (-job.resources.runtime, str(job.output[0]))):
        alike[job.attempt, frozenset(_same(job))].append(job)
    for each in alike.values():
        size = max(1, each[0].resources.runs_per_gpu // each[0].attempt)
        for start in range(0, len(each), size):
            some = each[start : start + size]
            yield Group(some) if len(some) > 1 else some[0]


def _same(job: Any) -> Iterator[tuple[str, Any]]:
    """Yield the resources in which the members of a group do not differ."""
    other = {*ADDED, *SizedResources, "runtime"}
    return ((name, value) for name, value in job.resources.items() if name not in other)
