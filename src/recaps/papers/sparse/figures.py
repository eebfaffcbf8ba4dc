"""Figures of *Sparse Unsupervised Capsules Generalize Better*."""

from __future__ import annotations

import math
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from recaps.npz import Array
from recaps.papers.sparse.metrics import along_training, supervised_accuracies
from recaps.papers.sparse.record import routes, shows_ranks, shows_single_capsules
from recaps.report.plots import mean_and_range, mosaic, style
from recaps.report.results import Results

#: The protocol of a trained model that the protocols of snapshots repeat.
TRAINED = "affnist-a-trained"


def figure_1(results: Results) -> tuple[Figure, pd.DataFrame]:
    """One dimension of the digit's capsule of SUPCAPS, moved from -0.25 to 0.25, for each of six images."""
    return _traversals(results, "supcaps-28", "offset of one dimension of the digit's capsule")


def figure_2(results: Results) -> tuple[Figure, pd.DataFrame]:
    """The contribution of each capsule to the reconstruction of one image, a row per model on 28x28 images."""
    shown = {name: each for name, each in results.paper.variants.items() if shows_single_capsules(each)}
    size, widths = (13.2, 3.6 * len(shown)), (1, 2, 2, 2)
    drawing, axes = plt.subplots(len(shown), 4, figsize=size, width_ratios=widths, squeeze=False)
    data = []
    for row, (variant, settings) in zip(axes, shown.items(), strict=True):
        arrays = results.arrays(variant, "single-capsules")
        full, change = arrays["full"], arrays["change"]
        largest = float(np.abs(change).max())
        panels = (
            ("(a) input, all capsules", [arrays["image"], full], 1, "gray", 0, 1),
            ("(a) each capsule alone", [*arrays["single"]], 4, "gray", 0, 1),
            ("(b) all but one", [*(full + change)], 4, "gray", 0, 1),
            (f"(c) change: up to {largest:.2g}", [*change], 4, "RdBu_r", -largest, largest),
        )
        for axis, (title, pictures, columns, colours, low, high) in zip(row, panels, strict=True):
            mosaic(axis, pictures, columns, colours, low, high)
            axis.set_title(title)
        row[0].set_ylabel(settings.title)
        drawing.colorbar(row[3].images[0], ax=row[3], label="change in brightness", shrink=0.8)
        numbers = {"relative_change_without": arrays["relative_change"], "mask": arrays["mask"]}
        data.append(pd.DataFrame({"variant": variant, "capsule": range(len(change)), **numbers}))
    return drawing, pd.concat(data)


