"""*Routing Towards Discriminative Power of Class Capsules*: tables 1 and 2, figures 2 to 5, and the numbers behind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from recaps.config.variant import Variant
from recaps.npz import Array
from recaps.report.measures import (
    NEAR_ZERO,
    beyond_class_mean,
    bin_edges,
    early_error,
    first_of_each,
    histogram,
    near_zero_share,
    negative_share,
    squared_error,
    steps_to_level,
    travel,
)
from recaps.report.parts import (
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
from recaps.report.results import MetricRow, Results, deviation, mean_row, metric_rows

#: A variant is named `<data set>-<algorithm>`.
DATASETS = {"mnist": "MNIST", "fashion": "Fashion-MNIST", "cifar": "CIFAR-10", "multimnist": "MultiMNIST"}
ALGORITHMS = {"dr": "DR", "l2": "L2", "l1": "L1", "l2-fc": "L2/FC", "l1-fc": "L1/FC"}

#: Data sets whose errors table II averages.
AVERAGED = ("mnist", "fashion", "cifar")

#: Rows of table I: layer, filter or capsule size, activation, numbers for MNIST, Fashion-MNIST and CIFAR-10.
TABLE_1: tuple[tuple[str, str, str, tuple[int | None, ...]], ...] = (
    ("Conv1", "9x9", "ReLU", (256, 256, 256)),
    ("Cap1", "8", "squash", (32, 32, 64)),
    ("Cap2", "16", "squash", (10, 10, 10)),
    ("FC1", "", "ReLU", (512, 512, None)),
    ("FC2", "", "ReLU", (1024, 1024, None)),
    ("FC3", "", "sigmoid", (784, 784, None)),
)

#: Rows below table I: label, algorithm. L2 and L1 differ in no layer.
PARAMETERS = (("DR", "dr"), ("L2 and L1", "l2"), ("L2/FC and L1/FC", "l2-fc"))

#: Variants of figure 2: the one whose decoder is used, and the one whose capsules it has never seen.
DECODER, OTHER = "fashion-dr", "fashion-l2-fc"


def table_1(results: Results) -> pd.DataFrame:
    """Layers as the paper lists them, beside those that were built, and the numbers of parameters."""
    built = {variant: results.config(variant) for by in _variants(results).values() for variant in by.values()}
    widths = {name: _widths(built[next(iter(by.values()))]) for name, by in _variants(results).items() if by}
    activations, sizes = _activations(results, built), _sizes(built)
    rows = []
    for place, (layer, size, activation, published) in enumerate(TABLE_1):
        row: dict[str, object] = {"layer": layer, "size": size, "size ours": sizes.get(layer, size)}
        row |= {"activation": activation, "activation ours": activations.get(layer, activation)}
        for (dataset, label), number in zip(DATASETS.items(), (*published, None), strict=True):
            ours = widths[dataset][place] if dataset in widths else None
            row |= {f"{label} published": number, f"{label} ours": ours}
        rows.append(row)
    for label, algorithm in PARAMETERS:
        row = {"layer": f"parameters, {label}"}
        for dataset, by in _variants(results).items():
            row[f"{DATASETS[dataset]} ours"] = results.record(by[algorithm])["parameters"] if algorithm in by else None
        rows.append(row)
    table = pd.DataFrame(rows).drop(columns="MultiMNIST published")
    numbers = [column for column in table if str(column).split()[0] in DATASETS.values()]
    return table.astype(dict.fromkeys(numbers, "Int64"))


def table_2(results: Results) -> pd.DataFrame:
    """Test errors in percent, ours (mean and sd over seeds) beside the published; a row per data set and algorithm."""
    rows = [_tested(results, "table-2", dataset, algorithm) for dataset in AVERAGED for algorithm in ALGORITHMS]
    for algorithm, label in ALGORITHMS.items():
        errors = _average(results, algorithm)
        rows.append(_compared(results, "Average of the three", label, f"table-2/average-{algorithm}", errors))
    rows += [_tested(results, "section-4-b", "multimnist", algorithm) for algorithm in ALGORITHMS]
    return pd.DataFrame([row for row in rows if row]).astype({"n": "Int64"})


def figure_2(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Images that L2/FC classifies right, decoded by DR's decoder from DR's capsules and from those of L2/FC."""
    decoded = decode(results, results.seeds[0])
    shown = first_of_each(decoded.labels, 10)
    panels = (
        ("(a) input", decoded.images),
        (f"(b) from capsules of {ALGORITHMS['dr']}", decoded.own),
        (f"(c) from capsules of {ALGORITHMS['l2-fc']}", decoded.other),
    )
    drawing, axes = plt.subplots(1, len(panels), figsize=(9.6, 3.5))
    for axis, (title, pictures) in zip(axes, panels, strict=True):
        by_class = [(label, pictures[shown[decoded.labels[shown] == label]]) for label in np.unique(decoded.labels)]
        mosaic_rows(axis, [(FASHION[label] if axis is axes[0] else "", each) for label, each in by_class], 10)
        axis.set_title(title)
    values = (decoded.indices[shown], decoded.labels[shown], decoded.own_error[shown], decoded.other_error[shown])
    return drawing, pd.DataFrame(
        dict(zip(("image", "label", "squared_error_dr", "squared_error_l2_fc"), values, strict=True))
    )


