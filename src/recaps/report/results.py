"""The records of a paper's runs: what its tables and figures read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import bootstrap

from recaps import io, layout
from recaps.config.load import Project
from recaps.config.variant import Paper
from recaps.errors import UserError
from recaps.evaluation import record
from recaps.evaluation.record import MetricRow
from recaps.layout import Layout
from recaps.npz import Array
from recaps.report.claims import Printed

STAND_IN = "stand-in data: not a result"


@dataclass(frozen=True)
class Results:
    """The records of one paper at one scale. They hold no weights, latents or images of data sets.

    Attributes:
        name: the paper, e.g. `sparse`.
        paper: its configuration.
        files: the paths of the scale.
        own_seeds: the seeds of each variant.
        resolve: returns the set that replaces a set at this scale (`affnist/test` -> `affnist-generated/test`).
        printed: the values that the paper prints, by claim id.
        stand_in: whether the runs were trained on stand-in data.
        own: the user's own data that the runs use, e.g. `mine in place of mnist`; the paper's numbers are
            then not shown.
        shown: the runs whose arrays were read, by variant and seed; a figure's caption names them.
    """

    name: str
    paper: Paper
    files: Layout
    own_seeds: Mapping[str, Sequence[int]]
    resolve: Callable[[str], str]
    printed: Mapping[str, Printed]
    stand_in: bool
    own: Sequence[str] = ()
    shown: set[tuple[str, int]] = field(default_factory=set)

    @property
    def note(self) -> str:
        """What a reader must know of the data before any number; empty for the data of the paper."""
        notes = [f"own data: {', '.join(self.own)}"] if self.own else []
        return "; ".join([*notes, STAND_IN] if self.stand_in else notes)

    @property
    def seeds(self) -> tuple[int, ...]:
        """All seeds of any variant; every variant has the first."""
        return tuple(dict.fromkeys(seed for seeds in self.own_seeds.values() for seed in seeds))

    def by_seed(self) -> Iterator[tuple[int, Results]]:
        """Yield each seed with the results of this seed alone: of the variants that were trained with it."""
        for seed in self.seeds:
            own = {name: (seed,) for name, seeds in self.own_seeds.items() if seed in seeds}
            variants = {name: variant for name, variant in self.paper.variants.items() if name in own}
            yield seed, replace(self, own_seeds=own, paper=self.paper.model_copy(update={"variants": variants}))

    @property
    def folder(self) -> Path:
        """The folder of the paper's metrics, tables, figures and timings."""
        return self.files.paper(self.name)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """The rows of `metrics.csv`: every number that was measured for the paper."""
        file = self.files.metrics(self.name)
        try:
            return pd.read_csv(file, dtype={"measured_on": str}).fillna({"measured_on": ""})
        except FileNotFoundError as error:
            raise UserError(f"{file}: no such file; first run the stage that writes it") from error

    def numbers(self, variant: str, seed: int) -> pd.DataFrame:
        """The numbers of a run's record. `metrics` has those of all runs, and some that combine runs (`collect`)."""
        return record.read_numbers(self.run(variant, seed))

    def measured(self, variant: str, metric: str) -> pd.DataFrame:
        """The rows of `metrics.csv` of a variant and a metric, one for each seed; none where it was not measured."""
        rows = self.metrics
        return rows[(rows["variant"] == variant) & (rows["metric"] == metric)]

    def metric(self, variant: str, name: str) -> Array:
        """A metric's value for every seed that has it, [seeds]; empty where it was not measured."""
        return self.measured(variant, name)["value"].to_numpy(float)

    @cached_property
    def published(self) -> dict[tuple[str, str], float]:
        """The values that the paper prints, by variant and metric."""
        return {(each.variant, each.metric): each.value for each in self.printed.values()}

    def arrays(self, variant: str, part: str, seed: int | None = None) -> dict[str, Array]:
        """The arrays of a part of a run's record; of the first seed that has arrays if none is given.

        Raises:
            Missing: there are none.
        """
        seed = self.seeds_with_arrays(variant)[0] if seed is None else seed
        found = record.read_arrays(self.run(variant, seed), part)
        self.shown.add((variant, seed))
        return found

    def seeds_with_arrays(self, variant: str) -> list[int]:
        """The seeds of a variant whose records have arrays; its first seed if there are none."""
        seeds = self.own_seeds[variant]
        return [seed for seed in seeds if layout.arrays(self.run(variant, seed)).exists()] or [seeds[0]]

    def run(self, variant: str, seed: int | None = None) -> Path:
        """Folder of a run; of the first seed if none is given."""
        return self.files.run(self.name, variant, self.own_seeds[variant][0] if seed is None else seed)

    def record(self, variant: str, seed: int | None = None) -> dict[str, Any]:
        """The run record."""
        return dict(io.read_json(self.run(variant, seed) / "record.json"))

    def config(self, variant: str, seed: int | None = None) -> dict[str, Any]:
        """The settings that the run was trained with, including `image_shape` and `classes`."""
        return dict(io.read_json(self.run(variant, seed) / "config.json"))

    def history(self, variant: str, seed: int | None = None) -> pd.DataFrame:
        """The run's history: a row per logging step."""
        return record.read_history(self.run(variant, seed) / "history.csv")

    def evaluations(self, variant: str, seed: int | None = None) -> pd.DataFrame:
        """The test error during training: columns `step` and `test_error` (percent)."""
        return record.evaluations(self.history(variant, seed), self.run(variant, seed))

    def all_evaluations(self, variant: str) -> pd.DataFrame:
        """The test errors of every seed, with a column `seed`."""
        return pd.concat([self.evaluations(variant, seed).assign(seed=seed) for seed in self.own_seeds[variant]])

    def timing(self, name: str) -> dict[str, Any]:
        """Seconds per training step of several variants, measured side by side."""
        return dict(io.read_json(self.files.timing(self.name, name)))

    def head(self, variant: str, head: str, protocol: str) -> list[dict[str, Any]]:
        """A head's result for every seed."""
        seeds = self.own_seeds[variant]
        return [record.head_result(self.run(variant, seed), self.paper, head, protocol) for seed in seeds]

    def accuracy(self, variant: str, head: str, protocol: str) -> Array:
        """A head's accuracy in percent for every seed, [seeds]."""
        return np.array([100 * result["accuracy"] for result in self.head(variant, head, protocol)])


