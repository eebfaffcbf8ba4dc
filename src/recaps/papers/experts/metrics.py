"""*Training products of expert capsules*: table 1, figures 1 to 7, and the numbers behind them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from recaps.arrays import Arrays
from recaps.npz import Array
from recaps.papers.experts.judge import (
    Judge,
    Judged,
    bootstrap_error,
    confidence,
    coverage,
    frechet_distance,
    negatives,
)
from recaps.report.measures import class_means, correlation, first_of_each, selectivity, squared_error, usage
from recaps.report.parts import FASHION, mosaic, mosaic_rows, plain_numbers, style, tick_columns
from recaps.report.results import MetricRow, Results, head_metrics, mean_row, metric_rows

if TYPE_CHECKING:
    from recaps.papers.experts.experts import Experts

#: A variant is named `<data set>-<kind>`.
DATASETS = {"mnist": "MNIST", "fashion": "Fashion-MNIST"}

#: The activity of each kind's units, among its latents.
ACTIVITY = {"experts": "lengths", "rbm": "capsules", "vae": "mean"}

#: What the judge is shown of each kind.
DOMAINS = {"experts": ("complete", "restricted"), "rbm": ("samples",), "vae": ("samples",), "judge": ("images",)}

#: Pictures of each kind that are judged, and images that they are compared with.
JUDGED = 2000

#: Panels of figure 2: data set and domain, with the letters that the paper gives them, and their number of rows.
PANELS = dict(zip(itertools.product(DATASETS, DOMAINS["experts"]), "abcd", strict=True))
SHOWN = 4

#: Rows of figure 4: kind, array of its probe `chain`, label.
CHAINS = (
    ("experts", "images", "test image"),
    ("experts", "autoencoder", "autoencoder"),
    ("experts", "chain", "W and U"),
    ("rbm", "chain", "RBM"),
    ("vae", "chain", "VAE"),
)

#: Phases of figure 6: title, what its vertical axis shows, and its lines, each a column of the history and a label.
CURVES: dict[str, tuple[str, str, dict[str, str]]] = {
    "autoencoder": ("autoencoder", "squared error", {"reconstruction_error": "squared error of a picture"}),
    "encoder": (
        "encoder W",
        "mean length",
        {"length": "output capsules' sums z", "mixed_activation": "reconstructed input capsules"},
    ),
    "decoder": ("decoder U", "squared error", {"reconstruction_error": "squared error of a picture"}),
}


def table_1(results: Results) -> pd.DataFrame:
    """The chain, the capsules and the samples in numbers, means over seeds; a row per data set and kind of picture."""
    rows = [row for seed in results.seeds for row in _code_metrics(results, seed)]
    rows += [row for seed in results.seeds for row in _sample_metrics(results, seed, errors=False)]
    known = pd.concat([head_metrics(results), metric_rows(rows)])
    means: Mapping[Any, float] = known.groupby(["variant", "metric"])["value"].mean().to_dict()
    table = []
    for dataset, label in DATASETS.items():
        for kind, domains in DOMAINS.items():
            if (variant := f"{dataset}-{kind}") in results.paper.variants:
                table += [_row(results, variant, domain, means) | {"data set": label} for domain in domains]
    columns = ["data set", "model", "chain error", "autoencoder error", "usage", "selectivity", "linear %"]
    return pd.DataFrame(table)[[*columns, "confidence", "classes", "Fréchet distance", "negatives %", "seeds"]]


def figure_1(results: Results) -> tuple[Figure, pd.DataFrame]:
    """The network as it was built: shapes, numbers of weights, and what learns in which phase."""
    variant = next(iter(_variants(results, "experts").values()))
    stages = architecture(results.config(variant))
    drawing, axis = plt.subplots(figsize=(9, 3.7))
    _draw_architecture(axis, stages)
    return drawing, pd.DataFrame(stages).astype({"weights": "Int64"}).assign(variant=variant)


def figure_2(results: Results) -> tuple[Figure, pd.DataFrame]:
    """The first samples of each capsule, a column each, from the complete and from the restricted domain."""
    variants = _variants(results, "experts")
    panels = [each for each in PANELS if each[0] in variants]
    drawing, axes = plt.subplots(len(panels), 1, figsize=(8.6, 2.05 * len(panels)), squeeze=False)
    frames = []
    for axis, (dataset, domain) in zip(axes.flat, panels, strict=True):
        pictures = results.probe(variants[dataset], "samples")[domain][:SHOWN]
        _draw_samples(axis, pictures)
        letter = PANELS[dataset, domain]
        axis.set_title(f"({letter}) {DATASETS[dataset]} - sampled from {domain} domain")
        frames.append(_brightness(pictures).assign(variant=variants[dataset], domain=domain))
    return drawing, pd.concat(frames)


def figure_3(results: Results) -> tuple[Figure, pd.DataFrame]:
    """The first sample of each capsule above that of the opposite direction, and how all such pairs correlate."""
    variants = _variants(results, "experts")
    drawing = plt.figure(figsize=(9, 2.75 * len(variants)))
    frames = []
    parts = drawing.subfigures(len(variants), 1, squeeze=False).flat
    for part, (dataset, variant) in zip(parts, variants.items(), strict=True):
        probe = results.probe(variant, "samples")
        pairs, bars = part.subplots(1, 2, width_ratios=(2.3, 1))
        _draw_pairs(pairs, probe["complete"][0], probe["opposite"][0])
        pairs.set_title(DATASETS[dataset])
        values = _opposite(probe)
        counts, edges = np.histogram(values, 40, (-1, 1))
        bars.stairs(100 * counts / values.size, edges, fill=True, color="#0072B2")
        bars.axvline(values.mean(), color="black", linestyle="--", linewidth=1)
        bars.set(xlabel="correlation of the pictures of x and −x", ylabel="% of the samples", xlim=(-1.05, 1.05))
        bars.set_title(f"mean {values.mean():.2f}")
        samples, capsules = (each.ravel() for each in np.indices(values.shape))
        frame = pd.DataFrame({"sample": samples, "capsule": capsules, "correlation": values.ravel()})
        frames.append(frame.assign(variant=variant))
    return drawing, pd.concat(frames)


def figure_4(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Test images, one of each class, and what the models make of them."""
    panels: dict[str, dict[str, Array]] = {}
    frames = []
    for dataset in _variants(results, "experts"):
        panels[dataset] = {}
        for kind, name, label in CHAINS:
            if (variant := f"{dataset}-{kind}") in results.paper.variants:
                probe = results.probe(variant, "chain")
                places = first_of_each(probe["labels"], 1)
                pictures, images = probe[name][places, 0], probe["images"][places, 0]
                panels[dataset][label] = pictures
                frame = pd.DataFrame({"image": places, "label": probe["labels"][places]})
                frame = frame.assign(squared_error=squared_error(pictures, images))
                frames.append(frame.assign(variant=variant, row=label))
    columns = max(len(pictures) for rows in panels.values() for pictures in rows.values())
    drawing, axes = plt.subplots(1, len(panels), figsize=(4.5 * len(panels), 2.7), squeeze=False)
    for axis, (dataset, rows) in zip(axes.flat, panels.items(), strict=True):
        mosaic_rows(axis, list(rows.items()), columns)
        axis.set_title(DATASETS[dataset])
    return drawing, pd.concat(frames)


