"""Stand-in for smallNORB: raised digits on a turntable, seen by two cameras under six lights.

Five digits are the classes, and ten examples of each are the instances. The factors act as in the real set: azimuth
rotates the turntable, elevation (30 to 70 degrees) raises the cameras, and lighting changes shadow, shading and
brightness. The second camera is beside the first, so that higher points are displaced more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from recaps.datasets import derived, warp
from recaps.datasets.formats.smallnorb import INSTANCES, Scenes

_DEFAULT_N = 1200
_SIZE = 96
_CLASSES = 5
_INSTANCES = 10
_CHUNK = 64

# Lengths; the unit is half of a digit's width.
_DISTANCE = 6.0
_FOCAL = 3.6
_HALF_BASELINE = 0.12
_HEIGHT = 0.35
_SHADOW = 0.3
_BEVEL = 0.12

_GROUND, _TOP, _RELIEF = 190.0, 70.0, 90.0

Floats = npt.NDArray[np.floating[Any]]


def render(pictures: npt.NDArray[np.uint8], targets: npt.NDArray[np.int64], split: str, limit: int | None) -> Scenes:
    """Render `limit` scenes (default 1,200, at most 24,300) with classes in turn and random other factors.

    Args:
        pictures: digits, uint8 `[M, 20, 20]`.
        targets: their classes, `[M]`.
        split: `train` or `test`.
        limit: number of scenes N; None: the default.

    Returns:
        Images `[N, 2, 96, 96]`, labels `[N]`, and the factors instance, elevation, azimuth and lighting with the
        official codes.
    """
    labels, factors = _scenes(split, limit or _DEFAULT_N)
    digits = _instances(pictures, targets)[labels, factors["instance"]]
    images = np.empty((len(labels), 2, _SIZE, _SIZE), np.uint8)
    for start in range(0, len(labels), _CHUNK):
        rows = slice(start, start + _CHUNK)
        view = {name: values[rows].astype(np.float32) for name, values in factors.items()}
        for camera, side in enumerate((-_HALF_BASELINE, _HALF_BASELINE)):
            images[rows, camera] = _photograph(digits[rows], view, side)
    return images, labels, factors


def _scenes(split: str, n: int) -> tuple[npt.NDArray[np.int64], dict[str, npt.NDArray[np.int64]]]:
    """Return labels and factors of n distinct scenes from the full grid, in a fixed random order, classes in turn."""
    grid = np.indices((len(INSTANCES[split]), 9, 18, 6)).reshape(4, -1)
    order = [derived.generator("stand-in", "smallnorb", split, k).permutation(grid.shape[1]) for k in range(_CLASSES)]
    chosen = grid[:, np.stack(order, axis=1).ravel()[:n]]
    labels = np.arange(chosen.shape[1]) % _CLASSES
    instance = np.asarray(INSTANCES[split])[chosen[0]]
    return labels, {"instance": instance, "elevation": chosen[1], "azimuth": 2 * chosen[2], "lighting": chosen[3]}


def _instances(pictures: npt.NDArray[np.uint8], targets: npt.NDArray[np.int64]) -> Floats:
    """Return the first ten digits of each of the five classes, `[5, 10, 20, 20]` in 0..1."""
    rows = np.stack([np.flatnonzero(targets == label)[:_INSTANCES] for label in range(_CLASSES)])
    return pictures[rows].astype(np.float32) / 255


def _photograph(digits: Floats, view: dict[str, Floats], side: float) -> npt.NDArray[np.uint8]:
    """Render images `[N, 96, 96]` of digits `[N, 20, 20]` for a camera at `side` along the baseline."""
    angle = view["lighting"] * np.float32(np.pi / 3)
    light = np.stack([np.cos(angle), np.sin(angle)], -1)
    shadow = _seen(digits, view, side, 0.0, _SHADOW * light)
    top = _seen(digits, view, side, _HEIGHT, 0 * light)
    relief = top - _seen(digits, view, side, _HEIGHT, _BEVEL * light)
    ground = _GROUND * (1 - 0.5 * shadow)
    lit = (ground + top * (_TOP + _RELIEF * relief - ground)) * (0.7 + 0.1 * view["lighting"])[:, None]
    return np.clip(np.rint(lit), 0, 255).astype(np.uint8, copy=False).reshape(-1, _SIZE, _SIZE)


def _seen(digits: Floats, view: dict[str, Any], side: float, height: float, offset: Floats) -> Floats:
    """Project digits in the plane at `height`, moved by `offset` `[N, 2]`, to the camera's pixels `[N, P]`.

    Each pixel's ray is intersected with the plane. The digit, rotated by its azimuth, is sampled there.
    """
    elevation = np.deg2rad(30 + 5 * view["elevation"])[:, None]
    sin, cos = np.sin(elevation), np.cos(elevation)
    steps = (2 * np.arange(_SIZE, dtype=np.float32) + 1) / _SIZE - 1
    x, y = (axis.ravel() / _FOCAL for axis in np.meshgrid(steps, -steps))
    reach = (_DISTANCE * sin - height) / (sin - y * cos)
    east = side + reach * x - offset[:, :1]
    north = -_DISTANCE * cos + reach * (cos + y * sin) - offset[:, 1:]
    turn = np.deg2rad(10 * view["azimuth"])[:, None]
    u = np.cos(turn) * east + np.sin(turn) * north
    v = -np.sin(turn) * east + np.cos(turn) * north
    size = digits.shape[-1]
    middle, scale = (size - 1) / 2, size / 2
    return warp.bilinear(digits, middle - scale * v, middle + scale * u)
