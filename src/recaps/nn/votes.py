"""Votes: what every input capsule says about every output capsule."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from recaps.nn.initial import truncated_normal


class Votes(nn.Module):
    """A matrix per pair of input and output capsule, u_hat_{j|i} = W_ij u_i.

    *Dynamic Routing Between Capsules*, eq. 2.

    Shapes: input [B, I, d], output [B, I, J, D]; weight [I, d, J, D].
    """

    def __init__(self, inputs: int, input_dim: int, outputs: int, output_dim: int, std: float = 0.1) -> None:
        super().__init__()
        self.weight = nn.Parameter(truncated_normal(inputs, input_dim, outputs, output_dim, std=std))

    def forward(self, capsules: Tensor) -> Tensor:
        kind = capsules.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self.weight.dtype
        votes: Tensor = _Votes.apply(capsules.to(dtype), self.weight.flatten(2).to(dtype))
        return votes.unflatten(2, self.weight.shape[2:])


class _Votes(torch.autograd.Function):
    """[B, I, d] and [I, d, K] to [B, I, K]: a matrix product per input capsule, written in batch-major order.

    Left to itself, the batched product comes out as [I, B, K], in which routing, one matrix product per image, is five
    times slower; to transpose the largest tensor of the model costs more than to make it.
    """

    @staticmethod
    def forward(ctx: Any, capsules: Tensor, weight: Tensor) -> Tensor:
        by_capsule = capsules.transpose(0, 1).contiguous()
        votes = torch.empty(*capsules.shape[:2], weight.shape[2], dtype=weight.dtype, device=weight.device)
        torch.bmm(by_capsule, weight, out=votes.transpose(0, 1))
        ctx.save_for_backward(by_capsule, weight)
        return votes

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        by_capsule, weight = ctx.saved_tensors
        gradient = gradient.transpose(0, 1)
        return (
            torch.bmm(gradient, weight.transpose(1, 2)).transpose(0, 1),
            torch.bmm(by_capsule.transpose(1, 2), gradient),
        )
