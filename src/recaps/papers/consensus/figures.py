"""Figures of *Learning to compute inner consensus*."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure, SubFigure

from recaps.config.variant import Variant
from recaps.npz import Array
from recaps.papers.consensus import architecture, diagrams
from recaps.papers.consensus.record import LEVELS, SHOWN
from recaps.papers.consensus.variants import CAPSULE_LAYERS, DATASETS, by_dataset, dataset_of, probed, with_routing
from recaps.report.plots import (
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
from recaps.report.results import Results

#: Penalties of figure 2, and the width of its kernel, in the units of its votes.
LAMBDA_1, LAMBDA_2, TOY_WIDTH = (0.05, 0.5, 12.0), (0.0, 0.1, 1.0, 10.0), 0.7

#: Largest distance in figure 5. Votes are shorter than the poses they are made from, whose length is about 1.
REACH = 2.0

#: The routings in the order of the style sheet's colours; the third is black. Others follow.
ROUTINGS = ("similarity", "connectionist", "em")


def figure_1(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Convolutional routing along one dimension, as built."""
    variant = next(name for variants in by_dataset(results.paper).values() for name in variants)
    fields = diagrams.fields_in_a_row(architecture.network(results.config(variant)))
    drawing, axis = plt.subplots(figsize=(9, 3.4))
    diagrams.draw_fields(axis, fields)
    return drawing, fields.assign(variant=variant)


