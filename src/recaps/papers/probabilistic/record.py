"""The record of a run: the numbers behind its tables and claims, and the arrays that its figures show."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from safetensors import SafetensorError, safe_open

from recaps.errors import UserError
from recaps.evaluation.heads import classifier, features
from recaps.evaluation.record import MetricRow, Record, Run, pictures
from recaps.npz import Array
from recaps.papers.probabilistic.templates import affine_fits, same_template, signed
from recaps.report.metrics import first_of_each

#: Largest rotations of digits to either side, in degrees, and the protocols that test models of upright digits on them.
ROTATED = (45, 90, 135, 180)
UPRIGHT = {0: "mnist", **{degrees: f"mnist-{degrees}" for degrees in ROTATED}}

#: A rotation up to the first angle in degrees is small; one from the second angle on is large.
SMALL, LARGE = 30, 90

#: Two templates at a distance below this are nearly affine maps of each other.
NEARLY = 0.1

#: Pixels above this value are ink.
INK = 0.5

#: The digit that figure 5 rotates, and the number of classes in figure 7.
TWO, CLASSES = 2, 4

#: Learned numbers that are counted: metric, and the beginning of the names of the parameters, by variant.
SIZES = {"capsules": ("generative-parameters", "generative."), "vae-small": ("decoder-parameters", "decoder.")}

#: Numbers that are measured on a probe, and the arrays that are kept of it.
Part = tuple[list[MetricRow], dict[str, Array]]


def record(run: Run) -> Record:
    """Return the accuracies of all heads, the values of table 2 but for those of several runs, and a part per probe."""
    rows, arrays = run.accuracies(), {}
    for name, measure in PARTS.items():
        if name in run.settings.probes:
            measured, arrays[name] = measure(run, run.probe(name))
            rows += measured
    if getattr(run.settings.model, "poses", None) == "gaussian" and "mnist/test" in run.settings.latents:
        # The bound of the amortised posterior, with one draw for each image.
        bounds = run.latents("mnist/test", "bound")["bound"]
        rows.append(run.mean("bound-mnist", bounds, "nats", run.resolve("mnist/test")))
    if run.variant in SIZES:
        rows.append(_size(run, *SIZES[run.variant]))
    return Record(rows, arrays)


def _rotations(run: Run, probe: Mapping[str, Array]) -> Part:
    """Share of the ink that the same template draws after a rotation, as means over rotations and images.

    Arrays, of A `angles` [A]: `mean_share` and `mean_by_chance` [A], over all images. Of the M images that figures 5
    and 7 show: `image` [M], their places in the test set; `labels` [M]; `shares` [A, M]; `chain` and `owner`
    [A, M, H, W]. Of the 2, which figure 5 shows: `images` and `ink` [A, H, W].
    """
    angles, labels = probe["angles"], probe["labels"]
    shares, by_chance = same_template(probe["owner"], angles, probe["images"][0, :, 0] > INK)
    turns = np.abs(signed(angles))
    chosen = {
        "same-template-small": shares[(turns > 0) & (turns <= SMALL)],
        "same-template-large": shares[turns >= LARGE],
        "same-template-by-chance": by_chance[turns >= LARGE],
    }
    means = {metric: _mean(values.T) for metric, values in chosen.items()}
    rows = [
        run.mean(metric, values[np.isfinite(values)], "fraction", run.test_set)
        for metric, values in means.items()
        if np.isfinite(values).any()
    ]
    two = (labels == TWO).argmax()  # the first image if there is no 2
    shown = np.union1d(two, first_of_each(labels, 1)[:CLASSES])
    images = probe["images"][:, two, 0]
    return rows, {
        "angles": angles,
        "mean_share": _mean(shares),
        "mean_by_chance": _mean(by_chance),
        "image": shown,
        "labels": labels[shown],
        "shares": shares[:, shown],
        "chain": pictures(probe["chain"][:, shown, 0]),
        "owner": probe["owner"][:, shown].astype(np.int16),
        "images": pictures(images),
        "ink": images > INK,
    }


def _templates(run: Run, probe: Mapping[str, Array]) -> Part:
    """Distances of the templates from their nearest templates.

    Arrays, of n templates: `templates` [n, C, h, w] and `alphas` [n, 1, h, w]; `nearest` [n], the index of the nearest
    template; `distances` [n] to it; and `mapped` [n, h, w], the nearest template mapped to each template.
    """
    fits = affine_fits(probe["templates"] * probe["alphas"])
    nearest, distances = fits.nearest()
    n = len(nearest)
    rows = [
        run.number("near-copies", float((distances < NEARLY).mean()), "fraction", n=n),
        run.mean("nearest-template", distances, "ratio", ""),
    ]
    mapped = pictures(fits.mapped[np.arange(n), nearest, 0])
    learned = {name: probe[name] for name in ("templates", "alphas")}
    return rows, {**learned, "nearest": nearest, "distances": distances, "mapped": mapped}


def _samples(_: Run, probe: Mapping[str, Array]) -> Part:
    """No numbers. Arrays: `samples` [n, H, W], and their mean `brightness` [n]."""
    samples = probe["samples"][:, 0]
    return [], {"samples": pictures(samples), "brightness": samples.mean((1, 2))}


def _free_form(run: Run, probe: Mapping[str, Array]) -> Part:
    """The effect of free-form inference on the bound and on the accuracy of classifiers of presences.

    Arrays: the mean `bound` [K] in nats over the images at each of the `steps` [K], and `n`, the number of images.
    """
    right, on, n = _right(run, probe), run.test_set, len(probe["labels"])
    before, after = probe["bound_along"][0], probe["bound_along"][-1]
    gain = 100 * (right["free-form"].astype(float) - right["amortised"])
    rows = [
        *(run.number(f"{name}-accuracy", 100 * each.mean(), "percent", on, n=n) for name, each in right.items()),
        run.number("free-form-refitted", _refitted(run, probe), "percent", on, n=n),
        run.mean("free-form-gain", gain, "percent", on),
        run.mean("bound-amortised", before, "nats", on),
        run.mean("bound-free-form", after, "nats", on),
        run.number("bound-raised", (after > before).mean(), "fraction", on, n=n),
    ]
    return rows, {"steps": probe["steps"], "bound": probe["bound_along"].mean(1), "n": np.array(n)}


def _free_form_rotations(run: Run, probe: Mapping[str, Array]) -> Part:
    """Errors of amortised and free-form reconstructions of a rotated 2, and of amortised ones of rotated digits.

    Arrays, of A `angles` [A]: `images`, `chain` and `chain_free` [A, H, W]; the squared errors `error` and `error_free`
    [A] of the last two; and `bound_along` [K, A], in nats, at each of the `steps` [K].
    """
    kept = {name: probe[name] for name in ("angles", "steps", "bound_along")}
    kept |= {name: pictures(probe[name][:, 0]) for name in ("images", "chain", "chain_free")}
    rows = []
    for name, ending in (("amortised", ""), ("free-form", "_free")):
        errors = kept[f"error{ending}"] = np.square(probe[f"chain{ending}"] - probe["images"]).sum((1, 2, 3))
        rows.append(run.mean(f"twos-error-{name}", errors, "squared error", run.test_set))
    for degrees, protocol in UPRIGHT.items():
        on = run.paper.protocols[protocol].test.set
        errors = run.latents(on, "reconstruction_error")["reconstruction_error"]
        rows.append(run.mean(f"reconstruction-error-{degrees}", errors, "squared error", run.resolve(on)))
    return rows, kept


#: What is measured on each probe.
PARTS: dict[str, Callable[[Run, Mapping[str, Array]], Part]] = {
    "rotations": _rotations,
    "templates": _templates,
    "samples": _samples,
    "free-form": _free_form,
    "free-form-rotations": _free_form_rotations,
}


def _right(run: Run, probe: Mapping[str, Array]) -> dict[str, Array]:
    """Whether a classifier of amortised presences is right on amortised and on free-form presences, bool [N] each."""
    head, part = run.paper.heads["presence"], run.paper.protocols["mnist"].fit
    assert part is not None  # the head is fitted
    known = run.latents(part.set, *head.features, "labels")
    rows = slice(part.start, None if part.count is None else part.start + part.count)
    fitted = classifier(head).fit(features(known, head)[rows], known["labels"][rows])
    answers = {"amortised": probe, "free-form": {name: probe[f"{name}_free"] for name in head.features}}
    return {name: fitted.predict(features(each, head)) == probe["labels"] for name, each in answers.items()}


def _refitted(run: Run, probe: Mapping[str, Array]) -> float:
    """Accuracy in percent of a classifier of free-form presences, by cross-validation in five parts."""
    from sklearn.model_selection import KFold, cross_val_predict

    head = run.paper.heads["presence"]
    free = features({name: probe[f"{name}_free"] for name in head.features}, head)
    predicted = cross_val_predict(classifier(head), free, probe["labels"], cv=KFold(5))
    return 100 * float((predicted == probe["labels"]).mean())


def _size(run: Run, metric: str, prefix: str) -> MetricRow:
    """The number of parameters whose names begin with `prefix`. It has no uncertainty."""
    file = run.folder / "model.safetensors"
    try:
        with safe_open(file, framework="numpy") as tensors:
            names = [name for name in tensors.keys() if name.startswith(prefix)]  # noqa: SIM118
            count = sum(math.prod(tensors.get_slice(name).get_shape()) for name in names)
    except FileNotFoundError as error:
        raise UserError(f"{file}: no such file; first run the stage that writes it") from error
    except SafetensorError as error:
        raise UserError(f"{file}: cannot be read ({error}); delete the run and train again") from error
    if not names:
        raise UserError(f"{file}: has no weights '{prefix}*'; the run is of another model, train again")
    return run.number(metric, count, "count", se=0)


def _mean(values: Array) -> Array:
    """Mean over the last axis without NaN; NaN where there are no other values."""
    known = np.isfinite(values)
    count = known.sum(-1)
    return np.where(count > 0, np.where(known, values, 0).sum(-1) / np.maximum(count, 1), np.nan)
