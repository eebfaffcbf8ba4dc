"""`snakemake --profile slurm --profile site.yaml`: the resources of jobs, and which file sets them."""

from __future__ import annotations

from pathlib import Path

from clones import copy
from private_slurm import Slurm
from trainings import snakemake

#: As `profiles/slurm/site.example.yaml` shows it.
SITE = """
default-resources:
  - slurm_account=project
  - slurm_extra="--nice=7"
slurm-partition-config: partitions.yaml
slurm-init-seconds-before-status-checks: 3
max-status-checks-per-second: 2
set-resources:
  train_variant: {gpu: 1}
  read_model: {gpu: 0, gres: "'gpu:1'"}
"""
#: What slurm-partition-config names: the limits by which the plugin chooses a job's partition.
PARTITIONS = """
partitions:
  main: {max_runtime: 480}
  urgent: {max_gpu: 2}
"""


def test_the_profile_and_a_sites_own_file(slurm: Slurm, root: Path, tmp_path: Path) -> None:
    clone = copy(root, tmp_path)
    for name, text in {"site.yaml": SITE, "partitions.yaml": PARTITIONS}.items():
        (tmp_path / name).write_text(text)
    run = "results/smoke/runs/probabilistic/capsules-even/seed-0"
    done = snakemake(slurm, clone, "--", f"{run}/heads.json", timeout=1800)
    assert done.status == 0, f"{done.output}\n{slurm.queue()}\n{slurm.tails()}"
    jobs = {job["Comment"].partition("_wildcards")[0]: job for job in slurm.jobs()}
    assert jobs.keys() == {"rule_prepare_dataset", "rule_train_variant", "rule_read_model", "rule_evaluate_heads"}
    training, latents, heads = (jobs[name] for name in ("rule_train_variant", "rule_read_model", "rule_evaluate_heads"))
    assert len(slurm.jobs()) == 2 + 1 + 1 + 1, "all heads are in one job"
    # From the site: account, partition by what a job asks for, flags of jobs that have none of their own.
    assert {job["Account"] for job in jobs.values()} == {"project"}
    assert [job["Partition"] for job in (training, latents, heads)] == ["urgent", "urgent", "main"]
    assert [job["Nice"] for job in (training, latents, heads)] == ["0", "7", "7"]
    # From the rules and the profile: GPU, cores, memory and time of a training, its warning ahead of the time limit.
    assert (training["TresPerJob"], training["NumCPUs"]) == ("gres:gpu:1", "4")
    assert (training["MinMemoryNode"], training["TimeLimit"]) == ("16000M", "04:00:00")
    assert training["Requeue"] == "1"
    assert latents["TresPerNode"] == "gres:gpu:1"
    assert "GPU-hours asked" in done.output
