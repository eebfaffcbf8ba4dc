"""The private Slurm handles jobs like a real one, as far as other tests need it."""

from __future__ import annotations

from pathlib import Path

import pytest
from private_slurm import Slurm


def test_exit_code(slurm: Slurm) -> None:
    job = slurm.submit("echo out; echo err >&2; exit 3")
    assert slurm.wait(job) == "FAILED"
    assert slurm.details(job)["ExitCode"] == "3:0"
    assert slurm.output(job).split() == ["out", "err"]
    assert slurm.wait(slurm.submit("true")) == "COMPLETED"


def test_two_gpu_jobs_get_two_devices(slurm: Slurm) -> None:
    script = "echo device $CUDA_VISIBLE_DEVICES; sleep 1000"
    jobs = [slurm.submit(script, gpus=1, nodelist="node1") for _ in range(3)]
    for job in jobs[:2]:
        slurm.until(lambda job=job: "device" in slurm.output(job), 300, "the jobs to start")
    assert sorted(slurm.output(job).split()[1] for job in jobs[:2]) == ["0", "1"]
    assert slurm.state(jobs[2]) == "PENDING", "there is no third GPU"
    slurm.cancel(jobs[0])
    slurm.until(lambda: "device" in slurm.output(jobs[2]), 300, "the third job to start")
    assert slurm.output(jobs[2]) == slurm.output(jobs[0]).splitlines(keepends=True)[0]
    for job in jobs[1:]:
        slurm.cancel(job)


def test_cancel(slurm: Slurm) -> None:
    running = slurm.submit("trap 'echo ended; exit 1' TERM; echo started; sleep 1000 & wait")
    waiting = slurm.submit("echo started", begin="now+1hour")
    slurm.until(lambda: "started" in slurm.output(running), 300, "the job to start")
    for job in (running, waiting):
        slurm.cancel(job)
        assert slurm.wait(job) == "CANCELLED"
    assert "started" not in slurm.output(waiting)


def test_jobs_outlive_the_controller(slurm: Slurm, tmp_path: Path) -> None:
    """The job goes on when it sees a file, which is there once the controller is away."""
    running = slurm.submit(f"echo started; until [ -e {tmp_path}/away ]; do sleep 0.2; done; echo done")
    waiting = slurm.submit("true", begin="now+5")
    slurm.until(lambda: "started" in slurm.output(running), 300, "the job to start")
    slurm.stop_controller()
    try:
        with pytest.raises(RuntimeError, match="Unable to contact slurm controller"):
            slurm.submit("true")
        (tmp_path / "away").touch()
        slurm.until(lambda: "done" in slurm.output(running), 300, "the job to go on")
    finally:
        slurm.start_controller()
    assert slurm.wait(running) == slurm.wait(waiting) == "COMPLETED"
    assert slurm.output(running).split() == ["started", "done"]
