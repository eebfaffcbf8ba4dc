"""Tables of *Learning to compute inner consensus*."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from recaps.npz import Array
from recaps.papers.consensus import architecture
from recaps.papers.consensus.variants import CAPSULE_LAYERS, DATASETS, by_dataset, matrix_capsules, with_routing
from recaps.report.results import Results
from recaps.report.statistics import sd

#: Rows of table 1: layer, details.
TABLE_1 = (
    ("Input", ""),
    ("Convolutional layer + relu", "K=5, S=2, Ch=64"),
    ("BatchNorm", ""),
    ("Primary Capsules", "K=1, S=1, Ch=8"),
    *zip(CAPSULE_LAYERS.values(), ("K=3, S=2, Ch=16", "K=3, S=1, Ch=16", "flatten, O=5"), strict=True),
)

#: Rows of table 2: hidden layers of the compatibility and of the activation network, units of the LSTM cell.
TABLE_2 = (((), (), 16), ((32, 32), (64, 64), 16), ((64, 64), (124, 124), 16))

#: Errors of EM routing in table 3 that no claim is about: variant, label, error in percent. Claims compare the same
#: measurement with the best open-source version.
REFERENCES = (("norb-em", "EM (www0wwwjs1)", 8.2), ("norb-em", "EM (original authors)", 2.2))

#: The network for which the paper counts its weights, and the claim with the count.
PAPER_SETTING = "smallNORB, the paper's setting"


def table_1(results: Results) -> pd.DataFrame:
    """The layers in the paper and as built, with measured shapes, numbers of weights, and parameters of routings."""
    every = matrix_capsules(results.paper)
    titles = {each.title: each.model.routing.name for variants in every.values() for each in variants.values()}
    geometries = {
        f"{DATASETS.get(dataset, dataset)}, as run": {
            each.title: results.config(name) for name, each in variants.items()
        }
        for dataset, variants in every.items()
    }
    geometries[PAPER_SETTING] = {title: architecture.paper_config(routing) for title, routing in titles.items()}
    layers, published = zip(*TABLE_1, strict=True)
    before = [None] * (len(layers) - len(CAPSULE_LAYERS))
    parts = []
    for geometry, configs in geometries.items():
        built = {title: architecture.network(config) for title, config in configs.items()}
        model, image_shape = next(iter(built.values())), next(iter(configs.values()))["image_shape"]
        total = results.published.get(("mnist-em", "paper-weights")) if geometry == PAPER_SETTING else None
        own = {f"{title} routing": architecture.routing_parameters(each) for title, each in built.items()}
        columns = {
            "layer": [*layers, "Total without BatchNorm"],
            "details published": [*published, ""],
            "details ours": [*architecture.layer_details(model), ""],
            "output": [*architecture.output_shapes(model, image_shape), ""],
            "weights": [*architecture.layer_weights(model), architecture.weights_without_routing(model)],
            "weights published": [*[None] * len(layers), total],
            **{name: [*before, *n, sum(n)] for name, n in own.items()},
        }
        parts.append(pd.DataFrame({"geometry": geometry} | columns))
    table = pd.concat(parts, ignore_index=True)
    return table.astype(dict.fromkeys(table.columns[5:], "Int64"))


def table_2(results: Results) -> pd.DataFrame:
    """The networks of connectionist routing in the paper and as built, with their parameters."""
    variant = next(iter(with_routing(results.paper, "connectionist")))
    model = architecture.network(results.config(variant))
    ours = model.options.routing
    paper = architecture.routing_parameters(architecture.network(architecture.paper_config("connectionist")))
    rows = []
    for place, (layer, (compatibility, activation, units)) in enumerate(
        zip(CAPSULE_LAYERS.values(), TABLE_2, strict=True)
    ):
        parameters = architecture.network_parameters(model, place)
        row: dict[str, object] = {"layer": layer}
        row |= {"compatibility published": _widths(compatibility)}
        row |= {"compatibility ours": _widths(ours.compatibility_layers[place])}
        row |= {"activation published": _widths(activation), "activation ours": _widths(ours.activation_layers[place])}
        row |= {"units published": units, "units ours": ours.lstm_units}
        row |= {f"parameters: {part}": n for part, n in parameters.items()}
        rows.append(row | {"all": sum(parameters.values()), "all, the paper's widths": paper[place]})
    return pd.DataFrame(rows)


def _widths(layers: Sequence[int]) -> str:
    return f"[{', '.join(map(str, layers))}]"


def table_3(results: Results) -> pd.DataFrame:
    """Test errors in percent, ours (mean and standard deviation over seeds) and published.

    A variant has a row for each number that the paper prints for it, or a single one without a published number.
    """
    printed = [
        (each.variant, each.label, each.value)
        for claim, each in results.printed.items()
        if claim.startswith("consensus/table-3/")
    ]
    printed += () if results.own else REFERENCES
    rows = []
    for dataset, variants in by_dataset(results.paper).items():
        for name, variant in variants.items():
            errors, n, tested_on = _measured(results, name, "error")
            published = [(label, value) for variant, label, value in printed if variant == name]
            for label, value in published or [("", math.nan)]:
                row: dict[str, object] = {"benchmark": DATASETS.get(dataset, dataset)}
                row |= {"routing": label or variant.title, "error % ours": errors.mean(), "sd": sd(errors)}
                row |= {"error % published": value, "tested on": tested_on, "n": n, "seeds": len(errors)}
                rows.append(row)
    return pd.DataFrame(rows)


def table_4(results: Results) -> pd.DataFrame:
    """Errors in percent at familiar and novel viewpoints, and the gap, means and standard deviations over seeds."""
    rows = []
    for factor, variants in by_dataset(results.paper, "-novel").items():
        for name, variant in variants.items():
            row: dict[str, object] = {"viewpoint": factor, "routing": variant.title}
            images = {}
            for column, metric in (("familiar", "error-familiar"), ("novel", "error-novel"), ("gap", "gap")):
                errors, images[column], tested_on = _measured(results, name, metric)
                row |= {f"{column} %": errors.mean(), f"{column} sd": sd(errors)}
            row |= {"tested on": tested_on, "n familiar": images["familiar"], "n novel": images["novel"]}
            rows.append(row | {"seeds": len(errors)})
    return pd.DataFrame(rows)


def _measured(results: Results, variant: str, metric: str) -> tuple[Array, int, str]:
    """A metric for every seed, the number of images that it is measured on, and their set."""
    rows = results.measured(variant, metric)
    return rows["value"].to_numpy(float), int(rows["n"].iloc[0]), str(rows["measured_on"].iloc[0])