def figure_2(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Compatibilities of the votes of a toy data set for pairs of penalties, and the activations of the votes."""
    votes, activations = toy_votes()
    pairs = [(one, two) for one in LAMBDA_1 for two in LAMBDA_2]
    shares, poses = cluster(votes, activations, pairs, TOY_WIDTH)
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


def _draw_votes(axis: Axes, votes: Array, areas: Array, shades: Array, norm: Normalize) -> None:
    axis.scatter(
        votes[:, 0], votes[:, 1], s=areas, c=shades, norm=norm, cmap="viridis_r", linewidths=0.3, edgecolors="0.3"
    )
    axis.set(xlim=(-2.7, 2.7), ylim=(-2.1, 2.1), xticks=[], yticks=[], aspect="equal")
    axis.spines[["top", "right"]].set_visible(True)


def toy_votes() -> tuple[Array, Array]:
    """Votes in the plane [60, 2] and their activations [60]: a cluster of 30, an active one of 20, and 10 outliers."""
    draw = np.random.default_rng(0)
    clusters = [draw.normal(centre, 0.3, (n, 2)) for centre, n in (((-1.2, 0.3), 30), ((1.2, -0.3), 20))]
    votes = np.concatenate([*clusters, draw.uniform((-2.4, -1.8), (2.4, 1.8), (10, 2))])
    ranges = ((0.1, 0.4, 30), (0.7, 1.0, 20), (0.1, 1.0, 10))
    return votes, np.concatenate([draw.uniform(low, high, n) for low, high, n in ranges])


def cluster(
    votes: Array, activations: Array, penalties: Sequence[tuple[float, float]], width: float
) -> tuple[Array, Array]:
    """Cluster votes under a Gaussian kernel as the layers do: alternate eq. 11 and the weighted mean (eq. 4).

    Returns:
        Compatibilities [J, n] and poses [J, D] of votes [n, D] with activations [n], for J pairs of penalties
        lambda_1 and lambda_2.
    """
    import torch

    from recaps.nn.routing.similarity import SMALL, compatibilities, mixture_kernel

    lambda1, lambda2 = torch.tensor(penalties, dtype=torch.float64).T
    spread = torch.tensor(votes)[None, None, :, None].expand(-1, -1, -1, len(penalties), -1)
    seen = (torch.tensor(activations) + SMALL).log()[None, None, :, None]
    mixture, precisions = torch.ones(1).double(), torch.full((1, 1), 1 / (2 * width**2)).double()
    pose = spread.mean(2)
    for _ in range(500):  # figure 2 no longer changes after these
        similarity = mixture_kernel(spread, pose, mixture, precisions)
        shares = compatibilities(similarity, seen, lambda2, lambda1 + lambda2 + SMALL)
        pose = (shares.unsqueeze(4) * spread).sum(2)
    return shares[0, 0].T.numpy(), pose[0, 0].numpy()


def figure_3(results: Results) -> tuple[Figure, pd.DataFrame]:
    """The LSTM cell of connectionist routing, its inputs, and the networks that read it, as built."""
    variant = next(iter(with_routing(results.paper, "connectionist")))
    parts = diagrams.cell_parts(architecture.network(results.config(variant)))
    drawing, axis = plt.subplots(figsize=(9, 4.1))
    diagrams.draw_cell(axis, parts)
    return drawing, parts.assign(variant=variant)


def figure_4(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Training images of every class: as prepared, and as the network sees them in tests and in training."""
    panels: list[tuple[str, Array]] = []
    frames = []
    kept = by_dataset(results.paper, where=lambda each: each.data in each.images)
    for dataset in reversed(kept):  # smallNORB first
        variant = next(iter(kept[dataset]))
        known, statistics = (results.arrays(variant, part) for part in ("examples", "statistics"))
        images = pd.DataFrame(known)
        for view, pictures in results.arrays(variant, "views").items():
            panels.append((f"{_label(dataset)},\n{view}", pictures))
            frame = images.loc[np.repeat(range(len(images)), len(pictures) // len(images))]
            mean, sd = statistics[view]
            used = results.resolve(results.paper.variants[variant].data)
            frames.append(frame.assign(mean=mean, sd=sd, side=len(pictures[0]), view=view, set=used))
    # Mosaics of five rows side by side; a single one is a strip.
    rows, high = (5, 3.9) if len(panels) > 1 else (1, 0.85)
    columns = [-(-len(pictures) // rows) for _, pictures in panels]
    # The width of each mosaic relative to its height.
    sides = [len(pictures[0]) + 2 for _, pictures in panels]
    widths = [(across * side - 2) / (rows * side - 2) for across, side in zip(columns, sides, strict=True)]
    size = (high * sum(widths) + 0.5, high + 0.6)
    drawing, axes = plt.subplots(1, len(panels), figsize=size, width_ratios=widths, squeeze=False)
    for axis, letter, across, (title, pictures) in zip(axes.flat, "abcd", columns, panels, strict=False):
        mosaic(axis, pictures, across, "gray", 0, 1)
        axis.set_title(f"({letter}) {title}", fontsize=8)
    return drawing, pd.concat(frames)


def figure_5(results: Results) -> tuple[Figure, pd.DataFrame]:
    """The learned kernels of similarity routing by layer, beside the initial kernel."""
    variants = with_routing(results.paper, "similarity")
    size = (8.6, 2.6 * len(variants) + 0.3)
    drawing, axes = plt.subplots(len(variants), len(CAPSULE_LAYERS), figsize=size, squeeze=False)
    labels = {"learned": "learned, one for each type of output capsule", "initial": "initial"}
    looks: dict[str, dict[str, Any]] = {
        "learned": {"color": "#0072B2", "linewidth": 0.8},
        "initial": {"color": "black", "dashes": (4, 2)},
    }
    distances, frames = np.linspace(0, REACH, 41), []
    for row, (variant, settings) in zip(axes, variants.items(), strict=True):
        width = float(results.config(variant)["model"]["routing"]["kernel_width"])
        for place, (axis, layer) in enumerate(zip(row, CAPSULE_LAYERS, strict=True)):
            mixture, widths = (results.arrays(variant, "kernels")[f"{part}-{place}"] for part in ("mixture", "widths"))
            curves = {"learned": kernel(distances, mixture, widths)}
            curves["initial"] = kernel(distances, np.zeros(1), np.full((1, 1), width))
            for name, values in curves.items():
                axis.plot(distances, values, marker="", **{"linestyle": "-", **looks[name]})[0].set_label(labels[name])
                frame = pd.DataFrame(values).assign(distance=distances)
                frame = frame.melt("distance", var_name="type", value_name="K")
                frames.append(frame.assign(variant=variant, layer=layer, kernel=name))
            axis.set(xlabel="distance of vote and pose", ylabel="kernel K", ylim=(-0.03, 1.03))
            axis.set_title(f"{_label(dataset_of(variant))}, {settings.title}\n{CAPSULE_LAYERS[layer]}", fontsize=8)
    legend_below(drawing, axes.flat, list(labels.values()))
    return drawing, pd.concat(frames)[["variant", "layer", "kernel", "type", "distance", "K"]]


def kernel(distances: Array, mixture: Array, widths: Array) -> Array:
    """K of eq. 15 at some distances [n], for logits of the mixture weights [Q] and widths [Q, J]: [n, J]."""
    import torch

    from recaps.nn.routing.similarity import SMALL, mixture_kernel

    weights, width = torch.tensor(mixture).double().softmax(0), torch.tensor(widths).double()
    votes = torch.tensor(distances).double()[None, None, :, None, None].expand(-1, -1, -1, widths.shape[1], 1)
    return mixture_kernel(votes, 0 * votes[:, :, 0], weights, 1 / (2 * width.square() + SMALL))[0, 0].numpy()


def figure_6(results: Results) -> tuple[Figure, pd.DataFrame]:
    """The input of the right class by position, and the number of inputs that an output capsule uses."""
    every = probed(results.paper)
    n = len(every)
    maps = 1.25 * (1 + max(map(len, every.values())))
    drawing = plt.figure(figsize=(8.8, maps + 2.2 * n))
    top, bottom = drawing.subfigures(2, 1, height_ratios=(maps, 2.2 * n), squeeze=False).flat
    frames = [
        _draw_weights(part, results, dataset, variants, SHOWN // n)
        for part, (dataset, variants) in zip(top.subfigures(1, n, squeeze=False).flat, every.items(), strict=True)
    ]
    axes = bottom.subplots(n, len(CAPSULE_LAYERS), sharey=True, squeeze=False)
    for row, (dataset, variants) in zip(axes, every.items(), strict=True):
        for place, (axis, layer) in enumerate(zip(row, CAPSULE_LAYERS, strict=True)):
            for start, (variant, settings) in enumerate(variants.items()):
                shares = results.arrays(variant, "routing")[f"effective-{place}"]
                look = _style(results, variant)
                axis.plot(shares, LEVELS, label=settings.title, markevery=(6 * start, 20), **look)
                frame = pd.DataFrame({"level": LEVELS, "value": shares, "quantity": "effective share"})
                frames.append(frame.assign(layer=layer, dataset=dataset, variant=variant))
            axis.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xlabel="effective share of the inputs")
            axis.set_title(f"{_label(dataset)}: {CAPSULE_LAYERS[layer]}", fontsize=8)
        row[0].set_ylabel("output capsules\nat or below")
    titles = dict.fromkeys(each.title for variants in every.values() for each in variants.values())
    legend_below(bottom, axes.flat, [*titles])
    columns = ["dataset", "variant", "quantity", "layer", "image", "row", "column", "level", "value"]
    return drawing, pd.concat(frames)[columns].astype(dict.fromkeys(("image", "row", "column"), "Int64"))


def _draw_weights(
    drawing: SubFigure, results: Results, dataset: str, variants: Mapping[str, Variant], count: int
) -> pd.DataFrame:
    """The first image of some classes, and below, for each variant, a map of the input of the right class."""
    probes = {variant: results.arrays(variant, "routing") for variant in variants}
    first = next(iter(probes.values()))
    axes = drawing.subplots(1 + len(probes), min(count, len(first["label"])), squeeze=False)
    for axis, picture, label in zip(axes[0], first["pictures"], first["label"], strict=False):
        mosaic(axis, picture, 1, "gray", 0, 1)
        axis.set_title(str(int(label)), loc="center", fontsize=8)
    frames = []
    for row, (variant, probe) in zip(axes[1:], probes.items(), strict=True):
        shares, even = probe["shares"][:count], float(probe["even"])
        highest = 100 * max(float(shares.max()), 2 * even)
        for axis, image, share in zip(row, probe["image"], shares, strict=False):
            labelled_map(axis, 100 * share, highest)
            rows, columns = (each.ravel() for each in np.indices(share.shape))
            frame = pd.DataFrame({"image": int(image), "row": rows, "column": columns, "value": share.ravel()})
            frames.append(frame.assign(variant=variant, quantity="share of the right class", layer="class"))
        title = variants[variant].title.replace(" ", "\n", 1)
        row[0].set_ylabel(f"{title}\n(even: {100 * even:.0f})", fontsize=8)
    drawing.suptitle(f"{_label(dataset)}: input of the right class, %", x=0.01, ha="left", fontsize=10)
    return pd.concat(frames).assign(dataset=dataset)


def figure_7(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Test error during training, a panel per data set, a line per variant."""
    watched = by_dataset(results.paper, where=lambda each: each.training.evaluate_every > 0)
    drawing, axes = plt.subplots(1, len(watched), figsize=(4.2 * len(watched) + 0.2, 3.8), squeeze=False)
    frames = []
    labels: list[str] = []
    for axis, (dataset, variants) in zip(axes.flat, watched.items(), strict=True):
        for variant, settings in variants.items():
            curves = results.all_evaluations(variant)
            frames.append(curves.assign(dataset=dataset, variant=variant))
            labels.append(f"{settings.title}\n{tested_on(settings.training)}")
            error_curve(axis, curves, labels[-1], _style(results, variant))
        axis.set(xlabel="training step", ylabel="test error, %")
        axis.set_title(_label(dataset))
        plain_numbers(axis)
    legend_below(drawing, axes.flat, list(dict.fromkeys(labels)))
    return drawing, pd.concat(frames)[["dataset", "variant", "seed", "step", "test_error"]]


def figure_8(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Seconds per 100 training steps: the median of the rounds, and every round; and memory, if it was counted."""
    timing = results.timing("steps")
    kept = {name: each / 1e6 for name, each in timing.get("bytes_kept_per_image", {}).items()}
    drawing, axes = plt.subplots(1, 2 if kept else 1, figsize=(9.6 if kept else 5.6, 3.4), squeeze=False)
    axis, *beside = axes.flat
    rows, ticks = [], {}
    timed = {name: each for name, each in results.paper.variants.items() if name in timing["seconds_per_step"]}
    for place, (variant, settings) in enumerate(timed.items()):
        seconds, batch = 100 * np.array(timing["seconds_per_step"][variant]), timing["batch_size"][variant]
        timing_bar(axis, place, seconds, reference=variant == f"{dataset_of(variant)}-em")
        ticks[float(place)] = f"{settings.title}\n{batch}"
        rows += [(variant, k, batch, each, kept.get(variant)) for k, each in enumerate(seconds)]
        for other in beside:
            other.bar(place, kept[variant], width=0.8, color="0.55" if variant.endswith("-em") else "#9CCBE8")
    timing_axis(axis, ticks, timing)
    for other in beside:
        other.set_xticks(list(ticks), [settings.title for settings in timed.values()])
        other.tick_params(axis="x", length=0)
        other.grid(False, axis="x")
        other.set(ylabel="MB per image", title="kept for the backward pass")
    columns = ["variant", "round", "batch_size", "seconds_per_100_steps", "megabytes_per_image"]
    return drawing, pd.DataFrame(rows, columns=columns)


def by_iteration(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Error, and share of the inputs that a class capsule uses, if routing ends early: mean over seeds (`shifts`)."""
    drawing, axes = plt.subplots(1, 2, figsize=(6.8, 3.2))
    means = results.metrics.groupby(["variant", "metric"])["value"].mean().reset_index()
    parts = means["metric"].str.extract(r"^(error|effective-share-class)-(\d)$")
    frame = means.assign(quantity=parts[0], iteration=parts[1]).dropna().astype({"iteration": int})
    for axis, quantity, label in (
        (axes[0], "error", "error, %"),
        (axes[1], "effective-share-class", "share of its inputs that a class uses"),
    ):
        for variant, settings in results.paper.variants.items():
            rows = frame[(frame["quantity"] == quantity) & (frame["variant"] == variant)]
            axis.plot(rows["iteration"], rows["value"], label=settings.title, **_style(results, variant))
        axis.set(xlabel="iterations of routing", ylabel=label, xticks=frame["iteration"].unique())
        axis.set_ylim(bottom=0)
    legend_below(drawing, axes, [each.title for each in results.paper.variants.values()])
    return drawing, frame[["variant", "quantity", "iteration", "value"]]


def _label(dataset: str) -> str:
    return DATASETS.get(dataset, dataset)


def _style(results: Results, variant: str) -> dict[str, Any]:
    """Colour, dash and marker of a variant: the same on all data sets and in all figures."""
    routings = dict.fromkeys([*ROUTINGS, *(name.partition("-")[2] for name in results.paper.variants)])
    return style(list(routings).index(variant.partition("-")[2]))
