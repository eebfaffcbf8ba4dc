"""Data sets derived from smallNORB: one image per camera at half size, and subsets by viewpoint.

The viewpoints follow *Matrix Capsules with EM Routing*, section 5.1. A model is trained on a third of the azimuths (300
to 340 and 0 to 40 degrees), or on the three smallest elevations (30 to 40 degrees), and tested on the other viewpoints
(azimuths of 60 to 280 degrees, elevations of 45 to 70). The splits `train` and `familiar` hold the familiar viewpoints
of smallNORB's train and test split; `novel` holds the other viewpoints of its test split.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from recaps.arrays import Arrays
from recaps.errors import UserError

#: The factor that is held out, and its codes of familiar viewpoints: tens of degrees of azimuth, and steps of 5 degrees
#: of elevation above 30.
FAMILIAR: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "smallnorb-48-azimuth": ("azimuth", (30, 32, 34, 0, 2, 4)),
    "smallnorb-48-elevation": ("elevation", (0, 1, 2)),
}

Images = npt.NDArray[np.uint8]


def derive(name: str, split: str, base: Arrays, options: Mapping[str, Any]) -> Arrays:
    """Derive a split from its base split.

    Args:
        name: the derived set.
        split: its split.
        base: N scenes of smallNORB or its stand-in, uint8 `[N, 2, 96, 96]`.
        options: all options of the set, as returned by `catalogue.resolve`; `limit` counts scenes of the base split
            before viewpoints are selected.

    Returns:
        Images `[2n, 1, 48, 48]` of the n scenes whose viewpoints belong to the split, in the order of the base split;
        each scene has the left image, then the right one. Factors: those of the base, `camera` (0 left, 1 right) and
        `original`, the index of the scene in the base split.

    Raises:
        UserError: no scene has such a viewpoint.
    """
    base = base.take(slice(options["limit"]))
    parameters: dict[str, Any] = {"order": "by scene, left camera first", "average": options["average"]}
    scenes = np.arange(len(base))
    if name in FAMILIAR:
        factor, codes = FAMILIAR[name]
        parameters["familiar"] = {factor: list(codes)}
        scenes = np.flatnonzero(np.isin(base.factors[factor], codes, invert=split == "novel"))
    if not scenes.size:
        raise UserError(
            f"data set {name!r}, split {split!r}: none of the first {len(base)} scenes has such a viewpoint; "
            "raise the option `limit`"
        )
    images = halved(base.images, average=bool(options["average"]))[scenes]
    factors = {key: np.repeat(values[scenes], 2) for key, values in base.factors.items()}
    factors |= {"camera": np.tile(np.arange(2), len(scenes)), "original": np.repeat(scenes, 2)}
    record = {**base.record, "seed": None, "parameters": parameters}
    return Arrays(images.reshape(-1, 1, *images.shape[2:]), np.repeat(base.labels[scenes], 2), factors, record)


def halved(images: Images, *, average: bool) -> Images:
    """Halve the size of images `[..., H, W]`; H and W are even.

    Without `average`, keep every second pixel from the first: the bilinear interpolation of TensorFlow 1, whose pixel i
    lies exactly on pixel 2i. With `average`, take the mean of each 2x2 block, rounding halves up: bilinear
    interpolation between pixel centres.
    """
    if not average:
        return images[..., ::2, ::2]
    total = np.full(images[..., ::2, ::2].shape, 2, np.uint16)
    for down, right in np.ndindex(2, 2):
        total += images[..., down::2, right::2]
    return (total // 4).astype(np.uint8)
