"""Stand-ins for the base sets, made from data that ships with scikit-learn, without a network.

The data are 1,797 handwritten digits of 8x8 pixels and two photographs. No digit is in both the train and the test
split.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from recaps.arrays import Arrays
from recaps.datasets import catalogue, derived, standin_stereo, warp

Pictures = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]

_BOX = 20
_SIZE = 28


def read(name: str, split: str, options: Mapping[str, Any]) -> Arrays:
    """Return a split of the stand-in for a base set, with the shapes, labels and factors of the real set.

    `smallnorb` has `options["limit"]` scenes (default 1,200, at most 24,300); `affnist` has `options["versions"]`
    images of each digit.
    """
    if catalogue.plain(name) == "smallnorb":
        small, targets = _sources()
        return Arrays(*standin_stereo.render(enlarged(small), targets, split, options["limit"]), _record())
    digits, labels = mnist("test" if split == "test" else "train")
    if name == "fashion-mnist":
        digits = _embroidered(digits)
    images = _on_photographs(digits, split) if name.startswith("cifar10") else digits[:, None]
    made = Arrays(images, labels, {}, _record())
    if name == "affnist":
        return derived.derive("affnist-generated", split, made, {**options, "limit": None})
    return made


def mnist(split: str) -> tuple[Pictures, Labels]:
    """Return digits like MNIST's, uint8 `[N, 28, 28]`: white on black, 20x20, centred by mass; and labels `[N]`."""
    small, labels = _sources()
    order = derived.generator("stand-in", "split").permutation(len(small))
    train = catalogue.STAND_IN_COUNTS["train"]
    rows = order[:train] if split == "train" else order[train:]
    return _centred(enlarged(small[rows])), labels[rows]


def enlarged(small: npt.NDArray[np.float64]) -> Pictures:
    """Enlarge 8x8 digits in 0..1 to uint8 `[N, 20, 20]`: cubic interpolation, then higher contrast."""
    weights = _cubic(_BOX, small.shape[-1])
    smooth = weights @ small @ weights.T
    return np.rint(255 * np.clip((smooth - 0.35) / 0.4, 0, 1)).astype(np.uint8)


@cache
def _sources() -> tuple[npt.NDArray[np.float64], Labels]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    return digits.images / 16.0, digits.target.astype(np.int64)


def _record() -> dict[str, Any]:
    import sklearn

    source = {"path": "scikit-learn's bundled digits and photographs", "version": sklearn.__version__, "sha256": None}
    return {"sources": [source], "seed": "stand-in", "parameters": {}}


def _cubic(size_out: int, size_in: int) -> npt.NDArray[np.float64]:
    """Return the weights `[out, in]` of Keys' cubic interpolation (a = -1/2) with zero padding."""
    centres = (np.arange(size_out) + 0.5) * size_in / size_out - 0.5
    d = np.abs(centres[:, None] - np.arange(size_in))
    near = 1.5 * d**3 - 2.5 * d**2 + 1
    far = -0.5 * d**3 + 2.5 * d**2 - 4 * d + 2
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _centred(boxes: Pictures) -> Pictures:
    border = (_SIZE - boxes.shape[-1]) // 2
    images = warp.pad(boxes, border)
    mass = np.maximum(images.sum(axis=(1, 2), dtype=np.int64), 1)
    places = np.arange(_SIZE) - (_SIZE - 1) / 2
    offsets = ((images.sum(axis=axis, dtype=np.int64) @ places) / mass for axis in (2, 1))
    down, right = (-np.clip(np.rint(off), -border, border).astype(np.int64) for off in offsets)
    return warp.shift(images, down, right)


def _embroidered(digits: Pictures) -> Pictures:
    """Make thick, striped digits with a bright outline, to look different from MNIST."""
    from scipy.ndimage import maximum_filter

    thick = maximum_filter(digits, (1, 3, 3), mode="constant")
    hem = maximum_filter(thick, (1, 3, 3), mode="constant").astype(np.int16) - thick
    rows, columns = np.indices(digits.shape[1:])
    stripes = np.where((rows + columns) % 4 < 2, 0.75, 0.25)
    return np.clip(thick * stripes + hem, 0, 255).astype(np.uint8)


def _on_photographs(digits: Pictures, split: str) -> Pictures:
    """Blend digits in random colours on random patches of two photographs, `[N, 3, 32, 32]`."""
    n, size = len(digits), 32
    random = derived.generator("stand-in", "cifar10", split)
    matrices = np.broadcast_to(1.3 * np.eye(2), (n, 2, 2))
    mask = warp.affine(digits, matrices, np.zeros((n, 2)), size)[:, None] / 255.0
    photographs = _photographs()
    which = random.integers(len(photographs), size=n)
    top = random.integers(photographs.shape[2] - size, size=n)
    left = random.integers(photographs.shape[3] - size, size=n)
    windows = np.lib.stride_tricks.sliding_window_view(photographs, (size, size), axis=(2, 3))
    patches = windows[which, :, top, left].astype(np.float64)
    dark = patches.mean(axis=(1, 2, 3)) < 128
    colours = random.uniform(0, 100, (n, 3)) + 155 * dark[:, None]
    blended = patches * (1 - 0.8 * mask) + colours[:, :, None, None] * 0.8 * mask
    return np.asarray(np.rint(blended), np.uint8)


@cache
def _photographs() -> Pictures:
    """Return two photographs at half size, `[2, 3, H, W]`."""
    from sklearn.datasets import load_sample_images

    full = np.stack(load_sample_images().images)
    n, height, width, channels = full.shape
    even = full[:, : height // 2 * 2, : width // 2 * 2].reshape(n, height // 2, 2, width // 2, 2, channels)
    return np.asarray(np.rint(even.mean(axis=(2, 4))), np.uint8).transpose(0, 3, 1, 2)
