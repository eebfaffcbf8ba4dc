"""The results that are there, compared with a plan."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recaps.plan import receipts
from recaps.plan.jobs import Job, Names
from recaps.plan.state import State

pytestmark = pytest.mark.unit


def job(folder: Path, stage: str, inputs: tuple[str, ...], output: str, code: str) -> Job:
    names = Names(paper="sparse", variant="dense", seed=0)
    files = tuple(str(folder / file) for file in inputs)
    return Job(stage, names, files, (str(folder / output),), lambda: {"settings": {}, "modules": {"m": code}})


def state(folder: Path, code: str) -> tuple[State, Job]:
    """A run's record, from latents that are read from a model; `code` trains it."""
    jobs = [
        job(folder, "train_variant", (), "model", code),
        job(folder, "read_model", ("model",), "latents", "a"),
        job(folder, "record_run", ("latents",), "numbers", "a"),
    ]
    plan: Any = SimpleNamespace(files=SimpleNamespace(folder=folder), jobs=jobs)
    return State(plan), jobs[-1]


def test_what_was_deleted_counts(tmp_path: Path) -> None:
    """A record stays when weights and latents are deleted, until they would be others."""
    made, _ = state(tmp_path, "a")
    for each in made.plan.jobs:
        outputs = [Path(file) for file in each.outputs]
        data = receipts.Receipts(tmp_path).data(map(Path, each.inputs))
        with receipts.receipt(outputs, each.identity() | {"data": data}):
            outputs[0].write_text(each.stage)
    (tmp_path / "model").unlink()
    (tmp_path / "latents").unlink()
    now, record = state(tmp_path, "a")
    assert now.reason(record) == ""
    now, record = state(tmp_path, "b")
    assert now.reason(record) == "training of sparse/dense, seed 0: m changed (a -> b)"
