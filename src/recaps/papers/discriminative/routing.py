"""Routing by learned coefficients: *Routing Towards Discriminative Power of Class Capsules*."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recaps.nn.kernels import SQUASH
from recaps.nn.kernels.products import block_diagonal, spread, weighted_sum
from recaps.nn.losses.classes import present_classes
from recaps.nn.routing.interface import Routed
from recaps.nn.squash import squash


class TwoWays(NamedTuple):
    """The same capsules twice, so that one backward pass gives both updates of algorithm 1."""

    routed: Routed
    """For the loss: its gradient flows to votes and bias, not to the coefficients."""
    capsules: Tensor
    """For the objective, [B, J, D]: its gradient flows to the coefficients only."""


def weighted_sums(
    votes: Tensor, coefficients: Tensor, squash_votes: bool | Literal["classes"]
) -> tuple[Tensor, Tensor]:
    """Sum votes under coefficients that are the same for every image, twice: sum_i b_ij u_hat_ij (eq. 6).

    Args:
        votes: u_hat, [B, I, J, D], in the precision of the products.
        coefficients: b, [I, J].
        squash_votes: squash u_hat before the sum: each vote, or with `classes` each [J] of its components.

    Returns:
        The sums [B, J, D] twice, in the precision of `coefficients`. The first has gradients for the votes, the second
        for the coefficients.
    """
    if squash_votes == "classes":
        votes = squash(votes.transpose(2, 3)).transpose(2, 3).to(votes.dtype)
    sums: tuple[Tensor, Tensor] = _Weighted.apply(votes, coefficients, squash_votes is True)
    return sums


def compiled_sums(capsules: Tensor, weight: Tensor, coefficients: Tensor, squash_votes: bool) -> tuple[Tensor, Tensor]:
    """`weighted_sums` of the votes of capsules [B, I, d] with weights [I, d, J, D], in float32 on a CPU."""
    from recaps.nn.kernels.votes import by_coefficients, padded  # the compiler takes half a second to load

    return by_coefficients(*padded(capsules, weight), coefficients, squash_votes)


def two_ways(sums: tuple[Tensor, Tensor], coefficients: Tensor, bias: Tensor, squash_capsules: bool) -> TwoWays:
    """Add the bias [J, D] to the sums [B, J, D], and squash them if `squash_capsules`."""
    capsules, again = sums[0] + bias, sums[1] + bias.detach()
    if squash_capsules:
        capsules, again = squash(capsules), squash(again)
    return TwoWays(Routed(capsules, coefficients.detach().expand(len(capsules), -1, -1)), again)


def objective(capsules: Tensor, labels: Tensor) -> Tensor:
    """Return |v_j|^2 of the labels minus that of all other classes (eq. 5), one value per image.

    Args:
        capsules: [B, J, D].
        labels: int64, [B] or [B, n].
    """
    signs = 2 * present_classes(labels, capsules.shape[1]) - 1
    return (signs * capsules.square().sum(2)).sum(1)


class _Weighted(torch.autograd.Function):
    """The weighted sum of votes, squashed or not, for each class, given twice.

    Squash only scales a vote, so the coefficient is multiplied by the scale, and squashed votes are never stored. Both
    gradients need dot products with every vote; one pass over the votes computes both.
    """

    @staticmethod
    def forward(ctx: Any, votes: Tensor, coefficients: Tensor, squash_votes: bool) -> tuple[Tensor, Tensor]:
        lengths, weights = None, coefficients.expand(len(votes), -1, -1)
        if squash_votes:
            lengths = torch.linalg.vector_norm(votes, dim=-1, dtype=coefficients.dtype)
            weights = coefficients * _scale(lengths.square() + SQUASH)
        ctx.save_for_backward(votes, coefficients, lengths)
        made = weighted_sum(weights.to(votes.dtype).transpose(1, 2), votes.flatten(2))
        return made, made.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_votes: Tensor, to_coefficients: Tensor) -> tuple[Tensor, Tensor, None]:
        votes, coefficients, lengths = ctx.saved_tensors
        flat, directions = votes.flatten(2), block_diagonal(to_votes.to(votes.dtype))
        both = torch.cat([directions, block_diagonal(to_coefficients.to(votes.dtype))], 2)
        agreement, grad_coefficients = torch.bmm(flat, both).to(coefficients.dtype).chunk(2, 2)
        weights = coefficients.expand(len(votes), -1, -1)
        if lengths is not None:
            squared = lengths.square() + SQUASH
            scale = _scale(squared)
            weights, grad_coefficients = coefficients * scale, scale * grad_coefficients
        gradient = torch.bmm(weights.to(votes.dtype), directions.transpose(1, 2))
        if lengths is not None:
            slope = (1 - squared) / (squared.sqrt() * (1 + squared).square())  # twice d scale / d squared
            grad_length = (coefficients * agreement * slope).to(votes.dtype)
            gradient.addcmul_(flat, spread(grad_length, votes.shape[3]))
        return gradient.view_as(votes), grad_coefficients.sum(0), None


def _scale(squared: Tensor) -> Tensor:
    """Return the factor by which squash multiplies a vector of this squared length."""
    return squared.sqrt() / (1 + squared)
