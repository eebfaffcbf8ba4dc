"""The paper's variants by data set and algorithm: a variant is named `<data set>-<algorithm>`."""

from __future__ import annotations

from recaps.config.variant import Paper

#: Labels of the data sets. A data set that is not listed is labelled with its name.
DATASETS = {"mnist": "MNIST", "fashion": "Fashion-MNIST", "cifar": "CIFAR-10", "multimnist": "MultiMNIST"}

#: Table II averages the errors on these data sets.
AVERAGED = ("mnist", "fashion", "cifar")

#: Figure 2 decodes capsules of both variants with the decoder of the first. The second is trained without a decoder.
DECODER, OTHER = "fashion-dr", "fashion-l2-fc"

#: The test images of figure 2.
DECODED_SET = "fashion-mnist/test"


def by_dataset(paper: Paper) -> dict[str, dict[str, str]]:
    """The paper's variants by data set and algorithm, in the order of the configuration."""
    found: dict[str, dict[str, str]] = {}
    for variant in paper.variants:
        dataset, _, algorithm = variant.partition("-")
        found.setdefault(dataset, {})[algorithm] = variant
    return found


def titles(paper: Paper) -> dict[str, str]:
    """The title of each algorithm: that of its first variant."""
    found: dict[str, str] = {}
    for variants in by_dataset(paper).values():
        for algorithm, variant in variants.items():
            found.setdefault(algorithm, paper.variants[variant].title)
    return found


def learns_coefficients(paper: Paper, variant: str) -> bool:
    """Whether the variant has learned routing coefficients b."""
    return bool(paper.variants[variant].model.family == "discriminative")
