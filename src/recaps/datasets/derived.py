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
    original = np.arange(first, first + len(base), dtype=np.int64)
    if name == "mnist-40":
        return _finish(base, original, warp.pad(base.images[:, 0], _BORDER), {}, None, {"border": _BORDER})
    if name == "multimnist":
        # Only the digits: `recaps.training.images.ImagePairs` makes the pairs during training.
        parameters = {"border": _PAIR_BORDER, "shift": options["shift"], "pairs": options["pairs"]}
        images = warp.pad(base.images[:, 0], _PAIR_BORDER)
        return _finish(base, original, images, {}, f"multimnist/{split}", parameters)
    if name in ("mnist-shifted", "mnist-40-shifted"):
        return _shifted(name, split, base, original, options["shift"])
    if name == "affnist-generated":
        return affine_versions(name, split, base, original, options["versions"])
    if name == "mnist-40-scaled":
        return _scaled(name, split, base, original, options["smallest"], options["largest"])
    if name == "mnist-40-noisy":
        return _noisy(name, split, base, original, options["deviation"])
    canvas = _CANVAS if name.startswith("mnist-40") else base.images.shape[-1]
    # One seed for all ranges of degrees: a smaller range has the same rotations, scaled.
    return _rotated("mnist-rotated", split, base, original, options["degrees"], canvas)


def generator(*words: str | int) -> np.random.Generator:
    """Return a random generator that depends only on `words`."""
    digest = hashlib.sha256("/".join(map(str, words)).encode()).digest()
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(int.from_bytes(digest[:16], "little"))))


def affine_versions(name: str, split: str, base: Arrays, original: npt.NDArray[np.int64], versions: int) -> Arrays:
    """Return `versions` random affine transforms of every digit, `[versions * N, 1, 40, 40]`.

    Version 0 of all digits comes first, then version 1, and so on, as in affNIST's batch files. A digit is scaled,
    sheared (x += shear * y), rotated about the centre, and translated. The translation is uniform among those that keep
    the ink on the canvas.

    Factors: original, version, rotation (degrees, counter-clockwise), shear, scale_x, scale_y, translate_x (pixels to
    the right), translate_y (pixels down).
    """
    n = len(base)
    images = np.empty((versions, n, _CANVAS, _CANVAS), np.uint8)
    drawn: dict[str, npt.NDArray[np.float64]] = {
        key: np.empty((versions, n)) for key in (*AFFINE_RANGES, "translate_x", "translate_y")
    }
    for version in range(versions):
        uniform = generator(name, split, version).random((n, 6)).T
        for key, u in zip(AFFINE_RANGES, uniform, strict=False):
            low, high = AFFINE_RANGES[key]
            drawn[key][version] = low + (high - low) * u
        matrices = _matrices(*(drawn[key][version] for key in AFFINE_RANGES))
        smallest, largest = warp.translation_range(base.images[:, 0], matrices, _CANVAS)
        translations = smallest + (largest - smallest) * uniform[4:].T
        drawn["translate_x"][version], drawn["translate_y"][version] = translations.T
        images[version] = warp.affine(base.images[:, 0], matrices, translations, _CANVAS)
    factors: dict[str, npt.NDArray[Any]] = {"version": np.repeat(np.arange(versions), n)}
    factors.update({key: values.ravel().astype(np.float32) for key, values in drawn.items()})
    parameters = {
        **{key: list(bounds) for key, bounds in AFFINE_RANGES.items()},
        "translation": "uniform among those that keep the ink on the canvas",
        "canvas": _CANVAS,
        "note": "generated by affNIST's documented procedure; not the official file",
    }
    pictures = images.reshape(-1, _CANVAS, _CANVAS)
    return _finish(base, np.tile(original, versions), pictures, factors, f"{name}/{split}/<version>", parameters)


def _matrices(rotation: Any, shear: Any, scale_x: Any, scale_y: Any) -> npt.NDArray[np.float64]:
    one, zero = np.ones_like(shear), np.zeros_like(shear)
    shears = np.stack([np.stack([one, shear], -1), np.stack([zero, one], -1)], -2)
    scales = np.stack([np.stack([scale_x, zero], -1), np.stack([zero, scale_y], -1)], -2)
    return np.asarray(warp.rotation(rotation) @ shears @ scales)


def _shifted(name: str, split: str, base: Arrays, original: npt.NDArray[np.int64], largest: int) -> Arrays:
    images = base.images[:, 0]
    if name == "mnist-40-shifted":
        images = warp.pad(images, _BORDER)
    drawn = np.floor(generator(name, split).random((len(base), 2)) * (2 * largest + 1)).astype(np.int64) - largest
    down, right = drawn.T
    factors = {"shift_y": down.copy(), "shift_x": right.copy()}
    parameters = {"shift": [-largest, largest], "canvas": images.shape[-1]}
    return _finish(base, original, warp.shift(images, down, right), factors, f"{name}/{split}", parameters)


def _rotated(
    seed: str, split: str, base: Arrays, original: npt.NDArray[np.int64], degrees: float, canvas: int
) -> Arrays:
    angles = degrees * (2 * generator(seed, split).random(len(base)) - 1)
    images = warp.affine(base.images[:, 0], warp.rotation(angles), np.zeros((len(base), 2)), canvas)
    factors = {"rotation": angles.astype(np.float32)}
    return _finish(base, original, images, factors, f"{seed}/{split}", {"rotation": [-degrees, degrees]})


def _scaled(
    name: str, split: str, base: Arrays, original: npt.NDArray[np.int64], smallest: float, largest: float
) -> Arrays:
    scales = smallest + (largest - smallest) * generator(name, split).random(len(base))
    images = warp.affine(base.images[:, 0], scales[:, None, None] * np.eye(2), np.zeros((len(base), 2)), _CANVAS)
    parameters = {"scale": [smallest, largest]}
    return _finish(base, original, images, {"scale": scales.astype(np.float32)}, f"{name}/{split}", parameters)


def _noisy(name: str, split: str, base: Arrays, original: npt.NDArray[np.int64], deviation: float) -> Arrays:
    images = warp.pad(base.images[:, 0], _BORDER)
    random = generator(name, split)
    for image in images:  # one at a time, so that the noise of all need not fit the memory
        image[:] = np.rint(np.clip(image + 255 * deviation * random.standard_normal(image.shape), 0, 255))
    return _finish(base, original, images, {}, f"{name}/{split}", {"deviation": deviation})


def _finish(
    base: Arrays,
    original: npt.NDArray[np.int64],
    images: npt.NDArray[np.uint8],
    factors: Mapping[str, npt.NDArray[Any]],
    seed: str | None,
    parameters: Mapping[str, Any],
) -> Arrays:
    record = {**base.record, "seed": seed, "parameters": dict(parameters)}
    labels = np.tile(base.labels, len(images) // max(len(base), 1))
    return Arrays(images[:, None], labels, {"original": original, **factors}, record)
