"""Probes: arrays that a figure needs and only a trained model can compute, such as images decoded from capsules."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recaps.arrays import read
from recaps.config.training import Training
from recaps.errors import UserError, nearest
from recaps.evaluation.latents import as_array
from recaps.models.model import Model
from recaps.npz import Array
from recaps.papers import of
from recaps.training.batches import view
from recaps.training.images import images_of


def probe(
    model: Model, config: Mapping[str, Any], dataset: Path, device: torch.device, *, name: str, images: int
) -> dict[str, Array]:
    """Compute a probe of the run's paper on the first images of a prepared split.

    Args:
        model: a trained model, on `device`.
        config: the settings of its run.
        name: name of the probe; see `function`.
        images: number of images; they form a single batch.

    Raises:
        UserError: the paper has no such probe.
    """
    compute = function(config["paper"], name)
    arrays = read(dataset)
    training = Training.model_validate(config["training"])
    every = images_of(arrays, device)
    batch = every(torch.arange(min(images, len(every)), device=device))
    with torch.inference_mode():
        values = compute(model, view(batch["images"], training), batch["labels"])
    made = {key: as_array(value) for key, value in {**values, "labels": batch["labels"]}.items()}
    return made | {"stand_in": np.asarray(arrays.record["stand_in"])}


Probe = Callable[[Any, Tensor, Tensor], dict[str, Tensor]]


def function(paper: str, name: str) -> Probe:
    """Return a probe of a paper: `free-form` is `free_form(model, images, labels) -> arrays` in its module `probes`.

    Raises:
        UserError: the paper has no such probe.
    """
    path = f"recaps.papers.{of(paper)}.probes"
    found = vars(importlib.import_module(path)) if importlib.util.find_spec(path) else {}
    known: dict[str, Probe] = {
        key.replace("_", "-"): value
        for key, value in found.items()
        if callable(value) and value.__module__ == path and not key.startswith("_")
    }
    if name not in known:
        raise UserError(f"{paper}: there is no probe '{name}'{nearest(name, known)}")
    return known[name]
