"""Figures 2 to 5 of *Routing Towards Discriminative Power of Class Capsules*."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from string import ascii_lowercase
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from recaps.npz import Array
from recaps.papers.discriminative.variants import DATASETS, DECODER, OTHER, by_dataset, learns_coefficients, titles
from recaps.report.metrics import NEAR_ZERO, bin_edges, histogram
from recaps.report.plots import (
    FASHION,
    error_curve,
    legend_below,
    mosaic_rows,
    plain_numbers,
    style,
    tested_on,
    timing_axis,
    timing_bar,
)
from recaps.report.results import Results

#: Pictures in a row of figure 2.
COLUMNS = 10
#: Places of the first algorithms in the style sheet's cycle: black for DR.
PLACES = {"dr": 2, "l2": 0, "l1": 1}
#: Dashes of figure 5, by the algorithm's position among the titles.
DASHES: tuple[Any, ...] = ("-.", "-", "--", ":", (0, (6, 1, 1, 1, 1, 1)))


def figure_2(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Images that L2/FC classifies right, decoded by DR's decoder from its own capsules and from those of L2/FC."""
    shown = results.arrays(OTHER, "decoded")
    labels, classes = shown["labels"], list(shown["classes"]) or FASHION
    own, other = (results.paper.variants[variant].title for variant in (DECODER, OTHER))
    names = ("(a) input", f"(b) {own}", f"(c) {other}", f"(d) {other}, mapped", f"(e) {other}, squashed")
    drawing, axes = plt.subplots(1, len(names), figsize=(12, 2.8))
    for axis, title, pictures in zip(axes, names, (shown["images"], *shown["decoded"]), strict=True):
        by_class = [(label, pictures[labels == label]) for label in np.unique(labels)]
        mosaic_rows(axis, [(classes[label] if axis is axes[0] else "", each) for label, each in by_class], COLUMNS)
        axis.set_title(title)
    owners = ("dr", "l2_fc", "l2_fc_mapped", "l2_fc_squashed")
    columns = ["image", "label", *(f"squared_error_{owner}" for owner in owners)]
    return drawing, pd.DataFrame(dict(zip(columns, (shown["places"], labels, *shown["errors"]), strict=True)))


