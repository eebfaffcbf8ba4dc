"""The table and the figure of a study."""

from __future__ import annotations

import json
import sys
from typing import Any, cast

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from recaps.config.studies import Studied
from recaps.errors import UserError, nearest
from recaps.report.results import Results
from recaps.report.statistics import sd


def table(results: Results) -> pd.DataFrame:
    """A row for each row of the study: what it changes, its metrics, and what it cost.

    Metrics are means over seeds, with standard deviations if there are several; `n` is the number of images, from the
    fewest to the most if it differs between metrics. Steps and minutes are those of the training, the minutes a mean; a
    row with the model of another run has the other's.

    Raises:
        UserError: no row has a metric that the study names.
    """
    study = _study(results)
    columns = [*dict.fromkeys(name for changes in study.changes.values() for name in changes)]
    rows = []
    for variant, changes in study.changes.items():
        row: dict[str, Any] = {name: _text(changes[name]) if name in changes else "" for name in columns}
        found = {name: results.measured(variant, name) for name in _metrics(results, study.study.columns)}
        for name, measured in found.items():
            row[name] = measured["value"].mean()
            if len(results.own_seeds[variant]) > 1:
                row[f"{name} sd"] = sd(measured["value"].tolist())
        counts = [n for each in found.values() for n in each["n"]]
        records = [results.record(variant, seed) for seed in results.own_seeds[variant]]
        row |= {
            "n": " to ".join(f"{n:.0f}" for n in sorted({min(counts), max(counts)})) if counts else "",
            "seeds": ", ".join(map(str, results.own_seeds[variant])),
            "steps taken": str(records[0]["steps"]),
            "minutes taken": sum(each["wall_seconds"] for each in records) / len(records) / 60,
        }
        rows.append(row)
    return pd.DataFrame(rows)


def figure(results: Results) -> tuple[Figure, pd.DataFrame]:
    """A point for each row and seed: the metric that the study names, with a line at the mean.

    Raises:
        UserError: no row has the metric.
    """
    study = _study(results)
    [metric] = _metrics(results, (str(study.study.figure),))
    unit = results.metrics.loc[results.metrics["metric"] == metric, "unit"].iloc[0]
    labels, data = rows(results), []
    drawing, axes = plt.subplots(figsize=(6, 0.8 + 0.35 * len(study.changes)))
    for place, (label, variant) in enumerate(labels.items()):
        measured = results.measured(variant, metric)
        axes.plot(measured["value"], [place] * len(measured), "o", color="C0", alpha=0.7)
        axes.plot([measured["value"].mean()], [place], "|", color="black", markersize=14)
        data += [{"row": label, "seed": row["seed"], metric: row["value"]} for _, row in measured.iterrows()]
    axes.set_yticks(range(len(labels)), list(labels))
    axes.set(ylim=(len(labels) - 0.5, -0.5), xlabel=f"{metric} ({unit})")
    return drawing, pd.DataFrame(data, columns=["row", "seed", metric])


def rows(results: Results) -> dict[str, str]:
    """The variants of a study by a label of what they change."""
    labels = {}
    for variant, changes in _study(results).changes.items():
        words = [
            _text(each) if name in ("variant", "row") else f"{name} {_text(each)}" for name, each in changes.items()
        ]
        labels[", ".join(words) or variant] = variant
    return labels


def _study(results: Results) -> Studied:
    return cast(Studied, results.paper)


def _metrics(results: Results, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """The metrics to show: those in `wanted` that a row has; if it is empty, those in percent, or all."""
    shown = results.metrics[results.metrics["variant"].isin(_study(results).changes)]
    known = shown["metric"].unique()
    if wanted and not set(wanted) & set(known):
        raise UserError(f"{results.name}: no row has the metric '{wanted[0]}'{nearest(wanted[0], known)}")
    for name in set(wanted) - set(known):
        print(f"{results.name}: no row has the metric '{name}'{nearest(name, known)}", file=sys.stderr)
    wanted = tuple(name for name in wanted if name in known)
    percent = tuple(shown[(shown["unit"] == "percent") & (shown["measured_on"] != "")]["metric"].unique())
    return wanted or percent or tuple(known)


def _text(value: Any) -> str:
    """A value of an option, as in YAML on one line."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value).replace('"', "")
