"""EM routing of vectors, with which the authors hope to train sparsely (section 4)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from recaps.nn.fields import Fields, everything
from recaps.nn.layers import votes
from recaps.nn.precision import float32
from recaps.nn.routing.em import expectation, maximisation, temperature_schedule
from recaps.nn.routing.interface import Routed, VoteRouting
from recaps.nn.routing.options import VectorEMOptions


class VectorEM(VoteRouting):
    """EM routing (*Matrix Capsules with EM Routing*, procedure 1) of capsules whose length is their activation."""

    Options = VectorEMOptions

    seen: Tensor
    parents: Tensor

    def __init__(self, inputs: int, outputs: int, dim: int, options: VectorEMOptions) -> None:
        super().__init__(inputs, outputs, dim, options)
        self.scale, fields = options.cost_inputs / inputs, everything(inputs)
        self.register_buffer("seen", fields.children, persistent=False)
        self.register_buffer("parents", fields.parents, persistent=False)
        self.temperatures = temperature_schedule(options.iterations, options.final_temperature)
        self.beta_u = nn.Parameter(torch.zeros(outputs))
        self.beta_a = nn.Parameter(torch.zeros(outputs))

    def route(self, capsules: Tensor, weight: Tensor, bias: Tensor) -> Routed:
        with float32(capsules):
            each = votes(capsules, weight).unsqueeze(1)  # [B, 1, I, J, D]: a single position
            length, fields = capsules.norm(dim=2)[:, None, :, None], Fields(self.seen, self.parents, 1, 1)
            coupling = each.new_full(each.shape[:-1], 1 / weight.shape[2])
            mean, _, logit = state = self._fitted(each, coupling * length, self.temperatures[0])
            for temperature in self.temperatures[1:]:
                coupling = expectation(each, *state, fields)
                mean, _, logit = state = self._fitted(each, coupling * length, temperature)
            activations = logit.squeeze(1).sigmoid().unsqueeze(2)
            return Routed(activations * normalize(mean.squeeze(1) + bias, dim=2), coupling.squeeze(1).detach())

    def _fitted(self, votes: Tensor, weights: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
        return maximisation(votes, weights, self.beta_u, self.beta_a / self.scale, self.scale * temperature)
