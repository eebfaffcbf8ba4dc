"""The whole smoke workflow by `snakemake --profile slurm`: about 20 minutes, so only `make test-cluster` runs it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from clones import copy
from private_slurm import Slurm
from trainings import snakemake

#: Few jobs at a time: two nodes of eight cores each are pretended on one small machine.
SITE = """
jobs: 6
slurm-init-seconds-before-status-checks: 5
max-status-checks-per-second: 1
default-resources: [slurm_account=tests]
set-threads: {train_variant: 1, time_steps: 8}
set-resources:
  train_variant: {gpu: 1}
  read_model: {gpu: 1}
  time_steps: {gpu: 1}
"""


@pytest.mark.whole
@pytest.mark.timeout(5400)
def test_the_whole_workflow(slurm: Slurm, root: Path, tmp_path: Path) -> None:
    clone = copy(root, tmp_path)
    (tmp_path / "site.yaml").write_text(SITE)
    planned = snakemake(slurm, clone, "-n").jobs()
    done = snakemake(slurm, clone)
    assert done.status == 0, f"{done.output[-8000:]}\n{slurm.queue()}\n{slurm.tails()}"
    assert (tmp_path / "results" / "smoke" / "report.html").stat().st_size > 0
    assert "Nothing to be done" in snakemake(slurm, clone).output
    ran = Counter(line.partition("(Rule: ")[2].rstrip(")") for line in done.output.splitlines() if "(Rule: " in line)
    assert ran == {rule: count for rule, count in planned.items() if rule != "total"}
    assert "recaps: " not in done.output, "no job failed on the way"
    trainings = [line.split() for line in done.output.split("GPU-hours asked")[1].splitlines()]
    assert ["all", str(planned["train_variant"])] in [words[:2] for words in trainings]
