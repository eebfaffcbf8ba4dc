"""What a training computes: a model with its initial weights, and its steps.

The digests of this module and of all that it imports, except for housekeeping, are part of what identifies a run.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from recaps.config.families import families
from recaps.models import build
from recaps.models.model import Model
from recaps.training.batches import Batches, Drawn
from recaps.training.device import arithmetic, move
from recaps.training.randomness import generator
from recaps.training.recording import stepper

#: Batches that are drawn ahead for a GPU, so that it never waits for the host.
AHEAD = 64


def fresh_model(settings: Mapping[str, Any], image_shape: tuple[int, int, int], classes: int, seed: int) -> Model:
    """Build a model with the initial weights of a seed."""
    options = families()[settings["model"]["family"]].model_validate(settings["model"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator(seed, "initial weights").initial_seed())
        return build(options, image_shape, classes)


def take_steps(model: Model, batches: Batches, numbers: Iterable[int]) -> Iterator[dict[str, Tensor]]:
    """Take training steps of some numbers, one after the other, in the precision of the batches' training.

    Each step draws a batch on the host, is scheduled there, and does the rest of its work on the device.

    Yields:
        The metrics of each step, scalars on the device.
    """

    def work(drawn: Drawn) -> dict[str, Tensor]:
        with arithmetic(batches.device, batches.training.precision):
            return model.work(batches.make(drawn))

    take = stepper(model, work, batches.device)
    for number, drawn in _drawn(batches, numbers):
        yield take(model.schedule(number), drawn)


def _drawn(batches: Batches, numbers: Iterable[int]) -> Iterator[tuple[int, Drawn]]:
    """Yield the numbers of steps with what their batches are made from, on the device."""
    if batches.device.type == "cpu":
        yield from ((number, batches.draw(number)) for number in numbers)
        return
    left = iter(numbers)
    while some := list(itertools.islice(left, AHEAD)):
        drawn = [batches.draw(number) for number in some]
        moved = {name: move(torch.stack([each[name] for each in drawn]), batches.device) for name in drawn[0]}
        for place, number in enumerate(some):
            yield number, {name: values[place] for name, values in moved.items()}
