"""Shifts and affine maps of batches of images, in numpy. Images are zero outside their borders.

Coordinates are (x, y) in pixels from the image's centre, x to the right and y down.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Images = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.floating[Any]]

_CHUNK = 256  # images at a time, so that the working arrays fit the processor's cache


def pad(images: Images, border: int) -> Images:
    """Pad images `[N, H, W]` with `border` zeros on each side."""
    return np.pad(images, ((0, 0), (border, border), (border, border)))


def shift(images: Images, down: npt.NDArray[np.int64], right: npt.NDArray[np.int64]) -> Images:
    """Shift each image of `[N, H, W]` by its own number of pixels, `down` `[N]` and `right` `[N]`."""
    n, height, width = images.shape
    border = int(max(np.abs(down).max(initial=0), np.abs(right).max(initial=0)))
    rows = border + np.arange(height) - down[:, None]
    columns = border + np.arange(width) - right[:, None]
    moved: Images = pad(images, border)[np.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]]
    return moved


def bilinear(images: Floats, rows: Floats, columns: Floats) -> Floats:
    """Interpolate images `[N, H, W]` at `rows` and `columns` `[N, P]`, counted from the first pixel, to `[N, P]`."""
    n, height, width = images.shape
    stride = width + 2
    padded = np.zeros((n, height + 2, stride), images.dtype)
    padded[:, 1:-1, 1:-1] = images
    flat = padded.ravel()
    rows = np.clip(rows, -1, height) + 1
    columns = np.clip(columns, -1, width) + 1
    top = np.minimum(rows.astype(np.intp), height)
    left = np.minimum(columns.astype(np.intp), width)
    down, right = rows - top, columns - left
    corner = np.arange(n)[:, None] * ((height + 2) * stride) + top * stride + left
    above = flat[corner] * (1 - right) + flat[corner + 1] * right
    below = flat[corner + stride] * (1 - right) + flat[corner + stride + 1] * right
    sampled: Floats = above * (1 - down) + below * down
    return sampled


def affine(images: Images, matrices: Floats, translations: Floats, size: int) -> Images:
    """Transform each image by its own affine map about the centre, onto a `size` x `size` canvas.

    Args:
        images: `[N, H, W]`.
        matrices: `[N, 2, 2]`; a matrix maps a point (x, y) of the image.
        translations: `[N, 2]`, in pixels; added to the mapped point.
        size: side of the canvas, in pixels.

    Returns:
        Images `[N, size, size]`, interpolated bilinearly and rounded.
    """
    n, height, width = images.shape
    inverses = np.linalg.inv(matrices)
    canvas = np.arange(size) - (size - 1) / 2
    x, y = (axis.ravel() for axis in np.meshgrid(canvas, canvas))
    out = np.empty((n, size * size), np.uint8)
    for start in range(0, n, _CHUNK):
        rows = slice(start, start + _CHUNK)
        inverse, (tx, ty) = inverses[rows], translations[rows].T
        dx, dy = x - tx[:, None], y - ty[:, None]
        source_x = inverse[:, 0, 0, None] * dx + inverse[:, 0, 1, None] * dy + (width - 1) / 2
        source_y = inverse[:, 1, 0, None] * dx + inverse[:, 1, 1, None] * dy + (height - 1) / 2
        out[rows] = np.rint(bilinear(images[rows].astype(np.float64), source_y, source_x))
    return out.reshape(n, size, size)


def rotation(degrees: Floats) -> Floats:
    """Return matrices `[N, 2, 2]` that rotate an image counter-clockwise by `degrees` `[N]`."""
    angle = np.deg2rad(degrees)
    cos, sin = np.cos(angle), np.sin(angle)
    return np.stack([np.stack([cos, sin], -1), np.stack([-sin, cos], -1)], -2)


def translation_range(images: Images, matrices: Floats, size: int) -> tuple[Floats, Floats]:
    """Return the smallest and largest translation (x, y), each `[N, 2]`, that keep all ink on the canvas.

    Ink is every pixel above zero, including the fringe from bilinear interpolation. If the mapped ink is larger than
    the canvas, both are the translation that centres it.
    """
    n, height, width = images.shape
    x, y = (
        axis.ravel() for axis in np.meshgrid(np.arange(width) - (width - 1) / 2, np.arange(height) - (height - 1) / 2)
    )
    low, high = np.zeros((n, 2)), np.zeros((n, 2))
    for start in range(0, n, _CHUNK):
        rows = slice(start, start + _CHUNK)
        ink = images[rows].reshape(-1, height * width) > 0
        some = ink.any(axis=1)
        for axis in range(2):
            a, b = matrices[rows, axis, 0, None], matrices[rows, axis, 1, None]
            mapped = a * x + b * y
            fringe = (np.abs(a) + np.abs(b))[:, 0]
            low[rows, axis] = np.where(some, np.where(ink, mapped, np.inf).min(axis=1) - fringe, 0)
            high[rows, axis] = np.where(some, np.where(ink, mapped, -np.inf).max(axis=1) + fringe, 0)
    edge = (size + 1) / 2
    smallest, largest = -edge - low, edge - high
    middle = (smallest + largest) / 2
    fits = smallest <= largest
    return np.where(fits, smallest, middle), np.where(fits, largest, middle)
