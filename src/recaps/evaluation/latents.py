"""Latents: the arrays that a trained run gives for a split."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recaps import io
from recaps.datasets.arrays import load
from recaps.errors import UserError
from recaps.training import device as devices
from recaps.training.batches import as_float
from recaps.training.run import load_model

Array = npt.NDArray[Any]


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

    Holds the model's own arrays (float32, or integers), `labels` [N], `original` [N] (which digit of the base set each
    image shows) and `stand_in`.

    Raises:
        UserError: the model was trained on images of another shape.
    """
    where = devices.choose(device, threads)
    model, config = load_model(run, where)
    arrays = load(dataset.parent.name, dataset.name, dataset.parents[1])
    if list(arrays.images.shape[1:]) != config["image_shape"]:
        raise UserError(
            f"{dataset}: images of shape {list(arrays.images.shape[1:])}, but {run} was trained on"
            f" {config['image_shape']}; mend the variant's latents in config/papers"
        )
    n = min(limit or len(arrays.labels), len(arrays.labels))
    parts: dict[str, list[Array]] = {}
    with torch.inference_mode(), devices.arithmetic(where, config["training"]["precision"]):
        for start in range(0, n, batch_size):
            images = torch.tensor(arrays.images[start : min(start + batch_size, n)])
            for name, values in model.latents(as_float(images.to(where))).items():
                parts.setdefault(name, []).append(as_array(values))
    original = arrays.factors.get("original", np.arange(len(arrays.labels)))
    save(
        out,
        {name: np.concatenate(values) for name, values in parts.items()}
        | {"labels": arrays.labels[:n], "original": original[:n], "stand_in": np.asarray(arrays.record["stand_in"])},
    )


def as_array(values: Tensor) -> Array:
    """On the host, and in float32 unless it holds integers."""
    return (values.float() if values.is_floating_point() else values).cpu().numpy()


def save(file: Path, arrays: dict[str, Array]) -> None:
    """Write arrays as npz, atomically and without pickled code."""
    writer: Callable[..., None] = np.savez
    with io.atomic(file) as temporary, open(temporary, "wb") as handle:
        writer(handle, allow_pickle=False, **arrays)


def read(file: Path, names: tuple[str, ...] | None = None) -> dict[str, Array]:
    """Read an npz of arrays, only those in `names` if given.

    Raises:
        UserError: missing or damaged file, or an array that it does not have.
    """
    try:
        with np.load(file, allow_pickle=False) as archive:
            missing = set(names or ()) - set(archive.files)
            if missing:
                raise UserError(f"{file}: has no array '{missing.pop()}' (has: {', '.join(archive.files)})")
            return {name: archive[name] for name in names or archive.files}
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"{file}: no such file; run the stage that makes it first") from error
    except Exception as error:
        raise UserError(f"{file}: truncated or damaged ({error}); delete it and run again") from error
