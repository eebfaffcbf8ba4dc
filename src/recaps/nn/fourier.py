"""Convolution with large kernels as a product of spectra.

A convolution with stride s is a sum over s x s convolutions with stride 1: one for each phase, that is, for the pixels
whose row and column leave the same remainder by s. The discrete Fourier transform over an n x n plane of phases turns
such a sum into one product of matrices per frequency. A 9x9 kernel with stride 2 on 32x32 pixels needs a fifth of the
direct convolution's multiplications.

The planes are small. Transforms are therefore products with the matrices of the transform, along one axis after the
other, and every tensor keeps the order in which the next product reads it. All of it is linear, so that automatic
differentiation gives the exact gradients, again as products.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad


def multiplications(pixels: Sequence[int], kernel: int, stride: int) -> tuple[int, int]:
    """Return the multiplications per pair of channels and image: of `convolve`, and of a direct convolution."""
    side, out = -(-max(pixels) // stride), [(size - kernel) // stride + 1 for size in pixels]
    return 4 * side * (side // 2 + 1) * stride**2, out[0] * out[1] * kernel**2


def convolve(images: Tensor, weight: Tensor, stride: int) -> Tensor:
    """`recaps.nn.convolution.convolve` of float32: [B, C, H, W] and [O, C, k, k] to [B, O, h, w], channels last."""
    batch, channels, height, width = images.shape
    kernel, outputs, inputs = weight.shape[2], len(weight), channels * stride**2
    rows, columns = ((size - kernel) // stride + 1 for size in (height, width))
    side, taps = -(-max(height, width) // stride), -(-kernel // stride)
    half = side // 2 + 1
    planes, kernels = _transforms(side, side, images.device), _transforms(side, taps, images.device)

    phases = _phases(images.permute(0, 2, 3, 1), side, stride).flatten(3)  # [B, n, n, s * s * C]
    spectra = planes.first @ phases.flatten(2)  # [B, half * 2, n * s * s * C]
    spectra = planes.second @ spectra.view(batch, half, 2 * side, inputs)
    spectra = spectra.view(batch, half * side, 2 * inputs).transpose(0, 1)

    weights = _phases(weight.permute(0, 2, 3, 1), taps, stride).permute(1, 2, 3, 4, 5, 0)  # [t, t, s, s, C, O]
    filters = (kernels.first @ weights.reshape(taps, -1)).view(half, 2, taps, inputs, outputs)
    # Complex matrices as real ones: the columns are W and i W, and the product of the spectra is X conj(W).
    filters = torch.stack([filters, torch.stack([-filters[:, 1], filters[:, 0]], 1)], 4)
    filters = kernels.second @ filters.view(half, 2 * taps, inputs * 2 * outputs)
    summed = torch.bmm(spectra, filters.view(half * side, 2 * inputs, 2 * outputs))

    summed = summed.transpose(0, 1).reshape(batch, half, side * 2, outputs)
    summed = _transforms(side, columns, images.device).second_back @ summed  # [B, half, 2 * w, O]
    summed = _transforms(side, rows, images.device).first_back @ summed.view(batch, half * 2, columns * outputs)
    return summed.view(batch, rows, columns, outputs).permute(0, 3, 1, 2)


def _phases(values: Tensor, side: int, stride: int) -> Tensor:
    """[N, H, W, C] to [N, side, side, s, s, C], with zeros after the last row and column."""
    below, right = (side * stride - size for size in values.shape[1:3])
    values = pad(values, (0, 0, 0, right, 0, below)) if below or right else values
    return values.unflatten(2, (side, stride)).unflatten(1, (side, stride)).transpose(2, 3)


class _Transforms(NamedTuple):
    """Matrices of the transform of a plane that is zero but at the first p positions of each axis.

    Half of the first axis's frequencies is enough, as the values are real. Real and imaginary parts are rows.
    """

    first: Tensor
    """[half * 2, p]: along the first axis, of real values."""
    second: Tensor
    """[n * 2, 2 * p]: along the second axis, of complex values."""
    second_back: Tensor
    """[2 * p, n * 2]: inverse of `second`, for the first p positions."""
    first_back: Tensor
    """[p, half * 2]: inverse of `first`, for the first p positions."""


@cache
@torch.inference_mode(False)  # the matrices are kept, and a later backward pass may need them
def _transforms(side: int, positions: int, device: torch.device) -> _Transforms:
    half = side // 2 + 1
    angles = 2 * math.pi / side * torch.outer(torch.arange(side), torch.arange(positions)).double()
    real, imaginary = angles.cos(), -angles.sin()
    first = torch.stack([real, imaginary], 1)[:half]
    second = torch.stack([torch.stack([real, -imaginary], 1), torch.stack([imaginary, real], 1)], 1)
    twice = torch.full((half, 1, 1), 2.0, dtype=torch.float64)  # a frequency and its mirror image
    twice[0] = 1
    if side % 2 == 0:
        twice[-1] = 1
    matrices = (
        first.flatten(0, 1),
        second.flatten(2).flatten(0, 1),
        second.flatten(2).flatten(0, 1).t() / side,
        (twice * first).flatten(0, 1).t() / side,
    )
    return _Transforms(*(matrix.float().contiguous().to(device) for matrix in matrices))
