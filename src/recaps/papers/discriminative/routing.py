"""Routing by learned coefficients: *Routing Towards Discriminative Power of Class Capsules*."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recaps.nn.losses import present_classes
from recaps.nn.routing.interface import Routed
from recaps.nn.routing.products import block_diagonal, spread, weighted_sum
from recaps.nn.squash import squash

EPSILON = 1e-8
#: Bytes of votes that are worked on at a time on a CPU.
CACHE = 6_000_000


class TwoWays(NamedTuple):
    """The same capsules twice, so that one backward pass serves both updates of algorithm 1."""

    routed: Routed
    """For the loss: its gradient reaches votes and bias, not the coefficients."""
    capsules: Tensor
    """For the objective, [B, J, D]: its gradient reaches the coefficients alone."""


def discriminative_routing(
    votes: Tensor, coefficients: Tensor, bias: Tensor, *, squash_votes: bool = True, squash_capsules: bool = False
) -> TwoWays:
    """Add up votes under coefficients that are the same for every image: v_j = sum_i b_ij u_hat_ij (eq. 6).

    Args:
        votes: [B, I, J, D], in the precision that products are to be computed in.
        coefficients: b, [I, J].
        bias: [J, D].
        squash_votes: squash u_hat before it is added up.
        squash_capsules: squash v.

    Returns:
        The capsules, in the precision of `coefficients`.
    """
    sums, again = _Weighted.apply(votes, coefficients, squash_votes)
    capsules, again = sums + bias, again + bias.detach()
    if squash_capsules:
        capsules, again = squash(capsules), squash(again)
    return TwoWays(Routed(capsules, coefficients.detach().expand(len(votes), -1, -1)), again)


def objective(capsules: Tensor, labels: Tensor) -> Tensor:
    """How well lengths tell the classes: |v_j|^2 of the labels less that of all others (eq. 5), one value per image.

    Args:
        capsules: [B, J, D].
        labels: int64, [B] or [B, n].
    """
    signs = 2 * present_classes(labels, capsules.shape[1]) - 1
    return (signs * capsules.square().sum(2)).sum(1)


class _Weighted(torch.autograd.Function):
    """[B, I, J, D] and [I, J] to twice [B, J, D]: the first has gradients to the votes, the second to the coefficients.

    Squashed votes are not made: squash scales a vote, so its scale goes into the coefficient. Both gradients need dot
    products with every vote, which are taken in one reading of them. Images are taken a few at a time, so that their
    votes are still in the cache when they are read again.
    """

    @staticmethod
    def forward(ctx: Any, votes: Tensor, coefficients: Tensor, squash_votes: bool) -> tuple[Tensor, Tensor]:
        sums, lengths = [], []
        for some in votes.split(_images_at_a_time(votes)):
            weights = coefficients
            if squash_votes:
                lengths.append(torch.linalg.vector_norm(some, dim=-1, dtype=coefficients.dtype))
                weights = coefficients * _scale(lengths[-1].square() + EPSILON)
            sums.append(weighted_sum(weights.to(votes.dtype).expand(len(some), -1, -1), some.flatten(2)))
        ctx.save_for_backward(votes, coefficients, *lengths)
        made = torch.cat(sums)
        return made, made.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_votes: Tensor, to_coefficients: Tensor) -> tuple[Tensor, Tensor, None]:
        votes, coefficients, *lengths = ctx.saved_tensors
        to_votes, to_coefficients = to_votes.to(votes.dtype), to_coefficients.to(votes.dtype)
        gradient, total = torch.empty_like(votes).flatten(2), torch.zeros_like(coefficients)
        for place, rows in enumerate(torch.arange(len(votes)).split(_images_at_a_time(votes))):
            chosen = slice(int(rows[0]), int(rows[-1]) + 1)
            flat, into = votes[chosen].flatten(2), gradient[chosen]
            directions = block_diagonal(to_votes[chosen])
            both = torch.cat([directions, block_diagonal(to_coefficients[chosen])], 2)
            agreement, for_coefficients = torch.bmm(flat, both).to(coefficients.dtype).chunk(2, 2)
            weights = coefficients
            if lengths:
                squared = lengths[place].square() + EPSILON
                scale = _scale(squared)
                weights, for_coefficients = coefficients * scale, scale * for_coefficients
            weights = weights.to(votes.dtype).expand(len(flat), -1, -1)
            torch.bmm(weights, directions.transpose(1, 2), out=into)
            if lengths:
                slope = (1 - squared) / (squared.sqrt() * (1 + squared).square())  # twice d scale / d squared
                at_length = (coefficients * agreement * slope).to(votes.dtype)
                into.addcmul_(flat, spread(at_length, votes.shape[3]))
            total += for_coefficients.sum(0)
        return gradient.view_as(votes), total, None


def _scale(squared: Tensor) -> Tensor:
    """By what squash multiplies a vector of a squared length."""
    return squared.sqrt() / (1 + squared)


def _images_at_a_time(votes: Tensor) -> int:
    """On a CPU as many as leave their votes in the cache; on a GPU all."""
    if votes.device.type != "cpu":
        return len(votes)
    return max(1, CACHE // (votes[0].numel() * votes.element_size()))