def of_project(project: Project, name: str, files: Layout, values: Mapping[str, Printed]) -> Results:
    """The results of a paper. `values`: what the paper prints, by claim id."""
    paper, own = project.every[name], project.own_data(name)
    if own:  # the paper's numbers are about other data
        values = {claim: each._replace(value=math.nan, sd=None) for claim, each in values.items()}
    return Results(
        name=name,
        paper=paper,
        files=files,
        own_seeds={variant: project.seeds_of(settings) for variant, settings in paper.variants.items()},
        resolve=project.resolver(name),
        printed=values,
        stand_in=any(map(project.stand_in, paper.used_sets)),
        own=own,
    )


def time_ratio_row(variant: str, seed: int, metric: str, timing: Mapping[str, Any], other: str) -> MetricRow:
    """The row of a ratio of times of a training step: that of `variant` to that of `other`.

    It is the ratio of the medians over the rounds of the timing, since a round may meet other load on the machine. Its
    standard error is that of 1,000 bootstrap samples of the rounds.
    """
    seconds = np.array([timing["seconds_per_step"][name] for name in (variant, other)])
    rounds = seconds.shape[1]
    error = math.nan
    if rounds > 1:
        drawn = bootstrap(seconds, _ratio_of_medians, n_resamples=1000, paired=True, method="percentile", rng=0)
        error = float(drawn.standard_error)
    return variant, seed, metric, float(_ratio_of_medians(*seconds)), error, rounds, "ratio", timing["device"]


def _ratio_of_medians(own: Array, other: Array, axis: int = 0) -> Array:
    return np.asarray(np.median(own, axis) / np.median(other, axis))
