"""Convolution with few multiplications (Toom and Cook; Winograd).

Along an axis, m outputs of a convolution with r taps read n = m + r - 1 values. They are a bilinear function of these
values x and of the taps w, and n products are enough (m r without this):

    y = A^T [(G w) * (B^T x)].

For planes, the same holds along both axes, so a tile of m x m outputs needs n x n products. Summed over input channels,
these are n x n products of matrices. All of it is linear in x and in w, so its gradients are products with the same
matrices, transposed.

G and A evaluate polynomials with the taps as coefficients at n points, and B^T is the inverse transpose of an
evaluation. The points lie evenly on the projective line: (cos a, sin a) for a = 0, pi / n, 2 pi / n, ... Their
rounding error, which grows fast with n, is close to the least that real points can have. With n = 10 in float32, the
root mean square of the error is 3e-5 to 5e-5 of that of the result. With factors in TF32, it would be 3e-4.

A convolution with stride s is a sum over s x s convolutions with stride 1: one for each phase, that is, for the pixels
whose row and column leave the same remainder by s. The sum becomes a part of the sum over input channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

#: Most values along an axis of a tile.
LARGEST = 10


def convolve(images: Tensor, weight: Tensor, stride: int) -> Tensor:
    """`recaps.nn.convolution.convolve`: [B, C, H, W] and [O, C, k, k] to [B, O, h, w].

    In memory, the result is ordered [h, w, B, O].
    """
    taps = -(-weight.shape[2] // stride)
    kernels = _phases(weight.permute(2, 3, 1, 0), (taps, taps), stride).flatten(2, 4)  # [t, t, s * s * C, O]
    made = [(size - weight.shape[2]) // stride + 1 for size in images.shape[2:]]
    tile = _tile(made, taps)
    sides = [-(-size // tile) * tile + taps - 1 for size in made]
    planes = _phases(images.permute(2, 3, 0, 1), sides, stride).permute(0, 1, 4, 2, 3, 5).flatten(3)
    result: Tensor = _Tiles.apply(planes, kernels, tile)
    return result[: made[0], : made[1]].permute(2, 3, 0, 1)


class _Tiles(torch.autograd.Function):
    """Planes [p, q, B, C] and kernels [t, t, C, O] to [p - t + 1, q - t + 1, B, O], one row of tiles at a time."""

    @staticmethod
    def forward(ctx: Any, planes: Tensor, kernels: Tensor, tile: int) -> Tensor:
        taps, _, channels, outputs = kernels.shape
        side, batch, across = tile + taps - 1, planes.shape[2], (planes.shape[1] - taps + 1) // tile
        of_values, of_taps, of_products = _matrices(tile, taps, planes.dtype, planes.device)
        filters = (of_taps @ kernels.reshape(taps**2, -1)).view(side**2, channels, outputs)
        result = planes.new_empty(planes.shape[0] - taps + 1, across * tile, batch, outputs)
        kept = []
        for row in range(0, len(result), tile):
            tiles = planes[row : row + side].unfold(1, side, tile).permute(0, 4, 1, 2, 3)  # [n, n, across, B, C]
            values = (of_values @ tiles.reshape(side**2, -1)).view(side**2, across * batch, channels)
            made = of_products @ torch.bmm(values, filters).flatten(1)
            result[row : row + tile] = made.view(tile, tile, across, batch, outputs).transpose(1, 2).flatten(1, 2)
            kept.append(values)
        ctx.save_for_backward(filters, *kept)
        ctx.tile, ctx.shape = tile, planes.shape
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, None]:
        filters, *kept = ctx.saved_tensors
        tile, side = ctx.tile, math.isqrt(len(filters))
        taps = side - tile + 1
        of_values, of_taps, of_products = _matrices(tile, taps, gradient.dtype, gradient.device)
        grad_planes = gradient.new_zeros(ctx.shape) if ctx.needs_input_grad[0] else None
        grad_filters: Tensor | None = None
        for row, values in zip(range(0, len(gradient), tile), kept, strict=True):
            grad_tiles = gradient[row : row + tile].unflatten(1, (-1, tile)).transpose(1, 2).reshape(tile**2, -1)
            grad_products = (of_products.t() @ grad_tiles).view(side**2, -1, filters.shape[2])
            pair = values.transpose(1, 2), grad_products
            grad_filters = torch.bmm(*pair) if grad_filters is None else grad_filters.baddbmm_(*pair)
            if grad_planes is not None:
                grad_values = torch.bmm(grad_products, filters.transpose(1, 2)).flatten(1)
                read = (of_values.t() @ grad_values).view(side, side, -1, *ctx.shape[2:]).unbind(2)
                for column, each in enumerate(read):
                    grad_planes[row : row + side, column * tile : column * tile + side] += each
        assert grad_filters is not None
        return grad_planes, (of_taps.t() @ grad_filters.flatten(1)).view(taps, taps, *filters.shape[1:]), None


def multiplications(pixels: Sequence[int], kernel: int, stride: int) -> tuple[int, int]:
    """Return the multiplications per pair of channels and image: of `convolve`, and of a direct convolution."""
    made, taps = [(size - kernel) // stride + 1 for size in pixels], -(-kernel // stride)
    return _products(made, taps, _tile(made, taps)) * stride**2, math.prod(made) * kernel**2


def _tile(made: Sequence[int], taps: int) -> int:
    """Outputs along an axis of a tile: the number that needs the fewest products."""
    return min(range(1, max(LARGEST - taps, 0) + 2), key=lambda tile: _products(made, taps, tile))


def _products(made: Sequence[int], taps: int, tile: int) -> int:
    return math.prod(-(-size // tile) for size in made) * (tile + taps - 1) ** 2


def _phases(values: Tensor, sides: Sequence[int], stride: int) -> Tensor:
    """[H, W, ...] to [side, side, s, s, ...], with zeros after the last row and column, without what is not read."""
    below, right = (side * stride - size for side, size in zip(sides, values.shape[:2], strict=True))
    values = pad(values, (0, 0, 0, 0, 0, right, 0, below)) if below or right else values
    return values.unflatten(1, (sides[1], stride)).unflatten(0, (sides[0], stride)).transpose(1, 2)


@cache
@torch.inference_mode(False)  # the matrices are kept, and a later backward pass may need them
def _matrices(tile: int, taps: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """For both axes at once: B^T [n^2, n^2], G [n^2, t^2] and A^T [m^2, n^2]."""
    n = tile + taps - 1
    inverse = torch.linalg.inv(_powers(n, n)).t()
    along = inverse, _powers(n, taps), _powers(n, tile).t()
    values, of_taps, products = (torch.kron(each, each).to(device, dtype) for each in along)
    return values, of_taps, products


def _powers(points: int, terms: int) -> Tensor:
    """Homogeneous polynomials at points evenly on the projective line: [points, terms]."""
    angles = (math.pi / points * torch.arange(points).double())[:, None]
    power = torch.arange(terms).double()
    return angles.cos() ** (terms - 1 - power) * angles.sin() ** power
