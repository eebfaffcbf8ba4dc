"""*Capsule Networks, a Probabilistic Perspective*: tables 1 to 3, figures 3 to 9, and the numbers behind them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from safetensors import SafetensorError, safe_open

from recaps.errors import UserError
from recaps.evaluation.heads import classifier, features
from recaps.npz import Array
from recaps.papers.probabilistic.templates import Agreement, Fits, affine_fits, same_template
from recaps.report.measures import first_of_each
from recaps.report.parts import GAP, mosaic_centres, style, tick_columns
from recaps.report.results import MetricRow, Results, deviation, head_metrics, mean_row, metric_rows

#: Degrees that digits are rotated by at most, to either side.
ROTATED = (45, 90, 135, 180)
DEGREES = (0, *ROTATED)

#: Rows of table 1: features, family of the variants, head, claim, and the standard deviations that the paper prints.
TABLE_1 = (
    ("t0", "capsules", "presence", "t0", (1, 2, 2, 1, 1, 3)),
    ("t0, A0", "capsules", "presence-pose", "t0-a0", (0, 1, 1, 1, 1, 3)),
    ("VAE's μ, σ", "vae", "linear", "vae", (0, 1, 1, 1, 0, 1)),
)

#: Columns of table 1: title, ending of the variants, protocol.
COLUMNS = (
    ("MNIST", "", "mnist"),
    *((f"MNIST rotated by up to {degrees}°", "", f"mnist-{degrees}") for degrees in ROTATED),
    ("affNIST", "-40", "affnist"),
)

#: Runs of each of the paper's numbers.
RUNS = 5

#: Columns of table 3, and the protocols of models that were trained on digits as they are.
UPRIGHT = {f"up to {degrees}°": protocol for degrees, (_, _, protocol) in zip(DEGREES, COLUMNS, strict=False)}

#: The model trained on digits as they are, and the one trained on digits that are turned at random.
PLAIN, TURNED = "capsules", "capsules-rotated-180"

#: The one whose objects all want all parts alike, so that presences alone decide which object a part belongs to.
EVEN = "capsules-even"

#: Those whose poses have a full posterior: after points, and from the start.
GAUSSIAN = ("capsules-gaussian", "capsules-gaussian-first")

#: Those on which free-form inference is tried.
FREE = (PLAIN, EVEN, GAUSSIAN[1])

#: SCAE as this paper configured it, and with the weights of its own paper.
SCAE = ("scae", "scae-original-weights")

#: Rows of table 2: what is measured, its metric, and the variants.
TABLE_2 = (
    ("Ink drawn by the same template after a turn of 30°", "same-template-small", (PLAIN, TURNED)),
    ("Ink drawn by the same template after a turn of 90° or more", "same-template-large", (PLAIN, TURNED)),
    ("The same, if each drawing were shuffled", "same-template-by-chance", (PLAIN, TURNED)),
    ("Templates that are nearly an affine map of another one", "near-copies", (PLAIN, TURNED)),
    ("Distance of the nearest template under the best affine map", "nearest-template", (PLAIN, TURNED)),
    ("Linear classification of t0, amortised", "amortised-accuracy", FREE),
    ("Linear classification of t0, free-form", "free-form-accuracy", FREE),
    ("The same, by a classifier fitted on free-form t0", "free-form-refitted", FREE),
    ("Gain by free-form inference", "free-form-gain", FREE),
    ("Bound, amortised", "bound-amortised", FREE),
    ("Bound, free-form", "bound-free-form", FREE),
    ("Images whose bound rises", "bound-raised", FREE),
    ("Bound of Gaussian poses, amortised", "bound-mnist", GAUSSIAN),
    ("Error of a rotated 2, amortised", "twos-error-amortised", (PLAIN,)),
    ("Error of a rotated 2, free-form", "twos-error-free-form", (PLAIN,)),
    *((f"Error of digits rotated by up to {each}°", f"reconstruction-error-{each}", (PLAIN,)) for each in DEGREES),
    ("Parameters of the generative model", "generative-parameters", (PLAIN,)),
    ("Parameters of the VAE's decoder", "decoder-parameters", ("vae",)),
    ("Linear classification of MNIST, posterior presences", "presence-mnist-40", (*SCAE, "scae-released")),
    ("Linear classification of MNIST, prior presences", "prior-presence-mnist-40", SCAE),
    ("Linear classification of affNIST, posterior presences", "presence-affnist", ("scae", "scae-released")),
)

#: Published values in table 2, by variant and metric: claims.
PUBLISHED = {(PLAIN, "free-form-gain"): "probabilistic/section-2-4/free-form-gain"}

#: Lines of figure 4: label, family of the variants, head.
FIGURE_4 = (
    ("Capsules, t0", "capsules", "presence"),
    ("Capsules, t0 and A0", "capsules", "presence-pose"),
    ("SCAE, posterior presences", "scae", "presence"),
    ("VAE, μ and σ", "vae", "linear"),
)

#: Turns that count as small, and from where on they count as large, in degrees to either side.
SMALL, LARGE = 30, 90

#: Share of a template's squares by which another one may miss it, and it the other, and both be nearly the same.
NEARLY = 0.1

#: Pixels from this on are ink.
INK = 0.5

#: Turns that figure 7 shows: small ones in the upper row of each model, large ones in the lower; and its classes.
FIGURE_7, CLASSES = ((330, 0, 30), (90, 180, 270)), 4

#: The digit that figures 3 and 5 turn.
TWO = 2

#: Samples that stand beside each other in figure 9.
PER_ROW = 20


def table_1(results: Results) -> pd.DataFrame:
    """Accuracies of linear classification out of distribution, ours and the published, with standard deviations."""
    rows: list[dict[str, object]] = []
    for label, family, head, claim, spreads in TABLE_1:
        for (column, ending, protocol), spread in zip(COLUMNS, spreads, strict=True):
            if (variant := f"{family}{ending}") in results.paper.variants:
                ours = results.accuracy(variant, head, protocol)
                row: dict[str, object] = {"features": label, "tested": column, "accuracy % ours": ours.mean()}
                row |= {"sd": deviation(ours)}
                row |= {"accuracy % published": results.published.get(f"probabilistic/table-1/{claim}-{protocol}")}
                row |= {"sd published": float(spread), "tested on": _tested_on(results, protocol)}
                n = results.head(variant, head, protocol)[0]["n"]
                rows.append(row | {"n": n, "seeds": len(ours)})
    return pd.DataFrame(rows)


def table_2(results: Results) -> pd.DataFrame:
    """What the paper says without a number, or shows as a picture, in numbers: means over seeds."""
    shown = {(variant, metric) for _, metric, variants in TABLE_2 for variant in variants}
    known = pd.concat([metric_rows(_findings(results)), head_metrics(results, shown)])
    rows: list[dict[str, object]] = []
    for label, metric, variants in TABLE_2:
        for variant in variants:
            found = known[(known["variant"] == variant) & (known["metric"] == metric)]
            if len(found):
                values = found["value"].to_numpy(float)
                row: dict[str, object] = {"finding": label, "model": results.paper.variants[variant].title}
                row |= {"value": values.mean(), "sd": deviation(values), "unit": found["unit"].iloc[0]}
                row |= {"published": results.published.get(PUBLISHED.get((variant, metric), ""))}
                row |= {"measured on": found["measured_on"].iloc[0], "n": int(found["n"].iloc[0]) or pd.NA}
                rows.append(row | {"seeds": len(values)})
    return pd.DataFrame(rows).astype({"n": "Int64"})  # no number of images tells some of them


def table_3(results: Results) -> pd.DataFrame:
    """Accuracies out of distribution of the paper's model under other readings, above them what the paper prints."""
    rows: list[dict[str, object]] = []
    for label, family, head, claim, _ in TABLE_1[:2]:
        row: dict[str, object] = {"features": label, "model": "published", "seeds": RUNS}
        for column, protocol in UPRIGHT.items():
            row[column] = results.published.get(f"probabilistic/table-1/{claim}-{protocol}")
        rows.append(row)
        for variant in _variants(results, family, EVEN, *GAUSSIAN):
            settings = results.paper.variants[variant]
            row = {"features": label, "model": settings.title, "seeds": len(results.seeds)}
            for column, protocol in UPRIGHT.items():
                if protocol in settings.heads[head]:
                    row[column] = results.accuracy(variant, head, protocol).mean()
            rows.append(row)
    return pd.DataFrame(rows, columns=["features", "model", *UPRIGHT, "seeds"])


