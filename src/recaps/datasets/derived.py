"""Data sets derived from MNIST: padded, shifted, rotated, scaled, with noise, and as affNIST is documented.

Random numbers depend only on set and split, and are drawn in the order of the base set's images. The first n images are
therefore the same for every `limit`. MultiMNIST is an exception, as partners are drawn from all images.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from recaps.arrays import Arrays
from recaps.datasets import warp

#: affNIST's documented ranges of independent uniform variables: degrees, and factors.
AFFINE_RANGES = {"rotation": (-20.0, 20.0), "shear": (-0.2, 0.2), "scale_x": (0.8, 1.2), "scale_y": (0.8, 1.2)}
_CANVAS = 40
_BORDER = 6
_PAIR_BORDER = 4
#: affNIST's validation digits are the last 10,000 of MNIST's 60,000 training digits. A stand-in has the same share.
_VALIDATION_SHARE = 6

Images = npt.NDArray[np.uint8]
#: Images `[M, H, W]`, their factors, and the parameters of the procedure.
Derived = tuple[Images, dict[str, npt.NDArray[Any]], dict[str, Any]]


def derive(name: str, split: str, base: Arrays, options: Mapping[str, Any]) -> Arrays:
    """Derive a split from its base split.

    Args:
        name: the derived set.
        split: its split.
        base: MNIST or its stand-in, uint8 `[N, 1, 28, 28]`.
        options: all options of the set, as returned by `catalogue.resolve`.

    Returns:
        Arrays with the factor `original`, the index of the image in the base split, and the factors of the procedure.
        The record holds `seed` and `parameters`.
    """
    first = len(base) - len(base) // _VALIDATION_SHARE if split == "validation" else 0
    limit = options["limit"]
    base = base.take(slice(first, None if limit is None else first + limit))
    digits = base.images[:, 0]
    # One seed for all ranges of degrees: a smaller range has the same rotations, scaled.
    seed = f"{'mnist-rotated' if 'rotated' in name else name}/{split}"
    drawn_with: str | None = seed
    factors: dict[str, npt.NDArray[Any]] = {}
    if name == "mnist-40":
        drawn_with = None
        images, parameters = warp.pad(digits, _BORDER), {"border": _BORDER}
    elif name == "multimnist":
        # Only the digits: `recaps.training.images.ImagePairs` makes the pairs during training.
        images = warp.pad(digits, _PAIR_BORDER)
        parameters = {"border": _PAIR_BORDER, "shift": options["shift"], "pairs": options["pairs"]}
    elif name == "affnist-generated":
        drawn_with = f"{seed}/<version>"
        images, factors, parameters = _affine_versions(seed, digits, options["versions"])
    elif name == "mnist-40-scaled":
        images, factors, parameters = _scaled(seed, digits, options["smallest"], options["largest"])
    elif name == "mnist-40-noisy":
        images, factors, parameters = _noisy(seed, warp.pad(digits, _BORDER), options["deviation"])
    elif name in ("mnist-shifted", "mnist-40-shifted"):
        padded = warp.pad(digits, _BORDER) if name == "mnist-40-shifted" else digits
        images, factors, parameters = _shifted(seed, padded, options["shift"])
    else:
        canvas = _CANVAS if name.startswith("mnist-40") else digits.shape[-1]
        images, factors, parameters = _rotated(seed, digits, options["degrees"], canvas)
    copies = len(images) // max(len(base), 1)
    original = np.arange(first, first + len(base), dtype=np.int64)
    factors = {"original": np.tile(original, copies), **factors}
    record = {**base.record, "seed": drawn_with, "parameters": parameters}
    return Arrays(images[:, None], np.tile(base.labels, copies), factors, record)


def generator(*words: str | int) -> np.random.Generator:
    """Return a random generator that depends only on `words`."""
    digest = hashlib.sha256("/".join(map(str, words)).encode()).digest()
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(int.from_bytes(digest[:16], "little"))))


def _affine_versions(seed: str, digits: Images, versions: int) -> Derived:
    """Return `versions` random affine transforms of every digit, `[versions * N, 40, 40]`.

    Version 0 of all digits comes first, then version 1, and so on, as in affNIST's batch files. A digit is scaled,
    sheared (x += shear * y), rotated about the centre, and translated. The translation is uniform among those that keep
    the ink on the canvas.

    Factors: version, rotation (degrees, counter-clockwise), shear, scale_x, scale_y, translate_x (pixels to the right),
    translate_y (pixels down).
    """
    n = len(digits)
    images = np.empty((versions, n, _CANVAS, _CANVAS), np.uint8)
    drawn = {key: np.empty((versions, n)) for key in (*AFFINE_RANGES, "translate_x", "translate_y")}
    for version in range(versions):
        uniform = generator(seed, version).random((n, 6)).T
        for (key, (low, high)), u in zip(AFFINE_RANGES.items(), uniform, strict=False):
            drawn[key][version] = low + (high - low) * u
        matrices = _matrices(*(drawn[key][version] for key in AFFINE_RANGES))
        smallest, largest = warp.translation_range(digits, matrices, _CANVAS)
        translations = smallest + (largest - smallest) * uniform[4:].T
        drawn["translate_x"][version], drawn["translate_y"][version] = translations.T
        images[version] = warp.affine(digits, matrices, translations, _CANVAS)
    factors: dict[str, npt.NDArray[Any]] = {"version": np.repeat(np.arange(versions), n)}
    factors |= {key: values.ravel().astype(np.float32) for key, values in drawn.items()}
    parameters = {
        **{key: list(bounds) for key, bounds in AFFINE_RANGES.items()},
        "translation": "uniform among those that keep the ink on the canvas",
        "canvas": _CANVAS,
        "note": "generated by affNIST's documented procedure; not the official file",
    }
    return images.reshape(-1, _CANVAS, _CANVAS), factors, parameters


def _matrices(rotation: Any, shear: Any, scale_x: Any, scale_y: Any) -> npt.NDArray[np.float64]:
    one, zero = np.ones_like(shear), np.zeros_like(shear)
    shears = np.stack([np.stack([one, shear], -1), np.stack([zero, one], -1)], -2)
    scales = np.stack([np.stack([scale_x, zero], -1), np.stack([zero, scale_y], -1)], -2)
    return np.asarray(warp.rotation(rotation) @ shears @ scales)


def _shifted(seed: str, images: Images, largest: int) -> Derived:
    drawn = np.floor(generator(seed).random((len(images), 2)) * (2 * largest + 1)).astype(np.int64) - largest
    down, right = drawn.T
    parameters = {"shift": [-largest, largest], "canvas": images.shape[-1]}
    return warp.shift(images, down, right), {"shift_y": down.copy(), "shift_x": right.copy()}, parameters


def _rotated(seed: str, digits: Images, degrees: float, canvas: int) -> Derived:
    angles = degrees * (2 * generator(seed).random(len(digits)) - 1)
    images = warp.affine(digits, warp.rotation(angles), np.zeros((len(digits), 2)), canvas)
    return images, {"rotation": angles.astype(np.float32)}, {"rotation": [-degrees, degrees]}


def _scaled(seed: str, digits: Images, smallest: float, largest: float) -> Derived:
    scales = smallest + (largest - smallest) * generator(seed).random(len(digits))
    images = warp.affine(digits, scales[:, None, None] * np.eye(2), np.zeros((len(digits), 2)), _CANVAS)
    return images, {"scale": scales.astype(np.float32)}, {"scale": [smallest, largest]}


def _noisy(seed: str, images: Images, deviation: float) -> Derived:
    random = generator(seed)
    for image in images:  # one at a time, so that the noise of all need not fit the memory
        image[:] = np.rint(np.clip(image + 255 * deviation * random.standard_normal(image.shape), 0, 255))
    return images, {}, {"deviation": deviation}
