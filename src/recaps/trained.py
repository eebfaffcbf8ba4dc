"""Trained models: those that come with the package, and those from the results of the workflow."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from recaps import npz
from recaps.config.training import Training
from recaps.errors import UserError, nearest
from recaps.io import digest_of, read_json
from recaps.models.model import Model
from recaps.npz import Array
from recaps.training import device as devices
from recaps.training.batches import view
from recaps.training.saved import load_model

#: The models that come with the package, each in a folder `<paper>/<variant>`; see `recaps.ship`.
WEIGHTS = Path(__file__).parent / "weights"
#: Outputs may differ from the stored ones by this share of the largest: devices and compilers round differently.
TOLERANCE = 1e-3


class Trained(NamedTuple):
    """A trained model of a run."""

    model: Model
    """The network, in evaluation mode. `latents` and `class_scores` take images in 0..1, float32 [B, C, H, W]; if
    the training pads, crops or standardises, first pass them through `recaps.training.batches.view`."""
    settings: dict[str, Any]
    """What the run was configured with: `model`, `training`, `data`, `seed`, `image_shape`, `classes`."""
    record: dict[str, Any]
    """How it was made: data, commit, device, seconds."""


def list_models() -> list[str]:
    """Return the names of the trained models that come with the package."""
    return sorted("/".join(file.parts[-3:-1]) for file in WEIGHTS.glob("*/*/model.safetensors"))


def examples(name: str) -> tuple[Array, Array]:
    """Return eight test images, uint8 [8, C, H, W], and their labels [8], that come with a model of `list_models`."""
    if name not in list_models():
        raise UserError(f"{name}: no trained model of this package{nearest(name, list_models())}")
    stored = npz.read(WEIGHTS / name / "examples.npz")
    return stored["images"], stored["labels"]


def load(run: str | Path, *, step: int | None = None, device: str = "auto") -> Trained:
    """Load a trained model.

    Args:
        run: a name of `list_models`, e.g. `consensus/mnist-em`, or the folder of a run, e.g.
            `results/desk/runs/sparse/sparsecaps/seed-0`. An existing folder wins.
        step: the snapshot after this step; None: the weights after the last step.
        device: `auto`, `cpu` or `cuda`.

    Raises:
        UserError: the folder holds no complete run, or one of another version of this package; the run has no such
            snapshot; there is no such device; or a model of the package is damaged or computes something else than
            when it was shipped.
    """
    folder = Path(run)
    if not folder.exists():
        if str(run) in list_models():
            folder = WEIGHTS / run
        elif len(folder.parts) <= 2:
            raise UserError(f"{run}: neither a folder nor a trained model{nearest(str(run), list_models())}")
    if step is not None and not isinstance(step, Integral):
        raise UserError(f"step: {step!r} is no whole number")
    if folder.is_file():
        raise UserError(f"{folder}: is a file; name the folder that holds it")
    missing = [name for name in ("model.safetensors", "config.json", "record.json") if not (folder / name).is_file()]
    if missing:
        below = next(folder.glob("seed-*"), None)
        mend = f"name its folder {below.name}" if below else "train it first, or correct the path"
        raise UserError(f"{folder}: no trained run, as {missing[0]} is missing; {mend}")
    record = read_json(folder / "record.json")
    shipped = record.get("shipped")
    for name, digest in (shipped["sha256"] if shipped else {}).items():
        if (found := digest_of(folder / name)) != digest:
            raise UserError(f"{folder / name}: damaged, SHA-256 {found[:8]} instead of {digest[:8]}; install it again")
    model, settings = load_model(folder, devices.choose(device), step)
    if shipped and step is None:
        _check(folder, model, settings, record)
    return Trained(model, settings, record)


def outputs(model: Model, settings: Mapping[str, Any], images: Array) -> dict[str, Array]:
    """Return what tells models apart, for images [B, C, H, W]: class scores, or else capsules, presences and poses."""
    shown = torch.from_numpy(images).to(next(model.parameters()).device)
    with torch.inference_mode():
        seen = view(shown, Training.model_validate(settings["training"]))
        if type(model).class_scores is not Model.class_scores:
            made = {"scores": model.class_scores(seen)}
        else:
            latents = model.latents(seen)
            made = {name: latents[name] for name in ("capsules", "presence", "pose") if name in latents}
    return {name: values.float().cpu().numpy() for name, values in made.items()}


def _check(folder: Path, model: Model, settings: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    """Refuse a model that computes something else than it did when it was shipped."""
    stored = npz.read(folder / "examples.npz")
    for name, values in outputs(model, settings, stored["images"]).items():
        scale = TOLERANCE * np.abs(stored[name]).max()
        worst = np.abs(values - stored[name]).max() if values.shape == stored[name].shape else np.inf
        if not worst <= scale:
            raise UserError(
                f"{folder}: '{name}' of its eight images differ by up to {worst:.2g} from the stored ones, more than"
                f" {scale:.2g}: this version of recaps computes something else; use commit"
                f" {record['git']['commit'][:8]}"
            )
