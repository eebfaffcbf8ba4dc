"""Routing by learned coefficients: *Routing Towards Discriminative Power of Class Capsules*."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recaps.nn.losses import present_classes
from recaps.nn.routing.products import block_diagonal, spread, weighted_sum
from recaps.nn.routing.routed import Routed
from recaps.nn.squash import squash

EPSILON = 1e-8


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
    products with every vote, which are taken in one reading of them.
    """

    @staticmethod
    def forward(ctx: Any, votes: Tensor, coefficients: Tensor, squash_votes: bool) -> tuple[Tensor, Tensor]:
        flat = votes.flatten(2)
        squared = scale = None
        weights = coefficients
        if squash_votes:
            squared = torch.linalg.vector_norm(votes, dim=-1, dtype=coefficients.dtype).square() + EPSILON
            scale = squared.sqrt() / (1 + squared)
            weights = coefficients * scale
        weights = weights.to(flat.dtype).expand(len(votes), -1, -1)
        sums = weighted_sum(weights, flat)
        ctx.save_for_backward(votes, coefficients, weights, squared, scale)
        return sums, sums.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_votes: Tensor, to_coefficients: Tensor) -> tuple[Tensor, Tensor, None]:
        votes, coefficients, weights, squared, scale = ctx.saved_tensors
        flat = votes.flatten(2)
        directions = block_diagonal(to_votes.to(flat.dtype))
        both = torch.cat([directions, block_diagonal(to_coefficients.to(flat.dtype))], 2)
        agreement, for_coefficients = torch.bmm(flat, both).to(coefficients.dtype).chunk(2, 2)
        gradient = torch.bmm(weights, directions.transpose(1, 2))
        if squared is None:
            return gradient.view_as(votes), for_coefficients.sum(0), None
        slope = (1 - squared) / (squared.sqrt() * (1 + squared).square())  # twice d scale / d squared
        at_length = (coefficients * agreement * slope).to(flat.dtype)
        gradient.addcmul_(flat, spread(at_length, votes.shape[3]))
        return gradient.view_as(votes), (scale * for_coefficients).sum(0), None
