"""After any fault on a cluster, a training ends with the weights and the history of an undisturbed one.

`campaign.py` does the same many times over, at random points.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import trainings as faults
from private_slurm import Slurm
from trainings import Fault, Trainings

#: Steps, a third of them, after which a run is struck; it has checkpoints by then.
STRUCK = 1000


@pytest.fixture(scope="module")
def trained(root: Path, tmp_path_factory: pytest.TempPathFactory, slurm: Slurm) -> Trainings:
    return Trainings(root, tmp_path_factory.mktemp("trainings"), slurm, seeds=4)


@pytest.fixture
def trainings(trained: Trainings) -> Iterator[Trainings]:
    """Trainings without results. After the test, Snakemake and its jobs are ended."""
    trained.clear()
    trained.site()
    trained.output.unlink(missing_ok=True)
    trained.silence.unlink(missing_ok=True)
    yield trained
    trained.stop()


def strike(trainings: Trainings, *struck: tuple[int, Fault], beside: Sequence[int] = ()) -> None:
    """Train the given seeds, inject the fault of each, wait for the end, and compare with undisturbed runs.

    `beside`: seeds without a fault of their own.
    """
    seeds = sorted([*(seed for seed, _ in struck), *beside])
    trainings.start(seeds)
    in_time = trainings.strike({seed: (fault, STRUCK) for seed, fault in struck}, random.Random(0))
    assert all(in_time.values()), trainings.told()
    assert trainings.finish() == 0, trainings.told()
    assert all(trainings.same(seed) for seed in seeds), trainings.told()
    assert not list(trainings.results.rglob("checkpoints/**/*.part"))


def test_killed_cancelled_out_of_time_damaged(trainings: Trainings) -> None:
    """Four jobs, each with another fault."""
    kinds = (faults.cut_checkpoint, faults.cancel, faults.flip_bit, faults.shorten)
    strike(trainings, *enumerate(kinds))
    told = trainings.told()
    assert [trainings.interruptions(seed) for seed in range(4)] == [1, 1, 1, 1], told
    assert told.count("stopped at step") == 2, "the one that was out of time, and the one that was cancelled"
    assert told.count("ended without a message; it may have been killed (log: results/smoke/logs/train_variant/") == 2
    going_back = "checkpoint.pt: damaged (truncated or modified) and deleted; using the checkpoint before it"
    assert all(going_back in trainings.log(seed).read_text() for seed in (0, 2))
    last = told.split("trainings ")[-1].splitlines()
    assert [line.split()[:3] for line in last[1:3]] == [["probabilistic", "4", "8"], ["all", "4", "8"]]


def test_preempted(trainings: Trainings) -> None:
    """In partitions where Slurm requeues such jobs, where it cancels them, and where it does so at once."""
    trainings.site("['scavenge', 'spot', 'harsh'][int(wildcards.seed)]")
    strike(trainings, *((seed, faults.preempt) for seed in range(3)))
    told = trainings.told()
    # An urgent job takes a whole node, so a neighbour of the struck training is struck with it, at times once more.
    assert all(trainings.interruptions(seed) >= 1 for seed in range(3)), told
    assert all(f"seed-{seed}: stopped at step" in told for seed in range(3)), (
        f"there was time to save the state\n{told}"
    )
    assert "is PREEMPTED, and was not put back" in told, "the plugin alone would wait for ever"


def test_groups_are_killed(trainings: Trainings) -> None:
    """Of one, a single training; of the other, all processes."""
    before = {job["JobId"] for job in trainings.slurm.jobs()}
    trainings.site(together=2)
    strike(trainings, (0, faults.kill), (2, faults.kill_step), beside=(1, 3))
    told = trainings.told()
    assert [trainings.interruptions(seed) for seed in range(4)] == [1, 0, 1, 1], told
    starts = [trainings.starts(seed) for seed in range(4)]
    assert [len(each) for each in starts] == [2, 1, 2, 2], "no finished training was started again"
    assert starts[0][0]["job"] == starts[1][0]["job"], "they shared a job"
    assert [each[0]["gpus"] for each in starts] == [0.5] * 4
    assert [each[1]["gpus"] for each in starts[2:]] == [1, 1], "the second attempt has the memory of both"
    jobs = [job for job in trainings.slurm.jobs() if job["JobId"] not in before]
    assert [(job["TresPerJob"], job["NumCPUs"], job["MinMemoryNode"], job["TimeLimit"]) for job in jobs[:2]] == [
        ("gres:gpu:1", "2", "32000M", "08:00:00")
    ] * 2
    assert len(jobs) == 5, "two groups, and the trainings that were killed"


def test_groups_are_out_of_time_and_cancelled(trainings: Trainings) -> None:
    trainings.site(together=2)
    strike(trainings, (0, faults.shorten), (2, faults.cancel), beside=(1, 3))
    told = trainings.told()
    assert [trainings.interruptions(seed) for seed in (0, 2, 3)] == [1, 1, 1], told
    assert all(f"seed-{seed}: stopped at step" in told for seed in (0, 2, 3)), told


def test_groups_are_preempted(trainings: Trainings) -> None:
    """With time to save the state, and almost without."""
    trainings.site("['scavenge', 'scavenge', 'harsh', 'harsh'][int(wildcards.seed)]", together=2)
    strike(trainings, (0, faults.preempt), (2, faults.preempt), beside=(1, 3))
    told = trainings.told()
    assert all(trainings.interruptions(seed) >= 1 for seed in range(4)), told
    assert all(f"seed-{seed}: stopped at step" in told for seed in range(4)), told
    assert told.count("is PREEMPTED, and was not put back") >= 2, "both trainings of a group are told apart"


def test_slurm_is_away(trainings: Trainings) -> None:
    """Its controller restarts, and then all queries of states fail until a minute after the end of the training."""

    def leave(trainings: Trainings, seed: int, chance: random.Random) -> None:
        # Lest it come to its end before the silence.
        holder = trainings.lease(seed)
        os.kill(int(holder["pid"]), signal.SIGSTOP)
        faults.restart_controller(trainings, seed, chance)
        trainings.silence.touch()
        os.kill(int(holder["pid"]), signal.SIGCONT)
        trainings.slurm.wait(int(holder["job"]))
        faults.silence(trainings, seed, chance)

    strike(trainings, (0, leave))
    assert "Slurm does not answer; 1 jobs: still waiting for them" in trainings.told()
    assert "Slurm answers again" in trainings.told()
    assert trainings.interruptions(0) == 0


@pytest.mark.parametrize("together", [1, 2])
def test_a_node_dies(trainings: Trainings, together: int) -> None:
    trainings.site(together=together)
    strike(trainings, (0, faults.kill_node), beside=range(1, together))
    assert all(trainings.interruptions(seed) == 1 for seed in range(together))


@pytest.mark.parametrize("together", [1, 2])
def test_snakemake_is_killed_and_started_again(trainings: Trainings, together: int) -> None:
    """First beside its jobs, which the start refuses, and then without them."""
    trainings.site(together=together)
    trainings.start([0, 1])
    assert trainings.reaches(0, STRUCK)
    assert trainings.reaches(1, 20)
    assert trainings.main
    os.killpg(trainings.main.pid, signal.SIGKILL)
    trainings.main.wait()
    holders = [trainings.lease(seed) for seed in (0, 1)]
    # Lest they come to their end in between.
    for holder in holders:
        os.kill(int(holder["pid"]), signal.SIGSTOP)
    trainings.unlock()
    trainings.start([0, 1])
    assert trainings.finish() == 1
    jobs = sorted({str(holder["job"]) for holder in holders})
    assert f"Slurm still has {len(jobs)} jobs of another Snakemake in this folder." in trainings.told()
    for holder in holders:
        os.kill(int(holder["pid"]), signal.SIGCONT)
    for job in jobs:
        trainings.slurm.cancel(int(job))
        trainings.slurm.wait(int(job))
    trainings.start([0, 1])
    assert trainings.finish() == 0, trainings.told()
    assert all(trainings.same(seed) for seed in (0, 1)), trainings.told()
    assert trainings.interruptions(0) == 1


def test_a_full_disk(trainings: Trainings) -> None:
    before = {job["JobId"] for job in trainings.slurm.jobs()}
    with faults.small_disk(trainings.results.parent, megabytes=24):
        strike(trainings, (0, faults.fill_disk))
        assert "no checkpoint of step" in trainings.log(0).read_text(), "the disk was full when one was due"
        assert trainings.interruptions(0) == 0, "it went on while there was no place for checkpoints"
    assert len({job["JobId"] for job in trainings.slurm.jobs()} - before) == 1


def test_what_would_fail_again_is_not_tried_again(trainings: Trainings) -> None:
    before = {job["JobId"] for job in trainings.slurm.jobs()}
    trainings.start([0], "learning_rate: 1.0e+30")
    assert trainings.finish() == 1
    (line,) = [line for line in trainings.told().splitlines() if line.startswith("recaps: ")]
    number = ({job["JobId"] for job in trainings.slurm.jobs()} - before).pop()
    assert "train_variant probabilistic/vae/seed-0: training stopped: " in line
    assert "is nan at step" in line or "is inf at step" in line
    assert "log: results/smoke/logs/train_variant/probabilistic-vae-seed-0.log" in line
    assert line.endswith(f"Slurm job {number}); not tried again, as it would fail again")
