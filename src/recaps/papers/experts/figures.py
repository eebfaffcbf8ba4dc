"""Figures of *Training products of expert capsules*; 1 and 2 are the paper's."""

from __future__ import annotations

from collections.abc import Mapping
from string import ascii_lowercase

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from recaps.npz import Array
from recaps.papers.experts.architecture import draw, phase_steps, stages
from recaps.papers.experts.variants import DATASETS, DOMAINS, by_dataset, dataset, label, of_family
from recaps.report import studies
from recaps.report.plots import FASHION, mosaic, mosaic_rows, plain_numbers, style, tick_columns
from recaps.report.results import Results

#: The paper's panels of figure 2, with the letters (a) to (d): data set and domain.
PANELS = tuple((f"{name}-experts", domain) for name in DATASETS for domain in ("complete", "restricted"))

#: Rows of the study `axes` whose samples are shown.
COMPARED = ("as-it-is", "outputs", "outputs-slow", "outputs-ten-iterations", "no-length")

#: Lines of figure 6: columns of the history and their labels.
ERROR = {"reconstruction_error": "squared error of a picture"}
LENGTHS = {"length": "output capsules' sums z", "mixed_activation": "reconstructed input capsules"}

#: Phases of figure 6: title, label of the vertical axis, and lines.
CURVES = {
    "autoencoder": ("autoencoder", "squared error", ERROR),
    "encoder": ("encoder W", "mean length", LENGTHS),
    "decoder": ("decoder U", "squared error", ERROR),
}


def figure_1(results: Results) -> tuple[Figure, pd.DataFrame]:
    """The network as built: shapes, numbers of weights, and what learns in which phase."""
    variant = of_family(results.paper, "experts")[0]
    built = stages(results.config(variant))
    drawing, axis = plt.subplots(figsize=(9, 3.7))
    draw(axis, built)
    return drawing, pd.DataFrame(built).astype({"weights": "Int64"}).assign(variant=variant)


def figure_2(results: Results) -> tuple[Figure, pd.DataFrame]:
    """The first samples of each capsule, one column per capsule, from the complete and the restricted domain."""
    variants = of_family(results.paper, "experts")
    panels = [(variant, domain) for variant in variants for domain in ("complete", "restricted")]
    letters = dict(zip(dict.fromkeys([*PANELS, *panels]), ascii_lowercase, strict=False))
    drawing, axes = plt.subplots(len(panels), 1, figsize=(8.6, 2.05 * len(panels)), squeeze=False)
    frames = []
    for axis, (variant, domain) in zip(axes.flat, panels, strict=True):
        name = label(results.paper, variant)
        axis.set_title(f"({letters[variant, domain]}) {name} - sampled from {domain} domain")
        frames.append(_draw_capsules(axis, results, variant, domain).assign(variant=variant, domain=domain))
    return drawing, pd.concat(frames)


def figure_3(results: Results) -> tuple[Figure, pd.DataFrame]:
    """The first sample x of each capsule above -x, and the correlation of the pictures for all samples."""
    variants = of_family(results.paper, "experts")
    drawing = plt.figure(figsize=(9, 2.75 * len(variants)))
    frames = []
    parts = drawing.subfigures(len(variants), 1, squeeze=False).flat
    for part, variant in zip(parts, variants, strict=True):
        samples, opposite = (results.arrays(variant, name) for name in ("samples", "opposite"))
        values = opposite["correlation"]
        pairs, bars = part.subplots(1, 2, width_ratios=(2.3, 1))
        _draw_pairs(pairs, samples["pictures"][0, 0], opposite["pictures"])
        pairs.set_title(label(results.paper, variant))
        counts, edges = np.histogram(values, 40, (-1, 1))
        bars.stairs(100 * counts / values.size, edges, fill=True, color="#0072B2")
        bars.axvline(values.mean(), color="black", linestyle="--", linewidth=1)
        bars.set(xlabel="correlation of the pictures of x and −x", ylabel="% of the samples", xlim=(-1.05, 1.05))
        bars.set_title(f"mean {values.mean():.2f}")
        sample, capsule = (each.ravel() for each in np.indices(values.shape))
        frame = pd.DataFrame({"sample": sample, "capsule": capsule, "correlation": values.ravel()})
        frames.append(frame.assign(variant=variant))
    return drawing, pd.concat(frames)


