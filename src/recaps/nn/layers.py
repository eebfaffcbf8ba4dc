"""Layers of capsule networks: primary capsules, votes and the decoder."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from recaps.nn import kernels
from recaps.nn.convolution import convolve, padded
from recaps.nn.initial import initialise, truncated_normal
from recaps.nn.squash import squash


class PrimaryCapsules(nn.Module):
    """Convolutional capsules without routing: 9x9 kernels, stride 2.

    The released code passes this layer through routing with one input capsule and one iteration. The softmax of
    all-zero logits over the types gives 1/types. The convolution is therefore divided by the number of types (by one
    more with leaky routing) before the bias is added.

    Shapes: input [B, C, H, W]; output [B, types * h * w, dim] in the order type, row, column. h = (H - 9) // 2 + 1, or
    ceil(H / 2) with `same` padding.
    """

    def __init__(self, channels: int, types: int, dim: int, same: bool = False, leaky: bool = False) -> None:
        super().__init__()
        self.types, self.dim, self.same = types, dim, same
        self.shares = types + leaky
        self.conv = initialise(nn.Conv2d(channels, types * dim, kernel_size=9, stride=2, bias=False), std=0.1)
        self.bias = nn.Parameter(torch.full((types, dim), 0.1))

    def forward(self, features: Tensor) -> Tensor:
        summed = convolve(padded(features, 9, 2) if self.same else features, self.conv.weight, stride=2)
        by_type = summed.unflatten(1, (self.types, self.dim))  # [B, types, dim, h, w]
        poses = by_type.permute(0, 1, 3, 4, 2).float() / self.shares + self.bias[:, None, None]
        return squash(poses.flatten(1, 3))


class Votes(nn.Module):
    """One matrix for each pair of input and output capsule: u_hat_{j|i} = W_ij u_i.

    *Dynamic Routing Between Capsules*, eq. 2.

    Shapes: input [B, I, d], output [B, I, J, D]; weight [I, d, J, D].
    """

    def __init__(self, inputs: int, input_dim: int, outputs: int, output_dim: int, std: float = 0.1) -> None:
        super().__init__()
        self.weight = nn.Parameter(truncated_normal(inputs, input_dim, outputs, output_dim, std=std))

    def forward(self, capsules: Tensor) -> Tensor:
        return votes(capsules, self.weight)


def votes(capsules: Tensor, weight: Tensor) -> Tensor:
    """[B, I, d] and [I, d, J, D] to [B, I, J, D]. Under autocast the votes have autocast's precision."""
    if not kernels.enabled():
        return torch.einsum("bid,idjk->bijk", capsules, weight)
    kind = capsules.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
    made: Tensor = _Votes.apply(capsules.to(dtype), weight.flatten(2).to(dtype))
    return made.unflatten(2, weight.shape[2:])


class _Votes(torch.autograd.Function):
    """[B, I, d] and [I, d, K] to [B, I, K]: one matrix product per input capsule.

    The product is written as [B, I, K], because transposing the largest tensor of the model costs more than computing
    it.
    """

    @staticmethod
    def forward(ctx: Any, capsules: Tensor, weight: Tensor) -> Tensor:
        by_capsule = capsules.transpose(0, 1).contiguous()
        ctx.save_for_backward(by_capsule, weight)
        votes = torch.empty(*capsules.shape[:2], weight.shape[2], dtype=weight.dtype, device=weight.device)
        torch.bmm(by_capsule, weight, out=votes.transpose(0, 1))
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


class PerObject(nn.Module):
    """A separate linear layer for each object: [K, B, fewer] to [K, B, more]."""

    def __init__(self, objects: int, fewer: int, more: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(truncated_normal(objects, fewer, more, std=fewer**-0.5))
        self.bias = nn.Parameter(torch.zeros(objects, 1, more)) if bias else None

    def forward(self, values: Tensor) -> Tensor:
        made = values @ self.weight
        return made if self.bias is None else made + self.bias.to(made.dtype)


class Decoder(nn.Module):
    """Fully connected decoder: hidden layers with ReLU, then a sigmoid for each pixel.

    Shapes: input [B, inputs], output [B, *image_shape].
    """

    def __init__(self, inputs: int, widths: tuple[int, ...], image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.image_shape = image_shape
        pixels = image_shape[0] * image_shape[1] * image_shape[2]
        layers: list[nn.Module] = []
        for narrow, wide in zip((inputs, *widths), (*widths, pixels), strict=True):
            layers += [initialise(nn.Linear(narrow, wide), std=0.1), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, capsules: Tensor) -> Tensor:
        return self.layers(capsules).float().sigmoid().unflatten(1, self.image_shape)
