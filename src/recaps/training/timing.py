"""Compare the speed of training steps of several variants."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from recaps import io, provenance
from recaps.arrays import read
from recaps.config.training import Training
from recaps.models.model import Model
from recaps.training import device as devices
from recaps.training.batches import Batches, view_shape
from recaps.training.images import Images, images_of
from recaps.training.randomness import generator
from recaps.training.run import fresh_model


def time_variants(
    variants: Mapping[str, Mapping[str, Any]],
    datasets: Mapping[str, Path],
    out: Path,
    *,
    rounds: int = 10,
    steps: int = 5,
    batch_size: int | None = None,
    device: str = "auto",
    threads: int | None = None,
    project: Path | None = None,
) -> None:
    """Time training steps, including their batches, and write the seconds per step to `out` (JSON).

    Each round times all variants in a random order, so that other load on the machine affects all of them alike.

    Args:
        variants: the `model` and `training` of each variant, as for `train`.
        datasets: the prepared training split of each variant.
        rounds: number of measurements of each variant.
        steps: training steps per measurement; a measurement is their mean time.
        batch_size: images per mini-batch for all variants; None: each variant's own batch size.
        device: `auto`, `cpu` or `cuda`.
        threads: CPU threads; None: PyTorch's default.
        project: the git checkout whose commit goes into the record.
    """
    where = devices.choose(device, threads)
    batch = {} if batch_size is None else {"batch_size": batch_size}
    trainings = {
        name: Training.model_validate(settings["training"]).model_copy(update=batch)
        for name, settings in variants.items()
    }
    splits = {folder: read(folder) for folder in set(datasets.values())}
    on_device = {folder: images_of(arrays, where) for folder, arrays in splits.items()}
    steppers = {}
    for name, folder in datasets.items():
        shape = view_shape(splits[folder].images.shape[1:], trainings[name])
        model = fresh_model(variants[name], shape, int(splits[folder].record["classes"]), seed=0)
        steppers[name] = _stepper(model, trainings[name], on_device[folder], where)
    for step in steppers.values():
        step(2)
    names, seconds = list(variants), {name: list[float]() for name in variants}
    for each in range(rounds):
        for place in torch.randperm(len(names), generator=generator(0, "timing", each)).tolist():
            seconds[names[place]].append(_timed(steppers[names[place]], steps, where) / steps)
    io.write_json(
        out,
        {
            "kind": "timing",
            "rounds": rounds,
            "steps": steps,
            "seconds_per_step": seconds,
            "batch_size": {name: training.batch_size for name, training in trainings.items()},
            "precision": {name: devices.resolve(where, training.precision) for name, training in trainings.items()},
            "stand_in": any(arrays.record["stand_in"] for arrays in splits.values()),
            "device": devices.describe(where),
            "torch": str(torch.__version__),
            **provenance.describe(project),
        },
    )


def _stepper(model: Model, training: Training, images: Images, device: torch.device) -> Callable[[int], None]:
    """Return a function that trains a model for a further number of steps."""
    model.place(device).configure(training)
    model.train()
    batches = Batches(images, training, 0, device)
    done = 0

    def step(n: int) -> None:
        nonlocal done
        for _ in range(n):
            with devices.arithmetic(device, training.precision):
                model.training_step(batches(done), done)
            done += 1

    return step


def _timed(step: Callable[[int], None], n: int, device: torch.device) -> float:
    _wait(device)
    started = time.perf_counter()
    step(n)
    _wait(device)
    return time.perf_counter() - started


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
