"""*Learning to compute inner consensus*: tables 1 to 4, figures 2 and 4 to 8, and the numbers behind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure, SubFigure

from recaps.arrays import Arrays
from recaps.config.training import Training
from recaps.config.variant import Variant
from recaps.npz import Array
from recaps.papers.consensus import architecture as networks
from recaps.report.measures import first_of_each
from recaps.report.parts import (
    error_curve,
    labelled_map,
    legend_below,
    mosaic,
    plain_numbers,
    style,
    tested_on,
    timing_axis,
    timing_bar,
)
from recaps.report.results import MetricRow, Results, deviation, mean_row, metric_rows

#: A variant is named `<data set>-<routing>`.
DATASETS = {"mnist": "MNIST", "norb": "smallNORB"}
VIEWPOINTS = ("azimuth", "elevation")
ROUTINGS = {"connectionist": "Connectionist", "em": "EM", "similarity": "Similarity learning"}

#: The layers that route, and their short names in metrics.
CAPSULE_LAYERS = {
    "conv-1": "Convolutional Capsule Layer 1",
    "conv-2": "Convolutional Capsule Layer 2",
    "class": "Capsule Class Layer",
}

#: Rows of table 1: layer, details.
TABLE_1 = (
    ("Input", ""),
    ("Convolutional layer + relu", "K=5, S=2, Ch=64"),
    ("BatchNorm", ""),
    ("Primary Capsules", "K=1, S=1, Ch=8"),
    *zip(CAPSULE_LAYERS.values(), ("K=3, S=2, Ch=16", "K=3, S=1, Ch=16", "flatten, O=5"), strict=True),
)

#: Rows of table 2: hidden layers of the compatibility and of the activation network, units of the LSTM cell.
TABLE_2 = (((), (), 16), ((32, 32), (64, 64), 16), ((64, 64), (124, 124), 16))

#: Rows of table 3: routing, label, end of the claims' ids.
TABLE_3 = (
    ("connectionist", "Connectionist", "connectionist"),
    ("em", "EM (Gritzman)", "em-gritzman"),
    ("em", "EM (www0wwwjs1)", "em-www0wwwjs1"),
    ("em", "EM (original authors)", "em-original"),
    ("similarity", "Similarity learning", "similarity"),
)

#: Where the paper counts its weights, and the claim.
PAPER_SETTING, WEIGHTS = "smallNORB, the paper's setting", "consensus/section-5/weights"

#: Penalties of figure 2, and the width of its kernel, in the units of its votes.
LAMBDA_1, LAMBDA_2, TOY_WIDTH = (0.05, 0.5, 12.0), (0.0, 0.1, 1.0, 10.0), 0.7

#: Largest distance of figure 5; votes are shorter than the poses that they are made of, whose lengths are about 1.
REACH = 2.0


def table_1(results: Results) -> pd.DataFrame:
    """Layers as the paper lists them, beside what was built: measured shapes, counted weights, and routing's own."""
    rows = []
    for geometry, configs in _geometries(results).items():
        built = {routing: networks.build(config) for routing, config in configs.items()}
        model, image_shape = next(iter(built.values())), next(iter(configs.values()))["image_shape"]
        own = {f"{ROUTINGS[routing]} routing": networks.routing_parameters(each) for routing, each in built.items()}
        ours = (
            networks.layer_details(model),
            networks.output_shapes(model, image_shape),
            networks.layer_weights(model),
        )
        for place, ((layer, published), details, shape, weights) in enumerate(zip(TABLE_1, *ours, strict=True)):
            row: dict[str, object] = {"geometry": geometry, "layer": layer}
            row |= {"details published": published, "details ours": details, "output": shape, "weights": weights}
            routing_layer = place - len(TABLE_1) + len(CAPSULE_LAYERS)
            rows.append(row | {name: n[routing_layer] if routing_layer >= 0 else None for name, n in own.items()})
        total: dict[str, object] = {"geometry": geometry, "layer": "Total without BatchNorm"}
        total |= {"weights": networks.weights_without_routing(model)}
        total |= {"weights published": results.published.get(WEIGHTS) if geometry == PAPER_SETTING else None}
        rows.append(total | {name: sum(n) for name, n in own.items()})
    texts = ["geometry", "layer", "details published", "details ours", "output"]
    numbers = ["weights", "weights published", *(f"{label} routing" for label in ROUTINGS.values())]
    table = pd.DataFrame(rows, columns=texts + numbers)
    return table.fillna(dict.fromkeys(texts, "")).astype(dict.fromkeys(numbers, "Int64"))


