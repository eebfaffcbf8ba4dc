"""Latents: the arrays that a trained run gives for a split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from recaps.arrays import read
from recaps.config.training import Training
from recaps.errors import UserError
from recaps.models.model import Model
from recaps.npz import Array, save
from recaps.training import device as devices
from recaps.training.batches import view, view_shape
from recaps.training.images import Samples, samples
from recaps.training.run import load_model


def extract(
    run: Path,
    dataset: Path,
    out: Path,
    *,
    limit: int | None = None,
    device: str = "auto",
    threads: int | None = None,
    batch_size: int = 250,
) -> None:
    """Write the latents of the first `limit` images of a prepared split to `out` (npz).

    Holds the model's own arrays (float32, or integers), `labels` [N] (of pairs [N, 2]), `stand_in` and, where it is
    known, `original` [N]: which image of the base set each one shows.

    Raises:
        UserError: the model was trained on images of another shape.
    """
    where = devices.choose(device, threads)
    model, config = load_model(run, where)
    arrays = read(dataset)
    training = Training.model_validate(config["training"])
    if list(shown := view_shape(arrays.images.shape[1:], training)) != config["image_shape"]:
        padded = f", padded by {training.pad}," if training.pad else ","
        raise UserError(
            f"{dataset}: images of shape {list(shown)}{padded} but {run} was trained on {config['image_shape']};"
            " mend the variant's latents in config/papers"
        )
    every = samples(arrays, where)
    n = min(limit or len(every), len(every))
    made = of_samples(model, every, range(n), training, where, batch_size)
    made["stand_in"] = np.asarray(arrays.record["stand_in"])
    if every.versions == 1 and arrays.record.get("parameters", {}).get("originals") != "unknown":
        made["original"] = arrays.factors.get("original", np.arange(len(arrays.labels)))[:n]
    save(out, made)


def of_samples(
    model: Model, every: Samples, rows: range, training: Training, device: torch.device, batch_size: int = 250
) -> dict[str, Array]:
    """A model's own arrays, and `labels`, of some samples in the view that it is shown."""
    parts: dict[str, list[Array]] = {}
    with torch.inference_mode(), devices.arithmetic(device, training.precision):
        for start in range(rows.start, rows.stop, batch_size):
            batch = every(torch.arange(start, min(start + batch_size, rows.stop), device=device))
            values = model.latents(view(batch["images"], training)) | {"labels": batch["labels"]}
            for name, value in values.items():
                parts.setdefault(name, []).append(as_array(value))
    return {name: np.concatenate(values) for name, values in parts.items()}


def as_array(values: Tensor) -> Array:
    """On the host, and in float32 unless it holds integers."""
    return (values.float() if values.is_floating_point() else values).cpu().numpy()