def figure_4(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Test images, one of each class, and their reconstructions by each model."""
    panels = _with_probe(results, "chain")
    rows: dict[str, list[tuple[str, Array]]] = {name: [] for name in panels}
    frames = []
    for name, variants in panels.items():
        for variant in variants:
            chain = results.arrays(variant, "chain")
            for array, title in _chain_rows(chain, results.paper.variants[variant].title, first=not rows[name]):
                rows[name].append((title, chain[array]))
                frame = pd.DataFrame({"image": chain["place"], "label": chain["label"]})
                frame = frame.assign(squared_error=chain[f"{array}-error"])
                frames.append(frame.assign(variant=variant, row=title))
    columns = max(len(pictures) for panel in rows.values() for _, pictures in panel)
    drawing, axes = plt.subplots(1, len(rows), figsize=(4.5 * len(rows), 2.7), squeeze=False)
    for axis, (name, panel) in zip(axes.flat, rows.items(), strict=True):
        mosaic_rows(axis, panel, columns)
        axis.set_title(DATASETS.get(name, name))
    return drawing, pd.concat(frames)


def figure_5(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Mean length of each capsule for each class; capsules are ordered by the class with the largest mean."""
    variants = of_family(results.paper, "experts")
    drawing, axes = plt.subplots(len(variants), 1, figsize=(7.2, 2.9 * len(variants)), squeeze=False)
    frames = []
    for axis, variant in zip(axes.flat, variants, strict=True):
        lengths = results.arrays(variant, "lengths")
        means, classes = lengths["means"], lengths["classes"]
        order = np.argsort(means.argmax(0), kind="stable")
        image = axis.imshow(means[:, order], cmap="Blues", vmin=0, aspect="auto")
        axis.set_xticks(range(len(order)), [str(each) for each in order])
        known = FASHION if dataset(variant) == "fashion" else range(len(classes))
        names = lengths.get("names", known)
        axis.set_yticks(range(len(classes)), [str(names[each]) for each in classes])
        axis.set(xlabel="capsule", ylabel="class")
        axis.grid(False)
        axis.set_title(label(results.paper, variant))
        drawing.colorbar(image, ax=axis, label="mean length", pad=0.02)
        frame = pd.DataFrame(means, index=classes).rename_axis("class").reset_index()
        frame = frame.melt("class", var_name="capsule", value_name="mean_length")
        frames.append(frame.assign(variant=variant, column=np.argsort(order)[frame["capsule"].astype(int)]))
    return drawing, pd.concat(frames)


def figure_6(results: Results) -> tuple[Figure, pd.DataFrame]:
    """The quantities that each phase changes, along training; first seed."""
    variants = of_family(results.paper, "experts")
    drawing, axes = plt.subplots(len(variants), len(CURVES), figsize=(9, 2.5 * len(variants) + 0.3), squeeze=False)
    frames = []
    for row, variant in zip(axes, variants, strict=True):
        history, phases = results.history(variant), phase_steps(results.config(variant))
        for axis, (phase, (title, quantity, lines)) in zip(row, CURVES.items(), strict=True):
            start, end = phases[phase]
            rows = history[(history["step"] > start) & (history["step"] <= end)]
            for place, (column, name) in enumerate(lines.items() if len(rows) else ()):
                curve = rows[["step", column]]
                every = max(1, len(curve) // 8)
                axis.plot(curve["step"], curve[column], label=name, markevery=every, **style(place))
                frame = curve.rename(columns={column: "value"}).assign(quantity=name, phase=phase)
                frames.append(frame.assign(variant=variant))
            axis.set(xlabel="training step", ylabel=quantity)
            axis.set_title(f"{label(results.paper, variant)}: {title}")
            plain_numbers(axis)
            if len(axis.lines) > 1:
                axis.legend(loc="best")
    return drawing, pd.concat(frames)[["variant", "phase", "quantity", "step", "value"]]


def figure_7(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Two samples of each capsule, and the same number of samples of the other models."""
    panels = _with_probe(results, "samples")
    columns = max(map(len, panels.values()))
    drawing, axes = plt.subplots(len(panels), columns, figsize=(3 * columns, 2.15 * len(panels)), squeeze=False)
    frames = []
    for row, (name, variants) in zip(axes, panels.items(), strict=True):
        samples = {variant: results.arrays(variant, "samples") for variant in variants}
        pairs = next((2 * each["mean"].shape[2] for each in samples.values() if each["mean"].ndim == 3), None)
        for axis, (variant, shown) in zip(row, samples.items(), strict=False):
            count = 2 if shown["mean"].ndim == 3 else pairs
            pictures = shown["pictures"][:count, -1]
            mosaic(axis, pictures.reshape(-1, *pictures.shape[-2:]), 8, "gray", 0, 1)
            axis.set_title(f"{DATASETS.get(name, name)}: {results.paper.variants[variant].title}")
            frames.append(_brightness(shown, -1, count).assign(variant=variant))
        for axis in row[len(samples) :]:
            axis.set_axis_off()
    return drawing, pd.concat(frames)


def samples_of_rows(results: Results) -> tuple[Figure, pd.DataFrame]:
    """The first samples of each capsule from the restricted domain, a panel for each of five rows of `axes`."""
    return _panels(results, {row: f"mnist-experts-{row}" for row in COMPARED}, "restricted")


def complete_samples_of_rows(results: Results) -> tuple[Figure, pd.DataFrame]:
    """The first samples of each capsule from the complete domain, a panel for each row of a study."""
    return _panels(results, studies.rows(results), "complete")


def restricted_samples_of_rows(results: Results) -> tuple[Figure, pd.DataFrame]:
    """The same from the restricted domain."""
    return _panels(results, studies.rows(results), "restricted")


def _panels(results: Results, rows: Mapping[str, str], domain: str) -> tuple[Figure, pd.DataFrame]:
    """The first samples of each capsule of variants, by the titles of their panels."""
    drawing, axes = plt.subplots(len(rows), 1, figsize=(8.6, 2.05 * len(rows)), squeeze=False)
    frames = []
    for axis, (row, variant) in zip(axes.flat, rows.items(), strict=True):
        axis.set_title(row)
        frames.append(_draw_capsules(axis, results, variant, domain).assign(row=row))
    return drawing, pd.concat(frames)


def _with_probe(results: Results, probe: str) -> dict[str, list[str]]:
    """The variants with a probe, by data set."""
    found = {
        name: [variant for variant in variants if probe in results.paper.variants[variant].probes]
        for name, variants in by_dataset(results.paper).items()
    }
    return {name: variants for name, variants in found.items() if variants}


def _chain_rows(arrays: Mapping[str, Array], title: str, first: bool) -> list[tuple[str, str]]:
    """Rows of figure 4 of one variant: array and label. The first variant also has the test images."""
    rows = [("images", "test image")] if first else []
    if "autoencoder" not in arrays:
        return [*rows, ("chain", title)]
    of = "" if first else f"{title}: "
    return [*rows, ("autoencoder", f"{of}autoencoder"), ("chain", f"{of}W and U")]


def _brightness(samples: Mapping[str, Array], domain: int, count: int | None = None) -> pd.DataFrame:
    """Mean and standard deviation of the pixels of the first samples in a domain, by capsule if there are capsules."""
    mean, sd = (samples[name][:count, domain] for name in ("mean", "sd"))
    places = np.indices(mean.shape).reshape(mean.ndim, -1)
    frame = pd.DataFrame(dict(zip(("sample", "capsule"), places, strict=False)))
    return frame.assign(mean=mean.ravel(), sd=sd.ravel())


def _draw_capsules(axis: Axes, results: Results, variant: str, domain: str) -> pd.DataFrame:
    """Draw the first samples of a domain, a column for each capsule. Return their brightness."""
    samples, place = results.arrays(variant, "samples"), DOMAINS.index(domain)
    pictures = samples["pictures"][:, place]
    capsules, height, width = pictures.shape[1:]
    mosaic(axis, pictures.reshape(-1, height, width), capsules, "gray", 0, 1)
    tick_columns(axis, [str(capsule) for capsule in range(capsules)], width)
    return _brightness(samples, place)


def _draw_pairs(axis: Axes, samples: Array, opposites: Array) -> None:
    """Draw pictures [J, H, W] in rows of at most ten, each row above the pictures of the opposite samples."""
    columns = min(10, len(samples))
    rows: list[tuple[str, Array]] = []
    for start in range(0, len(samples), columns):
        rows += [("x", samples[start : start + columns]), ("−x", opposites[start : start + columns])]
    mosaic_rows(axis, rows, columns)
