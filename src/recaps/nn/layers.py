"""Capsule layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recaps.nn.convolution import convolve, padded
from recaps.nn.initial import initialise
from recaps.nn.squash import squash


class PrimaryCapsules(nn.Module):
    """Convolutional capsules without routing: 9x9 kernels, stride 2.

    The released code runs this layer through routing with one input capsule and one iteration. The softmax of all-zero
    logits over the types is 1/types, so the convolution is divided by the number of types before the bias is added
    (with leaky routing by one more).

    Shapes: input [B, C, H, W], output [B, types * h * w, dim], order (type, row, column); h = (H - 9) // 2 + 1, or with
    `same` padding ceil(H / 2).
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


class Decoder(nn.Module):
    """Fully connected decoder: ReLU layers, then a sigmoid per pixel.

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
