"""*Sparse Unsupervised Capsules Generalize Better*: tables 1 and 2, figures 1 to 5, and the numbers behind them."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from recaps.config.variant import Variant
from recaps.npz import Array
from recaps.report.parts import mosaic
from recaps.report.results import MetricRow, Results, deviation, head_metrics, mean_row, metric_rows

#: Rows of table 1: label, variant, head; protocol and claim of the MNIST column; the same of the affNIST column.
TABLE_1 = (
    ("Conventional ConvNet", "convnet", "argmax", "mnist-shifted", "convnet-mnist", "affnist", "convnet-affnist"),
    ("SUPCAPS", "supcaps", "argmax", "mnist-shifted", "supcaps-mnist", "affnist", "supcaps-affnist"),
    *(
        (f"{label} + SVM {case}", variant, "svm", "mnist", f"{claim}-mnist", protocol, affnist and f"{claim}-{affnist}")
        for label, variant, claim in (
            ("SPARSECAPS", "sparsecaps", "sparsecaps"),
            ("Unmasked SPARSECAPS", "dense", "unmasked"),
        )
        for case, protocol, affnist in (
            ("(a)", "affnist-a-position", "affnist-a"),
            ("(a), disjoint digits", "affnist-a-disjoint", None),
            ("(b)", "affnist-b", "affnist-b"),
        )
    ),
)

#: Rows of table 2 that the paper quotes: reference, MNIST, trained on affNIST, affNIST.
TABLE_2_QUOTED = (
    ("Zhao et al., 2017", 97.82, "yes", 86.79),
    ("Chang et al., 2017", 97.5, "mix", 91.6),
    ("Asano, 2018", 99.25, "yes", 87.55),
)


def table_1(results: Results) -> pd.DataFrame:
    """Accuracy in percent on MNIST and affNIST, ours (mean and sd over seeds) beside the published."""
    rows = []
    for label, variant, head, mnist, mnist_claim, affnist, affnist_claim in TABLE_1:
        row: dict[str, object] = {"algorithm": label}
        for column, protocol, claim in (("MNIST", mnist, mnist_claim), ("affNIST", affnist, affnist_claim)):
            ours = results.accuracy(variant, head, protocol)
            row[f"{column} ours"] = ours.mean()
            row[f"{column} sd"] = deviation(ours)
            row[f"{column} published"] = results.published.get(f"sparse/table-1/{claim}")
        last = results.head(variant, head, affnist)[0]
        row |= {"affNIST set": results.resolve("affnist/test").split("/")[0], "seeds": len(results.seeds)}
        if last["n_fit"] and (shared := last["test_images_whose_original_was_fitted"]) is not None:
            row["same digits %"] = 100 * shared / last["n"]
        rows.append(row)
    return pd.DataFrame(rows)


def table_2(results: Results) -> pd.DataFrame:
    """SPARSECAPS beside networks trained on affNIST, whose accuracies the paper quotes."""
    rows = [
        {"reference": reference, "trained on affNIST": trained, "MNIST published": mnist, "affNIST published": affnist}
        for reference, mnist, trained, affnist in TABLE_2_QUOTED
    ]
    for reference, row in (("CNN in Sabour et al., 2017", TABLE_1[0]), ("SPARSECAPS", TABLE_1[2])):
        _, variant, head, mnist_protocol, mnist_claim, affnist_protocol, affnist_claim = row
        rows.append(
            {
                "reference": reference,
                "trained on affNIST": "no",
                "MNIST published": results.published[f"sparse/table-1/{mnist_claim}"],
                "affNIST published": results.published[f"sparse/table-1/{affnist_claim}"],
                "MNIST ours": results.accuracy(variant, head, mnist_protocol).mean(),
                "affNIST ours": results.accuracy(variant, head, affnist_protocol).mean(),
            }
        )
    return pd.DataFrame(rows)


def figure_1(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Six dimensions of SUPCAPS digit capsules, each moved from -0.25 to 0.25."""
    return _traversals(results, "supcaps-28", "offset of one dimension of the digit's capsule", 6)


