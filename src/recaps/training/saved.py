"""The weights of trained models, with those of snapshots, in `model.safetensors`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from recaps import io
from recaps.config.families import ModelOptions, families
from recaps.errors import UserError
from recaps.models import build
from recaps.models.model import Model
from recaps.training import machine


def load_model(run: Path, device: torch.device, step: int | None = None) -> tuple[Model, dict[str, Any]]:
    """Return the trained model of a run in evaluation mode on `device`, and its resolved config.

    With `step`, the weights are those of the snapshot after that step.

    Raises:
        UserError: a file is missing, damaged or of another version of this package, or there is no such snapshot.
    """
    config = io.read_json(run / "config.json")
    try:
        settings, shape, classes = config["model"], tuple(config["image_shape"]), config["classes"]
    except (KeyError, TypeError) as error:
        raise UserError(f"{run / 'config.json'}: not the settings of a run; delete the run and train again") from error
    machine.has_compiler()
    model = build(_options(settings, run / "config.json"), shape, classes)
    file = run / "model.safetensors"
    try:
        tensors = safetensors.torch.load_file(file)
        weights = of_step(tensors, step)
        # A model that learns nothing has no weights.
        lacks = step is not None and not weights and bool(model.state_dict())
        if not lacks:
            model.load_state_dict(weights)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{file}: cannot be read ({reason}); delete the run and train again") from error
    if lacks:
        there = sorted({int(name.partition("/")[0].removeprefix("step-")) for name in tensors if name[:5] == "step-"})
        raise UserError(f"{file}: there is no snapshot of step {step}; it has {', '.join(map(str, there)) or 'none'}")
    return model.place(device).eval(), config


def start_from(model: Model, file: Path) -> None:
    """Load the final weights of a run's `model.safetensors` into a model, where name and shape are those of its own.

    Raises:
        UserError: they have none in common.
    """
    own = model.state_dict()
    found = of_step(safetensors.torch.load_file(file), None)
    shared = {name: each for name, each in found.items() if name in own and own[name].shape == each.shape}
    if not shared:
        raise UserError(f"{file}: has no weights of this model to start from")
    model.load_state_dict({**own, **shared})


def _options(settings: Mapping[str, Any], file: Path) -> ModelOptions:
    """Return the options of a model that is read from `file`."""
    try:
        return families()[settings["family"]].model_validate(settings)
    except KeyError:
        problem = f"there is no family '{settings['family']}'"
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    mend = "train it again, or use the commit in its record.json"
    raise UserError(f"{file}: model: {problem}; the run was made by another version of recaps: {mend}")


def weights(model: nn.Module, start: str = "") -> dict[str, Tensor]:
    """Return the weights and buffers of a model on the CPU. `start` comes before each name."""
    return {start + name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}


def of_step(tensors: Mapping[str, Tensor], step: int | None) -> dict[str, Tensor]:
    """Return the final weights (None), or those after a step, from the tensors of a run's `model.safetensors`."""
    start = "" if step is None else f"step-{step}/"
    return {
        name.removeprefix(start): value
        for name, value in tensors.items()
        if (name.startswith(start) if start else not name.startswith("step-"))
    }
