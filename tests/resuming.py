"""Train a model family on stand-in digits, with and without interruptions."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from recaps.datasets.preparation import prepare
from recaps.training.interruption import Interrupted
from recaps.training.lease import Lease
from recaps.training.run import train


def digits(folder: Path, n: int) -> Path:
    """Prepare n images of 28x28 pixels."""
    return prepare("mnist", "train", folder, folder, stand_in=True, options={"limit": n})


def run(settings: dict[str, Any], dataset: Path, folder: Path, seed: int = 0) -> Path:
    """Train a run in `folder`, from its checkpoint if there is one."""
    identity = {"paper": "a", "variant": "b", "scale": "test"}
    out, checkpoints = folder / "run", folder / "checkpoints"
    train(
        settings,
        identity=identity,
        seed=seed,
        dataset=dataset,
        out=out,
        checkpoints=checkpoints,
        device="cpu",
        threads=1,
    )
    return out


def run_cut(
    settings: dict[str, Any], dataset: Path, folder: Path, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Like `run`, but stop the run after each of `steps` and start it again."""
    touch, done = Lease.touch, 0

    def count(lease: Lease) -> None:
        nonlocal done
        done += 1
        if done in steps:
            signal.raise_signal(signal.SIGTERM)
        touch(lease)

    monkeypatch.setattr(Lease, "touch", count)
    for step in steps:
        with pytest.raises(Interrupted, match=f"stopped at step {step} of"):
            run(settings, dataset, folder)
    return run(settings, dataset, folder)


def check(settings: dict[str, Any], folder: Path, steps: list[int], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Assert that a run that is cut after each of `steps` ends with the same bits as a whole one, which is returned."""
    dataset = digits(folder, 60)
    whole = run(settings, dataset, folder / "whole")
    assert same(whole, run_cut(settings, dataset, folder / "cut", steps, monkeypatch))
    assert not same(whole, run(settings, dataset, folder / "other", seed=1))
    return whole


def same(one: Path, other: Path) -> bool:
    """Return whether two runs have the same weights and history, bit for bit, except for times."""
    a, b = (load_file(folder / "model.safetensors") for folder in (one, other))
    rows = [np.genfromtxt(folder / "history.csv", delimiter=",", names=True) for folder in (one, other)]
    columns = [name for name in rows[0].dtype.names if name not in ("seconds", "images_per_second")]
    return (
        a.keys() == b.keys()
        and all(torch.equal(a[name], b[name]) for name in a)
        and all(np.array_equal(rows[0][name], rows[1][name], equal_nan=True) for name in columns)
    )
