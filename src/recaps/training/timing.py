"""Compare the cost of several variants: time per training step and per batch in inference, operations, parameters."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from recaps import io, provenance
from recaps.arrays import Arrays, read
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
    splits = {folder: read(folder) for folder in {*datasets.values()}}
    images = {folder: images_of(arrays, where) for folder, arrays in splits.items()}
    timed = {
        name: _Timed(variants[name], splits[folder], images[folder], batch_size, where)
        for name, folder in datasets.items()
    }
    names = list(variants)
    for name in names:
        timed[name].warm_up()
    for each in range(rounds):
        for place in torch.randperm(len(names), generator=generator(0, "timing", each)).tolist():
            timed[names[place]].measure(steps)
    _warn_of_load({name: each.seconds for name, each in timed.items()}, out)
    measured = {
        "seconds_per_step": lambda each: each.seconds,
        "seconds_per_step_by_phase": lambda each: each.of_phases,
        "seconds_per_batch_of_inference": lambda each: each.inference,
        "operations_per_image": _Timed.operations_per_image,
        "bytes_kept_per_image": _Timed.kept_per_image,
        "parameters": lambda each: sum(parameter.numel() for parameter in each.model.parameters()),
        "batch_size": lambda each: each.training.batch_size,
        "precision": lambda each: devices.resolve(where, each.training.precision),
    }
    io.write_json(
        out,
        {
            "kind": "timing",
            "rounds": rounds,
            "steps": steps,
            **{what: {name: of(each) for name, each in timed.items()} for what, of in measured.items()},
            "stand_in": any(arrays.record["stand_in"] for arrays in splits.values()),
            "device": machine.describe(where),
            "torch": str(torch.__version__),
            **provenance.describe(project),
        },
    )


class _Timed:
    """A variant's model, functions that take its steps and compute latents, and the seconds that they took.

    Attributes:
        seconds: seconds per training step, a number per round.
        of_phases: for each phase, its first step, the step after its last, and the seconds of its steps.
        inference: seconds per batch of inference.
    """

    def __init__(
        self, settings: Mapping[str, Any], arrays: Arrays, images: Images, batch_size: int | None, device: torch.device
    ) -> None:
        training = Training.model_validate(settings["training"])
        self.training = training if batch_size is None else training.model_copy(update={"batch_size": batch_size})
        self.images, self.device = images, device
        shape = view_shape(arrays.images.shape[1:], self.training)
        self.model = fresh_model(settings, shape, int(arrays.record["classes"]), seed=0).place(device)
        self.model.configure(self.training)
        batches = Batches(images, self.training, 0, device)
        self.read = _reader(self.model, batches(0)["images"])
        ends = [*self.model.phases().values(), self.training.steps]
        self.phases = [range(*span) for span in itertools.pairwise(ends)]
        self.steppers = [_stepper(self.model, batches, phase) for phase in self.phases]
        self.seconds, self.inference = list[float](), list[float]()
        self.of_phases = [(phase.start, phase.stop, list[float]()) for phase in self.phases]

    def warm_up(self) -> None:
        self.read(1)
        for step in self.steppers:
            step(2)

    def measure(self, steps: int) -> None:
        """Time `steps` steps of each phase, and as many batches of inference."""
        mean = 0.0
        for (start, stop, seconds), step in zip(self.of_phases, self.steppers, strict=True):
            seconds.append(_timed(step, steps, self.device) / steps)
            mean += (stop - start) * seconds[-1] / self.training.steps
        self.seconds.append(mean)
        self.inference.append(_timed(self.read, steps, self.device) / steps)

    def operations_per_image(self) -> float:
        """The operations of a training step on two images, divided by two; the mean over the steps of all phases."""
        counts = [len(phase) * count_operations(self.model, self._pair(), phase[0]) / 2 for phase in self.phases]
        return sum(counts) / self.training.steps

    def kept_per_image(self) -> float:
        """The bytes kept in a training step on two images, divided by two; the most over all phases."""
        return max(count_kept_bytes(self.model, self._pair(), phase[0]) / 2 for phase in self.phases)

    def _pair(self) -> Batches:
        self.model.train()
        return Batches(self.images, self.training.model_copy(update={"batch_size": 2}), 0, self.device)


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
