"""The record of a run: errors, viewpoints and shares, and what figures 4 to 6 show of it."""

from __future__ import annotations

import math

import numpy as np

from recaps.arrays import Arrays
from recaps.config.training import Training
from recaps.evaluation.record import MetricRow, Record, Run, pictures
from recaps.npz import Array
from recaps.papers.consensus.variants import CAPSULE_LAYERS, dataset_of, probed, routed_by
from recaps.report.metrics import first_of_each

#: Figure 6 shows a test image of at most this many classes.
SHOWN = 8

#: Shares of the output capsules for which figure 6 draws the largest effective share.
LEVELS = np.linspace(0, 1, 101)


def record(run: Run) -> Record:
    """Return the errors of a run, the gap between viewpoints, and the effective shares, with what figures 4 to 6 show.

    Parts of the arrays:
        `examples`, `views` and `statistics`: see `_examples`.
        `kernels`: logits of the mixture weights [Q] and widths [Q, J] of similarity routing, `mixture-k` and `widths-k`
            for each capsule layer k.
        `routing`: see `_routing`.
    """
    dataset, tested = dataset_of(run.variant), run.settings.heads.get("argmax", ())
    rows: list[MetricRow] = []
    arrays: dict[str, dict[str, Array]] = {}
    if dataset in tested:
        error, n, on = _error(run, dataset)
        rows.append(run.number("error", error, "percent", on, n=n))
        if routed_by(run.settings, "similarity"):
            arrays["kernels"] = {
                f"{part}-{place}": run.weight(f"layers.{place}.routing.{part}")
                for place in range(len(CAPSULE_LAYERS))
                for part in ("mixture", "widths")
            }
    if f"{dataset}-novel" in tested:
        rows += _viewpoints(run, dataset)
    if run.settings.data in run.settings.images:
        arrays |= _examples(run)
    if run.variant in probed(run.paper).get(dataset, {}):
        probe = run.probe("routing")
        for place, layer in enumerate(CAPSULE_LAYERS):
            shares = probe[f"effective-{place}"].mean((1, 2))
            rows.append(run.mean(f"effective-share-{layer}", shares, "fraction", run.test_set))
        arrays["routing"] = _routing(run, probe)
    return Record(rows, arrays)


# Errors


def _viewpoints(run: Run, dataset: str) -> list[MetricRow]:
    found = {part: _error(run, f"{dataset}-{part}") for part in ("familiar", "novel")}
    rows = [run.number(f"error-{part}", error, "percent", on, n=n) for part, (error, n, on) in found.items()]
    (familiar, *_), (novel, _, on) = found.values()
    variance = sum(error * (100 - error) / n for error, n, _ in found.values())
    # n is 0: the two errors are measured on different images, and the standard error is known.
    return [*rows, run.number("gap", novel - familiar, "percent", on.split("/")[0], se=math.sqrt(variance))]


def _error(run: Run, protocol: str) -> tuple[float, int, str]:
    """Test error in percent, the number of test images, and their set."""
    found = run.head("argmax", protocol)
    return 100 - 100 * found["accuracy"], int(found["n"]), run.resolve(run.paper.protocols[protocol].test.set)


# Routing


def _routing(run: Run, probe: dict[str, Array]) -> dict[str, Array]:
    """What figure 6 shows of a probe.

    Returns:
        Of the first image of some classes: its position `image` [n], `label` [n], the `pictures` [n, C, H, W], and
        `shares` [n, h, w], see `class_shares`. `even`, the share of a position if all were alike. For each capsule
        layer k, the quantiles `effective-k` of the effective shares at `LEVELS`.
    """
    shown = first_of_each(probe["labels"], 1)[:SHOWN]
    labels, coupling, em = probe["labels"][shown], probe["coupling"][shown], routed_by(run.settings, "em")
    shares = class_shares(coupling, labels, em)
    return {
        "image": shown,
        "label": labels,
        "pictures": _grey(probe["images"][shown], run.settings.training),
        "shares": shares,
        "even": np.array(1 / coupling.shape[-1] if em else 1 / shares[0].size),
        **{f"effective-{k}": np.quantile(probe[f"effective-{k}"], LEVELS) for k in range(len(CAPSULE_LAYERS))},
    }


def class_shares(coupling: Array, labels: Array, em: bool) -> Array:
    """The share of each position in the input of the right class: [N, h, w, types, classes], [N] to [N, h, w].

    Args:
        coupling: assignments of the class layer.
        labels: the right classes.
        em: whether the routing is EM. EM assigns each input capsule to the classes, so the share is the mean over the
            capsules of a position. Other routings distribute each class over the inputs, so the share is their sum,
            and all positions add up to 1.
    """
    right = np.stack([each[..., label] for each, label in zip(coupling, labels, strict=True)])
    return np.asarray(right.mean(-1) if em else right.sum(-1))


# Examples of the data


def _examples(run: Run) -> dict[str, dict[str, Array]]:
    """Training images of every class (figure 4).

    Returns:
        `examples`: position `image` [n], `label` [n], and other attributes of each image [n]. `views`: pictures by
        view, see `_views`. `statistics`: mean and standard deviation of each of these before scaling to grey, [2, n].
    """
    split, training = run.split(run.settings.data), run.settings.training
    images = _scenes(split).ravel()
    known = {"image": images, "label": split.labels[images]}
    # As lists, so that no array of bytes is taken for pictures.
    known |= {name: np.array(values[images].tolist()) for name, values in split.factors.items() if values.ndim == 1}
    views = _views(split, images, training, run.seed)
    return {
        "examples": known,
        "views": {name: each if name == "as prepared" else _grey(each, training) for name, each in views.items()},
        "statistics": {
            name: np.array([[each.mean() for each in seen], [each.std() for each in seen]])
            for name, seen in views.items()
        },
    }


def _scenes(split: Arrays) -> Array:
    """Indices of the first image of each class, and of the images of its scene by other cameras: [classes, cameras]."""
    first = first_of_each(np.asarray(split.labels), 1)
    if "camera" not in split.factors:
        return first[:, None]
    original, camera = split.factors["original"], split.factors["camera"]
    scenes = [np.flatnonzero(original == original[place]) for place in first]
    return np.stack([places[np.argsort(camera[places])] for places in scenes])


def _views(split: Arrays, images: Array, training: Training, seed: int) -> dict[str, Array]:
    """Images [n, H, W] as prepared. Where they differ from that: also as tested, and three times each as trained on."""
    import torch

    from recaps.training.batches import Batches, view
    from recaps.training.images import Images

    prepared = np.asarray(split.images[images, 0])
    tested = view(torch.tensor(split.images[images]), training)[:, 0].numpy()
    if tested.shape == prepared.shape and np.allclose(tested, prepared / 255):
        return {"as prepared": prepared}
    trained, device = [], torch.device("cpu")
    for place in images:
        alone = Images(split.take(slice(place, place + 1)), device)
        batches = Batches(alone, training.model_copy(update={"batch_size": 1}), seed, device)
        trained += [batches(3 * int(place) + k)["images"][0, 0].numpy() for k in range(3)]
    return {"as prepared": prepared, "as tested": tested, "as trained on": np.stack(trained)}


def _grey(images: Array, training: Training) -> Array:
    """Images that the network sees, as pictures: standardised ones from -4 to 4."""
    return pictures(images if training.standardise is None else (images + 4) / 8)
