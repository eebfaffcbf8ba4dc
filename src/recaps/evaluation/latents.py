"""Latents: the arrays that a trained model computes from a split."""

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
from recaps.training.images import Images, images_of
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

    The file holds the arrays of `Model.latents` (float32, or integers), `labels` [N] (for pairs [N, 2]), `stand_in`
    and, if known, `original` [N]: the index of each image in the base set.

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
            " correct `latents` of this variant in paper.yaml"
        )
    images = images_of(arrays, where)
    n = min(limit or len(images), len(images))
    made = latents_of(model, images, range(n), training, where, batch_size)
    made["stand_in"] = np.asarray(arrays.record["stand_in"])
    if images.versions == 1 and arrays.record.get("parameters", {}).get("originals") != "unknown":
        made["original"] = arrays.factors.get("original", np.arange(len(arrays.labels)))[:n]
    save(out, made)


def latents_of(
    model: Model, images: Images, rows: range, training: Training, device: torch.device, batch_size: int = 250
) -> dict[str, Array]:
    """Return the model's latents, and `labels`, of the images in `rows`."""
    parts: dict[str, list[Array]] = {}
    with torch.inference_mode(), devices.arithmetic(device, training.precision):
        for start in range(rows.start, rows.stop, batch_size):
            batch = images(torch.arange(start, min(start + batch_size, rows.stop), device=device))
            values = model.latents(view(batch["images"], training)) | {"labels": batch["labels"]}
            for name, value in values.items():
                parts.setdefault(name, []).append(as_array(value))
    return {name: np.concatenate(values) for name, values in parts.items()}


def as_array(values: Tensor) -> Array:
    """Convert a tensor to an array, floats to float32."""
    return (values.float() if values.is_floating_point() else values).cpu().numpy()
