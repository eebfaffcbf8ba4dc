"""Routing by self-attention: *Efficient-CapsNet* (Mazzia, Salvetti and Chiaberge, 2021), section 3."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from recaps.nn.precision import float32
from recaps.nn.routing.interface import Routed, VoteRouting
from recaps.nn.routing.options import AttentionOptions


class AttentionRouting(VoteRouting):
    """Routing by self-attention (*Efficient-CapsNet*, section 3).

    The coupling of a vote is its agreement with all votes for the same output, in a softmax over the outputs. It needs
    no iterations, and gradients flow through it. Learned log priors, which begin at zero, are added to the coupling.
    """

    Options = AttentionOptions

    def __init__(self, inputs: int, outputs: int, dim: int, options: AttentionOptions) -> None:
        super().__init__(inputs, outputs, dim, options)
        self.prior = nn.Parameter(torch.zeros(inputs, outputs))

    def forward(self, votes: Tensor, bias: Tensor) -> Routed:
        """Route votes [B, I, J, D]. `bias` is not used, because the paper has none."""
        return attention_routing(votes, self.prior)

    def operations(self, values: int) -> int:
        """A sum, a dot product and a weighted sum."""
        return 5 * values


def attention_routing(votes: Tensor, prior: Tensor) -> Routed:
    """Route votes by self-attention: c_i = softmax_j(sum_k u_ij . u_kj / sqrt(D)), s_j = sum_i (c_ij + b_ij) u_ij.

    The sum over k is taken first, so that no matrix of all pairs of votes is needed. D is the dimension of the votes,
    as in the authors' code; the paper prints that of the input capsules.

    Args:
        votes: u, [B, I, J, D].
        prior: b, [I, J].

    Returns:
        Capsules (1 - exp(-|s|)) s / |s| and the coupling c, at least in float32.
    """
    with float32(votes):
        votes = votes.float() if votes.element_size() < 4 else votes
        agreement = torch.einsum("bijd,bjd->bij", votes, votes.sum(1)) / math.sqrt(votes.shape[3])
        coupling = agreement.softmax(2)
        return Routed(_squash(torch.einsum("bij,bijd->bjd", coupling + prior, votes)), coupling.detach())


def _squash(sums: Tensor) -> Tensor:
    """Shorten vectors [..., D] to the length 1 - exp(-length). Vectors of zeros stay."""
    length = (sums.square().sum(-1, keepdim=True) + 1e-12).sqrt()
    return -torch.expm1(-length) / length * sums
