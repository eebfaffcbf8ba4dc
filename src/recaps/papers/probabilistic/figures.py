"""Figures of *Capsule Networks, a Probabilistic Perspective*."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from recaps.npz import Array
from recaps.papers.probabilistic import diagrams
from recaps.papers.probabilistic.metrics import trained_on_rotations
from recaps.papers.probabilistic.record import CLASSES, ROTATED, TWO
from recaps.papers.probabilistic.templates import signed
from recaps.report.metrics import first_of_each
from recaps.report.plots import mean_and_range, mosaic_rows, style, tick_columns
from recaps.report.results import Results

#: The variant of figures 1, 2, 3, 6 and 9.
MODEL = "capsules"

#: Features of the linear classifiers of figure 4, by the head.
FEATURES = {"presence": "presences", "presence-pose": "presences and poses", "linear": "means and deviations"}

#: Small and large rotations in figure 7, in degrees.
TURNS = {"small": (330, 0, 30), "large": (90, 180, 270)}

#: Samples in a row of figure 9.
PER_ROW = 20


def figure_1(results: Results) -> tuple[Figure, pd.DataFrame]:
    """The variables of the generative model and what they depend on, as built."""
    return _diagram(results, diagrams.draw_connections, (9.4, 4.6))


def figure_2(results: Results) -> tuple[Figure, pd.DataFrame]:
    """The dependencies in the generative model and in the approximate posterior, as built."""
    return _diagram(results, diagrams.draw_dependencies, (9.0, 3.9))


def figure_3(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Amortised and free-form reconstructions of a rotated 2, and the bound during the optimisation."""
    probe, average = results.arrays(MODEL, "free-form-rotations"), results.arrays(MODEL, "free-form")
    angles = probe["angles"]
    drawing, (left, right) = plt.subplots(1, 2, figsize=(9.2, 3.4), width_ratios=(1.75, 1))
    arrays = {"digit": "images", "amortised": "chain", "free-form": "chain_free"}
    _draw_rows(left, [(label, probe[name]) for label, name in arrays.items()])
    tick_columns(left, [f"{angle:g}°" for angle in angles], probe["images"].shape[-1])
    frames = []
    shades = plt.get_cmap("viridis")(np.linspace(0, 0.92, len(angles)))
    for place, (angle, shade) in enumerate(zip(angles, shades, strict=True)):
        along = probe["bound_along"][:, place]
        right.plot(probe["steps"], along, color=shade, linestyle="-", marker="", linewidth=1.2, label=f"2, {angle:g}°")
        frame = pd.DataFrame({"step": probe["steps"], "bound": along, "squared_error_amortised": probe["error"][place]})
        frame = frame.assign(squared_error_free_form=probe["error_free"][place])
        frames.append(frame.assign(image=f"2 turned by {angle:g} degrees"))
    label = f"mean over {int(average['n']):,} test digits"
    right.plot(average["steps"], average["bound"], color="black", linestyle="--", marker="", label=label)
    frames.append(pd.DataFrame({"step": average["steps"], "bound": average["bound"]}).assign(image=label))
    right.set(xlabel="step of the optimisation", ylabel="bound, nats", xlim=(0, probe["steps"][-1]))
    right.legend(loc="upper center", bbox_to_anchor=(0.45, -0.2), fontsize=6.5, ncols=3)
    columns = ["image", "step", "bound", "squared_error_amortised", "squared_error_free_form"]
    return drawing, pd.concat(frames)[columns]


