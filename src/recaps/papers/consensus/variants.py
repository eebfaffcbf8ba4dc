"""The paper's variants by data set and routing: a variant is named `<data set>-<routing>`."""

from __future__ import annotations

from collections.abc import Callable

from recaps.config.variant import Paper, Variant

#: Names of the data sets in tables and figures. Any other data set keeps the prefix of its variants as its name.
DATASETS = {"mnist": "MNIST", "norb": "smallNORB"}

#: The layers that route, and their short names in metrics.
CAPSULE_LAYERS = {
    "conv-1": "Convolutional Capsule Layer 1",
    "conv-2": "Convolutional Capsule Layer 2",
    "class": "Capsule Class Layer",
}


def by_dataset(
    paper: Paper, ending: str = "", where: Callable[[Variant], bool] = lambda _: True
) -> dict[str, dict[str, Variant]]:
    """The variants of each data set, as `{"mnist": {"mnist-em": ..., ...}, ...}`, in the order of the configuration.

    They are those whose class scores are tested in the protocol `<data set><ending>`, and for which `where` is true. By
    default these are the variants of table 3; "-novel" selects those of table 4.
    """
    found: dict[str, dict[str, Variant]] = {}
    for name, variant in paper.variants.items():
        dataset = dataset_of(name)
        if dataset + ending in variant.heads.get("argmax", ()) and where(variant):
            found.setdefault(dataset, {})[name] = variant
    return found


def dataset_of(name: str) -> str:
    """The data set in the name of a variant."""
    return name.partition("-")[0]


def matrix_capsules(paper: Paper) -> dict[str, dict[str, Variant]]:
    """The variants of table 3 that are networks of matrix capsules, by data set."""
    return by_dataset(paper, where=lambda each: each.model.family == "matrixcaps")


def routed_by(variant: Variant, routing: str) -> bool:
    """Whether a variant is a network of matrix capsules with the given routing."""
    return variant.model.family == "matrixcaps" and variant.model.routing.name == routing


def with_routing(paper: Paper, routing: str) -> dict[str, Variant]:
    """The variants of table 3 with the given routing."""
    found = by_dataset(paper, where=lambda each: routed_by(each, routing))
    return {name: each for variants in found.values() for name, each in variants.items()}


def probed(paper: Paper) -> dict[str, dict[str, Variant]]:
    """The variants of table 3 that have the probe `routing`, by data set."""
    return by_dataset(paper, where=lambda each: each.model.family == "matrixcaps" and "routing" in each.probes)
