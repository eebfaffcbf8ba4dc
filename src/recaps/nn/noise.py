"""Random numbers that a model draws during training, as a function of its seed and the step."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn


class Noise(nn.Module):
    """Draws random numbers for a purpose and a step. A run that is resumed draws the same numbers.

    The key is drawn when the model is built, like initial weights, and is therefore a function of the run's seed. It is
    saved with the model. Different kinds of devices draw different numbers.
    """

    key: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("key", torch.randint(2**62, ()))
        self.step = 0
        #: The generators of the training step by device and purpose. They persist, so that a step can be recorded.
        self.generators: dict[tuple[torch.device, str], torch.Generator] = {}

    def schedule(self, step: int) -> None:
        """Seed the generators for a training step."""
        self.step = step
        for (_, purpose), generator in self.generators.items():
            generator.manual_seed(self.seed(purpose, step))

    def seed(self, purpose: str, step: int = 0) -> int:
        """The seed of a purpose and step: an integer of 63 bits."""
        digest = hashlib.sha256(f"{int(self.key)}/{purpose}/{step}".encode()).digest()
        return int.from_bytes(digest[:8], "little") >> 1

    def generator(self, device: torch.device, purpose: str, step: int | None = None) -> torch.Generator:
        """The generator of a purpose for the scheduled training step, or a new one for another `step`."""
        if step is not None:
            return torch.Generator(device).manual_seed(self.seed(purpose, step))
        if (device, purpose) not in self.generators:
            self.generators[device, purpose] = self.generator(device, purpose, self.step)
        return self.generators[device, purpose]

    def normal(self, *shape: int, device: torch.device, purpose: str, step: int | None = None) -> Tensor:
        """Draw float32 values from N(0, 1). `step` as in `generator`."""
        return torch.randn(*shape, generator=self.generator(device, purpose, step), device=device)

    def dropout(self, values: Tensor, rate: float, purpose: str, step: int | None = None) -> Tensor:
        """Set each value to zero with probability `rate`, and divide the others by 1 - `rate`."""
        if not rate:
            return values
        kept = values.new_empty(values.shape)  # which values are kept must not depend on their order in memory
        kept.bernoulli_(1 - rate, generator=self.generator(values.device, purpose, step))
        return values * kept / (1 - rate)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Keep the key on the host. Reading it from a GPU would wait for all work that is queued there."""
        return self