def figure_5(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Mean length of each capsule on each class, capsules in the order of the class that they like best."""
    variants = _variants(results, "experts")
    drawing, axes = plt.subplots(len(variants), 1, figsize=(7.2, 2.9 * len(variants)), squeeze=False)
    frames = []
    for axis, (dataset, variant) in zip(axes.flat, variants.items(), strict=True):
        latents = results.latents(variant, results.paper.variants[variant].test, "lengths", "labels")
        means, classes = class_means(latents["lengths"], latents["labels"]), np.unique(latents["labels"])
        order = np.argsort(means.argmax(0), kind="stable")
        image = axis.imshow(means[:, order], cmap="Blues", vmin=0, aspect="auto")
        axis.set_xticks(range(len(order)), [str(each) for each in order])
        axis.set_yticks(range(len(classes)), [FASHION[each] if dataset == "fashion" else str(each) for each in classes])
        axis.set(xlabel="capsule", ylabel="class")
        axis.grid(False)
        axis.set_title(DATASETS[dataset])
        drawing.colorbar(image, ax=axis, label="mean length", pad=0.02)
        frame = pd.DataFrame(means, index=classes).rename_axis("class").reset_index()
        frame = frame.melt("class", var_name="capsule", value_name="mean_length")
        frames.append(frame.assign(variant=variant, column=np.argsort(order)[frame["capsule"].astype(int)]))
    return drawing, pd.concat(frames)


def figure_6(results: Results) -> tuple[Figure, pd.DataFrame]:
    """What each phase of learning changes, along its steps; of the first seed."""
    variants = _variants(results, "experts")
    drawing, axes = plt.subplots(len(variants), len(CURVES), figsize=(9, 2.5 * len(variants) + 0.3), squeeze=False)
    frames = []
    for row, (dataset, variant) in zip(axes, variants.items(), strict=True):
        phases = _phases(results.config(variant), results.history(variant))
        for axis, (phase, (title, label, lines)) in zip(row, CURVES.items(), strict=True):
            for place, (column, name) in enumerate(lines.items() if len(phases[phase]) else ()):
                curve = phases[phase][["step", column]]
                every = max(1, len(curve) // 8)
                axis.plot(curve["step"], curve[column], label=name, markevery=every, **style(place))
                frame = curve.rename(columns={column: "value"}).assign(quantity=name, phase=phase)
                frames.append(frame.assign(variant=variant))
            axis.set(xlabel="training step", ylabel=label)
            axis.set_title(f"{DATASETS[dataset]}: {title}")
            plain_numbers(axis)
            if len(axis.lines) > 1:
                axis.legend(loc="best")
    return drawing, pd.concat(frames)[["variant", "phase", "quantity", "step", "value"]]


def figure_7(results: Results) -> tuple[Figure, pd.DataFrame]:
    """As many samples of each model as two of each capsule are."""
    shown = _variants(results, "experts")
    drawing, axes = plt.subplots(len(shown), len(ACTIVITY), figsize=(9, 2.15 * len(shown)), squeeze=False)
    frames = []
    for row, (dataset, experts) in zip(axes, shown.items(), strict=True):
        two = results.probe(experts, "samples")["restricted"][:2]
        for axis, kind in zip(row, ACTIVITY, strict=True):
            variant = f"{dataset}-{kind}"
            if variant not in results.paper.variants:
                axis.set_axis_off()
                continue
            pictures = two if kind == "experts" else results.probe(variant, "samples")["samples"][: len(_flat(two))]
            mosaic(axis, _flat(pictures)[:, 0], 8, "gray", 0, 1)
            axis.set_title(f"{DATASETS[dataset]}: {results.paper.variants[variant].title}")
            frames.append(_brightness(pictures).assign(variant=variant))
    return drawing, pd.concat(frames)


def metrics(results: Results) -> pd.DataFrame:
    """Head accuracies, errors, the use of the capsules, what the judge sees in samples, sizes, time of training."""
    rows: list[MetricRow] = []
    for seed in results.seeds:
        rows += _code_metrics(results, seed)
        rows += _sample_metrics(results, seed)
        rows += _opposite_metrics(results, seed)
        rows += _time_metrics(results, seed)
    return pd.concat([head_metrics(results), metric_rows(rows + _size_metrics(results))], ignore_index=True)


def _variants(results: Results, kind: str) -> dict[str, str]:
    """The paper's variants of a kind, by data set."""
    return {dataset: name for dataset in DATASETS if (name := f"{dataset}-{kind}") in results.paper.variants}


def _test_set(results: Results, variant: str) -> str:
    return results.resolve(results.paper.variants[variant].test)


# Table 1


def _row(results: Results, variant: str, domain: str, means: Mapping[Any, float]) -> dict[str, object]:
    """A row of table 1, of means of metrics under (variant, metric)."""
    settings = results.paper.variants[variant]
    titles = {"samples": settings.title, "images": "test images"}
    row: dict[str, object] = {"model": titles.get(domain, f"{settings.title} ({domain} domain)")}
    if domain != "restricted":  # which repeats the model of the row above
        protocol = next(iter(settings.heads.get("linear", ())), "")
        own = ("chain-error", "autoencoder-error", "usage", "selectivity", f"linear-{protocol}")
        labels = ("chain error", "autoencoder error", "usage", "selectivity", "linear %")
        row |= {label: means.get((variant, metric)) for label, metric in zip(labels, own, strict=True)}
    for label, metric in (("confidence", "confidence"), ("classes", "coverage"), ("Fréchet distance", "frechet")):
        row[label] = means.get((variant, f"{domain}-{metric}"))
    share = means.get((variant, f"{domain}-negatives"))
    return row | {"negatives %": None if share is None else 100 * share, "seeds": len(results.seeds)}


# Errors and capsules


def _code_metrics(results: Results, seed: int) -> list[MetricRow]:
    """Of what the models make of test images."""
    rows: list[MetricRow] = []
    for kind, activity in ACTIVITY.items():
        for variant in _variants(results, kind).values():
            test, on = results.paper.variants[variant].test, _test_set(results, variant)
            errors = {"chain-error": "reconstruction_error"}
            if kind == "experts":
                errors["autoencoder-error"] = "autoencoder_error"
            latents = results.latents(variant, test, activity, "labels", *errors.values(), seed=seed)
            rows += [
                mean_row(variant, seed, metric, latents[name], "squared error", on) for metric, name in errors.items()
            ]
            active = np.abs(latents[activity])
            preference = float(selectivity(active, latents["labels"]).mean())
            rows.append((variant, seed, "usage", usage(active), math.nan, 0, "ratio", on))
            rows.append((variant, seed, "selectivity", preference, math.nan, 0, "ratio", on))
    return rows


def _size_metrics(results: Results) -> list[MetricRow]:
    """Of the first seed: sizes do not depend on training."""
    rows: list[MetricRow] = []
    for variant in _variants(results, "experts").values():
        model = build(results.config(variant))
        outputs, output_dim, inputs, input_dim = model.decoder.weight.shape
        sizes = {"input-capsules": inputs, "input-dim": input_dim, "output-capsules": outputs, "output-dim": output_dim}
        rows += [(variant, results.seeds[0], name, float(n), math.nan, 0, "count", "") for name, n in sizes.items()]
    return rows


def _time_metrics(results: Results, seed: int) -> list[MetricRow]:
    rows: list[MetricRow] = []
    for variant in _variants(results, "experts").values():
        minutes, on = results.record(variant, seed)["wall_seconds"] / 60, results.paper.variants[variant].data
        rows.append((variant, seed, "training-minutes", minutes, math.nan, 0, "minutes", results.resolve(on)))
    return rows


# Samples


def _sample_metrics(results: Results, seed: int, errors: bool = True) -> list[MetricRow]:
    """Of what the judge of the same seed sees in samples of all models, and in test images.

    Without `errors`, those that take a bootstrap are left out.
    """
    rows: list[MetricRow] = []
    for dataset, name in _variants(results, "judge").items():
        judge, on = Judge(results.run(name, seed)), _test_set(results, name)
        settings = results.paper.variants[name]
        train, test = (_images(results.split(each)) for each in (settings.data, settings.test))
        real = judge(test)
        rows += _judged(name, seed, "images", real, judge(train), negatives(test, train), on, errors)
        for kind in ACTIVITY:
            if (variant := f"{dataset}-{kind}") not in results.paper.variants:
                continue
            probe = results.probe(variant, "samples", seed)
            for domain in DOMAINS[kind]:
                samples = _first(probe[domain])
                pictures = _flat(samples)
                seen = judge(pictures)
                rows += _judged(variant, seed, domain, seen, real, negatives(pictures, train), on, errors)
                if domain == "restricted":
                    rows += _agreement(variant, seed, seen.decisions.reshape(samples.shape[:2]), on)
    return rows


def _judged(
    variant: str, seed: int, domain: str, seen: Judged, beside: Judged, negative: Array, on: str, errors: bool
) -> list[MetricRow]:
    """What the judge has `seen` in a domain, and the distance from as many pictures of those seen `beside`."""
    n = len(seen.features)
    others = beside.features[:n]
    classes, distance = coverage(seen.probabilities), frechet_distance(seen.features, others)
    deviations = (math.nan, math.nan)
    if errors:
        by_decisions = bootstrap_error(coverage, seen.probabilities)
        deviations = (by_decisions, bootstrap_error(frechet_distance, seen.features, others))
    return [
        mean_row(variant, seed, f"{domain}-confidence", confidence(seen.probabilities), "fraction", on),
        (variant, seed, f"{domain}-coverage", classes, deviations[0], n, "count", on),
        (variant, seed, f"{domain}-frechet", distance, deviations[1], n, "squared distance", on),
        (variant, seed, f"{domain}-negatives", float(negative.mean()), math.nan, n, "fraction", on),
    ]


def _agreement(variant: str, seed: int, decisions: Array, on: str) -> list[MetricRow]:
    """How far decisions [n, J] agree: those on samples of one capsule, mean over capsules, and all together."""
    first, second = np.array_split(decisions, 2)
    each = agreement(first, second)
    overall = float(agreement(first.reshape(-1, 1), second.reshape(-1, 1))[0])
    error = math.sqrt((each * (1 - each) / len(decisions)).sum()) / len(each)
    return [
        (variant, seed, "capsule-agreement", float(each.mean()), error, decisions.size, "fraction", on),
        (variant, seed, "overall-agreement", overall, math.nan, decisions.size, "fraction", on),
    ]


def agreement(first: Array, second: Array) -> Array:
    """Share of the most frequent class in each column of decisions: [n, J], [m, J] to [J].

    The class is that of one half, and the share that of the other, which did not choose it; both ways, and the mean.
    Else chance alone would make some class frequent in few samples.
    """
    shares = [
        [(b == np.bincount(a).argmax()).mean() for a, b in zip(x.T, y.T, strict=True)]
        for x, y in ((first, second), (second, first))
    ]
    return np.mean(shares, axis=0)


def _opposite_metrics(results: Results, seed: int) -> list[MetricRow]:
    rows = []
    for variant in _variants(results, "experts").values():
        values = _opposite(results.probe(variant, "samples", seed)).ravel()
        rows.append(mean_row(variant, seed, "opposite-correlation", values, "ratio", _test_set(results, variant)))
    return rows


def _opposite(probe: Mapping[str, Array]) -> Array:
    """Correlation over pixels between the pictures of a sample and of its opposite, [n, J]."""
    shape = probe["complete"].shape
    return correlation(_flat(probe["complete"]), _flat(probe["opposite"])).reshape(shape[:2])


def _images(split: Arrays) -> Array:
    """The first images of a set, as many as are judged, in 0..1, [N, C, H, W]."""
    return np.asarray(split.images[:JUDGED], np.float32) / 255


def _first(samples: Array) -> Array:
    """The first samples, as many as are judged; as many of each capsule: [n, C, H, W] or [n, J, C, H, W]."""
    return samples[: max(1, JUDGED // math.prod(samples.shape[1:-3]))]


def _flat(pictures: Array) -> Array:
    """[..., C, H, W] to [N, C, H, W]."""
    return pictures.reshape(-1, *pictures.shape[-3:])


# The network that was built


def build(config: Mapping[str, Any]) -> Experts:
    """A model as that of a run was before training, of its `model` and `image_shape`."""
    from recaps.papers.experts.experts import Experts
    from recaps.papers.experts.options import ExpertsOptions

    return Experts(ExpertsOptions.model_validate(config["model"]), tuple(config["image_shape"]))


def architecture(config: Mapping[str, Any]) -> list[dict[str, object]]:
    """The stages of an image's way to the output capsules and back, from a run's settings.

    Returns:
        For each its name, its shape for one image (height x width x channels, or number and dimensions of capsules),
        the operation that makes it, kernel and stride, the number of weights that this has besides those of earlier
        stages, the phase in which they learn, and that phase's steps.
    """
    import torch
    from torch.nn.functional import conv_transpose2d

    model = build(config)
    coder = model.autoencoder
    with torch.inference_mode():
        image = torch.zeros(1, *config["image_shape"])
        maps, code, inputs = coder.first(image), coder.encode(image), model.input_capsules(image)
        outputs = model.encode(inputs)
        decoded = model.decode(outputs)
        back = coder.as_maps(decoded)
        maps_back = conv_transpose2d(
            back, coder.second.weight, stride=coder.second.stride, output_padding=coder.left_over
        )
        picture = model.pictures(decoded)
    first, second = (_count(layer.parameters()) for layer in (coder.first, coder.second))
    biases = [None if each is None else each.numel() for each in (coder.bias_between, coder.bias_images)]
    w, u = (_count(part.parameters()) for part in (model.encoder, model.decoder))
    kernels = [("x".join(map(str, each.kernel_size)), each.stride[0]) for each in (coder.first, coder.second)]
    none = ("", None)
    back_by = "transposed convolution, same filters"
    rows: list[tuple[str, Any, str, tuple[str, int | None], int | None, str]] = [
        ("image", image, "", none, None, ""),
        ("feature maps", maps, "convolution, leaky ReLU", kernels[0], first, "autoencoder"),
        ("code", code, "convolution, leaky ReLU", kernels[1], second, "autoencoder"),
        ("input capsules", inputs, "reshape, squash", none, None, ""),
        ("output capsules", outputs, "routing with W, squash", none, w, "encoder"),
        ("input capsules", decoded, "routing with U", none, u, "decoder"),
        ("code", back, "unsquash, reshape", none, None, ""),
        ("feature maps", maps_back, f"{back_by}, leaky ReLU", kernels[1], biases[0], "autoencoder"),
        ("picture", picture, f"{back_by}, sigmoid", kernels[0], biases[1], "autoencoder"),
    ]
    steps = {phase: f"{start + 1:,} to {end:,}" for phase, (start, end) in _phase_steps(config).items()}
    columns = ("stage", "shape", "operation", "kernel", "stride", "weights", "learns", "steps")
    return [
        dict(zip(columns, (stage, _shape(made), operation, *kernel, weights, phase, steps.get(phase, "")), strict=True))
        for stage, made, operation, kernel, weights, phase in rows
    ]


def _count(parameters: Iterable[Any]) -> int:
    return sum(each.numel() for each in parameters)


def _shape(values: Any) -> str:
    if values.ndim == 3:
        return f"{values.shape[1]} capsules of {values.shape[2]}"
    return "x".join(str(values.shape[axis]) for axis in (2, 3, 1))


def _phase_steps(config: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Steps that are done before each phase of learning and after it."""
    from recaps.config.training import Training
    from recaps.papers.experts.experts import PHASES, phase_ends
    from recaps.papers.experts.options import ExpertsOptions

    ends = phase_ends(ExpertsOptions.model_validate(config["model"]), Training.model_validate(config["training"]))
    return dict(zip(PHASES, zip((0, *ends), ends, strict=False), strict=True))


def _phases(config: Mapping[str, Any], history: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The rows of a history, by phase."""
    steps = history["step"]
    return {phase: history[(steps > start) & (steps <= end)] for phase, (start, end) in _phase_steps(config).items()}


# Drawing


def _brightness(pictures: Array) -> pd.DataFrame:
    """Mean and standard deviation of the pixels of each picture: [n, C, H, W], or [n, J, C, H, W] by capsule."""
    places = np.indices(pictures.shape[:-3]).reshape(pictures.ndim - 3, -1)
    frame = pd.DataFrame(dict(zip(("sample", "capsule"), places, strict=False)))
    flat = _flat(pictures)
    return frame.assign(mean=flat.mean((1, 2, 3)), sd=flat.std((1, 2, 3)))


def _draw_samples(axis: Axes, pictures: Array) -> None:
    """Samples [n, J, C, H, W], a row for each, the capsule's number below each column."""
    mosaic(axis, _flat(pictures)[:, 0], pictures.shape[1], "gray", 0, 1)
    tick_columns(axis, [str(capsule) for capsule in range(pictures.shape[1])], pictures.shape[-1])


def _draw_pairs(axis: Axes, samples: Array, opposites: Array) -> None:
    """Pictures [J, C, H, W] in rows of ten at most, below each row what the opposite samples give."""
    columns = min(10, len(samples))
    rows: list[tuple[str, Array]] = []
    for start in range(0, len(samples), columns):
        rows += [("x", samples[start : start + columns, 0]), ("−x", opposites[start : start + columns, 0])]
    mosaic_rows(axis, rows, columns)


#: Centres of the columns of figure 1 and of its two rows, width and height of its boxes, in inches.
COLUMNS, ROWS, WIDE, HIGH = (0.6, 2.5, 4.4, 6.3, 8.35), (2.3, 0.8), 1.0, 0.62


def _draw_architecture(axis: Axes, stages: Sequence[Mapping[str, Any]]) -> None:
    """Stages of `architecture`: above to the output capsules, below the way back."""
    axis.set(xlim=(0, 9), ylim=(-0.15, 3.25), aspect="equal")
    axis.set_axis_off()
    outputs, (top, bottom) = len(COLUMNS) - 1, ROWS
    left, right = COLUMNS[-2] + WIDE / 2 + 0.04, COLUMNS[-1] - WIDE / 2 - 0.04
    _draw_phase(axis, (0.02, 0.2, COLUMNS[2] + 0.6, 2.8), "1. autoencoder, by back-propagation", stages[1])
    _draw_phase(axis, (left, top - 0.5, right, 2.8), "2. encoder W, by algorithm 1", stages[outputs])
    _draw_phase(axis, (left, 0.2, right, bottom + 0.4), "3. decoder U, by section 4.1", stages[outputs + 1], below=True)
    places = [*((x, top) for x in COLUMNS), *((x, bottom) for x in reversed(COLUMNS[:-1]))]
    for place, (stage, (x, y)) in enumerate(zip(stages, places, strict=True)):
        low = (bottom if place == outputs else y) - HIGH / 2
        corner, height = (x - WIDE / 2, low), y + HIGH / 2 - low
        axis.add_patch(FancyBboxPatch(corner, WIDE, height, "round,pad=0,rounding_size=0.08", fc="white", ec="black"))
        text = f"{stage['stage']}\n{stage['shape']}".replace(" of ", "\nof ").replace("x", "×")
        axis.text(x, low + height / 2, text, ha="center", va="center", fontsize=7.5)
        if place:
            _draw_operation(axis, stage, places[place - 1][0], x, y)


def _draw_operation(axis: Axes, stage: Mapping[str, Any], start: float, end: float, y: float) -> None:
    """The arrow to a stage, between columns, and what it stands for."""
    way = math.copysign(WIDE / 2, end - start)
    line = {"arrowstyle": "-|>", "shrinkA": 0, "shrinkB": 0, "color": "black"}
    axis.annotate("", (end - way, y), (start + way, y), arrowprops=line)
    below = [f"{stage['kernel']}, stride {stage['stride']}".replace("x", "×")] if stage["kernel"] else []
    below += [f"{n:,}", "weight" if n == 1 else "weights"] if (n := stage["weights"]) is not None else []
    above = stage["operation"].replace(", ", "\n").replace("transposed ", "transposed\n")
    for text, offset, side in ((above, 0.05, "bottom"), ("\n".join(below), -0.06, "top")):
        axis.text((start + end) / 2, y + offset, text, ha="center", va=side, fontsize=6.5)


def _draw_phase(
    axis: Axes,
    corners: tuple[float, float, float, float],
    title: str,
    stage: Mapping[str, Any],
    below: bool = False,
) -> None:
    """A frame around what learns in the phase of a stage; left, bottom, right and top."""
    left, bottom, right, top = corners
    axis.add_patch(Rectangle((left, bottom), right - left, top - bottom, fc="0.93", ec="0.5", ls="--", lw=0.8))
    y, side = (bottom - 0.05, "top") if below else (top + 0.05, "bottom")
    text = f"{title}\nsteps {stage['steps']}"
    axis.text((left + right) / 2, y, text, ha="center", va=side, fontsize=7.5)


TABLES = {"table-1": table_1}
FIGURES = {
    "figure-1": figure_1,
    "figure-2": figure_2,
    "figure-3": figure_3,
    "figure-4": figure_4,
    "figure-5": figure_5,
    "figure-6": figure_6,
    "figure-7": figure_7,
}
