"""A variant for each kind of work that a training step does at scale `smoke`, by `paper/variant`."""

from __future__ import annotations

from typing import Any

from places import CONFIG

from recaps.config.load import load
from recaps.config.variant import Variant
from recaps.datasets.catalogue import defaults
from recaps.step_times import image_shape


def variants() -> dict[str, Variant]:
    papers = load({"scale": "smoke"}, CONFIG).papers
    every = {f"{paper}/{name}": each for paper in papers for name, each in papers[paper].variants.items()}
    kinds = {kind(each): name for name, each in reversed(every.items())}
    return {name: each for name, each in every.items() if kinds[kind(each)] == name}


def kind(variant: Variant) -> object:
    """The model with the signs of its numbers alone, the shape of images, and whether labels are pairs."""
    pairs = "pairs" in defaults(variant.data.split("/")[0])
    return signs(variant.model.model_dump(mode="json")), image_shape(variant), pairs


def signs(values: Any) -> object:
    if isinstance(values, dict):
        return tuple((name, signs(each)) for name, each in values.items())
    if isinstance(values, list):
        return tuple(map(signs, values))
    return (values > 0) - (values < 0) if isinstance(values, int | float) else values


VARIANTS = variants()