def table_2(results: Results) -> pd.DataFrame:
    """Networks of the connectionist routing as the paper lists them and as they were built, with their parameters."""
    model = networks.build(results.config(next(iter(_by_dataset(results, "connectionist").values()))))
    paper = networks.routing_parameters(networks.build(_paper_config("connectionist")))
    rows = []
    for place, (layer, (compatibility, activation, units)) in enumerate(
        zip(CAPSULE_LAYERS.values(), TABLE_2, strict=True)
    ):
        ours, parameters = model.options, networks.network_parameters(model, place)
        row: dict[str, object] = {"layer": layer}
        row |= {"compatibility published": _widths(compatibility)}
        row |= {"compatibility ours": _widths(ours.routing.compatibility_layers[place])}
        row |= {"activation published": _widths(activation), "activation ours": _widths(ours.routing.activation_layers[place])}
        row |= {"units published": units, "units ours": ours.routing.lstm_units}
        row |= {f"parameters: {part}": n for part, n in parameters.items()}
        rows.append(row | {"all": sum(parameters.values()), "all, the paper's widths": paper[place]})
    return pd.DataFrame(rows)


def table_3(results: Results) -> pd.DataFrame:
    """Test errors in percent, ours (mean and sd over seeds) beside all published rows."""
    rows = []
    for dataset, label in DATASETS.items():
        by = _variants(results, dataset)
        for routing, title, claim in TABLE_3:
            if routing in by:
                errors = _errors(results, by[routing], dataset)
                row = {"benchmark": label, "routing": title, "error % ours": errors.mean(), "sd": deviation(errors)}
                row |= {"error % published": results.published.get(f"consensus/table-3/{dataset}-{claim}")}
                row |= {"tested on": _test_set(results, dataset), "n": _images(results, by[routing], dataset)}
                rows.append(row | {"seeds": len(errors)})
    return pd.DataFrame(rows)


def table_4(results: Results) -> pd.DataFrame:
    """Errors in percent at viewpoints that the model was trained on and at others, means and sds over seeds."""
    rows = []
    for factor in VIEWPOINTS:
        for routing, variant in _variants(results, factor).items():
            familiar, novel = (_errors(results, variant, f"{factor}-{part}") for part in ("familiar", "novel"))
            row: dict[str, object] = {"viewpoint": factor, "routing": ROUTINGS[routing]}
            for name, errors in (("familiar", familiar), ("novel", novel), ("gap", novel - familiar)):
                row |= {f"{name} %": errors.mean(), f"{name} sd": deviation(errors)}
            row |= {"tested on": _test_set(results, f"{factor}-novel").split("/")[0]}
            row |= {f"n {part}": _images(results, variant, f"{factor}-{part}") for part in ("familiar", "novel")}
            rows.append(row | {"seeds": len(familiar)})
    return pd.DataFrame(rows)


