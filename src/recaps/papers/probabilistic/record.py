"""The record of a run: the numbers behind its tables and claims, and the arrays that its figures show."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from safetensors import SafetensorError, safe_open
from scipy.special import expit, xlogy

from recaps.config.heads import Part
from recaps.config.variant import Variant
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

#: A template is live if it draws at least this share of what it would draw if all drew the same.
LIVE = 0.25

#: SCAE counts as trained from this number of steps on, a third of those in its released script.
SETTLED = 100_000

#: Numbers that are measured on a probe, and the arrays that are kept of it.
Measured = tuple[list[MetricRow], dict[str, Array]]


def record(run: Run) -> Record:
    """Return the accuracies of all heads, the values of table 2 but for those of several runs, and a part per probe."""
    rows, arrays = run.accuracies(), {}
    family = run.settings.model.family
    if family == "scae" and settled(run.settings):
        rows += [(*row[:2], f"settled-{row[2]}", *row[3:]) for row in rows]
    if family == "generative":
        rows.append(_training_bound(run))
        control = run.settings.model.presences_from_labels
        if control is not None:
            rows.append(_known_divergence(run, control))
        elif run.settings.heads.get("presence"):
            rows += _presences(run, run.settings.heads["presence"][0])
    for name, measure in PARTS.items():
        if name in run.settings.probes:
            measured, arrays[name] = measure(run, run.probe(name))
            rows += measured
    if getattr(run.settings.model, "poses", None) == "gaussian" and run.has("mnist/test"):
        # The bound of the amortised posterior, with one draw for each image.
        bounds = run.latents("mnist/test", "bound")["bound"]
        rows.append(run.mean("bound-mnist", bounds, "nats", run.resolve("mnist/test")))
    if run.variant in SIZES:
        rows.append(_size(run, *SIZES[run.variant]))
    return Record(rows, arrays)


def settled(settings: Variant) -> bool:
    """Whether a variant is trained for long enough to be compared. Only the training of SCAE is known."""
    return settings.model.family != "scae" or settings.training.steps >= SETTLED


def information(log_odds: Array) -> Array:
    """Mutual information of the relaxed presence of each object and the image, in nats: log odds [N, n] to [n].

    It is the mean divergence of the posteriors of N images from a prior, minus the divergence of their mixture from it,
    whatever the prior and the temperature are: the entropy of the mixture minus that of a single posterior, 2 nats if
    the temperature is 1. Objects share information, so all presences together have at most the sum.
    """
    step, beyond = 0.1, 40
    places = np.arange(log_odds.min() - beyond, log_odds.max() + beyond, step)
    parts = np.array_split(log_odds, 20)
    densities = [[_logistic(places - part[:, i : i + 1]).sum(0) for part in parts] for i in range(log_odds.shape[1])]
    mixtures = np.sum(densities, 1) / len(log_odds)
    return -step * xlogy(mixtures, mixtures).sum(1) - 2


def divergence(log_odds: Array, prior: float) -> Array:
    """Divergence of the posterior of a relaxed presence from its prior, in nats, by the log odds of both."""
    gap = np.abs(np.asarray(log_odds, float) - prior)
    far = np.maximum(gap, 1e-3)
    return np.where(gap < 1e-3, gap**2 / 6, far / np.tanh(far / 2) - 2)


def equivariance(angles: Array, presences: Array, poses: Array) -> Array:
    """How far the poses of objects turn with the image: 1 if they do, 0 if they stay as they are, [A, N].

    It is 1 - e / c. Both are sums over the objects, weighted by their presences in the unturned image: c of the squared
    change that the rotation of the image would cause, e of the squared distance of the poses from it.

    Args:
        angles: [A] in degrees, counter-clockwise, beginning with 0. There it is NaN, as nothing should change.
        presences: log odds [A, N, n0].
        poses: offsets from the identity [A, N, n0, 6].
    """
    whole = poses.reshape(*poses.shape[:3], 2, 3) + np.eye(2, 3)
    turn = np.radians(angles)
    # x points right and y down.
    rows = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    expected = np.einsum("xya,noyz->anoxz", rows, whole[0])
    weights = expit(presences[0].astype(float))
    wrong, change = (
        (weights * np.square(each).sum((-2, -1))).sum(-1) for each in (whole - expected, expected - whole[:1])
    )
    return np.where(turn[:, None] == 0, np.nan, 1 - wrong / np.where(turn[:, None] == 0, 1, change))


def _training_bound(run: Run) -> MetricRow:
    """The bound of training images in nats, the mean over the last fifth of the training."""
    history = run.history()
    late = history["step"] > 0.8 * history["step"].iloc[-1]
    return run.number("training-bound", -history.loc[late, "loss"].mean(), "nats")


def _known_divergence(run: Run, log_odds: float) -> MetricRow:
    """The divergence of presences that labels set, one present object and all others absent, from the prior."""
    options = run.settings.model
    known = np.where(np.arange(options.objects) == 0, log_odds, -log_odds)
    p = options.object_probability
    return run.number("presence-divergence", divergence(known, math.log(p / (1 - p))).sum(), "nats")


def _presences(run: Run, protocol: str) -> list[MetricRow]:
    """What the presences of objects say about the image under a protocol.

    The accuracy of the head `presence` on one relaxed draw of the presences; their mean divergence from the prior; and
    their mutual information with the image. Divergence and information are sums over the objects, in nats.
    """
    head, rules, options = run.paper.heads["presence"], run.paper.protocols[protocol], run.settings.model
    assert rules.fit is not None  # the head is fitted
    drawn = np.random.default_rng(run.seed)
    p = options.object_probability
    values, labels = [], []
    for part in (rules.fit, rules.test):
        known = _images(run, part, "presence", "labels")
        noise = drawn.logistic(size=known["presence"].shape)
        values.append(expit((known["presence"] + noise) / options.temperature))
        labels.append(known["labels"])
    right = classifier(head).fit(values[0], labels[0]).predict(values[1]) == labels[1]
    on = run.resolve(rules.test.set)
    costs = divergence(known["presence"], math.log(p / (1 - p))).sum(1)
    return [
        run.number(f"presence-draw-{protocol}", 100 * right.mean(), "percent", on, n=len(right)),
        run.mean("presence-divergence", costs, "nats", on),
        run.number("presence-information", information(known["presence"]).sum(), "nats", on, n=len(right)),
    ]


def _rotations(run: Run, probe: Mapping[str, Array]) -> Measured:
    """Share of the ink that the same template draws after a rotation, and how far poses of objects turn with the image.

    Both are means over rotations and images.

    Arrays, of A `angles` [A]: `mean_share` and `mean_by_chance` [A], over all images. Of the M images that figures 5
    and 7 show: `image` [M], their places in the test set; `labels` [M]; `shares` [A, M]; `chain` and `owner`
    [A, M, H, W]. Of the 2, which figure 5 shows: `images` and `ink` [A, H, W].
    """
    angles, labels = probe["angles"], probe["labels"]
    shares, by_chance = same_template(probe["owner"], angles, probe["images"][0, :, 0] > INK)
    turns, turning = np.abs(signed(angles)), equivariance(angles, probe["presence"], probe["pose"])
    small, large = (turns > 0) & (turns <= SMALL), turns >= LARGE
    chosen = {
        "same-template-small": (shares[small], "fraction"),
        "same-template-large": (shares[large], "fraction"),
        "same-template-by-chance": (by_chance[large], "fraction"),
        "equivariance-small": (turning[small], "ratio"),
        "equivariance-large": (turning[large], "ratio"),
    }
    rows = []
    for metric, (values, unit) in chosen.items():
        means = _mean(values.T)
        if np.isfinite(means).any():
            rows.append(run.mean(metric, means[np.isfinite(means)], unit, run.test_set))
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


def _templates(run: Run, probe: Mapping[str, Array]) -> Measured:
    """Distances of the templates from their nearest templates: of all, and of those that are live in test images.

    Arrays, of n templates: `templates` [n, C, h, w] and `alphas` [n, 1, h, w]; `live` [n]; `nearest` [n], the index of
    the nearest template; `distances` [n] to it; and `mapped` [n, h, w], the nearest template mapped to each template.
    """
    shown, ink = probe["templates"] * probe["alphas"], run.latents(run.settings.test, "ink")["ink"].sum(0)
    fits, live = affine_fits(shown), ink >= LIVE * ink.mean()
    nearest, distances = fits.nearest()
    n = len(nearest)
    among_live = affine_fits(shown[live]).nearest()[1] if live.sum() > 1 else np.ones(live.sum())
    rows = [
        run.number("near-copies", float((distances < NEARLY).mean()), "fraction", n=n),
        run.mean("nearest-template", distances, "ratio", ""),
        run.number("live-templates", live.sum(), "count", n=n),
        run.number("live-near-copies", float((among_live < NEARLY).mean()), "fraction", n=len(among_live)),
    ]
    mapped = pictures(fits.mapped[np.arange(n), nearest, 0])
    learned = {name: probe[name] for name in ("templates", "alphas")}
    return rows, {**learned, "live": live, "nearest": nearest, "distances": distances, "mapped": mapped}


def _samples(_: Run, probe: Mapping[str, Array]) -> Measured:
    """No numbers. Arrays: `samples` [n, H, W], and their mean `brightness` [n]."""
    samples = probe["samples"][:, 0]
    return [], {"samples": pictures(samples), "brightness": samples.mean((1, 2))}


def _free_form(run: Run, probe: Mapping[str, Array]) -> Measured:
    """The effect of free-form inference on the bound and on the accuracy of classifiers of presences, and its cost.

    The cost is the number of steps after which half of the mean rise of the bound is reached.

    Arrays: the mean `bound` [K] in nats over the images at each of the `steps` [K], and `n`, the number of images.
    """
    right, on, n = _right(run, probe), run.test_set, len(probe["labels"])
    before, after = probe["bound_along"][0], probe["bound_along"][-1]
    gain = 100 * (right["free-form"].astype(float) - right["amortised"])
    along = probe["bound_along"].mean(1)
    half = np.interp((along[0] + along[-1]) / 2, np.maximum.accumulate(along), probe["steps"])
    rows = [
        *(run.number(f"{name}-accuracy", 100 * each.mean(), "percent", on, n=n) for name, each in right.items()),
        run.number("free-form-refitted", _crossed(run, probe, "presence_free"), "percent", on, n=n),
        run.mean("free-form-gain", gain, "percent", on),
        run.mean("bound-amortised", before, "nats", on),
        run.mean("bound-free-form", after, "nats", on),
        run.number("free-form-gradients", probe["gradients"][-1], "count", on),
        run.number("bound-raised", (after > before).mean(), "fraction", on, n=n),
        run.number("free-form-half-way", half, "count", on, n=n),
    ]
    return rows, {"steps": probe["steps"], "bound": along, "n": np.array(n)}


def _free_form_rotations(run: Run, probe: Mapping[str, Array]) -> Measured:
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


def _selections(run: Run, probe: Mapping[str, Array]) -> Measured:
    """Accuracies of classifiers of posterior presences (appendix D) and of presences of the same images. No arrays."""
    n, on = len(probe["labels"]), run.test_set
    kinds = {"posterior-presence": "posterior_presence", "same-images-presence": "presence"}
    return [
        run.number(f"{kind}-crossed", _crossed(run, probe, name), "percent", on, n=n) for kind, name in kinds.items()
    ], {}


#: What is measured on each probe.
PARTS: dict[str, Callable[[Run, Mapping[str, Array]], Measured]] = {
    "rotations": _rotations,
    "templates": _templates,
    "samples": _samples,
    "selections": _selections,
    "free-form": _free_form,
    "free-form-rotations": _free_form_rotations,
}


def _right(run: Run, probe: Mapping[str, Array]) -> dict[str, Array]:
    """Whether a classifier of amortised presences is right on amortised and on free-form presences, bool [N] each."""
    head, part = run.paper.heads["presence"], run.paper.protocols["mnist"].fit
    assert part is not None  # the head is fitted
    known = _images(run, part, *head.features, "labels")
    fitted = classifier(head).fit(features(known, head), known["labels"])
    answers = {"amortised": probe, "free-form": {name: probe[f"{name}_free"] for name in head.features}}
    return {name: fitted.predict(features(each, head)) == probe["labels"] for name, each in answers.items()}


def _images(run: Run, part: Part, *names: str) -> dict[str, Array]:
    """Arrays of the latents of the images of a part."""
    rows = slice(part.start, None if part.count is None else part.start + part.count)
    return {name: values[rows] for name, values in run.latents(part.set, *names).items()}


def _crossed(run: Run, probe: Mapping[str, Array], name: str) -> float:
    """Accuracy in percent of the head of presences on an array of a probe, by cross-validation in five parts."""
    from sklearn.model_selection import KFold, cross_val_predict

    predicted = cross_val_predict(classifier(run.paper.heads["presence"]), probe[name], probe["labels"], cv=KFold(5))
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
    return np.ma.masked_invalid(values).mean(-1).filled(np.nan)


def _logistic(values: Array) -> Array:
    """Density of the standard logistic distribution."""
    return np.square(0.5 / np.cosh(values / 2))
