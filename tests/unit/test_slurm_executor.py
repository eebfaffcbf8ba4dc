"""Snakemake's Slurm executor as recaps uses it, with a Slurm that is played: `tests/cluster` has a real one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import shared_gpu
import slurm_executor
import snakemake_executor_plugin_slurm as plugin
from slurm_executor import LOOKS, Executor, attend, title
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from recaps.plan.receipts import file_of

OLD, NEW = (f"{digit * 8}-1111-2222-3333-444444444444" for digit in "ab")


class Resources(dict[str, Any]):
    """Resources by name, also as attributes."""

    __getattr__ = dict.__getitem__


class Job:
    """Of Snakemake's jobs what the executor looks at."""

    def __init__(self, log: Path, rule: str = "evaluate_heads", seed: str = "0") -> None:
        self.rule = SimpleNamespace(name=rule, group=None)
        self.wildcards_dict = {"scale": "smoke", "paper": "sparse", "variant": "dense", "seed": seed}
        self.log, self.output = [log], [log.with_suffix(".json")]
        self.attempt, self.restart_times = 1, 3
        self.resources = Resources(runs_per_gpu=1, shared_time_percent=200, runtime=240)

    def is_group(self) -> bool:
        return False


class Group:
    def __init__(self, *jobs: Job) -> None:
        self.jobs = jobs
        self.attempt, self.restart_times = 1, 3

    def is_group(self) -> bool:
        return True


class Played:
    """Slurm: `queue` is what squeue prints, None while it does not answer."""

    def __init__(self) -> None:
        self.queue: list[tuple[str, str, str, str, str]] | None = []

    def __call__(self, *command: str) -> str | None:
        assert command[0] == "squeue"
        return None if self.queue is None else "".join("|".join(row) + "\n" for row in self.queue)