def figure_2(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Compatibilities of a toy data set's votes for pairs of penalties, and the votes' activations."""
    votes, activations = networks.toy_votes()
    pairs = [(one, two) for one in LAMBDA_1 for two in LAMBDA_2]
    shares, poses = networks.cluster(votes, activations, pairs, TOY_WIDTH)
    drawing = plt.figure(figsize=(9.6, 4.8))
    left, right = drawing.subfigures(1, 2, width_ratios=(4, 1.15), squeeze=False).flat
    axes = left.subplots(len(LAMBDA_1), len(LAMBDA_2), sharex=True, sharey=True)
    frames = []
    for axis, pair, share, pose in zip(axes.flat, pairs, shares, poses, strict=True):
        relative = share * len(votes)
        _draw_votes(axis, votes, np.maximum(14 * relative, 0.5), np.clip(relative, 0.25, 4), LogNorm(0.25, 4))
        (mean,) = axis.plot(
            *votes.mean(0), marker="o", markersize=4, markerfacecolor="none", color="black", linestyle=""
        )
        (cross,) = axis.plot(*pose, marker="X", markersize=7, color="black", markeredgecolor="white", linestyle="")
        axis.set_title(rf"$\lambda_1$ = {pair[0]:g}, $\lambda_2$ = {pair[1]:g}", fontsize=8)
        frame = pd.DataFrame({"x": votes[:, 0], "y": votes[:, 1], "activation": activations, "compatibility": share})
        frame = frame.assign(vote=range(len(votes)), pose_x=pose[0], pose_y=pose[1])
        frames.append(frame.assign(lambda_1=pair[0], lambda_2=pair[1]))
    left.suptitle("(a) compatibilities", x=0.01, ha="left", fontsize=10)
    axis, bar_of_shares, bar_of_activations = right.subplots(3, 1, height_ratios=(12, 1, 1))
    axis.set_anchor("N")
    _draw_votes(axis, votes, 45 * activations, activations, Normalize(0, 1))
    right.legend([cross, mean], ["(a) pose", "(a) mean of all votes"], loc="center")
    right.suptitle("(b) activations", x=0.01, ha="left", fontsize=10)
    for scatter, bar, label in (
        (axes.flat[0].collections[0], bar_of_shares, "(a) c relative to even weights"),
        (axis.collections[0], bar_of_activations, "(b) activation a"),
    ):
        right.colorbar(scatter, cax=bar, orientation="horizontal", label=label)
        bar.grid(False)
    bar_of_shares.minorticks_off()
    bar_of_shares.set_xticks([0.25, 1, 4], ["≤ 1/4", "1", "≥ 4"])
    return drawing, pd.concat(frames)


def figure_4(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Training images of every class, as prepared and as the network sees them in tests and in training."""
    panels: list[tuple[str, list[Array], tuple[float, float]]] = []
    frames = []
    for dataset, variant in _shown(results).items():
        split = results.split(variant.data)
        images = _scenes(split).ravel()
        known = {"image": images, "label": split.labels[images]}
        known |= {name: values[images] for name, values in split.factors.items() if values.ndim == 1}
        for view, pictures in _views(split, images, variant.training, results.seeds[0]).items():
            grey = (0.0, 255.0) if view == "as prepared" else _grey(variant.training)
            panels.append((f"{DATASETS[dataset]},\n{view}", pictures, grey))
            statistics = {"mean": [each.mean() for each in pictures], "sd": [each.std() for each in pictures]}
            frame = pd.DataFrame(known).loc[np.repeat(range(len(images)), len(pictures) // len(images))]
            frame = frame.assign(**statistics, side=len(pictures[0]), view=view)
            frames.append(frame.assign(set=results.resolve(variant.data)))
    columns = [-(-len(pictures) // 5) for _, pictures, _ in panels]
    # As wide as five rows of pictures with the mosaic's gaps between them ask for.
    sides = [len(pictures[0]) + 2 for _, pictures, _ in panels]
    widths = [(across * side - 2) / (5 * side - 2) for across, side in zip(columns, sides, strict=True)]
    size = (3.9 * sum(widths) + 0.5, 4.5)
    drawing, axes = plt.subplots(1, len(panels), figsize=size, width_ratios=widths, squeeze=False)
    for axis, letter, across, (title, pictures, grey) in zip(axes.flat, "abcd", columns, panels, strict=False):
        mosaic(axis, pictures, across, "gray", *grey)
        axis.set_title(f"({letter}) {title}", fontsize=8)
    return drawing, pd.concat(frames)


def figure_5(results: Results) -> tuple[Figure, pd.DataFrame]:
    """The kernels that similarity routing has learned, by layer, beside the one that they began as."""
    variants = _by_dataset(results, "similarity")
    size = (8.6, 2.5 * len(variants) + 0.3)
    drawing, axes = plt.subplots(len(variants), len(CAPSULE_LAYERS), figsize=size, squeeze=False)
    labels = {"learned": "learned, one for each type of output capsule", "initial": "initial"}
    looks: dict[str, dict[str, Any]] = {
        "learned": {"color": "#0072B2", "linewidth": 0.8},
        "initial": {"color": "black", "dashes": (4, 2)},
    }
    distances, frames = np.linspace(0, REACH, 41), []
    for row, (dataset, variant) in zip(axes, variants.items(), strict=True):
        began = float(results.config(variant)["model"]["kernel_width"])
        for place, (axis, layer) in enumerate(zip(row, CAPSULE_LAYERS, strict=True)):
            names = [f"layers.{place}.routing.{part}" for part in ("mixture", "widths")]
            mixture, widths = (results.weight(variant, name) for name in names)
            curves = {"learned": networks.kernel(distances, mixture, widths)}
            curves["initial"] = networks.kernel(distances, np.zeros(1), np.full((1, 1), began))
            for name, values in curves.items():
                axis.plot(distances, values, marker="", **{"linestyle": "-", **looks[name]})[0].set_label(labels[name])
                frame = pd.DataFrame(values).assign(distance=distances)
                frame = frame.melt("distance", var_name="type", value_name="K")
                frames.append(frame.assign(variant=variant, layer=layer, kernel=name))
            axis.set(xlabel="distance of vote and pose", ylabel="kernel K", ylim=(-0.03, 1.03))
            axis.set_title(f"{DATASETS[dataset]}: {CAPSULE_LAYERS[layer]}", fontsize=8)
    legend_below(drawing, axes.flat, list(labels.values()))
    return drawing, pd.concat(frames)[["variant", "layer", "kernel", "type", "distance", "K"]]


def figure_6(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Where the right class takes its input from, and how many inputs count for an output capsule."""
    probed = {dataset: by for dataset in DATASETS if (by := _probed(results, dataset))}
    n = len(probed)
    drawing = plt.figure(figsize=(8.8, 5 + 2.2 * n))
    top, bottom = drawing.subfigures(2, 1, height_ratios=(5, 2.2 * n), squeeze=False).flat
    frames = [
        _draw_weights(part, results, dataset, by, 8 // n)
        for part, (dataset, by) in zip(top.subfigures(1, n, squeeze=False).flat, probed.items(), strict=True)
    ]
    axes = bottom.subplots(n, len(CAPSULE_LAYERS), sharey=True, squeeze=False)
    levels = np.linspace(0, 1, 101)
    for row, (dataset, by) in zip(axes, probed.items(), strict=True):
        for place, (axis, layer) in enumerate(zip(row, CAPSULE_LAYERS, strict=True)):
            for start, (routing, variant) in enumerate(by.items()):
                shares = np.quantile(results.probe(variant, "routing")[f"effective-{place}"], levels)
                axis.plot(shares, levels, label=ROUTINGS[routing], markevery=(6 * start, 20), **_style(routing))
                frame = pd.DataFrame({"level": levels, "value": shares}).assign(quantity="effective share")
                frames.append(frame.assign(layer=layer, dataset=dataset, variant=variant))
            axis.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xlabel="effective share of the inputs")
            axis.set_title(f"{DATASETS[dataset]}: {CAPSULE_LAYERS[layer]}", fontsize=8)
        row[0].set_ylabel("output capsules\nat or below")
    legend_below(bottom, axes.flat, list(ROUTINGS.values()))
    columns = ["dataset", "variant", "quantity", "layer", "image", "row", "column", "level", "value"]
    return drawing, pd.concat(frames)[columns].astype(dict.fromkeys(("image", "row", "column"), "Int64"))


def figure_7(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Test error along training, a panel per data set, a line per routing."""
    watched = {dataset: by for dataset in DATASETS if (by := _watched(results, dataset))}
    drawing, axes = plt.subplots(1, len(watched), figsize=(4.2 * len(watched) + 0.2, 3.8), squeeze=False)
    frames = []
    labels: list[str] = []
    for axis, (dataset, by) in zip(axes.flat, watched.items(), strict=True):
        for routing, variant in by.items():
            curves = pd.concat([results.evaluations(variant, seed).assign(seed=seed) for seed in results.seeds])
            frames.append(curves.assign(dataset=dataset, variant=variant))
            label = f"{ROUTINGS[routing]}\n{tested_on(results.paper.variants[variant].training)}"
            error_curve(axis, curves, label, _style(routing))
            labels.append(label)
        axis.set(xlabel="training step", ylabel="test error, %")
        axis.set_title(DATASETS[dataset])
        plain_numbers(axis)
    legend_below(drawing, axes.flat, list(dict.fromkeys(labels)))
    return drawing, pd.concat(frames)[["dataset", "variant", "seed", "step", "test_error"]]


def figure_8(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Seconds per 100 training steps: median of the rounds, and every round."""
    timing = results.timing("steps")
    drawing, axis = plt.subplots(figsize=(5.6, 3.4))
    rows, ticks = [], {}
    for place, (routing, variant) in enumerate(_timed(timing).items()):
        seconds, batch = 100 * np.array(timing["seconds_per_step"][variant]), timing["batch_size"][variant]
        timing_bar(axis, place, seconds, reference=routing == "em")
        ticks[float(place)] = f"{ROUTINGS[routing]}\n{batch}"
        rows += [(variant, k, batch, each) for k, each in enumerate(seconds)]
    timing_axis(axis, ticks, timing)
    return drawing, pd.DataFrame(rows, columns=["variant", "round", "batch_size", "seconds_per_100_steps"])


def metrics(results: Results) -> pd.DataFrame:
    """Errors, gaps between familiar and novel viewpoints, effective shares, numbers of weights, the time of a step."""
    rows: list[MetricRow] = []
    for place, seed in enumerate(results.seeds):
        rows += _error_metrics(results, place, seed)
        rows += _viewpoint_metrics(results, place, seed)
        rows += _share_metrics(results, seed)
    return metric_rows(rows + _weight_metrics(results) + _time_metrics(results))


# Errors


def _error_metrics(results: Results, place: int, seed: int) -> list[MetricRow]:
    rows: list[MetricRow] = []
    for dataset in DATASETS:
        for variant in _variants(results, dataset).values():
            error, n = float(_errors(results, variant, dataset)[place]), _images(results, variant, dataset)
            rows.append((variant, seed, "error", error, math.nan, n, "percent", _test_set(results, dataset)))
    return rows


def _viewpoint_metrics(results: Results, place: int, seed: int) -> list[MetricRow]:
    rows: list[MetricRow] = []
    for factor in VIEWPOINTS:
        for variant in _variants(results, factor).values():
            found = {}
            for part in ("familiar", "novel"):
                protocol = f"{factor}-{part}"
                error, n = float(_errors(results, variant, protocol)[place]), _images(results, variant, protocol)
                on = _test_set(results, protocol)
                rows.append((variant, seed, f"error-{part}", error, math.nan, n, "percent", on))
                found[part] = (error, error * (100 - error) / n)
            gap, variance = (found["novel"][0] - found["familiar"][0], found["novel"][1] + found["familiar"][1])
            # No n: it is of other images on either side, and the standard error is known.
            rows.append((variant, seed, "gap", gap, math.sqrt(variance), 0, "percent", on.split("/")[0]))
    return rows


def _errors(results: Results, variant: str, protocol: str) -> Array:
    """Test error in percent for every seed, [seeds]."""
    return 100 - results.accuracy(variant, "argmax", protocol)


def _images(results: Results, variant: str, protocol: str) -> int:
    """Number of test images."""
    return int(results.head(variant, "argmax", protocol)[0]["n"])


def _test_set(results: Results, protocol: str) -> str:
    return results.resolve(results.paper.protocols[protocol].test.set)


def _variants(results: Results, dataset: str) -> dict[str, str]:
    """The paper's variants on a data set, by routing."""
    return {each: name for each in ROUTINGS if (name := f"{dataset}-{each}") in results.paper.variants}


def _by_dataset(results: Results, routing: str) -> dict[str, str]:
    """The variants of a routing that tables compare with the paper's, by data set."""
    return {dataset: by[routing] for dataset in DATASETS if routing in (by := _variants(results, dataset))}


def _watched(results: Results, dataset: str) -> dict[str, str]:
    """The variants on a data set that were tested along training, by routing."""
    variants = results.paper.variants
    return {each: name for each, name in _variants(results, dataset).items() if variants[name].training.evaluate_every}


# The network that was built


def _geometries(results: Results) -> dict[str, dict[str, dict[str, Any]]]:
    """What models are built from, by routing: the runs on each data set, and the paper's setting."""
    runs = {
        f"{label}, as run": {routing: results.config(name) for routing, name in by.items()}
        for dataset, label in DATASETS.items()
        if (by := _variants(results, dataset))
    }
    return runs | {PAPER_SETTING: {routing: _paper_config(routing) for routing in ROUTINGS}}


def _paper_config(routing: str) -> dict[str, Any]:
    """The family's defaults are the paper's numbers."""
    return {"model": {"routing": routing}, "image_shape": (1, 32, 32), "classes": 5}


def _widths(layers: Sequence[int]) -> str:
    return f"[{', '.join(map(str, layers))}]"


def _weight_metrics(results: Results) -> list[MetricRow]:
    """Of the first seed: numbers of weights do not depend on training."""
    rows: list[MetricRow] = []
    for dataset in DATASETS:
        for routing, variant in _variants(results, dataset).items():
            for metric, config in (("weights", results.config(variant)), ("paper-weights", _paper_config(routing))):
                n = networks.weights_without_routing(networks.build(config))
                rows.append((variant, results.seeds[0], metric, float(n), math.nan, 0, "count", ""))
    return rows


# Votes and samples


def _draw_votes(axis: Axes, votes: Array, areas: Array, shades: Array, norm: Normalize) -> None:
    axis.scatter(
        votes[:, 0], votes[:, 1], s=areas, c=shades, norm=norm, cmap="viridis_r", linewidths=0.3, edgecolors="0.3"
    )
    axis.set(xlim=(-2.7, 2.7), ylim=(-2.1, 2.1), xticks=[], yticks=[], aspect="equal")
    axis.spines[["top", "right"]].set_visible(True)


def _shown(results: Results) -> dict[str, Variant]:
    """A variant of each data set whose images figure 4 shows, smallNORB first."""
    variants = {dataset: list(by.values()) for dataset in reversed(DATASETS) if (by := _variants(results, dataset))}
    first = {dataset: results.paper.variants[names[0]] for dataset, names in variants.items()}
    return {name: each for name, each in first.items() if each.data in results.paper.figures["figure-4"].sets}


def _scenes(split: Arrays) -> Array:
    """Places of the first image of each class, and of the same scene's from other cameras: [classes, cameras]."""
    first = first_of_each(np.asarray(split.labels), 1)
    if "camera" not in split.factors:
        return first[:, None]
    original, camera = split.factors["original"], split.factors["camera"]
    scenes = [np.flatnonzero(original == original[place]) for place in first]
    return np.stack([places[np.argsort(camera[places])] for places in scenes])


def _grey(training: Training) -> tuple[float, float]:
    """What is black and what is white in pictures of what the network sees."""
    return (0.0, 1.0) if training.standardise is None else (-4.0, 4.0)


def _views(split: Arrays, images: Array, training: Training, seed: int) -> dict[str, list[Array]]:
    """Pictures [H, W] of some images: as prepared; where they differ, as tested, and in three views as trained on."""
    import torch

    from recaps.training.batches import Batches, view
    from recaps.training.images import Samples

    prepared = [np.asarray(split.images[place, 0]) for place in images]
    tested = view(torch.tensor(split.images[images]), training)[:, 0].numpy()
    if tested.shape[1:] == prepared[0].shape and np.allclose(tested, np.stack(prepared) / 255):
        return {"as prepared": prepared}
    trained, device = [], torch.device("cpu")
    for place in images:
        alone = Samples(split.take(slice(place, place + 1)), device)
        batches = Batches(alone, training.model_copy(update={"batch_size": 1}), seed, device)
        trained += [batches(3 * int(place) + k)["images"][0, 0].numpy() for k in range(3)]
    return {"as prepared": prepared, "as tested": list(tested), "as trained on": trained}


# Routing weights


def _probed(results: Results, dataset: str) -> dict[str, str]:
    """The variants on a data set that have the probe `routing`, by routing."""
    variants = results.paper.variants
    return {each: name for each, name in _variants(results, dataset).items() if "routing" in variants[name].probes}


def _draw_weights(
    drawing: SubFigure, results: Results, dataset: str, by: Mapping[str, str], count: int
) -> pd.DataFrame:
    """The first image of some classes, and below it a map for each routing of where its class takes its input from."""
    probes = {routing: results.probe(variant, "routing") for routing, variant in by.items()}
    first = next(iter(probes.values()))
    labels = first["labels"]
    shown = first_of_each(labels, 1)[:count]
    grey = _grey(results.paper.variants[next(iter(by.values()))].training)
    axes = drawing.subplots(1 + len(probes), len(shown), squeeze=False)
    for axis, image in zip(axes[0], shown, strict=True):
        mosaic(axis, first["images"][image], 1, "gray", *grey)
        axis.set_title(str(int(labels[image])), loc="center", fontsize=8)
    frames = []
    for row, (routing, probe) in zip(axes[1:], probes.items(), strict=True):
        shares = class_shares(probe["coupling"][shown], labels[shown], routing)
        even = 1 / probe["coupling"].shape[-1] if routing == "em" else 1 / shares[0].size
        highest = 100 * max(float(shares.max()), 2 * even)
        for axis, image, share in zip(row, shown, shares, strict=True):
            labelled_map(axis, 100 * share, highest)
            rows, columns = (each.ravel() for each in np.indices(share.shape))
            frame = pd.DataFrame({"row": rows, "column": columns, "value": share.ravel()}).assign(image=int(image))
            frame = frame.assign(quantity="share of the right class", layer="class")
            frames.append(frame.assign(dataset=dataset, variant=by[routing]))
        row[0].set_ylabel(f"{ROUTINGS[routing].split()[0]}\n(even: {100 * even:.0f})", fontsize=8)
    drawing.suptitle(f"{DATASETS[dataset]}: input of the right class, %", x=0.01, ha="left", fontsize=10)
    return pd.concat(frames)


def class_shares(coupling: Array, labels: Array, routing: str) -> Array:
    """How much each position has to do with the right class: [N, h, w, types, classes], [N] to [N, h, w].

    Of EM the mean over the position's capsules of their part that goes to this class; else the sum of their shares in
    it, which is 1 over all positions.
    """
    right = np.stack([each[..., label] for each, label in zip(coupling, labels, strict=True)])
    return np.asarray(right.mean(-1) if routing == "em" else right.sum(-1))


def _share_metrics(results: Results, seed: int) -> list[MetricRow]:
    rows = []
    for dataset in DATASETS:
        for variant in _probed(results, dataset).values():
            probe, on = results.probe(variant, "routing", seed), results.resolve(results.paper.variants[variant].test)
            for place, layer in enumerate(CAPSULE_LAYERS):
                shares = probe[f"effective-{place}"].mean((1, 2))
                rows.append(mean_row(variant, seed, f"effective-share-{layer}", shares, "fraction", on))
    return rows


# Time


def _timed(timing: Mapping[str, Any]) -> dict[str, str]:
    """The timed variants, by routing."""
    return {each: name for each in ROUTINGS if (name := f"mnist-{each}") in timing["seconds_per_step"]}


def _time_metrics(results: Results) -> list[MetricRow]:
    """Of the first seed: a timing trains nothing."""
    if "steps" not in results.paper.timings:
        return []
    timing = results.timing("steps")
    seconds = {routing: np.array(timing["seconds_per_step"][variant]) for routing, variant in _timed(timing).items()}
    return [
        mean_row(f"mnist-{routing}", results.seeds[0], "time-ratio", each / seconds["em"], "ratio", timing["device"])
        for routing, each in seconds.items()
        if routing != "em" and "em" in seconds
    ]


def _style(routing: str) -> dict[str, Any]:
    """Colour, dash and marker of a routing, the same in every figure: black for EM."""
    return style({"connectionist": 1, "em": 2, "similarity": 0}[routing])


TABLES = {"table-1": table_1, "table-2": table_2, "table-3": table_3, "table-4": table_4}
FIGURES = {
    "figure-2": figure_2,
    "figure-4": figure_4,
    "figure-5": figure_5,
    "figure-6": figure_6,
    "figure-7": figure_7,
    "figure-8": figure_8,
}