def figure_3(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Routing support by rank, relative to the largest, averaged over images: a panel for each size of images."""
    drawing, axes = plt.subplots(1, 2, figsize=(8.4, 3.4), sharey=True)
    rows, lines = [], dict[str, Any]()
    for axis, side, dataset in zip(axes, (40, 28), ("mnist-40/test", "mnist/test"), strict=True):
        for variant, settings in results.paper.variants.items():
            if not routes(settings) or dataset not in settings.latents:
                continue
            curve = results.arrays(variant, "support")["by_rank"]
            model = settings.title.removesuffix(" (28x28)")
            place = list(lines).index(model) if model in lines else len(lines)
            (lines[model],) = axis.plot(range(len(curve)), curve, **style(place))
            rows += [(variant, rank, float(value)) for rank, value in enumerate(curve)]
        axis.set(title=f"MNIST, {side}x{side} pixels", xlabel="rank of the latent capsule in its image", ylim=(0, 1.05))
        axis.set_xticks(range(0, 16, 2))
    axes[0].set_ylabel("routing support / largest")
    axes[0].legend(lines.values(), lines.keys())
    return drawing, pd.DataFrame(rows, columns=["variant", "rank", "relative_support"])


def figure_4(results: Results) -> tuple[Figure, pd.DataFrame]:
    """The frequency of each rank on affNIST for each capsule, a panel per sparse model."""
    shown = {name: each for name, each in results.paper.variants.items() if shows_ranks(each)}
    drawing, axes = plt.subplots(len(shown), 1, figsize=(7.2, 3.6 * len(shown)), squeeze=False)
    rows = []
    for axis, (variant, settings) in zip(axes[:, 0], shown.items(), strict=True):
        frequencies = results.arrays(variant, "ranks")["frequencies"]
        _draw_frequencies(axis, frequencies, settings.model.frequency_range)
        if len(shown) > 1:
            axis.set_title(settings.title)
        rows += [(variant, c, r, float(value)) for c, line in enumerate(frequencies) for r, value in enumerate(line)]
    drawing.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper right")
    return drawing, pd.DataFrame(rows, columns=["variant", "capsule", "rank", "frequency"])


def _draw_frequencies(axis: Axes, frequencies: Array, target: tuple[float, float]) -> None:
    low, high = target
    axis.axhspan(low, high, color="0.88", label=f"target of rank 0: {low:g} to {high:g}")
    shades = plt.get_cmap("viridis")(np.linspace(0, 0.92, len(frequencies)))
    for line, shade in zip(frequencies, shades, strict=True):
        highest = [int(line.argmax())]
        axis.plot(line, color=shade, linestyle="-", marker="o", markersize=2.5, markevery=highest, linewidth=1.1)
    gap = 0.05 * frequencies.max()
    piles = label_piles(frequencies, gap)
    for capsules, rank, height in piles:
        text, where = "\n".join(map(str, capsules)), (rank, height)
        axis.annotate(text, where, (0, 2), textcoords="offset points", ha="center", fontsize=6, linespacing=0.9)
    top = max(height + gap * (1 + len(capsules)) for capsules, _, height in piles)
    axis.set(xlabel="rank", ylabel="fraction of images", ylim=(0, top))
    axis.set_xticks(range(0, len(frequencies), 2))


def label_piles(frequencies: Array, gap: float) -> list[tuple[list[int], int, float]]:
    """Group capsules whose lines [L capsules, L ranks] are highest at nearly the same place, so that no label overlaps.

    A label is as high as `gap`.

    Returns:
        For each group its capsules from the top down, and the rank and height of the highest point.
    """
    piles: list[tuple[list[int], int, float]] = []
    peaks = sorted((int(line.argmax()), float(line.max()), capsule) for capsule, line in enumerate(frequencies))
    for rank, height, capsule in peaks:
        below: list[int] = []
        if piles and piles[-1][1] == rank and height < piles[-1][2] + gap * len(piles[-1][0]):
            below = piles.pop()[0]
        piles.append(([capsule, *below], rank, height))
    return piles


def figure_5(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Dimensions of the most active SPARSECAPS capsule, each set from -1 to 1."""
    return _traversals(results, "sparsecaps-28", "value of one dimension of the most active capsule")


def accuracy_along_training(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Accuracy on affNIST (a) of the snapshots of each variant that has them, and of the trained model."""
    drawing, axis = plt.subplots(figsize=(5.6, 3.7))
    rows = []
    for variant, settings in results.paper.variants.items():
        points = along_training(results, variant, "svm", TRAINED)
        if not points:
            continue
        values = {step: results.metric(variant, f"svm-{protocol}") for step, protocol in points.items()}
        line = mean_and_range(axis, values, marker="o", label=settings.title)
        if (printed := results.published.get((variant, "svm-affnist-a-position"))) is not None:
            axis.axhline(printed, color=line.get_color(), linestyle=":", linewidth=1)
        for step, each in values.items():
            seeded = zip(results.own_seeds[variant], each, strict=True)
            rows += [(variant, step, seed, float(value)) for seed, value in seeded]
    axis.set(xscale="log", xlabel="training step", ylabel="accuracy on affNIST (a), %")
    steps = sorted({step for _, step, _, _ in rows})
    axis.set_xticks(steps, [f"{step:,}" for step in steps])
    axis.minorticks_off()
    axis.legend()
    return drawing, pd.DataFrame(rows, columns=["variant", "step", "seed", "accuracy"])


def accuracy_at_accuracy(results: Results) -> tuple[Figure, pd.DataFrame]:
    """The accuracy on affNIST against that on expanded MNIST along training, of the networks with labels."""
    drawing, axis = plt.subplots(figsize=(5.6, 3.9))
    data = pd.concat([supervised_accuracies(part).assign(seed=seed) for seed, part in results.by_seed()])
    for place, variant in enumerate(data["variant"].unique()):
        title, colour, own = results.paper.variants[variant].title, f"C{place}", data[data["variant"] == variant]
        means = own.groupby("step")[["mnist", "affnist"]].mean()
        axis.plot(means["mnist"], means["affnist"], marker="o", color=colour, label=title)
        axis.plot(own["mnist"], own["affnist"], linestyle="none", marker=".", color=colour, alpha=0.5)
        for step, *where in means.itertuples():
            # One network's labels are left above its line, the other's right below.
            beside, side = ((-7, 4), "right") if place else ((7, -8), "left")
            axis.annotate(f"{step:,}", where, beside, textcoords="offset points", ha=side, fontsize=7, color=colour)
        at = [results.published.get((variant, f"argmax-{each}"), math.nan) for each in ("mnist-shifted", "affnist")]
        label = None if math.isnan(at[1]) else f"{title}, published"
        axis.plot(*at, linestyle="none", marker="x", markersize=8, color=colour, label=label)
    axis.set(xlabel="accuracy on expanded MNIST, %", ylabel="accuracy on affNIST, %")
    axis.margins(0.12)
    axis.legend()
    return drawing, data


def _traversals(results: Results, variant: str, label: str) -> tuple[Figure, pd.DataFrame]:
    """A row per image: the image, then decoded images for 11 values of the dimension that changes the image most."""
    arrays = results.arrays(variant, "traversals")
    images, decoded, values = arrays["images"], arrays["decoded"], arrays["values"]
    drawing, axes = plt.subplots(len(images), 1, figsize=(6.4, 0.56 * len(images) + 0.5))
    frames = []
    for image, axis in enumerate(axes):
        strip = [images[image], *decoded[image]]
        mosaic(axis, strip, len(strip), "gray", 0, 1)
        axis.set_ylabel(f"{int(arrays['labels'][image])}", rotation=0, ha="right", va="center")
        moved = {name: arrays[name][image] for name in ("capsule", "dimension")}
        frames.append(pd.DataFrame({"image": image, **moved, "value": values, "ink": arrays["ink"][image]}))
    axes[0].set_title(f"input, then {label}: {values[0]:g} to {values[-1]:g}", fontsize=8)
    return drawing, pd.concat(frames)
