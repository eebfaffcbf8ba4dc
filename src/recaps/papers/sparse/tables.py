"""Tables of *Sparse Unsupervised Capsules Generalize Better*."""

from __future__ import annotations

import math

import pandas as pd

from recaps.report.results import Results
from recaps.report.statistics import sd

#: Rows of table 1 for each head of a variant: condition, protocol of the MNIST column, protocol of the affNIST column.
CONDITIONS = {
    "argmax": [("", "mnist-shifted", "affnist")],
    "svm": [
        (" + SVM (a)", "mnist", "affnist-a-position"),
        (" + SVM (a), disjoint digits", "mnist", "affnist-a-disjoint"),
        (" + SVM (b)", "mnist", "affnist-b"),
    ],
}

#: Rows of table 2 that the paper quotes: reference, trained on affNIST, MNIST, affNIST.
QUOTED = (
    ("Zhao et al., 2017", "yes", 97.82, 86.79),
    ("Chang et al., 2017", "mix", 97.5, 91.6),
    ("Asano, 2018", "yes", 99.25, 87.55),
)

#: Rows of table 2 with numbers of ours: reference, variant, metrics of the columns MNIST and affNIST.
OWN = (
    ("CNN in Sabour et al., 2017", "convnet", "argmax-mnist-shifted", "argmax-affnist"),
    ("SPARSECAPS", "sparsecaps", "svm-mnist", "svm-affnist-a-position"),
)


def table_1(results: Results) -> pd.DataFrame:
    """Accuracy in percent on MNIST and affNIST, ours (mean and standard deviation over seeds) and published.

    Every variant has a row for each condition that it is evaluated in.
    """
    rows = []
    for variant, settings in results.paper.variants.items():
        for head, protocols in settings.heads.items():
            for condition, mnist, affnist in CONDITIONS.get(head, []):
                if affnist not in protocols:
                    continue
                row: dict[str, object] = {"algorithm": settings.title + condition}
                for column, protocol in (("MNIST", mnist), ("affNIST", affnist)):
                    ours = results.metric(variant, f"{head}-{protocol}")
                    row |= {f"{column} ours": ours.mean(), f"{column} sd": sd(ours)}
                    row[f"{column} published"] = results.published.get((variant, f"{head}-{protocol}"))
                last = results.head(variant, head, affnist)[0]
                row |= {"affNIST set": results.resolve("affnist/test").split("/")[0], "seeds": len(ours)}
                if last["n_fit"] and (shared := last["test_images_whose_original_was_fitted"]) is not None:
                    row["same digits %"] = 100 * shared / last["n"]
                rows.append(row)
    return pd.DataFrame(rows)


def table_2(results: Results) -> pd.DataFrame:
    """SPARSECAPS and networks trained on affNIST, whose accuracies the paper quotes."""
    columns = ["reference", "trained on affNIST", "MNIST published", "affNIST published", "MNIST ours", "affNIST ours"]
    rows: list[tuple[object, ...]] = [(*each, math.nan, math.nan) for each in (() if results.own else QUOTED)]
    for reference, variant, *metrics in OWN:
        published = [results.published[variant, metric] for metric in metrics]
        rows.append((reference, "no", *published, *(results.metric(variant, metric).mean() for metric in metrics)))
    return pd.DataFrame(rows, columns=columns)