class Ending:
    """As threading.Event, but it waits for nothing; what is to happen meanwhile comes from `then`."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.then: Callable[[int], object] = lambda waits: None
        self.ending = False

    def is_set(self) -> bool:
        return self.ending

    def set(self) -> None:
        self.ending = True

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.then(len(self.waits))
        return self.ending


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    played = Played()
    monkeypatch.setattr(slurm_executor, "_output", played)
    return played


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, played: Played) -> Iterator[Any]:
    """One whose plugin does nothing but remember: reported errors, jobs that went well, and submissions."""
    monkeypatch.setattr(plugin.Executor, "__init__", lambda self, workflow, logger: None)
    monkeypatch.setattr(
        plugin.Executor, "report_job_error", lambda self, info, msg=None, **more: self.failed.append((info, msg))
    )
    monkeypatch.setattr(plugin.Executor, "report_job_success", lambda self, info: self.done.append(info))
    monkeypatch.setattr(plugin.Executor, "run_job", lambda self, job: self.submitted.append(job))
    monkeypatch.setattr(plugin.Executor, "shutdown", lambda self: None)
    monkeypatch.setattr(plugin.Executor, "run_jobs", lambda self, jobs: [self.run_job(job) for job in jobs])

    executor: Any = Executor(None, None)
    executor.failed, executor.done, executor.submitted, executor.told = [], [], [], []
    executor.run_uuid = NEW
    executor.logger = SimpleNamespace(**dict.fromkeys(("info", "warning", "error"), executor.told.append))
    settings = SimpleNamespace(init_seconds_before_status_checks=15, keep_successful_logs=False)
    executor.workflow = SimpleNamespace(workdir_init=str(tmp_path), executor_settings=settings)
    executor.status_rate_limiter = nullcontext()
    executor._ending = Ending()
    executor._job_submission_executor = SimpleNamespace(submit=lambda function: function())
    monkeypatch.chdir(tmp_path)
    return executor


def look(executor: Any, *infos: SubmittedJobInfo) -> list[str]:
    """The jobs that are waited for after a look at the queue."""

    async def gather() -> list[str]:
        return [info.external_jobid async for info in executor.check_active_jobs(list(infos))]

    return asyncio.run(gather())


def receipt(job: Job, time: int = 1) -> None:
    """What a job writes last."""
    file = file_of(job.output)
    file.parent.mkdir(exist_ok=True)
    file.write_text("{}")
    os.utime(file, (time, time))


def entry(number: str, state: str, name: str = NEW, folder: Path | str = "/") -> tuple[str, str, str, str, str]:
    return number, state, "node1", name, str(folder)


def test_slurm_means_this_executor() -> None:
    attend()
    assert ExecutorPluginRegistry().get_plugin("slurm").executor is Executor


def test_titles(tmp_path: Path) -> None:
    job = Job(tmp_path)
    assert title(job) == "evaluate_heads sparse/dense/seed-0"
    assert title(Group(job, Job(tmp_path, "train_variant"))) == "2 jobs evaluate_heads, train_variant"


def test_no_job_is_lost(executor: Any, played: Played, tmp_path: Path) -> None:
    """While Slurm does not answer, all wait."""
    log = tmp_path / "2.log"
    log.touch()
    infos = [SubmittedJobInfo(Job(tmp_path), external_jobid=number, aux={"slurm_logfile": log}) for number in "12"]
    played.queue = None
    assert look(executor, *infos) == look(executor, *infos) == ["1", "2"]
    assert executor.told == ["Slurm does not answer; 2 jobs: still waiting for them"]
    played.queue = [entry("1", "RUNNING"), entry("2", "COMPLETED")]
    assert look(executor, *infos) == ["1"]
    assert (executor.failed, executor.done) == ([], [infos[1]])
    assert not log.exists(), "as the plugin, unless keep-successful-logs is set"
    assert executor.told[1] == "Slurm answers again"


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY"])
def test_a_job_fails_at_once(executor: Any, played: Played, tmp_path: Path, state: str) -> None:
    info = SubmittedJobInfo(Job(tmp_path), external_jobid="1")
    played.queue = [entry("1", state)]
    assert look(executor, info) == []
    assert executor.failed == [(info, f"Slurm job 1 is {state}. ")]


def test_one_line_for_each_change(executor: Any, played: Played, tmp_path: Path) -> None:
    info = SubmittedJobInfo(Job(tmp_path), external_jobid="1")
    for state in ("PENDING", "PENDING", "RUNNING", "RUNNING"):
        played.queue = [entry("1", state)]
        assert look(executor, info) == ["1"]
    name = "evaluate_heads sparse/dense/seed-0"
    assert executor.told == [f"{name}: PENDING node1 (Slurm job 1)", f"{name}: RUNNING node1 (Slurm job 1)"]


@pytest.mark.parametrize("state", ["PREEMPTED", "NODE_FAIL", None])
def test_what_slurm_does_not_put_back_has_failed(
    executor: Any, played: Played, tmp_path: Path, state: str | None
) -> None:
    info = SubmittedJobInfo(Job(tmp_path), external_jobid="1")
    gone = [entry("1", state)] if state else []
    for queue in (*[gone] * (LOOKS - 1), [entry("1", "PENDING")], *[gone] * (LOOKS - 1)):
        played.queue = queue
        assert look(executor, info) == ["1"], "not yet, or not any more"
    assert look(executor, info) == []
    ((failed, reason),) = executor.failed
    assert failed is info
    assert state is None or state in reason


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("ending", ["", "recaps: rule: stopped\nexit status 75\n"])
def test_a_forgotten_job_that_made_its_outputs_went_well(
    executor: Any, tmp_path: Path, made: bool, ending: str
) -> None:
    job = Job(tmp_path / "job.log")
    (tmp_path / "job.log").write_text(ending)
    if made:
        receipt(job)
    info = SubmittedJobInfo(job, external_jobid="1")
    while look(executor, info):
        pass
    assert bool(executor.failed) == (not made or bool(ending))


@pytest.mark.parametrize(
    ("ending", "attempt", "told"),
    [
        ("recaps: train_variant: loss is nan\nexit status 1\n", 4, "loss is nan (log: {log}; Slurm job 1); not"),
        ("WARNING x\nrecaps: train_variant: stopped\nexit status 75\n", 1, "stopped (log: {log}; Slurm job 1)"),
        ("recaps: train_variant: OSError: gone\nexit status 70\n", 1, "OSError: gone (log: {log}; Slurm job 1)"),
        ("step 3\n", 1, "ended without a message; it may have been killed (log: {log})"),
    ],
)
@pytest.mark.parametrize("grouped", [False, True])
def test_only_mistakes_are_not_tried_again(
    executor: Any, tmp_path: Path, ending: str, attempt: int, told: str, grouped: bool
) -> None:
    log = tmp_path / "log"
    log.write_text(ending)
    job: Any = Group(Job(log), Job(tmp_path / "none")) if grouped else Job(log)
    executor.report_job_error(SubmittedJobInfo(job, external_jobid="1"), msg="FAILED")
    assert job.attempt == attempt
    (line,) = executor.told
    logs = f"{log}, {tmp_path / 'none'}" if grouped and "without" in told else str(log)
    assert told.format(log=logs) in line
    assert [message for _, message in executor.failed] == ["FAILED"]


def test_jobs_of_an_earlier_start(executor: Any, played: Played, tmp_path: Path) -> None:
    """They would write the same files. Ended ones do not count, nor do those of other folders and programs."""
    old = [entry("7", "RUNNING", OLD, tmp_path), entry("9", "PENDING", f"prefix_{OLD}", tmp_path)]
    others = [
        entry("10", "COMPLETED", OLD, tmp_path),
        entry("11", "RUNNING", OLD, tmp_path / "elsewhere"),
        entry("12", "RUNNING", "my-own-job", tmp_path),
    ]
    log = tmp_path / "log"
    log.write_text("of an earlier attempt")
    job = Job(log)
    played.queue = [*old, *others]
    with pytest.raises(WorkflowError, match=r"still has 2 jobs of another Snakemake .*\(scancel 7 9\)"):
        executor.run_jobs([job])
    assert executor.submitted == []
    executor._answered, played.queue = None, others
    executor.run_jobs([job])
    assert executor.submitted == [job]
    assert not log.exists(), "an old log would be taken for the new attempt's"


def sharing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Two trainings that share a GPU."""

    class Group:
        def __init__(self, jobs: list[Job]) -> None:
            self.jobs = jobs

        def is_group(self) -> bool:
            return True

    monkeypatch.setattr(shared_gpu, "Group", Group)
    jobs = []
    for seed in "01":
        folder = tmp_path / seed
        folder.mkdir()
        jobs.append(Job(folder / "log", "train_variant", seed))
        jobs[-1].resources |= {"runs_per_gpu": 2, "gpu": 1}
    return jobs


