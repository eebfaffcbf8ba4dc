"""Probes: arrays that a figure needs and only the model can give, such as pictures decoded from changed capsules."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from recaps.arrays import read
from recaps.config.training import Training
from recaps.errors import UserError, nearest
from recaps.evaluation.latents import as_array
from recaps.npz import save
from recaps.training import device as devices
from recaps.training.batches import view
from recaps.training.run import load_model
from recaps.training.samples import samples


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
    """Write what the model's probe `name` gives for the first `images` images of a prepared split to `out` (npz).

    It is shown all of them at once.

    Raises:
        UserError: the model has no such probe.
    """
    where = devices.choose(device, threads)
    model, config = load_model(run, where)
    probes = model.probes()
    if name not in probes:
        raise UserError(f"{run}: its model has no probe '{name}'{nearest(name, probes)}")
    arrays = read(dataset)
    training = Training.model_validate(config["training"])
    every = samples(arrays, where)
    batch = every(torch.arange(min(images, len(every)), device=where))
    with torch.inference_mode(), devices.arithmetic(where, training.precision):
        values = probes[name](view(batch["images"], training), batch["labels"])
    made = {key: as_array(value) for key, value in {**values, "labels": batch["labels"]}.items()}
    save(out, made | {"stand_in": np.asarray(arrays.record["stand_in"])})
