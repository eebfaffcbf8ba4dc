"""Routing by learned coefficients: *Routing Towards Discriminative Power of Class Capsules*."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recaps.nn.kernels import fits_votes
from recaps.nn.losses import present_classes
from recaps.nn.routing.interface import Routed
from recaps.nn.routing.products import block_diagonal, spread, weighted_sum
from recaps.nn.squash import squash

EPSILON = 1e-8
#: Bytes of votes that a CPU processes at a time.
CACHE = 6_000_000


class TwoWays(NamedTuple):
    """The same capsules twice, so that one backward pass gives both updates of algorithm 1."""

    routed: Routed
    """For the loss: its gradient flows to votes and bias, not to the coefficients."""
    capsules: Tensor
    """For the objective, [B, J, D]: its gradient flows to the coefficients only."""


def discriminative_routing(
    votes: Tensor, coefficients: Tensor, bias: Tensor, *, squash_votes: bool = True, squash_capsules: bool = False
) -> TwoWays:
    """Sum votes under coefficients that are the same for every image: v_j = sum_i b_ij u_hat_ij (eq. 6).

    Args:
        votes: u_hat, [B, I, J, D], in the precision of the products.
        coefficients: b, [I, J].
        bias: added to v, [J, D].
        squash_votes: squash u_hat before the sum.
        squash_capsules: squash v.

    Returns:
        The capsules, in the precision of `coefficients`.
    """
    if fits_votes(votes):
        from recaps.nn.kernels.votes import route_by_coefficients as weigh  # the compiler takes half a second to load
    else:
        weigh = _Weighted.apply
    sums, again = weigh(votes, coefficients, squash_votes)
    capsules, again = sums + bias, again + bias.detach()
    if squash_capsules:
        capsules, again = squash(capsules), squash(again)
    return TwoWays(Routed(capsules, coefficients.detach().expand(len(votes), -1, -1)), again)


def objective(capsules: Tensor, labels: Tensor) -> Tensor:
    """Return |v_j|^2 of the labels minus that of all other classes (eq. 5), one value per image.

    Args:
        capsules: [B, J, D].
        labels: int64, [B] or [B, n].
    """
    signs = 2 * present_classes(labels, capsules.shape[1]) - 1
    return (signs * capsules.square().sum(2)).sum(1)


class _Weighted(torch.autograd.Function):
    """Map votes [B, I, J, D] and coefficients [I, J] to the sums [B, J, D], twice.

    The first output has gradients for the votes, the second for the coefficients. Squash only scales a vote, so the
    coefficient is multiplied by the scale and squashed votes are never stored. Both gradients need dot products with
    every vote; one pass over the votes computes both. On a CPU, images are processed a few at a time, so that their
    votes are still in the cache for the second read.
    """

    @staticmethod
    def forward(ctx: Any, votes: Tensor, coefficients: Tensor, squash_votes: bool) -> tuple[Tensor, Tensor]:
        sums, lengths = [], []
        for some in votes.split(_images_at_a_time(votes)):
            weights = coefficients
            if squash_votes:
                lengths.append(torch.linalg.vector_norm(some, dim=-1, dtype=coefficients.dtype))
                weights = coefficients * _scale(lengths[-1].square() + EPSILON)
            by_output = weights.to(votes.dtype).expand(len(some), -1, -1).transpose(1, 2)
            sums.append(weighted_sum(by_output, some.flatten(2)))
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
    """Return the factor by which squash multiplies a vector of this squared length."""
    return squared.sqrt() / (1 + squared)


def _images_at_a_time(votes: Tensor) -> int:
    """On a CPU as many images as have votes that fit in the cache; on a GPU all."""
    if votes.device.type != "cpu":
        return len(votes)
    return max(1, CACHE // (votes[0].numel() * votes.element_size()))
