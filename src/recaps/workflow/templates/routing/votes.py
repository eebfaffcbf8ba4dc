"""Name the algorithm and its paper here: *Title*, section or procedure."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from recaps.nn.routing.interface import Routed, VoteRouting
from recaps.nn.routing.options import VoteOptions
from recaps.nn.squash import squash


class ExampleRouting(VoteRouting):
    """Coupling grows with the agreement of a vote with the mean vote."""

    class Options(VoteOptions):
        sharpness: float = Field(1.0, ge=0)
        """Factor on the agreement."""

    def forward(self, votes: Tensor, bias: Tensor) -> Routed:
        mean = squash(votes.mean(1, keepdim=True, dtype=bias.dtype))  # [B, 1, J, D]
        agreement = (votes * mean).sum(3)  # [B, I, J]
        coupling = (self.options.sharpness * agreement).softmax(2)
        capsules = squash((coupling.unsqueeze(3) * votes).sum(1) + bias)
        return Routed(capsules, coupling.detach())

    def operations(self, values: int) -> int:
        """The mean vote, the dot products and the weighted sum."""
        return (1 + 2 + 2) * values
