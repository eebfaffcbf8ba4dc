"""Routing by the cosine between vote and output: *Training products of expert capsules*, section 2.2."""

from __future__ import annotations

import torch
from torch import Tensor

from recaps.nn.routing.interface import Routed, VoteRouting
from recaps.nn.routing.options import CosineOptions
from recaps.nn.squash import squash

#: Lower limit of lengths in divisions; a vector of zeros then has cosine 0 with every vector.
TINY = 1e-12


class CosineRouting(VoteRouting):
    """Routing by the cosine between vote and output (*Training products of expert capsules*, section 2.2)."""

    Options = CosineOptions

    def forward(self, votes: Tensor, bias: Tensor) -> Routed:
        """Route votes [B, I, J, D]. `bias` is not used, because the paper has none."""
        return cosine_routing(votes, self.options.iterations)

    def operations(self, values: int) -> int:
        """The lengths of the votes, T weighted sums and T - 1 dot products."""
        return 4 * self.options.iterations * values


def cosine_routing(votes: Tensor, iterations: int = 3) -> Routed:
    """Route votes by the cosine between vote and output. Each output distributes one unit over its inputs.

    The logits start at zero. Each iteration adds the cosine between the vote and the weighted sum of votes. The softmax
    runs over the input capsules: sum_i c_ij = 1. A cosine does not depend on lengths, so capsules are squashed once, at
    the end (eqs. 3 and 4).

    Args:
        votes: [B, I, J, D].
        iterations: routing iterations, at least 1. The coupling of the first is 1 / I.

    Returns:
        Capsules and the coupling of the last iteration, at least in float32. The coupling is a constant: gradients flow
        only through the weighted sum of the last iteration.
    """
    coupling = cosine_coupling(votes, iterations)
    return Routed(squash(weighted_sum(votes, coupling)), coupling)


@torch.no_grad()
def cosine_coupling(votes: Tensor, iterations: int = 3, axis: int = 1) -> Tensor:
    """Coupling coefficients [B, I, J] of `cosine_routing` for votes [B, I, J, D].

    They sum to one along `axis`: over the inputs (1), or over the outputs (2), so that outputs compete for an input.

    Each use of the votes is a product and a sum. With output capsules this small, block-diagonal matrix products
    (`recaps.nn.kernels.products`) take twice as long, and with 576 outputs many times longer.
    """
    votes = votes.float() if votes.element_size() < 4 else votes
    lengths = votes.norm(dim=3).clamp_min(TINY)
    logits = torch.zeros_like(lengths)
    for iteration in range(iterations - 1):
        sums = weighted_sum(votes, logits.softmax(axis)) if iteration else votes.mean(1)
        directions = sums / sums.norm(dim=2, keepdim=True).clamp_min(TINY)
        logits += (votes * directions.unsqueeze(1)).sum(3) / lengths
    return logits.softmax(axis)


def weighted_sum(votes: Tensor, coupling: Tensor) -> Tensor:
    """z_j = sum_i c_ij V_ij (eq. 3): [B, I, J, D] and [B, I, J] to [B, J, D]."""
    return (coupling.unsqueeze(3) * votes).sum(1)
