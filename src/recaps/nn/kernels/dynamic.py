"""Fast forms of dynamic routing (`recaps.nn.routing.dynamic`): by batched products, and compiled for CPUs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from recaps.nn.kernels.products import block_diagonal, dots, weighted_sum
from recaps.nn.precision import float32
from recaps.nn.squash import squash


def by_products(
    votes: Tensor, bias: Tensor, iterations: int = 3, gradient: str = "all", leaky: bool = False
) -> tuple[Tensor, Tensor]:
    """`dynamic_routing` of votes [B, I, J, D], which may be in bfloat16, by batched products of matrices.

    The logits of iteration t are b_ij = u_hat_ij . (v_j^1 + ... + v_j^(t-1)). They are computed from the sum of the
    earlier outputs instead of being stored.

    Returns:
        Capsules [B, J, D] and the coupling [B, I, J] of the last iteration, in the precision of `bias`. Early in
        training, couplings differ by less than the precision of bfloat16.
    """
    made: tuple[Tensor, Tensor] = _DynamicRouting.apply(votes, bias, iterations, gradient == "all", leaky)
    return made


def compiled(
    capsules: Tensor, weight: Tensor, bias: Tensor, iterations: int = 3, gradient: str = "all", leaky: bool = False
) -> tuple[Tensor, Tensor]:
    """`dynamic_routing` of the votes of capsules [B, I, d] with weights [I, d, J, D], in float32 on a CPU."""
    from recaps.nn.kernels.votes import by_agreement, padded  # the compiler takes half a second to load

    outputs = weight.shape[2]
    with float32(capsules):
        share = 1 / (outputs + leaky)
        sums = share * (capsules.flatten(1) @ weight.flatten(0, 1).flatten(1)).unflatten(1, bias.shape) + bias
        coupling = share * capsules.new_ones(*capsules.shape[:2], outputs)
        inputs, total = padded(capsules, weight), torch.zeros_like(sums)
        for _ in range(iterations - 1):
            total = total + squash(sums)
            sums, coupling = by_agreement(*inputs, total, leaky=leaky, constant=gradient == "last")
            sums = sums + bias
        return squash(sums), coupling


class _DynamicRouting(torch.autograd.Function):
    """Dynamic routing with a gradient written by hand.

    The votes are by far the largest tensor of a capsule network, and reading them takes most of the time. Each use of
    the votes is therefore one batched matrix product (`recaps.nn.kernels.products`). The backward pass computes their
    gradient as one product over all iterations. Automatic differentiation would write and add two tensors of that size
    in each iteration. Couplings have the order [B, J, I]: a softmax over the last of few outputs is ten times slower.
    """

    @staticmethod
    def forward(
        ctx: Any, votes: Tensor, bias: Tensor, iterations: int, through_all: bool, leaky: bool
    ) -> tuple[Tensor, Tensor]:
        batch, inputs, outputs, _ = votes.shape
        flat = votes.flatten(2)
        sums, totals, couplings = [], [], []
        total = torch.zeros((), device=votes.device)
        coupling = bias.new_full((batch, outputs, inputs), 1 / (outputs + leaky))
        for iteration in range(iterations):
            if iteration:
                logits = dots(flat, total)
                coupling = (pad(logits, (0, 0, 0, 1)) if leaky else logits).softmax(1, dtype=bias.dtype)[:, :outputs]
            couplings.append(coupling.to(flat.dtype))
            sums.append(weighted_sum(couplings[-1], flat) + bias)
            totals.append(total)
            capsules = squash(sums[-1])
            total = total + capsules
        ctx.save_for_backward(flat, *sums, *couplings, *totals)
        ctx.iterations, ctx.through_all = iterations, through_all
        coupling = coupling.transpose(1, 2)
        ctx.mark_non_differentiable(coupling)
        return capsules, coupling

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        flat, *saved = ctx.saved_tensors
        n = ctx.iterations
        sums, couplings, totals = saved[:n], saved[n : 2 * n], saved[2 * n :]
        grad_bias = torch.zeros_like(sums[0][0])
        grad_total = torch.zeros_like(gradient)
        coefficients, directions = [], []  # d loss / d votes_ij = sum over terms of coefficient_ij * direction_j
        for t in reversed(range(n)) if ctx.through_all else [n - 1]:
            grad_output = grad_total + gradient if t == n - 1 else grad_total
            grad_sum = _squash_backward(sums[t], grad_output)
            grad_bias += grad_sum.sum(0)
            coefficients.append(couplings[t])
            directions.append(grad_sum)
            if t and ctx.through_all:
                agreement, coupling = dots(flat, grad_sum).to(grad_sum.dtype), couplings[t].to(grad_sum.dtype)
                grad_logits = coupling * (agreement - (coupling * agreement).sum(1, keepdim=True))
                grad_logits = grad_logits.to(flat.dtype)
                grad_total = grad_total + weighted_sum(grad_logits, flat)
                coefficients.append(grad_logits)
                directions.append(totals[t])
        spread = torch.cat([block_diagonal(d.to(flat.dtype)).transpose(1, 2) for d in directions], 1)
        grad_votes = torch.bmm(torch.cat(coefficients, 1).transpose(1, 2), spread)
        return grad_votes.unflatten(2, gradient.shape[1:]), grad_bias, None, None, None


def _squash_backward(sums: Tensor, gradient: Tensor) -> Tensor:
    with torch.enable_grad():
        sums = sums.detach().requires_grad_()
        return torch.autograd.grad(squash(sums), sums, gradient)[0]
