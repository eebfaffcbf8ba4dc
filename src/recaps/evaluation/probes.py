"""Probes: arrays that a figure needs and only the model can give, such as pictures decoded from changed capsules."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recaps.arrays import read
from recaps.config.training import Training
from recaps.errors import UserError, nearest
from recaps.evaluation.latents import as_array
from recaps.npz import save
from recaps.training import device as devices
from recaps.training.batches import view
from recaps.training.images import samples
from recaps.training.run import load_model


def probe(
    run: Path,
    dataset: Path,
    out: Path,
    *,
    name: str,
    images: int,
    device: str = "auto",
    threads: int | None = None,
) -> None:
    """Write what the probe `name` of the run's paper gives for the first images of a prepared split to `out` (npz).

    Args:
        run: the run's folder.
        dataset: the prepared split.
        out: the file to write.
        name: the probe; see `function`.
        images: number of images, which the model sees all at once.

    Raises:
        UserError: the paper has no such probe.
    """
    where = devices.choose(device, threads)
    model, config = load_model(run, where)
    made_by = function(config["paper"], name)
    arrays = read(dataset)
    training = Training.model_validate(config["training"])
    every = samples(arrays, where)
    batch = every(torch.arange(min(images, len(every)), device=where))
    with torch.inference_mode(), devices.arithmetic(where, training.precision):
        values = made_by(model, view(batch["images"], training), batch["labels"])
    made = {key: as_array(value) for key, value in {**values, "labels": batch["labels"]}.items()}
    save(out, made | {"stand_in": np.asarray(arrays.record["stand_in"])})


Probe = Callable[[Any, Tensor, Tensor], dict[str, Tensor]]


def function(paper: str, name: str) -> Probe:
    """The probe `free-form` of a paper: `free_form(model, images, labels) -> arrays` in its module `probes`.

    Raises:
        UserError: the paper has no such probe.
    """
    module = importlib.import_module(f"recaps.papers.{paper}.probes")
    known = [
        key.replace("_", "-")
        for key, value in vars(module).items()
        if callable(value) and value.__module__ == module.__name__ and not key.startswith("_")
    ]
    if name not in known:
        raise UserError(f"{paper}: there is no probe '{name}'{nearest(name, known)}")
    found: Probe = getattr(module, name.replace("-", "_"))
    return found
