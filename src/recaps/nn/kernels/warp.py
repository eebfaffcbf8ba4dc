"""`recaps.nn.poses.warp`, compiled.

A template covers a small part of the canvas. In each row it covers an interval of pixels that follows from the pose.
The kernel visits only these pixels and stores no grid of coordinates.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from recaps.nn.kernels.compiled import array, compiled, in_parts, kernel


def fused_warp(templates: Tensor, back: Tensor, size: tuple[int, int]) -> Tensor:
    """Compute `recaps.nn.poses.warp` for poses that map canvas to template, `back` [B, J, 2, 3]."""
    drawn: Tensor = _Warp.apply(templates, back, size)
    return drawn


class _Warp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, templates: Tensor, back: Tensor, size: tuple[int, int]) -> Tensor:
        ctx.save_for_backward(templates, back)
        # With a frame of zeros, each drawn point lies between four pixels.
        ctx.arrays = (array(pad(templates, (1, 1, 1, 1))), array(back))
        drawn = np.empty((len(back), *templates.shape[:2], *size), ctx.arrays[0].dtype)
        in_parts(_forward, *ctx.arrays, drawn)
        return torch.from_numpy(drawn)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, at_drawn: Tensor) -> tuple[Tensor, Tensor, None]:
        _ = ctx.saved_tensors  # raises an error if one was changed in place
        gradients = [np.zeros_like(each) for each in ctx.arrays]
        in_parts(_backward, *ctx.arrays, array(at_drawn), *gradients)
        at_templates, at_back = (torch.from_numpy(each) for each in gradients)
        return at_templates[:, :, 1:-1, 1:-1], at_back, None


@compiled
def _line(back: Any, pixels: int, width: int, height: int, real: Any) -> tuple[Any, Any, Any]:
    """A coordinate in a framed template, in pixels from the centre of its first pixel: its value at the first pixel of
    the canvas, and its change per column and per row.

    `back` [3] is a row of the pose; `pixels` is the template's size along this coordinate, without the frame.
    """
    by_column, by_row = back[0] * real(pixels / width), back[1] * real(pixels / height)
    corner = real(pixels / 2) * (back[2] + real(1) - back[0] - back[1]) + real(0.5)
    return corner + real(0.5) * (by_column + by_row), by_column, by_row


@compiled
def _within(low: Any, high: Any, start: Any, change: Any, end: Any) -> tuple[Any, Any]:
    """The interval of x between `low` and `high` in which start + x * change is between 0 and `end`."""
    if change == 0:
        return (low, high) if start > 0 and start < end else (high, low - 1)
    one, other = -start / change, (end - start) / change
    return max(low, min(one, other)), min(high, max(one, other))


@compiled
def _interval(u: Any, du: Any, v: Any, dv: Any, template: Any, width: int, real: Any) -> tuple[int, int]:
    """The interval of pixels of a row of the canvas that a framed template covers: first, and one after the last."""
    low, high = _within(real(0), real(width - 1), u, du, real(template.shape[1] - 1))
    low, high = _within(low, high, v, dv, real(template.shape[0] - 1))
    if not low <= high:
        return 0, 0
    return math.ceil(low), math.floor(high) + 1


@compiled
def _pixel(coordinate: Any, pixels: int) -> int:
    """The pixel before a coordinate, limited to pixels that have a next one."""
    return min(max(int(coordinate), 0), pixels - 2)


@kernel
def _forward(part: int, parts: int, templates: Any, back: Any, drawn: Any) -> None:
    """Framed templates [J, C, h + 2, w + 2] and `back` [B, J, 2, 3] to `drawn` [B, J, C, H, W]."""
    batch, number, channels, height, width = drawn.shape
    rows, columns = templates.shape[2:]
    real = templates.dtype.type
    for j in range(part, number, parts):
        for b in range(batch):
            u0, du, u_down = _line(back[b, j, 0], columns - 2, width, height, real)
            v0, dv, v_down = _line(back[b, j, 1], rows - 2, width, height, real)
            for y in range(height):
                u, v = u0 + real(y) * u_down, v0 + real(y) * v_down
                first, end = _interval(u, du, v, dv, templates[j, 0], width, real)
                for c in range(channels):
                    template, line = templates[j, c], drawn[b, j, c, y]
                    line[:first] = 0
                    line[end:] = 0
                    for x in range(first, end):
                        across, down = u + real(x) * du, v + real(x) * dv
                        k, i = _pixel(across, columns), _pixel(down, rows)
                        across, down = across - real(k), down - real(i)
                        upper = template[i, k] + across * (template[i, k + 1] - template[i, k])
                        lower = template[i + 1, k] + across * (template[i + 1, k + 1] - template[i + 1, k])
                        line[x] = upper + down * (lower - upper)


@kernel
def _backward(part: int, parts: int, templates: Any, back: Any, at_drawn: Any, at_templates: Any, at_back: Any) -> None:
    """Add the gradients of framed templates and `back`."""
    batch, number, channels, height, width = at_drawn.shape
    rows, columns = templates.shape[2:]
    real = templates.dtype.type
    for j in range(part, number, parts):
        for b in range(batch):
            u0, du, u_down = _line(back[b, j, 0], columns - 2, width, height, real)
            v0, dv, v_down = _line(back[b, j, 1], rows - 2, width, height, real)
            at_u, at_v = at_back[b, j, 0], at_back[b, j, 1]
            for y in range(height):
                u, v = u0 + real(y) * u_down, v0 + real(y) * v_down
                first, end = _interval(u, du, v, dv, templates[j, 0], width, real)
                sum_u, sum_v, sum_ux, sum_vx = real(0), real(0), real(0), real(0)
                for c in range(channels):
                    template, at_template, line = templates[j, c], at_templates[j, c], at_drawn[b, j, c, y]
                    for x in range(first, end):
                        across, down = u + real(x) * du, v + real(x) * dv
                        k, i = _pixel(across, columns), _pixel(down, rows)
                        across, down = across - real(k), down - real(i)
                        right, below = line[x] * across, line[x] * down
                        both = right * down
                        at_template[i, k] += line[x] - right - below + both
                        at_template[i, k + 1] += right - both
                        at_template[i + 1, k] += below - both
                        at_template[i + 1, k + 1] += both
                        slope_u, slope_v = template[i, k + 1] - template[i, k], template[i + 1, k] - template[i, k]
                        twist = template[i + 1, k + 1] - template[i + 1, k] - slope_u
                        slope_u, slope_v = line[x] * slope_u + below * twist, line[x] * slope_v + right * twist
                        sum_u += slope_u
                        sum_v += slope_v
                        sum_ux += slope_u * real(x)
                        sum_vx += slope_v * real(x)
                # In coordinates from -1 to 1, column x is (2 x + 1) / width - 1; rows likewise.
                for at, total, total_x in ((at_u, sum_u, sum_ux), (at_v, sum_v, sum_vx)):
                    at[0] += total_x * real(2 / width) + total * real(1 / width - 1)
                    at[1] += total * (real(y) * real(2 / height) + real(1 / height - 1))
                    at[2] += total
            for n in range(3):
                at_u[n] *= real((columns - 2) / 2)
                at_v[n] *= real((rows - 2) / 2)
