"""Convolution that is faster on CPUs, and TensorFlow's `SAME` padding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import conv2d, pad
from torch.nn.grad import conv2d_input

from recaps.nn import kernels, winograd

#: Largest number of values of unfolded input in memory: 100 MB in bfloat16.
CHUNK = 50_000_000
#: Products of tiles pay from this many channels on, and if they need at most half the multiplications.
CHANNELS = 16


def convolve(images: Tensor, weight: Tensor, stride: int) -> Tensor:
    """`conv2d` without padding and bias.

    Args:
        images: [B, C, H, W].
        weight: [O, C, k, k].
        stride: along both axes.

    Returns:
        [B, O, h, w] with h = (H - k) // stride + 1. Under autocast the result has autocast's precision. Devices other
        than CPUs use `conv2d`. In float32, CPUs multiply transformed tiles (`recaps.nn.winograd`) where that is faster;
        rounding errors are then up to 5e-5 of the result instead of 5e-7.
    """
    kind = images.device.type
    if kind != "cpu" or not kernels.enabled():
        return conv2d(images, weight, stride=stride)
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else images.dtype
    if _tiles_pay(images, weight, stride, dtype):
        return winograd.convolve(images, weight, stride)
    result: Tensor = _Convolution.apply(images.to(dtype), weight.to(dtype), stride)
    return result


class Convolution(nn.Conv2d):
    """A layer without padding that calls `convolve`. Under autocast its result has autocast's precision."""

    def forward(self, images: Tensor) -> Tensor:
        maps = convolve(images, self.weight, self.stride[0])
        return maps if self.bias is None else maps + self.bias.to(maps.dtype)[:, None, None]


def _tiles_pay(images: Tensor, weight: Tensor, stride: int, dtype: torch.dtype) -> bool:
    """Where products in bfloat16 are the default, the processor has a unit for them, six times as fast."""
    by_tiles, direct = winograd.multiplications(images.shape[2:], weight.shape[2], stride)
    return dtype == torch.float32 and min(weight.shape[:2]) >= CHANNELS and 2 * by_tiles <= direct


def padded(images: Tensor, kernel: int, stride: int) -> Tensor:
    """Pad images [B, C, H, W] with zeros so that a convolution returns ceil(H / stride) x ceil(W / stride) locations.

    If the number of added rows or columns is odd, the last side gets one more, as with TensorFlow's `SAME`.
    """
    height, width = (max((-(-side // stride) - 1) * stride + kernel - side, 0) for side in images.shape[2:])
    around = (width // 2, width - width // 2, height // 2, height - height // 2)
    return pad(images, around).contiguous(memory_format=torch.channels_last)


def size_after(pixels: int, kernel: int, stride: int, same: bool) -> int:
    """Number of locations along an axis after a convolution. `same`: the images are `padded`."""
    return -(-pixels // stride) if same else (pixels - kernel) // stride + 1


class _Convolution(torch.autograd.Function):
    """Computes the weight gradient as one matrix product of the output gradient and the unfolded input.

    The gradient of oneDNN takes twice as long for 6x6 maps in bfloat16, and as long or longer for 12x12 maps.
    """

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, stride: int) -> Tensor:
        ctx.save_for_backward(images, weight)
        ctx.stride = stride
        return conv2d(images, weight, stride=stride)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, None]:
        images, weight = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        wanted = ctx.needs_input_grad[0]
        grad_images = conv2d_input(images.shape, weight, gradient, stride=ctx.stride) if wanted else None
        return grad_images, _weight_gradient(images, gradient, weight, ctx.stride), None


def _weight_gradient(images: Tensor, gradient: Tensor, weight: Tensor, stride: int) -> Tensor:
    channels, kernel = weight.shape[1], weight.shape[2]
    patch = kernel * kernel * channels
    images, gradient = images.permute(0, 2, 3, 1), gradient.permute(0, 2, 3, 1)
    total = torch.zeros(len(weight), patch, dtype=torch.promote_types(weight.dtype, torch.float32))
    at_a_time = max(1, CHUNK // (gradient.shape[1] * gradient.shape[2] * patch))
    for some, grad_some in zip(images.split(at_a_time), gradient.split(at_a_time), strict=True):
        patches = some.unfold(1, kernel, stride).unfold(2, kernel, stride)  # [b, h, w, C, k, k]
        unfolded = patches.permute(0, 1, 2, 4, 5, 3).reshape(-1, patch)
        total += grad_some.flatten(0, 2).t() @ unfolded
    return total.to(weight.dtype).unflatten(1, (kernel, kernel, channels)).permute(0, 3, 1, 2)
