"""Tables of *Sparse Unsupervised Capsules Generalize Better*."""

from __future__ import annotations

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

#: Rows of table 2 that the paper quotes: reference, MNIST, trained on affNIST, affNIST.
QUOTED = (
    ("Zhao et al., 2017", 97.82, "yes", 86.79),
    ("Chang et al., 2017", 97.5, "mix", 91.6),
    ("Asano, 2018", 99.25, "yes", 87.55),
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
    rows = [
        {"reference": reference, "trained on affNIST": trained, "MNIST published": mnist, "affNIST published": affnist}
        for reference, mnist, trained, affnist in (() if results.own else QUOTED)
    ]
    for reference, variant, mnist, affnist in OWN:
        rows.append(
            {
                "reference": reference,
                "trained on affNIST": "no",
                "MNIST published": results.published[variant, mnist],
                "affNIST published": results.published[variant, affnist],
                "MNIST ours": results.metric(variant, mnist).mean(),
                "affNIST ours": results.metric(variant, affnist).mean(),
            }
        )
    return pd.DataFrame(rows)
