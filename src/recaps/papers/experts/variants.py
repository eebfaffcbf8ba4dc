"""The paper's variants by data set: a variant is named `<data set>-<model>`."""

from __future__ import annotations

from recaps.config.variant import Paper

#: Labels of the data sets. A data set that is not listed is labelled with its name.
DATASETS = {"mnist": "MNIST", "fashion": "Fashion-MNIST"}

#: Domains of samples: arrays of the probe `samples`, in the order of rows and panels.
DOMAINS = ("complete", "restricted", "samples")


def by_dataset(paper: Paper) -> dict[str, list[str]]:
    """The paper's variants by data set, in the order of the configuration."""
    found: dict[str, list[str]] = {}
    for variant in paper.variants:
        found.setdefault(dataset(variant), []).append(variant)
    return found


def dataset(variant: str) -> str:
    return variant.partition("-")[0]


def of_family(paper: Paper, family: str) -> list[str]:
    """The variants of a model family."""
    return [name for name, variant in paper.variants.items() if variant.model.family == family]


def label(paper: Paper, variant: str) -> str:
    """The label of a variant among those of its family: its data set, and its title if the data set has several."""
    same = of_family(paper, paper.variants[variant].model.family)
    name = DATASETS.get(dataset(variant), dataset(variant))
    alone = [dataset(each) for each in same].count(dataset(variant)) == 1
    return name if alone else f"{name}, {paper.variants[variant].title}"
