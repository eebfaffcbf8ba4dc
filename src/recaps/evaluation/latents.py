"""Latents: the arrays that a trained model computes from a split."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recaps.arrays import read
from recaps.config.training import Training
from recaps.errors import UserError
from recaps.models.model import Model
from recaps.npz import Array
from recaps.training.batches import view, view_shape
from recaps.training.images import Images, images_of


def extract(
    model: Model,
    config: Mapping[str, Any],
    dataset: Path,
    device: torch.device,
    *,
    limit: int | None = None,
    batch_size: int = 250,
) -> dict[str, Array]:
    """Return the latents of the first `limit` images of a prepared split (None: of all images).

    Args:
        model: a trained model, on `device`.
        config: the settings of its run.
        batch_size: images per batch. A model that draws random numbers, such as for a bound, draws the same for each
            batch.

    Returns:
        The arrays of `Model.latents` (float32, or integers), `labels` [N] (for pairs [N, 2]), `stand_in` and, if known,
        `original` [N]: the index of each image in the base set.

    Raises:
        UserError: the model was trained on images of another shape.
    """
    arrays = read(dataset)
    training = Training.model_validate(config["training"])
    if list(shown := view_shape(arrays.images.shape[1:], training)) != config["image_shape"]:
        padded = f", padded by {training.pad}," if training.pad else ","
        raise UserError(
            f"{dataset}: images of shape {list(shown)}{padded} but {config['paper']}/{config['variant']} was trained on"
            f" {config['image_shape']}; correct `latents` of this variant in paper.yaml"
        )
    images = images_of(arrays, device)
    n = min(limit or len(images), len(images))
    made = latents_of(model, images, range(n), training, device, batch_size)
    made["stand_in"] = np.asarray(arrays.record["stand_in"])
    if images.versions == 1 and arrays.record.get("parameters", {}).get("originals") != "unknown":
        made["original"] = arrays.factors.get("original", np.arange(len(arrays.labels)))[:n]
    return made


def latents_of(
    model: Model, images: Images, rows: range, training: Training, device: torch.device, batch_size: int = 250
) -> dict[str, Array]:
    """Return the model's latents, and `labels`, of the images in `rows`."""
    parts: dict[str, list[Array]] = {}
    with torch.inference_mode():
        for start in range(rows.start, rows.stop, batch_size):
            batch = images(torch.arange(start, min(start + batch_size, rows.stop), device=device))
            values = model.latents(view(batch["images"], training)) | {"labels": batch["labels"]}
            for name, value in values.items():
                parts.setdefault(name, []).append(as_array(value))
    return {name: np.concatenate(values) for name, values in parts.items()}


def as_array(values: Tensor) -> Array:
    """Convert a tensor to an array, floats to float32."""
    return (values.float() if values.is_floating_point() else values).cpu().numpy()
