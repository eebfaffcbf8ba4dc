"""Convolution with large kernels as a product of spectra.

A convolution with stride s is a sum over s x s convolutions with stride 1: one for each phase, that is, for the pixels
whose row and column leave the same remainder by s. The discrete Fourier transform over an n x n plane of phases turns
such a sum into one product of matrices per frequency. A 9x9 kernel with stride 2 on 32x32 pixels needs a sixth of the
direct convolution's multiplications.

The planes are small. Transforms are therefore products with the matrices of the transform, along one axis after the
other, for all images and channels at once. A product of complex matrices is three real ones:

    X conj(W) = (P + Q) + i (S - P + Q)  with  P = Re X Re W,  Q = Im X Im W,  S = (Re X + Im X) (Re W - Im W).

The transforms of X and W compute these three terms of each, and the inverse transform sums P, Q and S. All of it is
linear, so that automatic differentiation gives the exact gradients, again as products.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad


def multiplications(pixels: Sequence[int], kernel: int, stride: int) -> tuple[int, int]:
    """Return the multiplications per pair of channels and image: of `convolve`, and of a direct convolution."""
    side, out = -(-max(pixels) // stride), [(size - kernel) // stride + 1 for size in pixels]
    return 3 * side * (side // 2 + 1) * stride**2, out[0] * out[1] * kernel**2


def convolve(images: Tensor, weight: Tensor, stride: int) -> Tensor:
    """`recaps.nn.convolution.convolve` of float32: [B, C, H, W] and [O, C, k, k] to [B, O, h, w].

    In memory, the result is ordered [h, w, B, O].
    """
    batch, channels, height, width = images.shape
    kernel, outputs, inputs = weight.shape[2], len(weight), channels * stride**2
    rows, columns = ((size - kernel) // stride + 1 for size in (height, width))
    side, taps = -(-max(height, width) // stride), -(-kernel // stride)
    products = side * (side // 2 + 1) * 3

    phases = _phases(images.permute(2, 3, 0, 1), side, stride).permute(0, 2, 4, 1, 3, 5)  # [n, n, B, s, s, C]
    spectra = _transformed(phases.reshape(side, side, -1), side, sign=1).view(products, batch, inputs)
    kernels = _phases(weight.permute(2, 3, 1, 0), taps, stride).permute(0, 2, 1, 3, 4, 5)  # [t, t, s, s, C, O]
    filters = _transformed(kernels.reshape(taps, taps, -1), side, sign=-1).view(products, inputs, outputs)
    made = _inverse(torch.bmm(spectra, filters).flatten(1), side, rows, columns)
    return made.view(rows, columns, batch, outputs).permute(2, 3, 0, 1)


def _phases(values: Tensor, side: int, stride: int) -> Tensor:
    """[H, W, ...] to [side, s, side, s, ...], with zeros after the last row and column."""
    below, right = (side * stride - size for size in values.shape[:2])
    values = pad(values, (0, 0, 0, 0, 0, right, 0, below)) if below or right else values
    return values.unflatten(1, (side, stride)).unflatten(0, (side, stride))


def _transformed(planes: Tensor, side: int, sign: int) -> Tensor:
    """Spectra of planes [p, p, N], which are zero after p rows and columns: [n // 2 + 1, n * 3, N].

    The three terms of a frequency are the real part, the imaginary part, and the real part plus `sign` times the
    imaginary part. Half of the frequencies along the first axis are enough, as the planes are real.
    """
    positions = planes.shape[0]
    first, second = _matrices(side, positions, sign, planes.device)
    halfway = first @ planes.flatten(1)  # [(n // 2 + 1) * 2, p * N]
    return second @ halfway.view(side // 2 + 1, 2 * positions, -1)


def _inverse(products: Tensor, side: int, rows: int, columns: int) -> Tensor:
    """Sum the products P, Q and S [(n // 2 + 1) * n * 3, N] and invert the transform: [rows, columns * N]."""
    first, second = _inverse_matrices(side, rows, columns, products.device)
    halfway = second @ products.view(side // 2 + 1, side * 3, -1)  # [n // 2 + 1, 2 * columns, N]
    return first @ halfway.view(2 * (side // 2 + 1), -1)


@cache
@torch.inference_mode(False)  # the matrices are kept, and a later backward pass may need them
def _matrices(side: int, positions: int, sign: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Matrices [(n // 2 + 1) * 2, p], along the first axis, and [n * 3, 2 * p], along the second."""
    real, imaginary = _waves(side, positions)
    first = torch.stack([real, -imaginary], 1)[: side // 2 + 1]
    # Rows: the terms of a frequency. Columns: real and imaginary part of the first transform.
    terms = torch.stack([real, imaginary], 1), torch.stack([-imaginary, real], 1)
    second = torch.stack([*terms, terms[0] + sign * terms[1]], 1)
    return _kept(first.flatten(0, 1), device), _kept(second.flatten(2).flatten(0, 1), device)


@cache
@torch.inference_mode(False)
def _inverse_matrices(side: int, rows: int, columns: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Matrices [rows, (n // 2 + 1) * 2], along the first axis, and [2 * columns, n * 3], along the second."""
    real, imaginary = _waves(side, columns)
    # The value of a frequency is (P + Q) + i (S - P + Q), and its wave is real + i imaginary.
    second = torch.stack(
        [
            torch.stack([real + imaginary, real - imaginary, -imaginary], 1),
            torch.stack([imaginary - real, imaginary + real, real], 1),
        ]
    )
    real, imaginary = (wave[: side // 2 + 1] for wave in _waves(side, rows))
    twice = torch.full((len(real), 1), 2.0, dtype=torch.float64)  # a frequency and its mirror image
    twice[0] = 1
    if side % 2 == 0:
        twice[-1] = 1
    first = torch.stack([twice * real, -twice * imaginary], 1)
    return (
        _kept(first.flatten(0, 1).t() / side, device),
        _kept(second.permute(0, 3, 1, 2).flatten(2).flatten(0, 1) / side, device),
    )


def _waves(side: int, positions: int) -> tuple[Tensor, Tensor]:
    """Real and imaginary part of exp(2 pi i f p / n): [n, p] each."""
    angles = 2 * math.pi / side * torch.outer(torch.arange(side), torch.arange(positions)).double()
    return angles.cos(), angles.sin()


def _kept(matrix: Tensor, device: torch.device) -> Tensor:
    return matrix.float().contiguous().to(device)
