"""Dynamic routing by agreement: *Dynamic Routing Between Capsules*, procedure 1."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from recaps.nn.kernels import fits_votes
from recaps.nn.precision import float32
from recaps.nn.routing.interface import Routed, VoteRouting
from recaps.nn.routing.products import block_diagonal, dots, weighted_sum
from recaps.nn.squash import squash


class DynamicRouting(VoteRouting):
    """Routing by agreement, as in SUPCAPS.

    Args:
        iterations: Routing iterations.
        leaky: Add one more output with logit zero to the softmax and discard its coupling, as SUPCAPS did on CIFAR-10.
            The primary convolution is then divided by one more than the number of types.
        gradient: Reading. `all`: gradients flow through every routing iteration, as in the released code of SUPCAPS.
            `last`: the coupling coefficients are constants, as in most PyTorch versions.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        dim: int,
        *,
        iterations: Annotated[int, Field(ge=1)] = 3,
        leaky: bool = False,
        gradient: Literal["all", "last"] = "all",
    ) -> None:
        super().__init__(inputs, outputs, dim)
        self.iterations, self.leaky, self.gradient = iterations, leaky, gradient

    def forward(self, votes: Tensor, bias: Tensor) -> Routed:
        return dynamic_routing(votes, bias, self.iterations, self.gradient, self.leaky)

    def route(self, capsules: Tensor, weight: Tensor, bias: Tensor) -> Routed:
        if fits_votes(capsules, weight, self.leaky):
            return compiled_dynamic_routing(capsules, weight, bias, self.iterations, self.gradient, self.leaky)
        return super().route(capsules, weight, bias)

    def operations(self, values: int) -> int:
        """T weighted sums and T - 1 dot products."""
        return 2 * (2 * self.iterations - 1) * values


def dynamic_routing(
    votes: Tensor,
    bias: Tensor,
    iterations: int = 3,
    gradient: Literal["all", "last"] = "all",
    leaky: bool = False,
) -> Routed:
    """Route votes by agreement: *Dynamic Routing Between Capsules*, procedure 1.

    The logits start at zero. Each iteration adds the dot product of vote and output capsule. Before iteration t they
    are therefore b_ij = u_hat_ij . (v_j^1 + ... + v_j^(t-1)), and the code computes them from the sum of the earlier
    outputs instead of storing them. The softmax runs over the output capsules. As in the released code, each iteration
    adds a bias to the weighted sum before squash.

    Args:
        votes: [B, I, J, D], in the precision of the products.
        bias: [J, D].
        iterations: routing iterations, at least 1.
        gradient: `all`: gradients flow through every iteration; `last`: the coupling coefficients are constants.
        leaky: add one more output with logit zero to the softmax and discard its coupling.

    Returns:
        Capsules and the coupling of the last iteration, in the precision of `bias`. Early in training, couplings differ
        by less than the precision of bfloat16.
    """
    return Routed(*_DynamicRouting.apply(votes, bias, iterations, gradient == "all", leaky))


def compiled_dynamic_routing(
    capsules: Tensor,
    weight: Tensor,
    bias: Tensor,
    iterations: int = 3,
    gradient: Literal["all", "last"] = "all",
    leaky: bool = False,
) -> Routed:
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
        return Routed(squash(sums), coupling)


class _DynamicRouting(torch.autograd.Function):
    """Dynamic routing with a gradient written by hand.

    The votes are by far the largest tensor of a capsule network, and reading them takes most of the time. Each use of
    the votes is therefore one batched matrix product (`recaps.nn.routing.products`). The backward pass computes their
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
        bias_gradient = torch.zeros_like(sums[0][0])
        total_gradient = torch.zeros_like(gradient)
        coefficients, directions = [], []  # d loss / d votes_ij = sum over terms of coefficient_ij * direction_j
        for t in reversed(range(n)) if ctx.through_all else [n - 1]:
            at_output = total_gradient + gradient if t == n - 1 else total_gradient
            at_sum = _squash_backward(sums[t], at_output)
            bias_gradient += at_sum.sum(0)
            coefficients.append(couplings[t])
            directions.append(at_sum)
            if t and ctx.through_all:
                agreement, coupling = dots(flat, at_sum).to(at_sum.dtype), couplings[t].to(at_sum.dtype)
                at_logits = coupling * (agreement - (coupling * agreement).sum(1, keepdim=True))
                at_logits = at_logits.to(flat.dtype)
                total_gradient = total_gradient + weighted_sum(at_logits, flat)
                coefficients.append(at_logits)
                directions.append(totals[t])
        spread = torch.cat([block_diagonal(d.to(flat.dtype)).transpose(1, 2) for d in directions], 1)
        votes_gradient = torch.bmm(torch.cat(coefficients, 1).transpose(1, 2), spread)
        return votes_gradient.unflatten(2, gradient.shape[1:]), bias_gradient, None, None, None


def _squash_backward(sums: Tensor, gradient: Tensor) -> Tensor:
    with torch.enable_grad():
        sums = sums.detach().requires_grad_()
        return torch.autograd.grad(squash(sums), sums, gradient)[0]
