"""The record of a run of the comparison: the accuracies of its heads, and its pictures of some digits."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from recaps.evaluation.record import Record, Run, pictures
from recaps.npz import Array
from recaps.report.metrics import first_of_each


def record(run: Run) -> Record:
    """The accuracies of all heads, those with noise, and the pictures of `reconstructions` if the model decodes."""
    rows, shown = run.accuracies(), "reconstructions" in run.settings.probes
    for name, each in run.probe("noise").items() if "noise" in run.settings.probes else ():
        if each.dtype == bool and each.ndim:
            rows.append(run.number(f"noise-{name}", 100 * each.mean(), "percent", run.test_set, n=len(each)))
    return Record(rows, {"reconstructions": _pictures(run.probe("reconstructions"))} if shown else {})


def _pictures(probe: Mapping[str, Array]) -> dict[str, Array]:
    """The first image of each class in the probe `reconstructions`.

    Returns:
        Pictures `images` and `decoded` [n, H, W]; `image`, the position in the probe, `label`, and `squared_error`,
        summed over pixels, [n].
    """
    places = first_of_each(probe["labels"], 1)
    images, decoded = probe["images"][places, 0], probe["decoded"][places, 0]
    return {
        "images": pictures(images),
        "decoded": pictures(decoded),
        "image": places,
        "label": probe["labels"][places],
        "squared_error": np.square(decoded - images).sum((1, 2)),
    }