def test_trainings_share_a_gpu(executor: Any, played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that come one after the other, too. Snakemake gets to know of each by itself."""
    one, two = sharing(tmp_path, monkeypatch)
    gathered: list[Any] = []
    executor._job_submission_executor.submit = gathered.append
    head = Job(tmp_path / "log")
    executor.run_jobs([one, head])
    executor.run_jobs([two])
    for each in gathered:
        each()
    alone, group = executor.submitted
    assert alone is head
    assert group.jobs == [one, two]
    infos: list[SubmittedJobInfo] = []
    monkeypatch.setattr(
        plugin.Executor, "_report_job_submission_threadsafe", lambda self, info: infos.append(info), raising=False
    )
    Executor._report_job_submission_threadsafe(executor, SubmittedJobInfo(group, external_jobid="1"))
    assert [(info.job, info.external_jobid) for info in infos] == [(one, "1"), (two, "1")]
    monkeypatch.setattr(
        plugin.Executor, "_report_job_error_threadsafe", lambda self, info, msg: infos.append(info), raising=False
    )
    Executor._report_job_error_threadsafe(executor, SubmittedJobInfo(group), "sbatch failed")
    assert [info.job for info in infos[2:]] == [one, two]


def test_a_finished_training_does_not_fail_with_its_group(
    executor: Any, played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receipt of an earlier result does not count, nor does a group count as lost too early."""
    jobs = sharing(tmp_path, monkeypatch)
    for job in jobs:
        receipt(job)
    executor.run_jobs(jobs)
    receipt(jobs[0], time=2)
    infos = [SubmittedJobInfo(job, external_jobid="1") for job in jobs]
    assert all(look(executor, *infos) == ["1", "1"] for _ in range(LOOKS - 1))
    assert look(executor, *infos) == []
    assert [info.job for info, _ in executor.failed] == [jobs[1]]


def test_submission_waits_for_slurm(executor: Any, played: Played, tmp_path: Path) -> None:
    job = Job(tmp_path / "log")
    played.queue = None

    def then(waits: int) -> None:
        played.queue = [] if waits == 3 else None

    executor._ending.then = then
    executor.run_jobs([job])
    assert len(executor._ending.waits) == 3
    assert executor.submitted == [job]
    assert executor.told == ["Slurm does not answer; new jobs wait to be submitted", "Slurm answers again"]


def test_nothing_is_submitted_after_the_end(executor: Any, played: Played, tmp_path: Path) -> None:
    """Ctrl-C while Slurm is away: what waits for it is dropped."""
    played.queue = None
    executor._ending.then = lambda waits: executor.shutdown()
    executor.run_jobs([Job(tmp_path / "log")])
    played.queue = []
    executor.run_jobs([Job(tmp_path / "log")])
    assert executor.submitted == []


def test_what_goes_wrong_before_a_submission_is_reported(executor: Any, tmp_path: Path) -> None:
    reported = []
    executor._report_job_error_threadsafe = lambda info, msg: reported.append((info.job, msg))
    job = Job(tmp_path)  # its log is a folder, which cannot be removed as a file
    executor.run_jobs([job])
    assert executor.submitted == []
    ((failed, message),) = reported
    assert failed is job
    assert message.startswith("Job submission failed: ")


def test_what_goes_wrong_in_grouping_is_reported(
    executor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = sharing(tmp_path, monkeypatch)
    jobs[0].resources["runtime"] = "a while"
    reported = []
    executor._report_job_error_threadsafe = lambda info, msg: reported.append((info.job, msg))
    executor.run_jobs(jobs)
    assert [job for job, _ in reported] == jobs
    assert all(message.startswith("Job submission failed: ") for _, message in reported)


def test_a_machine_without_slurm_is_told() -> None:
    with pytest.raises(WorkflowError, match="no 'no-such-squeue' on the path"):
        slurm_executor._output("no-such-squeue")


def test_a_job_that_was_never_submitted_is_not_told_as_killed(executor: Any, tmp_path: Path) -> None:
    info = SubmittedJobInfo(Job(tmp_path / "log"))
    executor.report_job_error(info, msg="sbatch failed")
    assert executor.failed == [(info, "sbatch failed")]
    assert executor.told == []
