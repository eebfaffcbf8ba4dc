"""Trained models from the results of the workflow."""

from __future__ import annotations

from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

from recaps.errors import UserError
from recaps.io import read_json
from recaps.models.model import Model
from recaps.training import device as devices
from recaps.training.saved import load_model


class Trained(NamedTuple):
    """A trained model of a run."""

    model: Model
    """The network, in evaluation mode. `latents` and `class_scores` take images in 0..1, float32 [B, C, H, W]; if
    the training pads, crops or standardises, first pass them through `recaps.training.batches.view`."""
    settings: dict[str, Any]
    """What the run was configured with: `model`, `training`, `data`, `seed`, `image_shape`, `classes`."""
    record: dict[str, Any]
    """How it was made: data, commit, device, seconds."""


def load(run: str | Path, *, step: int | None = None, device: str = "auto") -> Trained:
    """Load a trained model.

    Args:
        run: folder of a run, e.g. `results/desk/runs/sparse/sparsecaps/seed-0`.
        step: the snapshot after this step; None: the weights after the last step.
        device: `auto`, `cpu` or `cuda`.

    Raises:
        UserError: the folder holds no complete run, or one of another version of this package; the run has no such
            snapshot; or there is no such device.
    """
    folder = Path(run)
    if step is not None and not isinstance(step, Integral):
        raise UserError(f"step: {step!r} is no whole number")
    if folder.is_file():
        raise UserError(f"{folder}: is a file; name the folder that holds it")
    missing = [name for name in ("model.safetensors", "config.json", "record.json") if not (folder / name).is_file()]
    if missing:
        below = next(folder.glob("seed-*"), None)
        mend = f"name its folder {below.name}" if below else "train it first, or correct the path"
        raise UserError(f"{folder}: no trained run, as {missing[0]} is missing; {mend}")
    model, settings = load_model(folder, devices.choose(device), step)
    return Trained(model, settings, read_json(folder / "record.json"))