def figure_3(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Rotated 2s, what amortised and free-form inference make of them, and the bound along the optimisation."""
    probe, average = results.probe(PLAIN, "free-form-rotations"), results.probe(PLAIN, "free-form")
    angles = probe["angles"]
    drawing, (left, right) = plt.subplots(1, 2, figsize=(9.2, 3.4), width_ratios=(1.75, 1))
    arrays = {"digit": "images", "amortised": "chain", "free-form": "chain_free"}
    _draw_rows(left, [(label, probe[name][:, 0]) for label, name in arrays.items()])
    tick_columns(left, [f"{angle:g}°" for angle in angles], probe["images"].shape[-1])
    frames = []
    errors = {name: _squared_error(probe[name], probe["images"]) for name in ("chain", "chain_free")}
    shades = plt.get_cmap("viridis")(np.linspace(0, 0.92, len(angles)))
    for place, (angle, shade) in enumerate(zip(angles, shades, strict=True)):
        along = probe["bound_along"][:, place]
        right.plot(probe["steps"], along, color=shade, linestyle="-", marker="", linewidth=1.2, label=f"2, {angle:g}°")
        frame = pd.DataFrame({"step": probe["steps"], "bound": along}).assign(image=f"2 turned by {angle:g} degrees")
        frame = frame.assign(squared_error_amortised=errors["chain"][place])
        frames.append(frame.assign(squared_error_free_form=errors["chain_free"][place]))
    mean = average["bound_along"].mean(1)
    label = f"mean over {average['bound_along'].shape[1]:,} test digits"
    right.plot(average["steps"], mean, color="black", linestyle="--", marker="", label=label)
    frames.append(pd.DataFrame({"step": average["steps"], "bound": mean}).assign(image=label))
    right.set(xlabel="step of the optimisation", ylabel="bound, nats")
    right.legend(loc="upper center", bbox_to_anchor=(0.45, -0.2), fontsize=6.5, ncols=3)
    columns = ["image", "step", "bound", "squared_error_amortised", "squared_error_free_form"]
    return drawing, pd.concat(frames)[columns]


def figure_4(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Accuracy of models trained and tested on rotated digits, against the largest rotation."""
    drawing, axis = plt.subplots(figsize=(5.6, 3.7))
    rows = []
    for place, (label, family, head) in enumerate(FIGURE_4):
        runs = {
            degrees: (variant, results.accuracy(variant, head, _own(family, degrees)))
            for degrees in DEGREES
            if (variant := _trained_on(family, degrees)) in results.paper.variants
        }
        if not runs:
            continue
        over_seeds = np.stack([values for _, values in runs.values()])
        (line,) = axis.plot(list(runs), over_seeds.mean(1), label=label, **style(place))
        if over_seeds.shape[1] > 1:
            low, high = over_seeds.min(1), over_seeds.max(1)
            axis.fill_between(list(runs), low, high, color=line.get_color(), alpha=0.18, linewidth=0)
        for degrees, (variant, values) in runs.items():
            seeded = zip(results.seeds, values, strict=True)
            rows += [(label, variant, head, degrees, seed, float(value)) for seed, value in seeded]
    axis.set(xlabel="largest rotation in training and test, degrees", ylabel="accuracy, %")
    axis.set_xticks(DEGREES)
    axis.legend(loc="best")
    return drawing, pd.DataFrame(rows, columns=["line", "variant", "head", "degrees", "seed", "accuracy"])


def figure_5(results: Results) -> tuple[Figure, pd.DataFrame]:
    """One digit in every turn, and which template draws which stroke of it."""
    variants = _variants(results, PLAIN, TURNED)
    drawing, axes = plt.subplots(len(variants), 1, figsize=(9.2, 2.05 * len(variants)), squeeze=False)
    frames = []
    for axis, variant in zip(axes.flat, variants, strict=True):
        probe = results.probe(variant, "rotations")
        image = int((probe["labels"] == TWO).argmax())  # the first of all where there is none
        owner, chain = probe["owner"][:, image], probe["chain"][:, image, 0]
        _draw_rows(axis, [("digit", probe["images"][:, image, 0]), ("templates", coloured(chain, owner))])
        tick_columns(axis, [f"{angle:g}°" for angle in probe["angles"]], owner.shape[-1])
        axis.set_title(results.paper.variants[variant].title)
        for angle, seen, picture in zip(probe["angles"], owner, probe["images"][:, image, 0], strict=True):
            owners, counts = np.unique(seen[picture > INK], return_counts=True)
            frame = pd.DataFrame({"template": owners, "share_of_ink": counts / counts.sum()})
            frames.append(frame.assign(variant=variant, image=image, degrees=angle))
    columns = ["variant", "image", "degrees", "template", "share_of_ink"]
    return drawing, pd.concat(frames)[columns]


def figure_6(results: Results) -> tuple[Figure, pd.DataFrame]:
    """The templates, in the colours that figures 5 and 7 give them, and their alpha channels."""
    probe = results.probe(PLAIN, "templates")
    shown, n = _ink(probe), len(probe["templates"])
    drawing, axis = plt.subplots(figsize=(9.2, 9.2 * 3 / n + 0.5))
    owners = np.broadcast_to(np.arange(n)[:, None, None], (n, *shown.shape[2:]))
    pictures = {"seen": coloured(shown[:, 0], owners), "template": probe["templates"][:, 0]}
    _draw_rows(axis, [*pictures.items(), ("alpha", probe["alphas"][:, 0])])
    tick_columns(axis, [str(place) for place in range(n)], shown.shape[-1])
    means = {"mean_template": probe["templates"].mean((1, 2, 3)), "mean_alpha": probe["alphas"].mean((1, 2, 3))}
    return drawing, pd.DataFrame({"template": range(n)} | means).assign(variant=PLAIN)


def figure_7(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Digits under small and under large turns, coloured by template."""
    variants = _variants(results, PLAIN, TURNED)
    drawing, axes = plt.subplots(len(variants), 1, figsize=(9.2, 2.05 * len(variants)), squeeze=False)
    frames = []
    for axis, variant in zip(axes.flat, variants, strict=True):
        probe = results.probe(variant, "rotations")
        images = first_of_each(probe["labels"], 1)[:CLASSES]
        agreement = _agreement(probe)
        rows, ticks = [], []
        for label, turns in zip(("small", "large"), FIGURE_7, strict=True):
            places = np.array([np.flatnonzero(probe["angles"] == turn)[0] for turn in turns])
            chosen = np.ix_(places, images)
            pictures = coloured(probe["chain"][chosen][:, :, 0], probe["owner"][chosen])
            rows.append((label, pictures.swapaxes(0, 1).reshape(-1, *pictures.shape[2:])))
            ticks.append([f"{turn:g}°".replace("-", "−") for turn in _signed(np.array(turns))] * len(images))
            shares = agreement.shares[chosen]
            for (turn, image), share in zip(((a, b) for a in turns for b in images), shares.ravel(), strict=True):
                frames.append((variant, label, int(image), int(probe["labels"][image]), turn, float(share)))
        _draw_rows(axis, rows)
        columns = [f"{above}\n{below}" for above, below in zip(*ticks, strict=True)]
        tick_columns(axis, columns, probe["owner"].shape[-1])
        axis.set_title(results.paper.variants[variant].title)
    names = ["variant", "turns", "image", "label", "degrees", "same_template"]
    return drawing, pd.DataFrame(frames, columns=names)


def figure_8(results: Results) -> tuple[Figure, pd.DataFrame]:
    """How far templates stay with their strokes in every turn; and each template with the one that is most like it."""
    variants = _variants(results, PLAIN, TURNED)
    drawing = plt.figure(figsize=(9.2, 6.6))
    above, below = drawing.subfigures(2, 1, height_ratios=(1, 1.15), squeeze=False).flat
    axis = above.subplots()
    frames = []
    for place, variant in enumerate(variants):
        probe = results.probe(variant, "rotations")
        agreement, title = _agreement(probe), results.paper.variants[variant].title
        order = np.argsort(_signed(probe["angles"]), kind="stable")
        turns = _signed(probe["angles"])[order]
        lines = {"same template": agreement.shares, "by chance": agreement.by_chance}
        for quantity, values in lines.items():
            mean = _mean(values)[order]
            look = style(place) | ({"marker": "", "linewidth": 0.9} if quantity == "by chance" else {})
            axis.plot(turns, 100 * mean, label=f"{title}: {quantity}", **look)
            frame = pd.DataFrame({"degrees": turns, "value": mean})
            frames.append(frame.assign(variant=variant, quantity=quantity))
    axis.set(xlabel="turn, degrees", ylabel="same template, % of the ink", ylim=(0, 103))
    axis.set_xticks(range(-150, 181, 30))
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(variants), fontsize=7)
    panels = below.subplots(len(variants), 1, squeeze=False)
    for axis, variant in zip(panels.flat, variants, strict=True):
        shown = _ink(results.probe(variant, "templates"))
        fits = affine_fits(shown)
        frames.append(_draw_nearest(axis, shown, fits).assign(variant=variant, quantity="distance of the nearest"))
        axis.set_title(f"{results.paper.variants[variant].title}: templates, and the nearest to each")
    return drawing, pd.concat(frames)[["variant", "quantity", "degrees", "template", "nearest", "value"]]


def figure_9(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Pictures that the generative model makes by itself."""
    pictures = results.probe(PLAIN, "samples")["samples"][:, 0]
    n = len(pictures)
    drawing, axis = plt.subplots(figsize=(9.2, 9.2 * math.ceil(n / PER_ROW) / PER_ROW))
    _draw_rows(axis, [("", pictures[start : start + PER_ROW]) for start in range(0, n, PER_ROW)])
    return drawing, pd.DataFrame({"sample": range(n), "mean_brightness": pictures.mean((1, 2))}).assign(variant=PLAIN)


def metrics(results: Results) -> pd.DataFrame:
    """Accuracies of all heads, and what table 2 and the claims rest on."""
    rows = [*_findings(results), *_leads(results)]
    return pd.concat([head_metrics(results), metric_rows(rows)], ignore_index=True)


def _variants(results: Results, *names: str) -> list[str]:
    """Those of some variants that the paper has."""
    return [name for name in names if name in results.paper.variants]


def _trained_on(family: str, degrees: int) -> str:
    """The variant of a family that was trained on digits rotated by up to some degrees."""
    return f"{family}-rotated-{degrees}" if degrees else family


def _own(family: str, degrees: int) -> str:
    """The protocol that fits and tests on such digits as the variant was trained on."""
    return f"rotated-{degrees}" if degrees else "mnist-40" if family == "scae" else "mnist"


def _tested_on(results: Results, protocol: str) -> str:
    return results.resolve(results.paper.protocols[protocol].test.set)


def _test_set(results: Results, variant: str) -> str:
    return results.resolve(results.paper.variants[variant].test)


# Findings


def _findings(results: Results) -> list[MetricRow]:
    rows: list[MetricRow] = []
    for seed in results.seeds:
        for variant in _variants(results, PLAIN, TURNED):
            rows += _rotation_metrics(results, variant, seed) + _template_metrics(results, variant, seed)
        for variant in _variants(results, *FREE):
            rows += _free_form_metrics(results, variant, seed)
        for variant in _variants(results, *GAUSSIAN):
            rows.append(_bound(results, variant, seed))
        for variant in _variants(results, PLAIN):
            rows += _twos_metrics(results, variant, seed) + _error_metrics(results, variant, seed)
            rows.append(_size(results, variant, seed, "generative-parameters", "generative."))
        for variant in _variants(results, "vae"):
            rows.append(_size(results, variant, seed, "decoder-parameters", "decoder."))
    return rows


def _rotation_metrics(results: Results, variant: str, seed: int) -> list[MetricRow]:
    """How much of the ink the same template draws when an image is turned, mean over turns and images."""
    probe = results.probe(variant, "rotations", seed)
    agreement, turns = _agreement(probe), np.abs(_signed(probe["angles"]))
    on = _test_set(results, variant)
    chosen = {
        "same-template-small": agreement.shares[(turns > 0) & (turns <= SMALL)],
        "same-template-large": agreement.shares[turns >= LARGE],
        "same-template-by-chance": agreement.by_chance[turns >= LARGE],
    }
    means = {metric: _mean(values.T) for metric, values in chosen.items()}
    return [
        mean_row(variant, seed, metric, values[np.isfinite(values)], "fraction", on)
        for metric, values in means.items()
        if np.isfinite(values).any()
    ]


def _template_metrics(results: Results, variant: str, seed: int) -> list[MetricRow]:
    """How far each template is from the one that is most like it."""
    _, distances = affine_fits(_ink(results.probe(variant, "templates", seed))).nearest()
    near = float((distances < NEARLY).mean())
    return [
        (variant, seed, "near-copies", near, math.nan, len(distances), "fraction", ""),
        mean_row(variant, seed, "nearest-template", distances, "ratio", ""),
    ]


def _free_form_metrics(results: Results, variant: str, seed: int) -> list[MetricRow]:
    """Of free-form inference: the bound, and accuracy with a head that was fitted on amortised presences, or anew."""
    probe, on = results.probe(variant, "free-form", seed), _test_set(results, variant)
    right = _right(results, variant, probe, seed)
    n = len(probe["labels"])
    rows: list[MetricRow] = [
        (variant, seed, f"{name}-accuracy", 100 * float(each.mean()), math.nan, n, "percent", on)
        for name, each in right.items()
    ]
    rows.append((variant, seed, "free-form-refitted", _refitted(results, probe), math.nan, n, "percent", on))
    gain = 100 * (right["free-form"].astype(float) - right["amortised"])
    rows.append(mean_row(variant, seed, "free-form-gain", gain, "percent", on))
    before, after = probe["bound_along"][0], probe["bound_along"][-1]
    rows.append(mean_row(variant, seed, "bound-amortised", before, "nats", on))
    rows.append(mean_row(variant, seed, "bound-free-form", after, "nats", on))
    rows.append((variant, seed, "bound-raised", float((after > before).mean()), math.nan, n, "fraction", on))
    return rows


def _right(results: Results, variant: str, probe: Mapping[str, Array], seed: int) -> dict[str, Array]:
    """Whether images are classified right from their amortised and from their free-form presences, bool [N] each."""
    head, part = results.paper.heads["presence"], results.paper.protocols["mnist"].fit
    assert part is not None  # a protocol of a head that is fitted has it
    known = results.latents(variant, part.set, *head.features, "labels", seed=seed)
    rows = slice(part.start, None if part.count is None else part.start + part.count)
    fitted = classifier(head).fit(features(known, head)[rows], known["labels"][rows])
    answers = {"amortised": probe, "free-form": {name: probe[f"{name}_free"] for name in head.features}}
    return {name: fitted.predict(features(each, head)) == probe["labels"] for name, each in answers.items()}


def _refitted(results: Results, probe: Mapping[str, Array]) -> float:
    """Accuracy in percent on free-form presences of a head that is fitted on other ones, in five parts by turns."""
    from sklearn.model_selection import KFold, cross_val_predict

    head = results.paper.heads["presence"]
    free = features({name: probe[f"{name}_free"] for name in head.features}, head)
    told = cross_val_predict(classifier(head), free, probe["labels"], cv=KFold(5))
    return 100 * float((told == probe["labels"]).mean())


def _bound(results: Results, variant: str, seed: int) -> MetricRow:
    """The bound of the networks' answer to test images, with one draw each."""
    on = results.paper.variants[variant].test
    bounds = results.latents(variant, on, "bound", seed=seed)["bound"]
    return mean_row(variant, seed, "bound-mnist", bounds, "nats", results.resolve(on))


def _twos_metrics(results: Results, variant: str, seed: int) -> list[MetricRow]:
    """Errors of pictures of a digit in several turns, by either inference."""
    twos, on = results.probe(variant, "free-form-rotations", seed), _test_set(results, variant)
    pictures = {"amortised": twos["chain"], "free-form": twos["chain_free"]}
    errors = {name: _squared_error(each, twos["images"]) for name, each in pictures.items()}
    return [
        mean_row(variant, seed, f"twos-error-{name}", values, "squared error", on) for name, values in errors.items()
    ]


def _error_metrics(results: Results, variant: str, seed: int) -> list[MetricRow]:
    """Errors of amortised pictures of digits that are rotated more than those in training."""
    rows = []
    for (_, _, protocol), degrees in zip(COLUMNS, DEGREES, strict=False):
        on = results.paper.protocols[protocol].test.set
        errors = results.latents(variant, on, "reconstruction_error", seed=seed)["reconstruction_error"]
        metric = f"reconstruction-error-{degrees}"
        rows.append(mean_row(variant, seed, metric, errors, "squared error", results.resolve(on)))
    return rows


def _size(results: Results, variant: str, seed: int, metric: str, prefix: str) -> MetricRow:
    """Number of the weights whose names begin with `prefix`; nothing about it is uncertain."""
    file = results.run(variant, seed) / "model.safetensors"
    try:
        with safe_open(file, framework="numpy") as tensors:
            names = [name for name in tensors.keys() if name.startswith(prefix)]  # noqa: SIM118
            count = sum(math.prod(tensors.get_slice(name).get_shape()) for name in names)
    except FileNotFoundError as error:
        raise UserError(f"{file}: no such file; run the stage that makes it first") from error
    except SafetensorError as error:
        raise UserError(f"{file}: cannot be read ({error}); delete the run and train again") from error
    if not names:
        raise UserError(f"{file}: has no weights '{prefix}*'; the run is of another model, train again")
    return variant, seed, metric, float(count), 0.0, 0, "count", ""


def _leads(results: Results) -> list[MetricRow]:
    """By how much lines of figure 4 are above the VAE's, in points of accuracy, at the rotation where that is least.

    Only models that were trained on rotated digits count.
    """
    rows: list[MetricRow] = []
    for _, family, head in FIGURE_4[:-1]:
        pairs = [(_trained_on(family, degrees), _trained_on("vae", degrees)) for degrees in ROTATED]
        needed = [family, *(name for pair in pairs for name in pair)]
        if _variants(results, *needed) != needed:
            continue
        for place, seed in enumerate(results.seeds):
            leads = []
            for (variant, other), degrees in zip(pairs, ROTATED, strict=True):
                ours = results.head(variant, head, _own(family, degrees))[place]
                vae = results.head(other, "linear", _own("vae", degrees))[place]
                gap, error = ours["accuracy"] - vae["accuracy"], math.hypot(_error(ours), _error(vae))
                leads.append((100 * gap, 100 * error, ours["n"], _tested_on(results, _own(family, degrees))))
            least, error, n, on = min(leads)
            rows.append((family, seed, f"least-lead-{head}", least, error, n, "percent", on))
    return rows


def _error(result: Mapping[str, Any]) -> float:
    """Standard error of a head's accuracy over its test images."""
    return math.sqrt(result["accuracy"] * (1 - result["accuracy"]) / result["n"])


def _agreement(probe: Mapping[str, Array]) -> Agreement:
    """Of a probe `rotations`: how far templates stay with their strokes."""
    return same_template(probe["owner"], probe["angles"], probe["images"][0, :, 0] > INK)


def _signed(angles: Array) -> Array:
    """Angles from 0 to 360 as turns to either side, from above -180 to 180."""
    return np.asarray((angles + 179.5) % 360 - 179.5)


def _mean(values: Array) -> Array:
    """Mean over the last axis of what is known; nan where nothing is."""
    known = np.isfinite(values)
    count = known.sum(-1)
    return np.where(count > 0, np.where(known, values, 0).sum(-1) / np.maximum(count, 1), np.nan)


def _squared_error(pictures: Array, images: Array) -> Array:
    """Of each picture, summed over its pixels: [N, C, H, W], [N, C, H, W] to [N]."""
    return np.asarray(np.square(pictures - images).sum((1, 2, 3)))


def _ink(probe: Mapping[str, Array]) -> Array:
    """What is seen of each template alone on black: [J, C, h, w]."""
    return np.asarray(probe["templates"] * probe["alphas"])


# Drawing


def coloured(pictures: Array, owners: Array) -> Array:
    """Pictures [..., H, W] in 0..1 in the colours of their owners, white where they have none: [..., H, W, 3]."""
    palette = plt.get_cmap("tab20")
    # Strong colours first, then pale ones; without the greys.
    order = [*range(0, 14, 2), 16, 18, *range(1, 14, 2), 17, 19]
    colours = np.array([palette(place)[:3] for place in order] + [(1, 1, 1)])
    which = np.where(owners < 0, len(order), owners % len(order))
    return np.asarray(np.clip(pictures, 0, 1)[..., None] * colours[which])


def _draw_rows(axis: Axes, rows: Sequence[tuple[str, Array]]) -> None:
    """Labelled rows of as many pictures each, [n, H, W] in 0..1 or, coloured, [n, H, W, 3]."""
    axis.grid(False)
    for spine in axis.spines.values():
        spine.set_visible(False)
    height, width = rows[0][1].shape[1:3]
    columns = len(rows[0][1])
    canvas = np.ones((len(rows) * (height + GAP) - GAP, columns * (width + GAP) - GAP, 3))
    for row, (_, pictures) in enumerate(rows):
        for column, picture in enumerate(pictures):
            top, left = row * (height + GAP), column * (width + GAP)
            shades = picture if picture.ndim == 3 else picture[..., None]
            canvas[top : top + height, left : left + width] = np.clip(shades, 0, 1)
    axis.imshow(canvas)
    axis.set_xticks([])
    axis.set_yticks(mosaic_centres(len(rows), height), [label for label, _ in rows])
    axis.tick_params(length=0)


def _draw_nearest(axis: Axes, shown: Array, fits: Fits) -> pd.DataFrame:
    """Templates from the one with the nearest neighbour on, each above that neighbour, as it is and as mapped."""
    nearest, distances = fits.nearest()
    order = np.argsort(distances, kind="stable")
    mapped = fits.mapped[order, nearest[order], 0]
    rows = [("template", shown[order, 0]), ("nearest", shown[nearest[order], 0]), ("mapped", mapped)]
    _draw_rows(axis, rows)
    labels = [f"{each}, {nearest[each]}\n{distances[each]:.2f}" for each in order]
    tick_columns(axis, labels, shown.shape[-1])
    return pd.DataFrame({"template": order, "nearest": nearest[order], "value": distances[order]})


TABLES = {"table-1": table_1, "table-2": table_2, "table-3": table_3}
FIGURES = {
    "figure-3": figure_3,
    "figure-4": figure_4,
    "figure-5": figure_5,
    "figure-6": figure_6,
    "figure-7": figure_7,
    "figure-8": figure_8,
    "figure-9": figure_9,
}
