"""The record of a run of *Sparse Unsupervised Capsules Generalize Better*."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.special import entr

from recaps.config.variant import Variant
from recaps.evaluation.record import MetricRow, Record, Run, pictures
from recaps.npz import Array
from recaps.report.metrics import last_fifth

#: A capsule counts as used if it has rank 0 in at least this share of the images.
USED = 0.02
#: How many images figures 1 and 5 show, by variant.
TRAVERSED = {"supcaps-28": 6, "sparsecaps-28": 8}


def record(run: Run) -> Record:
    """Accuracies of heads, reconstruction errors, and what figures 1 to 5 and section 2.2 need."""
    rows = [*run.accuracies(), run.number("loss-last-fifth", last_fifth(run.history()), "percent")]
    arrays: dict[str, Mapping[str, Array]] = {}
    if not routes(run.settings):
        return Record(rows, arrays)
    test = run.settings.test
    rows += _error_rows(run, {"mnist": test, "affnist": "affnist/test"})
    if run.has(test):
        latents, on = run.latents(test, "support", "mask"), run.test_set
        support = relative_support(latents["support"])
        rows.append(run.mean("support-slope", support[:, 1:].mean(1), "ratio", on))
        arrays["support"] = {"by_rank": support.mean(0)}
        if sparse(run.settings):
            rows.append(run.mean("mask-active", (latents["mask"] >= 0.1).sum(1), "count", on))
    if "single-capsules" in run.settings.probes:
        probe = run.probe("single-capsules")
        rows.append(run.mean("leave-one-out-change", leave_one_out_change(probe), "ratio", run.test_set))
        rows.append(run.mean("contributing-share", contributing_share(probe), "fraction", run.test_set))
        rows.append(run.mean("change-autocorrelation", change_autocorrelation(probe), "ratio", run.test_set))
        if shows_single_capsules(run.settings):
            arrays["single-capsules"] = _single_capsules(probe)
    if "traversals" in run.settings.probes:
        probe = run.probe("traversals")
        rows.append(run.mean("parameter-change", largest_change(probe["decoded"]), "ratio", run.test_set))
        if run.variant in TRAVERSED:
            arrays["traversals"] = _traversals(probe, TRAVERSED[run.variant])
    if sparse(run.settings) and run.has("affnist/test"):
        ranks = run.latents("affnist/test", "ranks")["ranks"]
        rows += _rank_rows(run, ranks == 0)
        arrays["ranks"] = {"frequencies": rank_frequencies(ranks)}
    return Record(rows, arrays)


def routes(settings: Variant) -> bool:
    """Whether a variant is a capsule network, so that its latents hold the routing support."""
    return settings.model.family in ("supcaps", "sparsecaps")


def sparse(settings: Variant) -> bool:
    """Whether a variant is trained under the sparse mask, as SPARSECAPS is."""
    return settings.model.family == "sparsecaps" and settings.model.learning == "sparse"


def shows_single_capsules(settings: Variant) -> bool:
    """Whether figure 2 shows a variant: the models on 28x28 images."""
    return "single-capsules" in settings.probes and settings.data == "mnist/train"


def shows_ranks(settings: Variant) -> bool:
    """Whether figure 4 shows a variant: the sparse models that are tested on affNIST."""
    return sparse(settings) and "affnist/test" in settings.latents


def _error_rows(run: Run, sets: Mapping[str, str]) -> list[MetricRow]:
    rows = []
    for label, name in sets.items():
        if run.has(name):
            errors = run.latents(name, "reconstruction_error")["reconstruction_error"]
            rows.append(run.mean(f"reconstruction-error-{label}", errors, "squared error", run.resolve(name)))
    return rows


def _rank_rows(run: Run, first: Array) -> list[MetricRow]:
    """How often capsules win; `first` tells whether a capsule has rank 0 in an image, [N, L]."""
    on, share = run.resolve("affnist/test"), first.mean(0)
    order = share.argsort()
    return [
        run.mean("rank0-frequency-min", first[:, order[0]], "fraction", on),
        run.mean("rank0-frequency-max", first[:, order[-1]], "fraction", on),
        run.number("rank0-capsules", (share >= USED).sum(), "count", on),
    ]


def _single_capsules(probe: Mapping[str, Array]) -> dict[str, Array]:
    """The first image of the probe `single-capsules` for figure 2.

    Returns:
        Pictures `image` and `full` [H, W] and `single` [L, H, W]; `change` from leaving out each capsule [L, H, W], and
        its squared norm relative to that of the reconstruction, `relative_change` [L]; `mask` [L].
    """
    full = probe["full"][0, 0]
    change = probe["without"][0, :, 0] - full
    return {
        "image": pictures(probe["images"][0, 0]),
        "full": pictures(full),
        "single": pictures(probe["single"][0, :, 0]),
        "change": change.astype(np.float16),
        "relative_change": np.square(change).sum((1, 2)) / np.square(full).sum(),
        "mask": probe["mask"][0],
    }


def _traversals(probe: Mapping[str, Array], count: int) -> dict[str, Array]:
    """The first images of the probe `traversals`, each with the dimension that changes it most, for figures 1 and 5.

    Returns:
        Pictures `images` [count, H, W] and `decoded` [count, 11, H, W], for each of the `values` [11]; `ink`, the sum
        over a picture's pixels [count, 11]; `labels`, `capsule` and `dimension` [count].
    """
    decoded = probe["decoded"][:count, :, :, 0]
    dimension = decoded.var(axis=2).sum((2, 3)).argmax(1)
    moved = decoded[np.arange(count), dimension]
    return {
        "images": pictures(probe["images"][:count, 0]),
        "decoded": pictures(moved),
        "ink": moved.sum((2, 3)),
        "dimension": dimension,
        **{name: probe[name][:count] for name in ("labels", "capsule")},
        "values": probe["values"],
    }


def _changes(probe: Mapping[str, Array]) -> Array:
    """The change of each reconstruction from leaving out each capsule, [N, L, C, H, W]."""
    return np.asarray(probe["without"] - probe["full"][:, None])


def leave_one_out_change(probe: Mapping[str, Array]) -> Array:
    """Largest change from leaving out one capsule, relative to the reconstruction, in squared norm: [N]."""
    change = np.square(_changes(probe)).sum((2, 3, 4))
    return np.asarray(change.max(1) / np.square(probe["full"]).sum((1, 2, 3)))


def contributing_share(probe: Mapping[str, Array]) -> Array:
    """The share of the capsules that contribute to an image, [N].

    It is exp(entropy) of the capsules' contributions over the number of capsules L: 1 if all contribute alike, 1 / L if
    only one does. A contribution is the squared norm of the change from leaving the capsule out.
    """
    contributions = np.square(_changes(probe)).sum((2, 3, 4))
    shares = contributions / contributions.sum(1, keepdims=True)
    return np.asarray(np.exp(entr(shares).sum(1)) / shares.shape[1])


def change_autocorrelation(probe: Mapping[str, Array]) -> Array:
    """Moran's I of the changes from leaving out one capsule, over pixels that share a side: [N].

    It is near 0 for noise and near 1 for a smooth change. The capsules of an image have one ratio of sums, so that each
    counts by the squared norm of its change.
    """
    centred = _changes(probe)
    centred = centred - centred.mean((3, 4), keepdims=True)
    below = centred[..., 1:, :] * centred[..., :-1, :]
    beside = centred[..., 1:] * centred[..., :-1]
    pairs = below[0, 0, 0].size + beside[0, 0, 0].size
    covariance = (below.sum((1, 2, 3, 4)) + beside.sum((1, 2, 3, 4))) / pairs
    return np.asarray(covariance / np.square(centred).mean((3, 4)).sum((1, 2)))


def largest_change(decoded: Array) -> Array:
    """Largest change of pictures [N, D, n, C, H, W] from moving one of D parameters over its n values: [N].

    For the parameter that changes an image most, it is the squared distance between the first and the last picture,
    relative to the squared norm of the middle one.
    """
    distance = np.square(decoded[:, :, -1] - decoded[:, :, 0]).sum((2, 3, 4))
    middle = np.square(decoded[:, :, decoded.shape[2] // 2]).sum((2, 3, 4))
    return np.asarray((distance / middle).max(1))


def relative_support(support: Array) -> Array:
    """Support sorted within each image, largest first, relative to the largest: [N, L] to [N, L]."""
    ordered = -np.sort(-support, axis=1)
    return np.asarray(ordered / ordered[:, :1])


def rank_frequencies(ranks: Array) -> Array:
    """Fraction of images in which each capsule has each rank: [N, L] to [L capsules, L ranks]."""
    return np.stack([(ranks == rank).mean(0) for rank in range(ranks.shape[1])], axis=1)
