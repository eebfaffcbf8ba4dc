"""Tables of *Capsule Networks, a Probabilistic Perspective*."""

from __future__ import annotations

import pandas as pd

from recaps.papers.probabilistic.record import ROTATED
from recaps.report.results import Results
from recaps.report.statistics import sd

#: Features of the linear classifiers, by the head.
FEATURES = {"presence": "t0", "presence-pose": "t0, A0", "linear": "VAE's μ, σ"}

#: Test sets of table 1, by the protocol.
TESTED = {
    "mnist": "MNIST",
    **{f"mnist-{degrees}": f"MNIST rotated by up to {degrees}°" for degrees in ROTATED},
    "affnist": "affNIST",
}

#: Columns of table 3, by the protocol.
UPRIGHT = {"mnist": "up to 0°", **{f"mnist-{degrees}": f"up to {degrees}°" for degrees in ROTATED}}

#: Rows of table 2, by the metric.
FINDINGS = {
    "same-template-small": "Ink drawn by the same template after a rotation by 30°",
    "same-template-large": "Ink drawn by the same template after a rotation by 90° or more",
    "same-template-by-chance": "Ink drawn by the same template after 90° or more, by chance",
    "equivariance-small": "Turning of objects' poses with the digit, rotations by 30° (1: with it, 0: not at all)",
    "equivariance-large": "Turning of objects' poses with the digit, 90° or more",
    "live-templates": "Live templates",
    "live-near-copies": "Live templates that are nearly an affine map of another live one",
    "near-copies": "Templates that are nearly an affine map of another one, faint ones included",
    "nearest-template": "Distance of the nearest template under the best affine map",
    "presence-raw-mnist": "Linear classification of t0, log odds as they are, C = 1",
    "presence-draw-mnist": "Linear classification of one relaxed draw of t0",
    "presence-information": "Information of presences on the image, sum over objects",
    "presence-divergence": "Divergence of presences from their prior, sum over objects",
    "posterior-presence-crossed": "Linear classification of posterior presences, five-fold cross-validation",
    "same-images-presence-crossed": "Linear classification of t0 of the same images, five-fold cross-validation",
    "amortised-accuracy": "Linear classification of t0, amortised",
    "free-form-accuracy": "Linear classification of t0, free-form",
    "free-form-refitted": "Linear classification of t0, free-form, classifier refitted",
    "free-form-gain": "Gain by free-form inference",
    "bound-amortised": "Bound, amortised",
    "bound-free-form": "Bound, free-form",
    "bound-raised": "Images whose bound rises",
    "free-form-half-way": "Steps of free-form inference to half of the rise of the bound",
    "bound-mnist": "Bound of Gaussian poses, amortised",
    "twos-error-amortised": "Error of a rotated 2, amortised",
    "twos-error-free-form": "Error of a rotated 2, free-form",
    **{f"reconstruction-error-{degrees}": f"Error of digits rotated by up to {degrees}°" for degrees in (0, *ROTATED)},
    "generative-parameters": "Parameters of the generative model",
    "decoder-parameters": "Parameters of the VAE's decoder",
    "presence-change": "Change of linear classification of t0 if a setting is doubled",
    "presence-gain": "Gain of linear classification of t0 by another number of capsules",
    "presence-mnist-40": "Linear classification of MNIST (40x40), posterior presences",
    "prior-presence-mnist-40": "Linear classification of MNIST (40x40), prior presences",
    "presence-affnist": "Linear classification of affNIST, presences",
}


def table_1(results: Results) -> pd.DataFrame:
    """Accuracies of linear classification out of distribution, with the published values and standard deviations."""
    printed = {each.metric: each for each in results.printed.values()}
    rows: list[dict[str, object]] = []
    for head, label in FEATURES.items():
        for protocol, tested in TESTED.items():
            theirs = printed[f"{head}-{protocol}"]
            ours = results.measured(theirs.variant, theirs.metric)
            if len(ours):
                row: dict[str, object] = {"features": label, "tested": tested, "accuracy % ours": ours["value"].mean()}
                row |= {"sd": sd(ours["value"].to_numpy()), "accuracy % published": theirs.value}
                row |= {"sd published": theirs.sd, "tested on": ours["measured_on"].iloc[0]}
                rows.append(row | {"n": ours["n"].iloc[0], "seeds": len(ours)})
    return pd.DataFrame(rows)


def table_2(results: Results) -> pd.DataFrame:
    """Values of statements that the paper makes without a number or shows as pictures, as means over seeds."""
    rows: list[tuple[object, ...]] = []
    for metric, label in FINDINGS.items():
        for variant, settings in results.paper.variants.items():
            found = results.measured(variant, metric)
            if len(found):
                value, first = found["value"], found.iloc[0]
                row = label, settings.title, value.mean(), sd(value.to_numpy()), first["unit"]
                published = results.published.get((variant, metric))
                rows.append((*row, published, first["measured_on"], int(first["n"]) or pd.NA, len(found)))
    columns = ["finding", "model", "value", "sd", "unit", "published", "measured on", "n", "seeds"]
    return pd.DataFrame(rows, columns=columns).astype({"n": "Int64"})  # some values are not means over images


def table_3(results: Results) -> pd.DataFrame:
    """Accuracies out of distribution of all variants that were trained on upright digits, and the published ones."""
    printed = {each.metric: each for each in results.printed.values()}
    rows: list[dict[str, object]] = []
    for head in FEATURES:
        metrics = {column: f"{head}-{protocol}" for protocol, column in UPRIGHT.items()}
        if not results.own:
            row = {"features": FEATURES[head], "model": "published", "seeds": printed[f"{head}-mnist"].seeds}
            rows.append(row | {column: printed[metric].value for column, metric in metrics.items()})
        for variant, settings in results.paper.variants.items():
            found = {column: results.metric(variant, metric) for column, metric in metrics.items()}
            accuracies = {column: values.mean() for column, values in found.items() if len(values)}
            if accuracies:
                row = {"features": FEATURES[head], "model": settings.title, "seeds": len(results.own_seeds[variant])}
                rows.append(row | accuracies)
    return pd.DataFrame(rows, columns=["features", "model", *UPRIGHT.values(), "seeds"])