def figure_5(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Dimensions of the most active SPARSECAPS capsule, each set from -1 to 1."""
    return _traversals(results, "sparsecaps-28", "value of one dimension of the most active capsule", 8)


def figure_2(results: Results) -> tuple[Figure, pd.DataFrame]:
    """What each capsule adds to one image's reconstruction, in the dense and in the sparse model."""
    models = (("dense-28", "Dense"), ("sparsecaps-28", "Sparse"))
    drawing, axes = plt.subplots(len(models), 3, figsize=(9, 6.4))
    data = []
    for row, (variant, label) in zip(axes, models, strict=True):
        probe = results.probe(variant, "single-capsules")
        image, full, without = probe["images"][0, 0], probe["full"][0, 0], probe["without"][0, :, 0]
        change = without - full
        panels = (
            (f"{label}: input, all, each alone", [image, full, *probe["single"][0, :, 0]], "gray", 0, 1),
            ("leaving one out", [*without], "gray", 0, 1),
            ("what that changes", [*change], "RdBu_r", -1, 1),
        )
        for axis, (title, pictures, colours, low, high) in zip(row, panels, strict=True):
            mosaic(axis, pictures, 6 if len(pictures) > 16 else 4, colours, low, high)
            axis.set_title(title)
        total = np.square(full).sum()
        for capsule, changed in enumerate(np.square(change).sum((1, 2))):
            data.append((variant, capsule, float(changed / total), float(probe["mask"][0, capsule])))
    drawing.colorbar(axes[0, 2].images[0], ax=axes[:, 2], label="change in brightness", shrink=0.5)
    return drawing, pd.DataFrame(data, columns=["variant", "capsule", "relative_change_without", "mask"])


def figure_3(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Routing support by rank, relative to the largest, averaged over images."""
    drawing, axis = plt.subplots(figsize=(5.2, 3.4))
    rows = []
    for variant in ("supcaps", "dense", "sparsecaps"):
        curve = relative_support(results.latents(variant, "mnist-40/test", "support")["support"]).mean(0)
        axis.plot(range(len(curve)), curve, label=results.paper.variants[variant].title)
        rows += [(variant, rank, float(value)) for rank, value in enumerate(curve)]
    axis.set(xlabel="rank of the latent capsule in its image", ylabel="routing support / largest", ylim=(0, 1.05))
    axis.set_xticks(range(0, 16, 2))
    axis.legend()
    return drawing, pd.DataFrame(rows, columns=["variant", "rank", "relative_support"])


def figure_4(results: Results) -> tuple[Figure, pd.DataFrame]:
    """How often each capsule takes each rank on affNIST."""
    frequencies = rank_frequencies(results.latents("sparsecaps", "affnist/test", "ranks")["ranks"])
    low, high = results.paper.variants["sparsecaps"].model.frequency_range
    drawing, axis = plt.subplots(figsize=(5.6, 3.6))
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
    drawing.legend(loc="outside upper right")
    rows = [(c, r, float(value)) for c, line in enumerate(frequencies) for r, value in enumerate(line)]
    return drawing, pd.DataFrame(rows, columns=["capsule", "rank", "frequency"])


def metrics(results: Results) -> pd.DataFrame:
    """Head accuracies, reconstruction errors, and the numbers behind figures 2 to 4 and section 2.2."""
    rows: list[MetricRow] = []
    for seed in results.seeds:
        for variant, settings in results.paper.variants.items():
            if settings.model.family != "convnet":
                rows += _capsule_metrics(results, variant, settings, seed)
    return pd.concat([head_metrics(results), metric_rows(rows)], ignore_index=True)


def _capsule_metrics(results: Results, variant: str, settings: Variant, seed: int) -> list[MetricRow]:
    def mean(metric: str, values: Array, unit: str, measured_on: str) -> MetricRow:
        return mean_row(variant, seed, metric, values, unit, results.resolve(measured_on))

    rows = []
    sparse = settings.model.family == "sparsecaps" and settings.model.learning == "sparse"
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
    if sparse:
        rows.append(mean("mask-active", (arrays["mask"] >= 0.1).sum(1), "count", test))
    if sparse and "affnist/test" in settings.latents:
        first = results.latents(variant, "affnist/test", "ranks", seed=seed)["ranks"] == 0
        order = first.mean(0).argsort()
        for label, capsule in (("min", order[0]), ("max", order[-1])):
            rows.append(mean(f"rank0-frequency-{label}", first[:, capsule], "fraction", "affnist/test"))
    return rows


def relative_support(support: Array) -> Array:
    """Support sorted within each image, largest first, relative to the largest: [N, L] to [N, L]."""
    ordered = -np.sort(-support, axis=1)
    return np.asarray(ordered / ordered[:, :1])


def rank_frequencies(ranks: Array) -> Array:
    """Fraction of images in which each capsule has each rank: [N, L] to [L capsules, L ranks]."""
    return np.stack([(ranks == rank).mean(0) for rank in range(ranks.shape[1])], axis=1)


def label_piles(frequencies: Array, gap: float) -> list[tuple[list[int], int, float]]:
    """Capsules whose lines are highest near the same point, from the top down; the rank and height of the topmost.

    Each pile leaves room for its labels, of height `gap`, below the next at its rank.
    """
    piles: list[tuple[list[int], int, float]] = []
    peaks = sorted((int(line.argmax()), float(line.max()), capsule) for capsule, line in enumerate(frequencies))
    for rank, height, capsule in peaks:
        below: list[int] = []
        if piles and piles[-1][1] == rank and height < piles[-1][2] + gap * len(piles[-1][0]):
            below = piles.pop()[0]
        piles.append(([capsule, *below], rank, height))
    return piles


def leave_one_out_change(probe: dict[str, Array]) -> Array:
    """Largest change that leaving out one capsule makes, relative to the reconstruction, in squared norm: [N]."""
    change = np.square(probe["without"] - probe["full"][:, None]).sum((2, 3, 4))
    return np.asarray(change.max(1) / np.square(probe["full"]).sum((1, 2, 3)))


def _traversals(results: Results, variant: str, label: str, count: int) -> tuple[Figure, pd.DataFrame]:
    """One row per image: the digit, then the dimension of its capsule that changes its picture most, at 11 values."""
    probe = results.probe(variant, "traversals")
    decoded, values = probe["decoded"][:, :, :, 0], probe["values"]
    spread = decoded.var(axis=2).sum((2, 3))  # [N, D]
    images = range(count)
    drawing, axes = plt.subplots(count, 1, figsize=(6.4, 0.56 * count + 0.5))
    rows = []
    for axis, image in zip(axes, images, strict=True):
        dimension = int(spread[image].argmax())
        strip = [probe["images"][image, 0], *decoded[image, dimension]]
        mosaic(axis, strip, len(strip), "gray", 0, 1)
        axis.set_ylabel(f"{int(probe['labels'][image])}", rotation=0, ha="right", va="center")
        for value, picture in zip(values, decoded[image, dimension], strict=True):
            rows.append((int(image), int(probe["capsule"][image]), dimension, float(value), float(picture.sum())))
    axes[0].set_title(f"input, then {label}: {values[0]:g} to {values[-1]:g}", fontsize=8)
    return drawing, pd.DataFrame(rows, columns=["image", "capsule", "dimension", "value", "ink"])


TABLES = {"table-1": table_1, "table-2": table_2}
FIGURES = {"figure-1": figure_1, "figure-2": figure_2, "figure-3": figure_3, "figure-4": figure_4, "figure-5": figure_5}