def figure_3(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Test error along training, a panel per data set, a line per algorithm."""
    drawing, axes = plt.subplots(2, 2, figsize=(8.4, 6.2))
    frames = []
    for (dataset, by), axis, letter in zip(_variants(results).items(), axes.flat, "abcd", strict=True):
        for algorithm, variant in by.items():
            curves = pd.concat([results.evaluations(variant, seed).assign(seed=seed) for seed in results.seeds])
            frames.append(curves.assign(dataset=dataset, variant=variant))
            error_curve(axis, curves, ALGORITHMS[algorithm], _style(algorithm))
        axis.set(xlabel="training step", ylabel="test error, %")
        images = dict.fromkeys(tested_on(results.paper.variants[variant].training) for variant in by.values())
        axis.set_title(f"({letter}) {DATASETS[dataset]}: {' or '.join(images)}")
        plain_numbers(axis)
    legend_below(drawing, axes.flat, list(ALGORITHMS.values()))
    return drawing, pd.concat(frames)[["dataset", "variant", "seed", "step", "test_error"]]


def figure_4(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Seconds per 100 training steps: median of the rounds, and every round."""
    timing = results.timing("steps")
    batches = timing["batch_size"]
    drawing, axis = plt.subplots(figsize=(8.4, 3.6))
    rows, ticks, place = [], {}, 0.0
    for dataset, by in _variants(results).items():
        timed = {algorithm: variant for algorithm, variant in by.items() if variant in timing["seconds_per_step"]}
        if not timed:
            continue
        seconds = {each: 100 * np.array(timing["seconds_per_step"][variant]) for each, variant in timed.items()}
        places = dict(zip(timed, place + np.arange(len(timed)), strict=True))
        for algorithm, variant in timed.items():
            timing_bar(axis, places[algorithm], seconds[algorithm], reference=algorithm == "dr")
            ticks[places[algorithm]] = f"{ALGORITHMS[algorithm]}\n{batches[variant]}"
            rows += [(dataset, variant, k, batches[variant], each) for k, each in enumerate(seconds[algorithm])]
        if "dr" in timed:
            _draw_saving(axis, list(places.values()), float(np.median(seconds["dr"])))
        where = (float(np.mean(list(places.values()))), 0)
        axis.annotate(
            DATASETS[dataset], where, (0, -32), ("data", "axes fraction"), "offset points", ha="center", va="top"
        )
        place += len(timed) + 0.8
    timing_axis(axis, ticks, timing)
    return drawing, pd.DataFrame(rows, columns=["dataset", "variant", "round", "batch_size", "seconds_per_100_steps"])


def figure_5(results: Results) -> tuple[Figure, pd.DataFrame]:
    """How the learned routing coefficients are distributed, and how many are negative or almost zero."""
    drawing, axes = plt.subplots(2, 2, figsize=(8.4, 6.2))
    frames = []
    for (dataset, by), axis, letter in zip(_variants(results).items(), axes.flat, "abcd", strict=True):
        learned = {
            algorithm: [_coefficients(results, variant, seed) for seed in results.seeds]
            for algorithm, variant in by.items()
            if _learns(results, variant)
        }
        axis.set_title(f"({letter}) {DATASETS[dataset]}")
        if learned:
            shares = _draw_coefficients(axis, learned)
            frames.append(shares.assign(dataset=dataset, variant=shares["algorithm"].map(by)))
    columns = ["dataset", "variant", "quantity", "low", "high", "share"]
    return drawing, pd.concat(frames)[columns] if frames else pd.DataFrame(columns=columns)


def metrics(results: Results) -> pd.DataFrame:
    """Errors, how fast they fall, the learned coefficients, the time of a step, and what figure 2 shows."""
    rows: list[MetricRow] = []
    for place, seed in enumerate(results.seeds):
        rows += _error_metrics(results, place, seed)
        rows += _convergence_metrics(results, seed)
        rows += _coefficient_metrics(results, seed)
        rows += _decoded_metrics(results, seed)
    return metric_rows(rows + _time_metrics(results))


# Errors


def _tested(results: Results, section: str, dataset: str, algorithm: str) -> dict[str, object]:
    """A row of table II; empty where the algorithm was not run on the data set."""
    variant = _variants(results)[dataset].get(algorithm)
    if variant is None:
        return {}
    on, n = _test_set(results, variant), _images(results, variant)
    claim = f"{section}/{dataset}-{algorithm}"
    return _compared(results, DATASETS[dataset], ALGORITHMS[algorithm], claim, _errors(results, variant), on, n)


def _compared(
    results: Results, benchmark: str, algorithm: str, claim: str, errors: Array, on: str = "", n: int | None = None
) -> dict[str, object]:
    if not len(errors):
        return {}
    return {
        "benchmark": benchmark,
        "algorithm": algorithm,
        "error % ours": errors.mean(),
        "sd": deviation(errors),
        "error % published": results.published.get(f"discriminative/{claim}"),
        "tested on": on,
        "n": n,
        "seeds": len(errors),
    }


def _error_metrics(results: Results, place: int, seed: int) -> list[MetricRow]:
    rows = []
    for by in _variants(results).values():
        for variant in by.values():
            error, n, on = _errors(results, variant)[place], _images(results, variant), _test_set(results, variant)
            rows.append((variant, seed, "error", float(error), math.nan, n, "percent", on))
    for algorithm in ALGORITHMS:
        errors = _average(results, algorithm)
        if len(errors):
            variants = [_variants(results)[dataset][algorithm] for dataset in AVERAGED]
            n = sum(_images(results, variant) for variant in variants)
            on = " and ".join(_test_set(results, variant) for variant in variants)
            value = float(errors[place])
            rows.append((variants[-1], seed, "average-error", value, math.nan, n, "percent", on))
    return rows


def _errors(results: Results, variant: str) -> Array:
    """Test error in percent for every seed, [seeds]."""
    return 100 - results.accuracy(variant, "argmax", _protocol(variant))


def _average(results: Results, algorithm: str) -> Array:
    """Mean error of an algorithm over the data sets of table II, [seeds]; empty where it was not run on all."""
    variants = [_variants(results)[dataset].get(algorithm) for dataset in AVERAGED]
    return np.mean([_errors(results, each) for each in variants if each], axis=0) if all(variants) else np.empty(0)


def _images(results: Results, variant: str) -> int:
    """Number of test images."""
    return int(results.head(variant, "argmax", _protocol(variant))[0]["n"])


def _test_set(results: Results, variant: str) -> str:
    return results.resolve(results.paper.protocols[_protocol(variant)].test.set)


def _protocol(variant: str) -> str:
    return variant.partition("-")[0]


def _variants(results: Results) -> dict[str, dict[str, str]]:
    """The paper's variants by data set and algorithm."""
    return {
        dataset: {name: each for name in ALGORITHMS if (each := f"{dataset}-{name}") in results.paper.variants}
        for dataset in DATASETS
    }


# Convergence


def _convergence_metrics(results: Results, seed: int) -> list[MetricRow]:
    rows = []
    for by in _variants(results).values():
        curves = {variant: results.evaluations(variant, seed) for variant in by.values()}
        for variant, curve in curves.items():
            on, n = _test_set(results, variant), _evaluated(results, variant)
            lowest, early = float(curve["test_error"].min()), early_error(curve)
            rows.append((variant, seed, "lowest-error", lowest, math.nan, n, "percent", on))
            rows.append((variant, seed, "early-error", early, math.nan, n, "percent", on))
            if "dr" in by and variant != by["dr"]:
                reached = steps_to_level(curve, curves[by["dr"]])
                for metric, steps in zip(("steps-to-level", "dr-steps-to-level"), reached, strict=True):
                    rows.append((variant, seed, metric, float(steps), math.nan, n, "count", on))
    return rows


def _evaluated(results: Results, variant: str) -> int:
    """Number of test images that training is watched with."""
    chosen = results.paper.variants[variant].training.evaluate_images
    n = _images(results, variant)
    return n if chosen is None else min(chosen, n)


# Coefficients


def _coefficient_metrics(results: Results, seed: int) -> list[MetricRow]:
    rows = []
    for by in _variants(results).values():
        for variant in by.values():
            if _learns(results, variant) and _can_reach_zero(results.paper.variants[variant]):
                values = _coefficients(results, variant, seed)
                for name, share in (("negative", negative_share), ("near-zero", near_zero_share)):
                    rows.append((variant, seed, f"coefficients-{name}", share(values), math.nan, 0, "fraction", ""))
    return rows


def _learns(results: Results, variant: str) -> bool:
    """Whether the variant's routing coefficients are learned."""
    return bool(results.paper.variants[variant].model.family == "discriminative")


def _can_reach_zero(variant: Variant) -> bool:
    """Whether the training is long enough for a coefficient to get from its initial value to zero.

    Adam moves it by about its learning rate in a step. Where that is not nearly enough, how many coefficients are
    negative or near zero is decided by the schedule, and says nothing about the algorithm.
    """
    model = variant.model
    return model.ascent == "plain" or travel(variant.training, model.ascent_rate) >= abs(model.initial)


def _coefficients(results: Results, variant: str, seed: int) -> Array:
    """b, [I, J]."""
    return results.weight(variant, "coefficients", seed)


def _draw_coefficients(axis: Axes, learned: Mapping[str, Sequence[Array]]) -> pd.DataFrame:
    """Draw the distribution of each algorithm's coefficients, means over seeds; return the shares that are drawn."""
    edges = bin_edges([each for values in learned.values() for each in values])
    rows = []
    for algorithm, values in learned.items():
        shares = np.mean([histogram(each, edges) for each in values], axis=0)
        negative = float(np.mean([negative_share(each) for each in values]))
        near = float(np.mean([near_zero_share(each) for each in values]))
        label = f"{ALGORITHMS[algorithm]}: {_percent(negative)} below 0, {_percent(near)} near 0"
        axis.stairs(shares, edges, label=label, **_line_only(algorithm))
        bins = zip(edges[:-1], edges[1:], shares, strict=True)
        rows += [(algorithm, "bin", low, high, share) for low, high, share in bins]
        rows.append((algorithm, "negative", -math.inf, 0.0, negative))
        rows.append((algorithm, "near zero", -NEAR_ZERO, NEAR_ZERO, near))
    highest = max(share for _, quantity, *_, share in rows if quantity == "bin")
    axis.set(xlabel="routing coefficient b", ylabel="share of the coefficients")
    axis.set_ylim(0, highest * (1.15 + 0.14 * len(learned)))  # the upper part is room for the legend
    axis.legend(loc="upper left")
    return pd.DataFrame(rows, columns=["algorithm", "quantity", "low", "high", "share"])


# Decoding


@dataclass(frozen=True)
class Decoded:
    """Test images that L2/FC classifies right, each decoded from its label's capsule by the decoder of the DR model.

    Attributes:
        indices: places in the test set, [N].
        labels: [N].
        images: in 0..1, [N, H, W].
        own, other: decoded from the capsules of DR and of L2/FC, [N, H, W].
    """

    indices: Array
    labels: Array
    images: Array
    own: Array
    other: Array

    @property
    def own_error(self) -> Array:
        """Squared error summed over the pixels, [N]."""
        return squared_error(self.own, self.images)

    @property
    def other_error(self) -> Array:
        """Squared error summed over the pixels, [N]."""
        return squared_error(self.other, self.images)


def decode(results: Results, seed: int) -> Decoded:
    """Decode all test images that L2/FC classifies right."""
    test = "fashion-mnist/test"
    other = results.latents(OTHER, test, "capsules", "scores", "labels", seed=seed)
    own = results.latents(DECODER, test, "capsules", seed=seed)["capsules"]
    right = np.flatnonzero(other["scores"].argmax(1) == other["labels"])
    labels = other["labels"][right]
    decoder = results.run(DECODER, seed)
    return Decoded(
        indices=right,
        labels=labels,
        images=results.split(test).images[right, 0].astype(np.float32) / 255,
        own=_reconstruct(decoder, own[right], labels),
        other=_reconstruct(decoder, other["capsules"][right], labels),
    )


def _reconstruct(run: Path, capsules: Array, labels: Array) -> Array:
    """What a run's decoder makes of each label's capsule: [N, L, D], [N] to [N, H, W]."""
    import torch

    from recaps.training.run import load_model

    model: Any = load_model(run, torch.device("cpu"))[0]
    mask = np.eye(capsules.shape[1], dtype=np.float32)[labels]
    with torch.inference_mode():
        pictures = model.reconstruct(torch.from_numpy(capsules), torch.from_numpy(mask))
    return np.asarray(pictures[:, 0].float().numpy())


def _decoded_metrics(results: Results, seed: int) -> list[MetricRow]:
    if not {DECODER, OTHER} <= results.paper.variants.keys():
        return []
    decoded, on = decode(results, seed), _test_set(results, OTHER)
    rows: list[MetricRow] = []
    if not len(decoded.labels):
        return rows
    for variant, errors in ((DECODER, decoded.own_error), (OTHER, decoded.other_error)):
        beyond = beyond_class_mean(errors, decoded.images, decoded.labels)
        rows.append(mean_row(variant, seed, "decoded-error", errors, "squared error", on))
        rows.append((variant, seed, "poorly-decoded", float(beyond.mean()), math.nan, len(beyond), "fraction", on))
    return rows


# Time


def _time_metrics(results: Results) -> list[MetricRow]:
    """Of the first seed: a timing trains nothing."""
    timing = results.timing("steps")
    seconds = timing["seconds_per_step"]
    rows = []
    for by in _variants(results).values():
        for algorithm, variant in by.items():
            if algorithm != "dr" and variant in seconds and by.get("dr") in seconds:
                ratios = np.array(seconds[variant]) / np.array(seconds[by["dr"]])
                rows.append(mean_row(variant, results.seeds[0], "time-ratio", ratios, "ratio", timing["device"]))
    return rows


def _draw_saving(axis: Axes, places: Sequence[float], reference: float) -> None:
    """The time that saves a fifth of DR's, across the bars of a data set."""
    known = axis.get_legend_handles_labels()[1]
    label = "_nolegend_" if known else "20 % less than DR"
    low, high = min(places) - 0.45, max(places) + 0.45
    axis.hlines(0.8 * reference, low, high, color="#D55E00", linestyle="--", linewidth=1.2, label=label)
    axis.legend(loc="best")


# Table I


def _widths(config: Mapping[str, Any]) -> list[int | None]:
    """Numbers of filters, capsules and neurons of a run, layer by layer as in table I."""
    model = config["model"]
    decoder = model["decoder"]
    hidden = [*(decoder or ()), None, None][:2]
    output = math.prod(config["image_shape"]) if decoder else None
    return [model["conv_channels"], model["primary_types"], model["capsules"], *hidden, output]


def _sizes(built: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Dimensions of the capsules that were built; both convolutions of the code are 9x9."""
    dimensions = {"Cap1": "primary_dim", "Cap2": "capsule_dim"}
    return {
        layer: ", ".join(dict.fromkeys(str(config["model"][key]) for config in built.values()))
        for layer, key in dimensions.items()
    }


def _activations(results: Results, built: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Activations that were built, where that depends on data set or algorithm."""
    convolutions: dict[str, list[str]] = {}
    capsules: dict[str, list[str]] = {}
    for dataset, by in _variants(results).items():
        for algorithm, variant in by.items():
            model = built[variant]["model"]
            leaky = f"LeakyReLU {model['leaky_slope']:g}"
            _note(convolutions, leaky if model["activation"] == "leaky_relu" else "ReLU", DATASETS[dataset])
            where = [("squash", "squash_capsules", True), ("squash of votes", "squash_votes", False)]
            squashed = [name for name, key, default in where if model.get(key, default)]
            _note(capsules, " and ".join(squashed) or "none", ALGORITHMS[algorithm])
    return {"Conv1": _join(convolutions), "Cap2": _join(capsules)}


def _note(found: dict[str, list[str]], value: str, label: str) -> None:
    labels = found.setdefault(value, [])
    if label not in labels:
        labels.append(label)


def _join(found: Mapping[str, Sequence[str]]) -> str:
    """E.g. `ReLU` where there is one value, else `squash (DR), none (L2, L1)`."""
    if len(found) == 1:
        return next(iter(found))
    return ", ".join(f"{value} ({', '.join(labels)})" for value, labels in found.items())


# Drawing


def _style(algorithm: str) -> dict[str, Any]:
    """Colour, dash and marker of an algorithm, the same in every figure: black for DR."""
    places = dict(zip(("dr", "l2", "l1", "l2-fc", "l1-fc"), (2, 0, 1, 3, 4), strict=True))
    return style(places[algorithm])


def _line_only(algorithm: str) -> dict[str, Any]:
    """Without a marker; the dash alone tells the algorithms apart in grey."""
    dashes = dict(zip(ALGORITHMS, ("-.", "-", "--", ":", (0, (6, 1, 1, 1, 1, 1))), strict=True))
    return {"color": _style(algorithm)["color"], "linestyle": dashes[algorithm], "linewidth": 1.3}


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if 0.001 <= share < 0.1 else f"{100 * share:.0f} %"


TABLES = {"table-1": table_1, "table-2": table_2}
FIGURES = {"figure-2": figure_2, "figure-3": figure_3, "figure-4": figure_4, "figure-5": figure_5}
