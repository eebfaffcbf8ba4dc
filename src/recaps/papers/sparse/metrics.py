"""Metrics of *Sparse Unsupervised Capsules Generalize Better*."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from recaps.config.base import snapshot_of
from recaps.config.variant import Variant
from recaps.npz import Array
from recaps.report.metrics import last_fifth
from recaps.report.results import MetricRow, Results, head_metrics, mean_row, metric_rows

#: A capsule counts as used if it has rank 0 in at least this share of the images.
USED = 0.02
#: Accuracy of the quoted ConvNet on expanded MNIST, in percent; the quoted SUPCAPS has 99.23.
QUOTED = 99.22

#: The networks with labels.
CONVNET, SUPCAPS = "convnet", "supcaps"


def metrics(results: Results) -> pd.DataFrame:
    """Accuracies of heads, reconstruction errors, and the numbers behind figures 2 to 4 and section 2.2."""
    rows: list[MetricRow] = []
    for seed, part in results.by_seed():
        for variant, settings in part.paper.variants.items():
            change = last_fifth(results.history(variant, seed))
            rows.append((variant, seed, "loss-last-fifth", change, math.nan, 0, "percent", ""))
            if routes(settings):
                rows += _capsule_metrics(results, variant, settings, seed)
    return pd.concat([head_metrics(results), metric_rows(rows), combined(results)], ignore_index=True)


def combined(results: Results) -> pd.DataFrame:
    """Networks with labels at equal accuracy. `publish --add` computes them again from all runs."""
    return metric_rows([row for seed, part in results.by_seed() for row in _at_equal_accuracy(part, seed)])


def routes(settings: Variant) -> bool:
    """Whether a variant is a capsule network, so that its latents hold the routing support."""
    return hasattr(settings.model, "routing")


def sparse(settings: Variant) -> bool:
    """Whether a variant is trained under the sparse mask, as SPARSECAPS is."""
    return settings.model.family == "sparsecaps" and settings.model.learning == "sparse"


def along_training(results: Results, variant: str, head: str, trained: str) -> dict[int, str]:
    """The protocols that test a head on the snapshots of a variant, by training step.

    Args:
        trained: the protocol of the trained model, which is the last entry. The others test snapshots of the same set.

    Returns:
        Nothing for a variant without such protocols.
    """
    settings, protocols = results.paper.variants[variant], results.paper.protocols
    tested = {protocol: snapshot_of(protocols[protocol].test.set) for protocol in settings.heads.get(head, ())}
    test_set = protocols[trained].test.set
    at = settings.training.snapshots
    steps = {at[kept]: each for each, (name, kept) in tested.items() if name == test_set and kept is not None}
    return dict(sorted(steps.items())) | {settings.training.steps: trained} if steps else {}


def supervised_accuracies(results: Results) -> Iterator[tuple[str, int, float, float]]:
    """Variant, training step, and accuracy in percent on expanded MNIST and on affNIST, of networks with labels.

    All steps of a variant are tested on the same images.
    """
    for variant in results.paper.variants:
        on_mnist, on_affnist = (
            along_training(results, variant, "argmax", each) for each in ("mnist-shifted", "affnist-trained")
        )
        for step in sorted(on_mnist.keys() & on_affnist.keys()):
            mnist, affnist = (results.accuracy(variant, "argmax", each[step]) for each in (on_mnist, on_affnist))
            yield variant, step, float(mnist.mean()), float(affnist.mean())


def at_accuracy(level: float, mnist: Array, affnist: Array) -> float:
    """Interpolate the accuracy on affNIST where that on expanded MNIST first reaches `level` in training.

    Args:
        mnist: accuracy on expanded MNIST along training, [steps].
        affnist: accuracy on affNIST, [steps].

    Returns:
        nan if the first value is already above the level, or none reaches it.
    """
    if mnist[0] > level or mnist.max() < level:
        return math.nan
    after = int(np.argmax(mnist >= level))
    before = max(after - 1, 0)
    return float(np.interp(level, mnist[before : after + 1], affnist[before : after + 1]))


def _at_equal_accuracy(part: Results, seed: int) -> list[MetricRow]:
    """The networks with labels, compared when both have the same accuracy: `QUOTED`, or the highest that all reach.

    There are no rows for a seed that one of them was not trained with.
    """
    points = pd.DataFrame(supervised_accuracies(part), columns=["variant", "step", "mnist", "affnist"])
    if set(points["variant"]) != {CONVNET, SUPCAPS}:
        return []
    level = min(QUOTED, float(points.groupby("variant")["mnist"].max().min()))
    rows: list[MetricRow] = []
    for variant, each in points.groupby("variant", sort=False):
        affnist = at_accuracy(level, each["mnist"].to_numpy(), each["affnist"].to_numpy())
        for metric, value, protocol in (
            ("affnist-at-equal-accuracy", affnist, "affnist-trained"),
            ("equal-accuracy", level, "mnist-shifted"),
        ):
            n = int(part.head(str(variant), "argmax", protocol)[0]["n"])
            name = part.resolve(part.paper.protocols[protocol].test.set)
            rows.append((str(variant), seed, metric, value, math.nan, n, "percent", name))
    return rows


def _capsule_metrics(results: Results, variant: str, settings: Variant, seed: int) -> list[MetricRow]:
    def mean(metric: str, values: Array, unit: str, measured_on: str) -> MetricRow:
        return mean_row(variant, seed, metric, values, unit, results.resolve(measured_on))

    rows = []
    test = "mnist-40/test" if "mnist-40/test" in settings.latents else "mnist/test"
    for name in (test, "affnist/test"):
        if name not in settings.latents:
            continue
        error = results.latents(variant, name, "reconstruction_error", seed=seed)["reconstruction_error"]
        label = "affnist" if name.startswith("affnist") else "mnist"
        rows.append(mean(f"reconstruction-error-{label}", error, "squared error", name))
    arrays = results.latents(variant, test, "support", "mask", seed=seed)
    rows.append(mean("support-slope", relative_support(arrays["support"])[:, 1:].mean(1), "ratio", test))
    if "single-capsules" in settings.probes:
        change = leave_one_out_change(results.probe(variant, "single-capsules", seed=seed))
        rows.append(mean("leave-one-out-change", change, "ratio", test))
    if "traversals" in settings.probes:
        change = largest_change(results.probe(variant, "traversals", seed=seed)["decoded"])
        rows.append(mean("parameter-change", change, "ratio", test))
    if sparse(settings):
        rows.append(mean("mask-active", (arrays["mask"] >= 0.1).sum(1), "count", test))
    if sparse(settings) and "affnist/test" in settings.latents:
        first = results.latents(variant, "affnist/test", "ranks", seed=seed)["ranks"] == 0
        order = first.mean(0).argsort()
        for label, capsule in (("min", order[0]), ("max", order[-1])):
            rows.append(mean(f"rank0-frequency-{label}", first[:, capsule], "fraction", "affnist/test"))
        used = float((first.mean(0) >= USED).sum())
        rows.append((variant, seed, "rank0-capsules", used, math.nan, 0, "count", results.resolve("affnist/test")))
    return rows


def leave_one_out_change(probe: dict[str, Array]) -> Array:
    """Largest change from leaving out one capsule, relative to the reconstruction, in squared norm: [N]."""
    change = np.square(probe["without"] - probe["full"][:, None]).sum((2, 3, 4))
    return np.asarray(change.max(1) / np.square(probe["full"]).sum((1, 2, 3)))


def largest_change(decoded: Array) -> Array:
    """Largest change from moving one parameter of a capsule over its range, relative to the picture: [N].

    Args:
        decoded: pictures for n values of each parameter, [N, D, n, C, H, W].

    Returns:
        For the parameter that changes an image most, the squared distance between the first and the last picture,
        relative to the squared norm of the middle one.
    """
    distance = np.square(decoded[:, :, -1] - decoded[:, :, 0]).sum((2, 3, 4))
    middle = np.square(decoded[:, :, decoded.shape[2] // 2]).sum((2, 3, 4))
    return np.asarray((distance / middle).max(1))


def relative_support(support: Array) -> Array:
    """Support sorted within each image, largest first, relative to the largest: [N, L] to [N, L]."""
    ordered = -np.sort(-support, axis=1)
    return np.asarray(ordered / ordered[:, :1])
