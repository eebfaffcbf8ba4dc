"""Name the algorithm and its paper here: *Title*, section or procedure."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from recaps.nn.fields import Fields
from recaps.nn.routing.interface import Consensus, PoseRouting, matrix_votes
from recaps.nn.routing.options import PoseOptions


class ExampleRouting(PoseRouting):
    """A pose is the mean of the votes, weighted by the activations of the inputs; close votes activate it."""

    class Options(PoseOptions):
        sharpness: float = Field(1.0, ge=0)
        """Factor on the variance of the votes."""

    def __init__(self, outputs: int, layer: int, logits: bool, options: Options) -> None:
        super().__init__(outputs, layer, logits, options)
        self.sharpness, self.logits = options.sharpness, logits
        self.threshold = nn.Parameter(torch.zeros(outputs))

    def forward(self, poses: Tensor, activations: Tensor, weight: Tensor, fields: Fields) -> Consensus:
        votes = matrix_votes(poses, weight, fields)  # [B, P, n, J, 16]
        seen = activations[:, fields.children].unsqueeze(3)  # [B, P, n, 1]
        coupling = (seen / (seen.sum(2, keepdim=True) + 1e-6)).expand(*votes.shape[:-1])  # [B, P, n, J]
        mean = (coupling.unsqueeze(4) * votes).sum(2)
        variance = (coupling * (votes - mean.unsqueeze(2)).square().mean(4)).sum(2)
        logits = self.threshold - self.sharpness * variance
        return Consensus(mean, logits if self.logits else logits.sigmoid(), coupling.detach())
