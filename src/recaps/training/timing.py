"""Compare the cost of several variants: time per training step and per batch in inference, operations, parameters."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from recaps import io, provenance
from recaps.arrays import read
from recaps.config.training import Training
from recaps.models.model import Model
from recaps.nn.kernels import plain
from recaps.training import device as devices
from recaps.training import machine
from recaps.training.batches import Batches, view_shape
from recaps.training.images import Images, images_of
from recaps.training.randomness import generator
from recaps.training.step import fresh_model, take_steps

#: A timing warns if the slowest round of a variant takes more than this many times as long as the fastest.
UNEVEN = 2


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
    """Time training steps, including their batches, and inference, and write the seconds to `out` (JSON).

    Each round times all variants in a random order, so that other load on the machine affects all of them alike. If
    training has several kinds of steps (`Model.phases`), a step's time is their mean, weighted by their numbers; the
    time of each kind is written, too, with the first step of its phase and that after the last. Inference is
    `Model.latents` of one batch. Operations and bytes kept for the backward pass are those of a training step, divided
    by its images.

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
    models, steppers, readers = {}, {}, {}
    for name, folder in datasets.items():
        shape = view_shape(splits[folder].images.shape[1:], trainings[name])
        model = fresh_model(variants[name], shape, int(splits[folder].record["classes"]), seed=0)
        model.place(where).configure(trainings[name])
        batches = Batches(on_device[folder], trainings[name], 0, where)
        models[name], readers[name] = model, _reader(model, batches(0)["images"])
        ends = [*model.phases().values(), trainings[name].steps]
        steppers[name] = {
            phase: _stepper(model, batches, phase) for phase in itertools.starmap(range, itertools.pairwise(ends))
        }
    for name in variants:
        readers[name](1)
        for step in steppers[name].values():
            step(2)
    names = list(variants)
    seconds, inference = ({name: list[float]() for name in names} for _ in range(2))
    of_phases = {name: [(phase.start, phase.stop, list[float]()) for phase in steppers[name]] for name in names}
    for each in range(rounds):
        for place in torch.randperm(len(names), generator=generator(0, "timing", each)).tolist():
            name = names[place]
            seconds[name].append(0.0)
            for (start, stop, own), step in zip(of_phases[name], steppers[name].values(), strict=True):
                own.append(_timed(step, steps, where) / steps)
                seconds[name][-1] += (stop - start) * own[-1] / trainings[name].steps
            inference[name].append(_timed(readers[name], steps, where) / steps)
    _warn_of_load(seconds, out)
    io.write_json(
        out,
        {
            "kind": "timing",
            "rounds": rounds,
            "steps": steps,
            "seconds_per_step": seconds,
            "seconds_per_step_by_phase": of_phases,
            "seconds_per_batch_of_inference": inference,
            "operations_per_image": {
                name: _operations_per_image(models[name], steppers[name], trainings[name], on_device[folder], where)
                for name, folder in datasets.items()
            },
            "bytes_kept_per_image": {
                name: _kept_per_image(models[name], steppers[name], trainings[name], on_device[folder], where)
                for name, folder in datasets.items()
            },
            "parameters": {name: sum(each.numel() for each in model.parameters()) for name, model in models.items()},
            "batch_size": {name: training.batch_size for name, training in trainings.items()},
            "precision": {name: devices.resolve(where, training.precision) for name, training in trainings.items()},
            "stand_in": any(arrays.record["stand_in"] for arrays in splits.values()),
            "device": machine.describe(where),
            "torch": str(torch.__version__),
            **provenance.describe(project),
        },
    )


def _warn_of_load(seconds: Mapping[str, Sequence[float]], out: Path) -> None:
    for name, rounds in seconds.items():
        if max(rounds) > UNEVEN * min(rounds):
            print(
                f"{name}: a step takes {min(rounds):.3g} s in one round and {max(rounds):.3g} s in another, so the"
                f" machine is busy; when it is idle, delete {out} and run again",
                file=sys.stderr,
            )


def count_operations(model: Model, batches: Batches, at: int) -> float:
    """Return the floating-point operations that training step `at` needs.

    Convolutions and fully connected layers are counted as PyTorch runs them. Votes and routing are counted by their
    equations, because the block-diagonal products that compute them do more arithmetic.
    """
    counter: Any = FlopCounterMode(display=False)
    with plain(), counter:
        next(take_steps(model, batches, [at]))
    by_operation = counter.get_flop_counts().get("Global", {})
    own = model.own_operations(batches.training.batch_size)
    return own + sum(n for operation, n in by_operation.items() if not own or "bmm" not in str(operation))


def count_kept_bytes(model: Model, batches: Batches, at: int) -> int:
    """Return the bytes that PyTorch keeps for the backward pass of training step `at`, without the parameters.

    These are the tensors of the equations as written, each counted once; fast paths may keep less. Unlike the peak of a
    process, they do not depend on what it did before.
    """
    weights = {each.untyped_storage().data_ptr() for each in model.parameters()}
    kept = dict[int, torch.UntypedStorage]()  # held here, so that no address is used again

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    with plain(), saved_tensors_hooks(keep, lambda tensor: tensor):
        next(take_steps(model, batches, [at]))
    return sum(each.nbytes() for each in kept.values())


def _operations_per_image(
    model: Model, phases: Iterable[range], training: Training, images: Images, device: torch.device
) -> float:
    """Return the operations of a training step on two images, divided by two; the mean over the steps of all phases."""
    batches = Batches(images, training.model_copy(update={"batch_size": 2}), 0, device)
    model.train()
    counts = {phase: count_operations(model, batches, phase[0]) / 2 for phase in phases}
    return sum(len(phase) * count for phase, count in counts.items()) / training.steps


def _kept_per_image(
    model: Model, phases: Iterable[range], training: Training, images: Images, device: torch.device
) -> float:
    """Return the bytes kept in a training step on two images, divided by two; the most over all phases."""
    batches = Batches(images, training.model_copy(update={"batch_size": 2}), 0, device)
    model.train()
    return max(count_kept_bytes(model, batches, phase[0]) / 2 for phase in phases)


def _stepper(model: Model, batches: Batches, phase: range) -> Callable[[int], None]:
    """Return a function that trains a model for a further number of steps of a phase, over and over."""
    taken = take_steps(model, batches, itertools.cycle(phase))

    def step(n: int) -> None:
        model.train()
        for _ in itertools.islice(taken, n):
            pass

    return step


def _reader(model: Model, images: Tensor) -> Callable[[int], None]:
    """Return a function that computes the latents of the same images n times."""

    def read_images(n: int) -> None:
        model.eval()
        with torch.inference_mode():
            for _ in range(n):
                model.latents(images)

    return read_images


def _timed(step: Callable[[int], None], n: int, device: torch.device) -> float:
    _wait(device)
    started = time.perf_counter()
    step(n)
    _wait(device)
    return time.perf_counter() - started


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
