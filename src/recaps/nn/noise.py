"""Random numbers that a model draws while it learns, as a function of its seed and the step."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn


class Noise(nn.Module):
    """Draws for each purpose and step, the same ones in a run that was cut and resumed.

    Its key is drawn when the model is made, as initial weights are, so it is a function of the run's seed; a checkpoint
    and a trained model hold it. On another kind of device the numbers are others.
    """

    key: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("key", torch.randint(2**62, ()))

    def seed(self, purpose: str, step: int = 0) -> int:
        """A number of 63 bits for each purpose and step."""
        digest = hashlib.sha256(f"{int(self.key)}/{purpose}/{step}".encode()).digest()
        return int.from_bytes(digest[:8], "little") >> 1

    def generator(self, device: torch.device, purpose: str, step: int = 0) -> torch.Generator:
        """A generator of its own for each purpose and step."""
        return torch.Generator(device).manual_seed(self.seed(purpose, step))

    def normal(self, *shape: int, device: torch.device, purpose: str, step: int = 0) -> Tensor:
        """Values of N(0, 1), float32."""
        return torch.randn(*shape, generator=self.generator(device, purpose, step), device=device)

    def dropout(self, values: Tensor, rate: float, purpose: str, step: int = 0) -> Tensor:
        """Each value is zero with probability `rate`, else divided by 1 - `rate`."""
        if not rate:
            return values
        kept = torch.empty_like(values).bernoulli_(1 - rate, generator=self.generator(values.device, purpose, step))
        return values * kept / (1 - rate)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """The key stays on the host: to read it from a GPU would wait for all that is under way there."""
        return self
