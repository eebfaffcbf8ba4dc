"""A paper on the user's own images, from the NPZ file to the report."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from clones import SMOKE, copy

from recaps.datasets import standin


def write(file: Path, *, inverted: bool = False) -> None:
    """Write stand-in digits of three classes."""
    digits = standin.read("mnist", "train", {"limit": None})
    images = digits.images[digits.labels < 3, 0]
    np.savez(file, images=255 - images if inverted else images, labels=digits.labels[digits.labels < 3])


@pytest.mark.long
def test_a_paper_on_own_images(root: Path, tmp_path: Path) -> None:
    clone = copy(root, tmp_path / "clone")
    file = tmp_path / "mine.npz"
    write(file)
    own = ["--config", "papers=[experts]", f"datasets={{mine: {{path: {file}}}, mnist: mine, fashion-mnist: mine}}"]
    done = clone.snakemake(*SMOKE, *own)
    assert done.status == 0, done.output[-6000:]
    smoke = clone.folder / "results/smoke"
    assert {folder.name for folder in (smoke / "datasets").iterdir()} == {"mnist-mine", "fashion-mnist-mine"}
    record = json.loads((smoke / "runs/experts/mnist-experts/seed-0/record.json").read_text())
    assert record["dataset"]["own"] == "mine"
    assert record["dataset"]["classes"] == 3
    metrics = pd.read_csv(smoke / "papers/experts/metrics.csv")
    assert {name.split("/")[0] for name in metrics["measured_on"].dropna()} == {"mnist-mine", "fashion-mnist-mine"}
    assert not metrics["stand_in"].any()
    title = (smoke / "papers/experts/table-1.md").read_text().splitlines()[0]
    assert "[own data: mine in place of fashion-mnist, mine in place of mnist]" in title
    assert pd.read_csv(smoke / "scorecard.csv").empty
    report = (smoke / "report.html").read_text()
    assert "Run on your own data" in report
    assert "Stand-in" not in report
    assert "Trained for a few steps: the numbers only show that the workflow runs on these data" in report

    for time, path in enumerate(sorted(smoke.rglob("*"), reverse=True)):
        os.utime(path, (time, time))
    shutil.rmtree(clone.folder / ".snakemake")
    assert clone.snakemake(*SMOKE, "-n", *own).jobs() == {}, "neither times nor Snakemake's memory count"
    write(file, inverted=True)
    changed = clone.snakemake(*SMOKE, "-n", *own).jobs()
    assert changed["prepare_dataset"] == 4, "other images"
    assert changed["train_variant"] == len(list(smoke.glob("runs/experts/*/seed-0")))
