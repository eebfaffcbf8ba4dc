"""Templates drawn at poses, compiled, with gradients written by hand. `recaps.nn.poses.warp` is the plain version.

A template covers a small part of the canvas. The kernels find the pixels of each row that it covers and skip the
others. Threads share the templates, so that their number does not change the order of any sum. All arrays are float32.
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

ZERO, HALF, ONE, TWO = (np.float32(number) for number in (0, 0.5, 1, 2))


def drawn(templates: Tensor, back: Tensor, size: tuple[int, int]) -> Tensor:
    """Draw templates with bilinear interpolation.

    Args:
        templates: [J, C, h, w].
        back: poses from the canvas to the template, [B, J, 2, 3].
        size: rows and columns of the canvas, (H, W).

    Returns:
        [B, J, C, H, W].
    """
    made: Tensor = _Drawn.apply(templates, back, size)
    return made


class _Drawn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, templates: Tensor, back: Tensor, size: tuple[int, int]) -> Tensor:
        # A border of zeros, so that the four neighbours of every place in the template exist.
        ctx.arrays = array(pad(templates, (1, 1, 1, 1))), array(back)
        made = np.empty((*back.shape[:2], templates.shape[1], *size), np.float32)
        in_parts(_draw, *ctx.arrays, made)
        return torch.from_numpy(made)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        templates, back = ctx.arrays
        grad_templates, grad_back = np.zeros_like(templates), np.zeros_like(back)
        in_parts(_draw_backward, templates, back, array(gradient), grad_templates, grad_back)
        return torch.from_numpy(grad_templates[..., 1:-1, 1:-1].copy()), torch.from_numpy(grad_back), None


@compiled
def _covered(start: Any, step: Any, side: Any, low: Any, high: Any) -> Any:
    """Clip the pixels from `low` to `high` to those with -1 < start + step * pixel < side, with a pixel to spare."""
    if abs(step) < np.float32(1e-6):
        return (low, high) if -ONE < start < side else (low, low)
    one, other = (-ONE - start) / step, (side - start) / step
    first, last = min(one, other), max(one, other)
    # Compare as numbers: those beyond the canvas may be too large for integers.
    low = max(low, math.floor(first)) if first > low else low
    high = min(high, math.ceil(last) + 1) if last < high else high
    return low, max(low, high)


@compiled
def _line(back: Any, y: Any, height: Any, width: Any, rows: Any, columns: Any) -> Any:
    """Places in a template of `rows` x `columns` that the pixels of row y see: row and column of pixel 0, and the steps
    to the next pixel. Then the range of the pixels that see the template."""
    down, across = (TWO * y + ONE) / height - ONE, ONE / width - ONE
    right = HALF * columns * (back[0, 0] * across + back[0, 1] * down + back[0, 2] + ONE) - HALF
    below = HALF * rows * (back[1, 0] * across + back[1, 1] * down + back[1, 2] + ONE) - HALF
    to_right, to_below = columns * back[0, 0] / width, rows * back[1, 0] / width
    low, high = _covered(right, to_right, columns, 0, int(width))
    low, high = _covered(below, to_below, rows, low, high)
    return right, below, to_right, to_below, low, high


@kernel
def _draw(part: int, parts: int, templates: Any, back: Any, made: Any) -> None:
    batch, number, channels, height, width = made.shape
    wide, plane = templates.shape[3], templates.shape[2] * templates.shape[3]
    rows, columns = np.float32(templates.shape[2] - 2), np.float32(wide - 2)
    for j in range(part * number // parts, (part + 1) * number // parts):
        values = templates[j].ravel()
        for b in range(batch):
            drawing = made[b, j].ravel()
            drawing[:] = ZERO
            for y in range(height):
                right, below, to_right, to_below, low, high = _line(
                    back[b, j], np.float32(y), np.float32(height), np.float32(width), rows, columns
                )
                for x in range(low, high):
                    # Places in the template with its border.
                    u, v = right + np.float32(x) * to_right + ONE, below + np.float32(x) * to_below + ONE
                    if not (ZERO < u < columns + ONE and ZERO < v < rows + ONE):
                        continue
                    column, row = int(u), int(v)
                    f, g = u - np.float32(column), v - np.float32(row)
                    at, to = row * wide + column, y * width + x
                    for _ in range(channels):
                        upper = values[at] + f * (values[at + 1] - values[at])
                        lower = values[at + wide] + f * (values[at + wide + 1] - values[at + wide])
                        drawing[to] = upper + g * (lower - upper)
                        at, to = at + plane, to + height * width


@kernel
def _draw_backward(
    part: int, parts: int, templates: Any, back: Any, gradient: Any, grad_templates: Any, grad_back: Any
) -> None:
    """Add the gradients of the templates and of the poses to arrays of zeros."""
    batch, number, channels, height, width = gradient.shape
    wide, plane = templates.shape[3], templates.shape[2] * templates.shape[3]
    rows, columns = np.float32(templates.shape[2] - 2), np.float32(wide - 2)
    for j in range(part * number // parts, (part + 1) * number // parts):
        values, sums = templates[j].ravel(), grad_templates[j].ravel()
        for b in range(batch):
            drawing = gradient[b, j].ravel()
            for y in range(height):
                right, below, to_right, to_below, low, high = _line(
                    back[b, j], np.float32(y), np.float32(height), np.float32(width), rows, columns
                )
                # Sums over the row of the gradients of the place, and of these times the pixel's x.
                grad_u = grad_v = grad_u_x = grad_v_x = ZERO
                for x in range(low, high):
                    u, v = right + np.float32(x) * to_right + ONE, below + np.float32(x) * to_below + ONE
                    if not (ZERO < u < columns + ONE and ZERO < v < rows + ONE):
                        continue
                    column, row = int(u), int(v)
                    f, g = u - np.float32(column), v - np.float32(row)
                    at, own = row * wide + column, y * width + x
                    by_u = by_v = ZERO
                    for _ in range(channels):
                        given = drawing[own]
                        a, b_, d, e = values[at], values[at + 1], values[at + wide], values[at + wide + 1]
                        by_u += given * ((b_ - a) + g * ((e - d) - (b_ - a)))
                        by_v += given * ((d - a) + f * ((e - b_) - (d - a)))
                        lower = given * g
                        upper = given - lower
                        sums[at] += upper - upper * f
                        sums[at + 1] += upper * f
                        sums[at + wide] += lower - lower * f
                        sums[at + wide + 1] += lower * f
                        at, own = at + plane, own + height * width
                    across = (TWO * np.float32(x) + ONE) / np.float32(width) - ONE
                    grad_u, grad_u_x = grad_u + by_u, grad_u_x + by_u * across
                    grad_v, grad_v_x = grad_v + by_v, grad_v_x + by_v * across
                down = (TWO * np.float32(y) + ONE) / np.float32(height) - ONE
                grad_back[b, j, 0, 0] += HALF * columns * grad_u_x
                grad_back[b, j, 0, 1] += HALF * columns * grad_u * down
                grad_back[b, j, 0, 2] += HALF * columns * grad_u
                grad_back[b, j, 1, 0] += HALF * rows * grad_v_x
                grad_back[b, j, 1, 1] += HALF * rows * grad_v * down
                grad_back[b, j, 1, 2] += HALF * rows * grad_v