def figure_3(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Test error along training, a panel per data set, a line per algorithm."""
    drawing, panels = _panels(results)
    frames = []
    for axis, title, dataset, variants in panels:
        for algorithm, variant in variants.items():
            curves = results.all_evaluations(variant)
            frames.append(curves.assign(dataset=dataset, variant=variant))
            error_curve(axis, curves, results.paper.variants[variant].title, _style(results, algorithm))
        axis.set(xlabel="training step", ylabel="test error, %")
        images = dict.fromkeys(tested_on(results.paper.variants[variant].training) for variant in variants.values())
        axis.set_title(f"{title}: {' or '.join(images)}")
        plain_numbers(axis)
    legend_below(drawing, drawing.axes, list(titles(results.paper).values()))
    return drawing, pd.concat(frames)[["dataset", "variant", "seed", "step", "test_error"]]


def figure_4(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Time of a training step relative to DR: the median of the rounds, and every round."""
    timing = results.timing("steps")
    batches = timing["batch_size"]
    drawing, axis = plt.subplots(figsize=(8.4, 3.6))
    rows, ticks, place = [], {}, 0.0
    for dataset, variants in by_dataset(results.paper).items():
        timed = {algorithm: variant for algorithm, variant in variants.items() if variant in timing["seconds_per_step"]}
        if not timed:
            continue
        seconds = {each: 100 * np.array(timing["seconds_per_step"][variant]) for each, variant in timed.items()}
        first = "dr" if "dr" in timed else next(iter(timed))
        base = float(np.median(seconds[first]))
        places = dict(zip(timed, place + np.arange(len(timed)), strict=True))
        for algorithm, variant in timed.items():
            timing_bar(axis, places[algorithm], seconds[algorithm] / base, reference=algorithm == first)
            ticks[places[algorithm]] = f"{results.paper.variants[variant].title}\n{batches[variant]}"
            rows += [(dataset, variant, k, batches[variant], s, s / base) for k, s in enumerate(seconds[algorithm])]
        label = f"{DATASETS.get(dataset, dataset)}\n{results.paper.variants[timed[first]].title}: {base:.3g} s"
        where = (float(np.mean(list(places.values()))), 0)
        axis.annotate(label, where, (0, -32), ("data", "axes fraction"), "offset points", ha="center", va="top")
        place += len(timed) + 0.8
    timing_axis(axis, ticks, timing)
    axis.set_ylabel("time of a step / that of the grey bar")
    axis.axhline(0.8, color="#D55E00", linestyle="--", linewidth=1.2, label="20 % less")
    axis.legend(loc="lower right", bbox_to_anchor=(1, 1))  # above the axes, away from the dots
    columns = ["dataset", "variant", "round", "batch_size", "seconds_per_100_steps", "relative"]
    return drawing, pd.DataFrame(rows, columns=columns)


def figure_5(results: Results) -> tuple[Figure, pd.DataFrame]:
    """The distribution of the learned routing coefficients, and the shares that are negative or almost zero."""
    drawing, panels = _panels(results)
    frames = []
    for axis, title, dataset, variants in panels:
        learning = {key: each for key, each in variants.items() if learns_coefficients(results.paper, each)}
        seeds = {variant: results.seeds_with_arrays(variant) for variant in learning.values()}
        axis.set_title(title + _of_seeds(results, seeds))
        if learning:
            learned = {
                algorithm: [results.arrays(variant, "coefficients", seed) for seed in seeds[variant]]
                for algorithm, variant in learning.items()
            }
            shares = _draw_coefficients(results, axis, learned)
            frames.append(shares.assign(dataset=dataset, variant=shares["algorithm"].map(variants)))
    columns = ["dataset", "variant", "quantity", "low", "high", "share"]
    return drawing, pd.concat(frames)[columns] if frames else pd.DataFrame(columns=columns)


def _panels(results: Results) -> tuple[Figure, Iterator[tuple[Axes, str, str, dict[str, str]]]]:
    """A panel per data set, two in a row: its axis, its title, the data set, and its variants by algorithm."""
    variants = by_dataset(results.paper)
    letters = dict(zip({**DATASETS, **variants}, ascii_lowercase, strict=False))
    columns = min(2, len(variants))
    rows = math.ceil(len(variants) / columns)
    drawing, axes = plt.subplots(rows, columns, figsize=(max(4.2 * columns, 6), 3.1 * rows), squeeze=False)
    for unused in axes.flat[len(variants) :]:
        unused.remove()
    return drawing, (
        (axis, f"({letters[dataset]}) {DATASETS.get(dataset, dataset)}", dataset, by_algorithm)
        for axis, (dataset, by_algorithm) in zip(axes.flat, variants.items(), strict=False)
    )


def _style(results: Results, algorithm: str) -> dict[str, Any]:
    """Colour, dash and marker of an algorithm, the same in every figure."""
    return style(PLACES.get(algorithm, _position(results, algorithm)))


def _position(results: Results, algorithm: str) -> int:
    return list(titles(results.paper)).index(algorithm)


def _draw_coefficients(
    results: Results, axis: Axes, learned: Mapping[str, Sequence[Mapping[str, Array]]]
) -> pd.DataFrame:
    """Draw the distribution of each algorithm's coefficients, means over seeds; return the shares that are drawn."""
    edges = bin_edges([each["values"] for seeds in learned.values() for each in seeds])
    rows = []
    for algorithm, seeds in learned.items():
        shares = np.mean([histogram(each["values"], edges) for each in seeds], axis=0)
        negative, near = (float(np.mean([each[name] for each in seeds])) for name in ("negative", "near-zero"))
        label = f"{titles(results.paper)[algorithm]}: {_percent(negative)} below 0, {_percent(near)} near 0"
        dash = DASHES[_position(results, algorithm) % len(DASHES)]
        colour = _style(results, algorithm)["color"]
        axis.stairs(shares, edges, label=label, color=colour, linestyle=dash, linewidth=1.3)
        rows += [(algorithm, "bin", *each) for each in zip(edges[:-1], edges[1:], shares, strict=True)]
        rows.append((algorithm, "negative", -math.inf, 0.0, negative))
        rows.append((algorithm, "near zero", -NEAR_ZERO, NEAR_ZERO, near))
    highest = max(share for _, quantity, *_, share in rows if quantity == "bin")
    axis.set(xlabel="routing coefficient b", ylabel="share of the coefficients")
    axis.set_ylim(0, highest * (1.15 + 0.14 * len(learned)))  # leave room for the legend
    axis.legend(loc="upper left")
    return pd.DataFrame(rows, columns=["algorithm", "quantity", "low", "high", "share"])


def _of_seeds(results: Results, drawn: Mapping[str, Sequence[int]]) -> str:
    """The seeds of variants that a panel shows, if it lacks some; else nothing."""
    seeds = sorted({seed for each in drawn.values() for seed in each})
    whole = all(len(each) == len(results.own_seeds[variant]) for variant, each in drawn.items())
    return "" if whole else f": seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))} only"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if 0.001 <= share < 0.1 else f"{100 * share:.0f} %"