def figure_4(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Accuracy of models trained and tested on rotated digits, against the largest rotation."""
    drawing, axis = plt.subplots(figsize=(5.6, 3.7))
    rows = []
    for place, ((_, head), points) in enumerate(trained_on_rotations(results).items()):
        family = results.paper.variants[next(iter(points.values()))[0]].title.partition(" (")[0]
        label = f"{family}, {FEATURES.get(head, head)}"
        runs = {degrees: (name, results.metric(name, f"{head}-{own}")) for degrees, (name, own) in points.items()}
        over_seeds = {degrees: values for degrees, (_, values) in runs.items()}
        mean_and_range(axis, over_seeds, label=label, **style(place))
        for degrees, (variant, values) in runs.items():
            seeded = zip(results.own_seeds[variant], values, strict=True)
            rows += [(label, variant, head, degrees, seed, float(value)) for seed, value in seeded]
    axis.set(xlabel="largest rotation in training and test, degrees", ylabel="accuracy, %")
    axis.set_xticks((0, *ROTATED))
    axis.legend(loc="best")
    return drawing, pd.DataFrame(rows, columns=["line", "variant", "head", "degrees", "seed", "accuracy"])


def figure_5(results: Results) -> tuple[Figure, pd.DataFrame]:
    """A 2 at all rotations, and the template that draws each of its strokes."""
    variants = _shown(results, "figure-5", "rotations")
    drawing, axes = plt.subplots(len(variants), 1, figsize=(9.2, 2.05 * len(variants)), squeeze=False)
    frames = []
    for axis, variant in zip(axes.flat, variants, strict=True):
        probe = results.arrays(variant, "rotations")
        place = int((probe["labels"] == TWO).argmax())  # the first image if there is no 2
        owner = probe["owner"][:, place]
        _draw_rows(axis, [("digit", probe["images"]), ("templates", coloured(probe["chain"][:, place], owner))])
        tick_columns(axis, [f"{angle:g}°" for angle in probe["angles"]], owner.shape[-1])
        axis.set_title(results.paper.variants[variant].title)
        for angle, seen, inked in zip(probe["angles"], owner, probe["ink"], strict=True):
            owners, counts = np.unique(seen[inked], return_counts=True)
            frame = pd.DataFrame({"template": owners, "share_of_ink": counts / counts.sum()})
            frames.append(frame.assign(variant=variant, image=probe["image"][place], degrees=angle))
    columns = ["variant", "image", "degrees", "template", "share_of_ink"]
    return drawing, pd.concat(frames)[columns]


def figure_6(results: Results) -> tuple[Figure, pd.DataFrame]:
    """The templates, in their colours in figures 5 and 7, and their alpha channels. It names the dead ones."""
    probe = results.arrays(MODEL, "templates")
    shown, n = probe["templates"] * probe["alphas"], len(probe["templates"])
    drawing, axis = plt.subplots(figsize=(9.2, 9.2 * 3 / n + 0.5))
    owners = np.broadcast_to(np.arange(n)[:, None, None], (n, *shown.shape[2:]))
    pictures = {"seen": coloured(shown[:, 0], owners), "template": probe["templates"][:, 0]}
    _draw_rows(axis, [*pictures.items(), ("alpha", probe["alphas"][:, 0])])
    labels = [f"{place}" if alive else f"{place}\ndead" for place, alive in enumerate(probe["live"])]
    tick_columns(axis, labels, shown.shape[-1])
    means = {"mean_template": probe["templates"].mean((1, 2, 3)), "mean_alpha": probe["alphas"].mean((1, 2, 3))}
    return drawing, pd.DataFrame({"template": range(n), "live": probe["live"]} | means).assign(variant=MODEL)


def figure_7(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Digits after small and large rotations, coloured by template."""
    variants = _shown(results, "figure-7", "rotations")
    drawing, axes = plt.subplots(len(variants), 1, figsize=(9.2, 2.05 * len(variants)), squeeze=False)
    frames = []
    for axis, variant in zip(axes.flat, variants, strict=True):
        probe = results.arrays(variant, "rotations")
        images = first_of_each(probe["labels"], 1)[:CLASSES]
        rows, ticks = [], []
        for label, turns in TURNS.items():
            places = np.array([np.flatnonzero(probe["angles"] == turn)[0] for turn in turns])
            chosen = np.ix_(places, images)
            pictures = coloured(probe["chain"][chosen], probe["owner"][chosen])
            rows.append((label, pictures.swapaxes(0, 1).reshape(-1, *pictures.shape[2:])))
            ticks.append([f"{turn:g}°".replace("-", "−") for turn in signed(np.array(turns))] * len(images))
            pairs = ((turn, image) for turn in turns for image in images)
            for (turn, image), share in zip(pairs, probe["shares"][chosen].ravel(), strict=True):
                about = (int(probe["image"][image]), int(probe["labels"][image]))
                frames.append((variant, label, *about, turn, float(share)))
        _draw_rows(axis, rows)
        columns = [f"{above}\n{below}" for above, below in zip(*ticks, strict=True)]
        tick_columns(axis, columns, probe["owner"].shape[-1])
        axis.set_title(results.paper.variants[variant].title)
    names = ["variant", "turns", "image", "label", "degrees", "same_template"]
    return drawing, pd.DataFrame(frames, columns=names)


def figure_8(results: Results) -> tuple[Figure, pd.DataFrame]:
    """The share of ink that the same template draws at each rotation; and each template with its nearest template."""
    drawing = plt.figure(figsize=(9.2, 6.6))
    above, below = drawing.subfigures(2, 1, height_ratios=(1, 1.15), squeeze=False).flat
    axis = above.subplots()
    frames = []
    variants = _shown(results, "figure-8", "rotations")
    for place, variant in enumerate(variants):
        probe, title = results.arrays(variant, "rotations"), results.paper.variants[variant].title
        angles = signed(probe["angles"])
        order = np.argsort(angles, kind="stable")
        turns = angles[order]
        for quantity, name in (("same template", "mean_share"), ("by chance", "mean_by_chance")):
            mean = probe[name][order]
            look = style(place) | ({"marker": "", "linewidth": 0.9} if quantity == "by chance" else {})
            axis.plot(turns, 100 * mean, label=f"{title}: {quantity}", **look)
            frame = pd.DataFrame({"degrees": turns, "value": mean})
            frames.append(frame.assign(variant=variant, quantity=quantity))
    axis.set(xlabel="rotation, degrees", ylabel="same template, % of the ink", ylim=(0, 103))
    axis.set_xticks(range(-150, 181, 30))
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(variants), fontsize=7)
    variants = _shown(results, "figure-8", "templates")
    panels = below.subplots(len(variants), 1, squeeze=False)
    for axis, variant in zip(panels.flat, variants, strict=True):
        frames.append(_draw_nearest(axis, results, variant).assign(variant=variant, quantity="distance of the nearest"))
        axis.set_title(f"{results.paper.variants[variant].title}: live templates and their nearest templates")
    return drawing, pd.concat(frames)[["variant", "quantity", "degrees", "template", "nearest", "value"]]


