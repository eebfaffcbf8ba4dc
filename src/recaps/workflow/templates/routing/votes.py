"""Name the algorithm and its paper here: *Title*, section or procedure."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from recaps.nn.routing.interface import Routed, VoteRouting
from recaps.nn.squash import squash


class ExampleRouting(VoteRouting):
    """Coupling grows with the agreement of a vote with the mean vote.

    Args:
        sharpness: Factor on the agreement.
    """

    def __init__(self, inputs: int, outputs: int, dim: int, *, sharpness: Annotated[float, Field(ge=0)] = 1.0) -> None:
        super().__init__(inputs, outputs, dim)
        self.sharpness = sharpness

    def forward(self, votes: Tensor, bias: Tensor) -> Routed:
        mean = squash(votes.mean(1, keepdim=True, dtype=bias.dtype))  # [B, 1, J, D]
        agreement = (votes * mean).sum(3)  # [B, I, J]
        coupling = (self.sharpness * agreement).softmax(2)
        capsules = squash((coupling.unsqueeze(3) * votes).sum(1) + bias)
        return Routed(capsules, coupling.detach())

    def operations(self, values: int) -> int:
        """The mean vote, the dot products and the weighted sum."""
        return (1 + 2 + 2) * values
