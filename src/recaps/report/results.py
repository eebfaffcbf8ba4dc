"""The saved results of a paper: what its metrics, tables and figures read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors import SafetensorError, safe_open
from scipy.stats import bootstrap

from recaps import io
from recaps.arrays import Arrays
from recaps.arrays import read as read_split
from recaps.config.base import snapshot_of
from recaps.config.variant import Paper
from recaps.errors import UserError
from recaps.npz import Array, read
from recaps.report.claims import Printed
from recaps.workflow import layout
from recaps.workflow.layout import Layout

STAND_IN = "stand-in data: not a result"


class _Arrays(dict[str, Array]):
    def __init__(self, arrays: Mapping[str, Array], file: Path) -> None:
        super().__init__(arrays)
        self.file = file

    def __missing__(self, name: str) -> Array:
        raise UserError(f"{self.file}: no array '{name}'; delete this file and run again")


@dataclass(frozen=True)
class Results:
    """The saved results of one paper at one scale.

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
    """

    name: str
    paper: Paper
    files: Layout
    own_seeds: Mapping[str, Sequence[int]]
    resolve: Callable[[str], str]
    printed: Mapping[str, Printed]
    stand_in: bool
    own: Sequence[str] = ()

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
        file, _ = self.files.metrics(self.name)
        try:
            return pd.read_csv(file, keep_default_na=True, dtype={"measured_on": str}).fillna({"measured_on": ""})
        except FileNotFoundError as error:
            raise UserError(f"{file}: no such file; first run the stage that writes it") from error

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

    @cached_property
    def arrays(self) -> dict[str, Array]:
        """The arrays of `metrics.npz`, computed together with the metrics. One that it lacks raises a UserError."""
        file = self.files.metrics(self.name)[1]
        return _Arrays(read(file), file=file)

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
        file = self.run(variant, seed) / "history.csv"
        try:
            return pd.read_csv(file)
        except FileNotFoundError as error:
            raise UserError(f"{file}: no such file; first run the stage that writes it") from error
        except ValueError as error:
            raise UserError(f"{file}: not a history ({' '.join(str(error).split())}); train again") from error

    def evaluations(self, variant: str, seed: int | None = None) -> pd.DataFrame:
        """The test error during training: columns `step` and `test_error` (percent)."""
        history = self.history(variant, seed)
        if "test_error" not in history or history["test_error"].isna().all():
            raise UserError(
                f"{self.run(variant, seed) / 'history.csv'}: no test errors; set training.evaluate_every of '{variant}'"
                f" in {self.name}/paper.yaml and train again"
            )
        return history[["step", "test_error"]].dropna().reset_index(drop=True)

    def all_evaluations(self, variant: str) -> pd.DataFrame:
        """The test errors of every seed, with a column `seed`."""
        return pd.concat([self.evaluations(variant, seed).assign(seed=seed) for seed in self.own_seeds[variant]])

    def weight(self, variant: str, name: str, seed: int | None = None) -> Array:
        """One tensor of the trained model, by its name in `model.safetensors`."""
        file = self.run(variant, seed) / "model.safetensors"
        try:
            with safe_open(file, framework="numpy") as tensors:
                return np.asarray(tensors.get_tensor(name))
        except FileNotFoundError as error:
            raise UserError(f"{file}: no such file; first run the stage that writes it") from error
        except SafetensorError as error:
            raise UserError(f"{file}: cannot read tensor '{name}' ({error}); train again") from error

    def timing(self, name: str) -> dict[str, Any]:
        """Seconds per training step of several variants, measured side by side."""
        return dict(io.read_json(self.files.timing(self.name, name)))

    def split(self, set_name: str) -> Arrays:
        """Images and labels of a set, given as `name/split`, or of the set that replaces it at this scale."""
        return read_split(self.files.dataset(self.resolve(set_name)))

    def test_set(self, variant: str) -> str:
        """The test split of the data that a variant is trained on, as used at this scale."""
        return self.resolve(self.paper.variants[variant].test)

    def head(self, variant: str, head: str, protocol: str) -> list[dict[str, Any]]:
        """A head's result for every seed."""
        fitted = self.paper.heads[head].kind != "argmax"
        file = layout.heads if fitted else layout.scores
        return [_result(file(self.run(variant, seed)), head, protocol) for seed in self.own_seeds[variant]]

    def accuracy(self, variant: str, head: str, protocol: str) -> Array:
        """A head's accuracy in percent for every seed, [seeds]."""
        return np.array([100 * result["accuracy"] for result in self.head(variant, head, protocol)])

    def latents(self, variant: str, set_name: str, *names: str, seed: int | None = None) -> dict[str, Array]:
        """The arrays `names` of a run's latents on a set."""
        return read(layout.latents(self.run(variant, seed)), names, part=self.resolve(set_name))

    def probe(self, variant: str, name: str, seed: int | None = None) -> dict[str, Array]:
        """All arrays of a probe."""
        return read(layout.probes(self.run(variant, seed)), part=name)


def _result(file: Path, head: str, protocol: str) -> dict[str, Any]:
    results = io.read_json(file)
    if protocol not in results.get(head, {}):
        raise UserError(f"{file}: has no result of head '{head}' under protocol '{protocol}'; delete it and run again")
    return dict(results[head][protocol])


def head_metrics(results: Results) -> pd.DataFrame:
    """The accuracies of all heads: a row per variant, seed, head and protocol, in the columns of `metrics.csv`."""
    rows = []
    for variant, settings in results.paper.variants.items():
        for head, protocols in settings.heads.items():
            for protocol in protocols:
                test = results.resolve(snapshot_of(results.paper.protocols[protocol].test.set)[0])
                for seed, result in zip(results.own_seeds[variant], results.head(variant, head, protocol), strict=True):
                    value, n = 100 * result["accuracy"], result["n"]
                    rows.append((variant, seed, f"{head}-{protocol}", value, math.nan, n, "percent", test))
    return metric_rows(rows)


MetricRow = tuple[str, int, str, float, float, int, str, str]


def metric_rows(rows: list[MetricRow]) -> pd.DataFrame:
    """Metrics as a table.

    Returns:
        Columns variant, seed, metric, value, se, n, unit and measured_on. `se` is the standard error of the value over
        the `n` images it is measured on; it is empty for accuracies, whose error follows from n. `n` is 0 where the
        error does not depend on a number of images. `measured_on` is the set.
    """
    table = pd.DataFrame(rows, columns=["variant", "seed", "metric", "value", "se", "n", "unit", "measured_on"])
    # Also without rows, so that tables of numbers stay tables of numbers when they are joined.
    return table.astype({"seed": int, "value": float, "se": float, "n": int})


def mean_row(variant: str, seed: int, metric: str, values: Array, unit: str, measured_on: str) -> MetricRow:
    """The row of a metric that is the mean of one value per image (or per round of a timing)."""
    n = len(values)
    error = float(values.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan
    return variant, seed, metric, float(values.mean()), error, n, unit, measured_on


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