def figure_9(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Samples from the generative model."""
    probe = results.arrays(MODEL, "samples")
    pictures, n = probe["samples"], len(probe["samples"])
    drawing, axis = plt.subplots(figsize=(9.2, 9.2 * math.ceil(n / PER_ROW) / PER_ROW))
    _draw_rows(axis, [("", pictures[start : start + PER_ROW]) for start in range(0, n, PER_ROW)])
    return drawing, pd.DataFrame({"sample": range(n), "mean_brightness": probe["brightness"]}).assign(variant=MODEL)


def turns(results: Results) -> tuple[Figure, pd.DataFrame]:
    """The mean turn of poses against the rotation of the image, a panel for each row of the study `equivariance`."""
    lines, variants = {"object": "objects, I + A0", "part": "parts, A1"}, [*results.paper.variants]
    drawing, axes = plt.subplots(1, len(variants), figsize=(4.4 * len(variants), 3.6), sharey=True, squeeze=False)
    frames = []
    for axis, variant in zip(axes.flat, variants, strict=True):
        for place, (kind, label) in enumerate(lines.items()):
            rows = results.metrics[results.metrics["variant"] == variant]
            rows = rows[rows["metric"].str.startswith(f"{kind}-turn-")]
            by_angle = rows.groupby(rows["metric"].str.removeprefix(f"{kind}-turn-").astype(int))["value"].mean()
            axis.plot(by_angle.index, by_angle, label=label, **style(place))
            frame = by_angle.rename_axis("angle").reset_index(name="turn")
            frames.append(frame.assign(variant=variant, poses=label))
        ends = [by_angle.index.min(), by_angle.index.max()]
        axis.plot(ends, ends, color="0.6", linestyle=":", label="as far as the image")
        axis.set(xlabel="rotation of the image (degrees)", xticks=np.arange(-90, 91, 45))
        axis.set_title(results.paper.variants[variant].title)
    axes[0, 0].set(ylabel="mean turn of the poses (degrees)", yticks=np.arange(-90, 91, 45))
    axes[0, 0].legend(loc="upper left")
    return drawing, pd.concat(frames)


def by_steps(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Accuracy of the presences of SCAE at its snapshots and after the last step, mean over seeds (`scae-long`)."""
    (variant,) = results.paper.variants
    training = results.config(variant)["training"]
    means = results.metrics.groupby("metric")["value"].mean()
    steps = {f"-{name}": step for name, step in training["snapshots"].items()} | {"": training["steps"]}
    frame = pd.DataFrame(
        {"data": label, "step": step, "accuracy": means[f"presence-{protocol}{ending}"]}
        for protocol, label in {"mnist-40": "MNIST (40x40)", "affnist": "affNIST"}.items()
        for ending, step in sorted(steps.items(), key=lambda each: each[1])
    )
    drawing, axis = plt.subplots(figsize=(5.2, 3.4))
    for place, (label, rows) in enumerate(frame.groupby("data", sort=False)):
        axis.plot(rows["step"], rows["accuracy"], label=label, **style(place))
    axis.set(xlabel="training steps", ylabel="accuracy (percent)", xscale="log")
    axis.set_xticks(frame["step"].unique(), [f"{step:,}" for step in frame["step"].unique()])
    axis.minorticks_off()
    axis.legend(loc="lower right")
    return drawing, frame.assign(variant=variant)


def coloured(pictures: Array, owners: Array) -> Array:
    """Pictures [..., H, W] in 0..1 in the colours of their templates, white where there is none: [..., H, W, 3]."""
    palette = plt.get_cmap("tab20")
    # Strong colours first, then pale ones; without the greys.
    order = [*range(0, 14, 2), 16, 18, *range(1, 14, 2), 17, 19]
    colours = np.array([palette(place)[:3] for place in order] + [(1, 1, 1)])
    which = np.where(owners < 0, len(order), owners % len(order))
    return np.asarray(np.clip(pictures, 0, 1)[..., None] * colours[which])


def _shown(results: Results, figure: str, probe: str) -> list[str]:
    """The variants of a figure that have a probe."""
    needed = results.paper.matching(results.paper.figures[figure].needs)
    return [variant for variant in needed if probe in results.paper.variants[variant].probes]


def _diagram(
    results: Results, draw: Callable[[Axes, pd.DataFrame], None], size: tuple[float, float]
) -> tuple[Figure, pd.DataFrame]:
    sizes = diagrams.sizes(results.config(MODEL))
    drawing, axis = plt.subplots(figsize=size)
    draw(axis, sizes)
    return drawing, sizes.assign(variant=MODEL)


def _draw_rows(axis: Axes, rows: Sequence[tuple[str, Array]]) -> None:
    """Draw labelled rows of pictures, [n, H, W] in 0..1 or, coloured, [n, H, W, 3]. The first row is the longest."""
    shades = [(label, each if each.ndim == 4 else np.stack([each] * 3, -1)) for label, each in rows]
    mosaic_rows(axis, shades, len(rows[0][1]))


def _draw_nearest(axis: Axes, results: Results, variant: str) -> pd.DataFrame:
    """Draw live templates in the order of their distances, each above its nearest template as mapped."""
    probe = results.arrays(variant, "templates")
    shown = (probe["templates"] * probe["alphas"])[:, 0]
    nearest, distances = probe["nearest"], probe["distances"]
    order = np.argsort(distances, kind="stable")
    order = order[probe["live"][order]]
    _draw_rows(axis, [("template", shown[order]), ("nearest", probe["mapped"][order])])
    labels = [f"{each}, {nearest[each]}\n{distances[each]:.2f}" for each in order]
    tick_columns(axis, labels, shown.shape[-1])
    return pd.DataFrame({"template": order, "nearest": nearest[order], "value": distances[order]})
