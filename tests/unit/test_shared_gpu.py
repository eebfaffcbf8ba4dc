"""Trainings that share a GPU: which do, what their job requests, and the script that it runs."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from shared_gpu import Group, grouped, shares
from snakemake.iocontainers import ResourceList
from snakemake_interface_common.exceptions import WorkflowError

#: Stands in for NVIDIA's program: notes how it is called.
PROGRAM = """\
#!/bin/bash
echo "$* $(cat) $CUDA_VISIBLE_DEVICES $CUDA_MPS_PIPE_DIRECTORY" >> "$NOTES"
exit {status}
"""
SCRIPT = Path(__file__).parents[2] / "workflow" / "under_mps.sh"


class Dag:
    workflow = SimpleNamespace(execution_settings=SimpleNamespace(attempt=1))

    def toposorted(self, jobs: Any, **_: Any) -> list[list[Any]]:
        return [list(jobs)]


class Training:
    """Of Snakemake's jobs what a group looks at."""

    dag = Dag()

    def __init__(self, name: str, rule: str = "train_variant", attempt: int = 1, **resources: Any) -> None:
        asked = {"_cores": 4, "_nodes": 1, "mem": "16 GB", "mem_mb": 16000, "gpu": 1, "slurm_extra": "-x"}
        asked |= {"runtime": 240, "runs_per_gpu": 3, "shared_time_percent": 150} | resources
        self.rule, self.output, self.attempt = SimpleNamespace(name=rule), [name], attempt
        self.resources = ResourceList(fromdict=asked)

    def is_group(self) -> bool:
        return False


def test_who_shares_a_gpu() -> None:
    assert shares(Training("a"))
    assert shares(Training("a", gpu=0, gres="gpu:1"))
    assert not shares(Training("a", runs_per_gpu=1))
    assert not shares(Training("a", gpu=0))
    assert not shares(Training("a", "read_model"))


@pytest.mark.parametrize("wrong", [{"runs_per_gpu": 0}, {"runs_per_gpu": "two"}, {"shared_time_percent": 50}])
def test_a_wrong_number_is_told(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(WorkflowError, match=f"train_variant: {name}: {value!r} is not a number of at least 1"):
        shares(Training("a", **wrong))


def test_groups_of_like_trainings() -> None:
    """By time, and never with another request; a last one stays alone. Later attempts share with fewer."""
    jobs = [Training(f"seed-{n}") for n in (4, 1, 3)]
    slow, other = Training("slow", runtime=900), Training("other", slurm_partition="big")
    again = [Training(f"again-{n}", attempt=3, runs_per_gpu=7) for n in range(3)]
    made = list(grouped([*jobs, other, slow, *again]))
    names = [sorted(job.output[0] for job in each.jobs) if isinstance(each, Group) else each.output for each in made]
    assert names == [["seed-1", "seed-3", "slow"], ["seed-4"], ["again-0", "again-1"], ["again-2"], ["other"]]


def test_what_a_group_asks_for() -> None:
    group = Group([Training("a", attempt=2, runtime=480, mem_mb=32000), Training("b", attempt=2, runtime=61)])
    asked = dict(group.resources.items())
    assert asked == {
        "_cores": 8,
        "_nodes": 1,
        "mem_mb": 48000,
        "gpu": 1,
        "slurm_extra": "-x",
        "runtime": 720,
        "runs_per_gpu": 3,
        "shared_time_percent": 150,
    }
    assert (group.threads, group.attempt) == (8, 2)
    command = group.side_by_side("python -m snakemake --jobs 1")
    assert command.startswith("RECAPS_RUNS=2 RECAPS_MINUTES=720 srun --ntasks=1 ")
    assert f"--cpus-per-task=8 bash {SCRIPT} python -m snakemake --jobs 1 --executor local " in command
    assert command.endswith("--cores 8 --jobs 2")


def under_mps(folder: Path, command: str, status: int | None, **more: str) -> subprocess.Popen[str]:
    """Start a command under the script; `status`: how NVIDIA's program ends, None if there is none."""
    if status is not None:
        program = folder / "nvidia-cuda-mps-control"
        program.write_text(PROGRAM.format(status=status))
        program.chmod(0o755)
    path = f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin"
    environment = {"PATH": path, "NOTES": str(folder / "notes"), "TMPDIR": str(folder), "CUDA_VISIBLE_DEVICES": "3"}
    return subprocess.Popen(
        ["bash", str(SCRIPT), "bash", "-c", command],
        env=environment | more,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_mps_runs_around_the_command(tmp_path: Path) -> None:
    run = under_mps(
        tmp_path, 'echo "command" >> "$NOTES"; echo $CUDA_VISIBLE_DEVICES $CUDA_MPS_PIPE_DIRECTORY; exit 3', 0
    )
    out, err = run.communicate(timeout=60)
    device, folder = out.split()
    assert (run.returncode, err, device) == (3, "", "0")
    lines = [line.split() for line in (tmp_path / "notes").read_text().splitlines()]
    assert lines == [["-d", "3", folder], ["command"], ["quit", "3", folder]], "the daemon has the GPU that Slurm gave"
    assert Path(folder).parent == tmp_path
    assert not Path(folder).exists()


@pytest.mark.parametrize("status", [None, 1])
def test_without_mps_the_command_runs_as_well(tmp_path: Path, status: int | None) -> None:
    run = under_mps(tmp_path, "echo $CUDA_VISIBLE_DEVICES; env | grep -c MPS", status)
    out, err = run.communicate(timeout=60)
    assert out.split() == ["3", "0"]
    (line,) = err.splitlines()
    assert line.startswith("recaps: no MPS on ")
    assert line.endswith("so the trainings take turns on the GPU")


def test_a_warning_lets_the_command_come_to_its_end(tmp_path: Path) -> None:
    run = under_mps(tmp_path, 'trap "sleep 1; echo saved; exit 75" TERM; touch "$NOTES.on"; sleep 60 & wait', 0)
    while not (tmp_path / "notes.on").exists():
        time.sleep(0.05)
    os.killpg(run.pid, signal.SIGTERM)
    out, _ = run.communicate(timeout=60)
    assert (run.returncode, out) == (75, "saved\n")
    assert (tmp_path / "notes").read_text().splitlines()[-1].startswith(" quit")
