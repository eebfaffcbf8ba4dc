"""The small record of a run: all numbers, tables and pictures are drawn from it alone.

The function `record` of a paper's module `record` reads a trained run, and returns the rows of `numbers.csv` and the
arrays of `arrays.npz`. Both stay when weights and latents are deleted, and are what is published.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from safetensors import SafetensorError, safe_open

from recaps import io, layout, npz
from recaps.arrays import Arrays
from recaps.arrays import read as read_split
from recaps.config.base import snapshot_of
from recaps.config.studies import Studied
from recaps.config.variant import Paper, Study, Variant
from recaps.errors import UserError
from recaps.npz import Array
from recaps.papers import of

if TYPE_CHECKING:
    from recaps.models.model import Model

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


class Record(NamedTuple):
    """What is kept of a run."""

    rows: list[MetricRow]
    """The numbers that were measured on it, with the accuracies of its heads."""
    arrays: Mapping[str, Mapping[str, Array]]
    """The arrays that pictures need, by part and name. uint8 holds values in 0..1, see `pictures`."""


@dataclass(frozen=True)
class Run:
    """A trained run, and what was read from it.

    Attributes:
        name: the paper, e.g. `sparse`.
        datasets: the folder of the prepared sets.
        resolve: returns the set that replaces a set at this scale (`affnist/test` -> `affnist-generated/test`).
        beside: the runs of the variants in `beside`, by variant: of the same seed if there is one.
    """

    folder: Path
    name: str
    paper: Paper
    variant: str
    seed: int
    datasets: Path
    resolve: Callable[[str], str]
    beside: Mapping[str, Run] = field(default_factory=dict)

    @property
    def settings(self) -> Variant:
        """The variant's settings."""
        return self.paper.variants[self.variant]

    @property
    def test_set(self) -> str:
        """The test split of the data that it is trained on, as used at this scale."""
        return self.resolve(self.settings.test)

    def number(
        self, metric: str, value: float, unit: str, on: str = "", *, n: int = 0, se: float = math.nan
    ) -> MetricRow:
        """The row of a metric. `on`: the set that it is measured on, as used at this scale; `n`: its images."""
        return self.variant, self.seed, metric, float(value), se, n, unit, on

    def mean(self, metric: str, values: Array, unit: str, on: str) -> MetricRow:
        """The row of a metric that is the mean of one value per image, [N]."""
        return mean_row(self.variant, self.seed, metric, values, unit, on)

    def config(self) -> dict[str, Any]:
        """The settings that the run was trained with, including `image_shape` and `classes`."""
        return dict(io.read_json(self.folder / "config.json"))

    def training_record(self) -> dict[str, Any]:
        """How it was trained: data, device, seconds."""
        return dict(io.read_json(self.folder / "record.json"))

    def history(self) -> pd.DataFrame:
        """A row per logging step."""
        return read_history(self.folder / "history.csv")

    def evaluations(self) -> pd.DataFrame:
        """The test error during training: columns `step` and `test_error` (percent)."""
        return evaluations(self.history(), self.folder)

    def weight(self, name: str) -> Array:
        """One tensor of the trained model, by its name in `model.safetensors`."""
        file = self.folder / "model.safetensors"
        try:
            with safe_open(file, framework="numpy") as tensors:
                return np.asarray(tensors.get_tensor(name))
        except FileNotFoundError as error:
            raise UserError(f"{file}: no such file; first run the stage that writes it") from error
        except SafetensorError as error:
            raise UserError(f"{file}: cannot read tensor '{name}' ({error}); train again") from error

    def model(self) -> Model:
        """The trained model on the CPU, in evaluation mode."""
        import torch

        from recaps.training.saved import load_model

        return load_model(self.folder, torch.device("cpu"))[0]

    def has(self, set_name: str) -> bool:
        """Whether there are latents of a set, or of the held-out images that take its place in a study."""
        return self.resolve(set_name) in map(self.resolve, self.settings.latents)

    def latents(self, set_name: str, *names: str) -> dict[str, Array]:
        """The arrays `names` of the latents on a set."""
        return npz.read(layout.latents(self.folder), names, part=self.resolve(set_name))

    def probe(self, name: str) -> dict[str, Array]:
        """All arrays of a probe."""
        return npz.read(layout.probes(self.folder), part=name)

    def split(self, set_name: str) -> Arrays:
        """Images and labels of a set, given as `name/split`, or of the set that replaces it at this scale."""
        return read_split(self.datasets / self.resolve(set_name))

    def head(self, head: str, protocol: str) -> dict[str, Any]:
        """The result of a head."""
        return head_result(self.folder, self.paper, head, protocol)

    def accuracies(self) -> list[MetricRow]:
        """The accuracies of all heads, as metrics `<head>-<protocol>`."""
        rows = []
        for head, protocols in self.settings.heads.items():
            for protocol in protocols:
                result = self.head(head, protocol)
                on = self.resolve(snapshot_of(self.paper.protocols[protocol].test.set)[0])
                rows.append(self.number(f"{head}-{protocol}", 100 * result["accuracy"], "percent", on, n=result["n"]))
        return rows


def write(run: Run) -> None:
    """Write the record of a run, `numbers.csv` and `arrays.npz`, to its folder."""
    made: Record = importlib.import_module(f"recaps.papers.{of(run.name)}.record").record(run)
    more = _of_study(run, run.paper.study) if isinstance(run.paper, Studied) else []
    table = metric_rows([*made.rows, *more])
    npz.save_parts(layout.arrays(run.folder), made.arrays, compressed=True)
    io.write_text(layout.numbers(run.folder), table.to_csv(index=False))


def _of_study(run: Run, study: Study) -> list[MetricRow]:
    """What a table of a study may show besides: what it measures, means of the scalar latents of the test images, and
    the diagnosis."""
    rows: list[MetricRow] = []
    if study.measure:
        module, _, function = study.measure.partition(":")
        rows += getattr(importlib.import_module(f"recaps.papers.{of(run.name)}.{module}"), function)(run)
    if not run.has(run.settings.test):
        return rows
    latents, on = run.latents(run.settings.test), run.test_set
    scalars = {name: each for name, each in latents.items() if each.ndim == 1 and name not in ("labels", "original")}
    rows += [run.mean(name.replace("_", "-"), each, "mean", on) for name, each in scalars.items() if len(each)]
    found = run.model().diagnosis(latents)
    return [*rows, *(run.number(name.replace(" ", "-"), each, "diagnosis", on) for name, each in found.items())]


def read_numbers(run: Path) -> pd.DataFrame:
    """Return the numbers of a run's record, in the columns of `metric_rows`."""
    file = layout.numbers(run)
    try:
        return pd.read_csv(file, dtype={"measured_on": str}).fillna({"measured_on": ""})
    except FileNotFoundError as error:
        raise UserError(f"{file}: no such file; first run the stage that writes it") from error


def read_history(file: Path) -> pd.DataFrame:
    """Return a run's history: a row per logging step."""
    try:
        return pd.read_csv(file)
    except FileNotFoundError as error:
        raise UserError(f"{file}: no such file; first run the stage that writes it") from error
    except ValueError as error:
        raise UserError(f"{file}: not a history ({' '.join(str(error).split())}); train again") from error


def evaluations(history: pd.DataFrame, run: Path) -> pd.DataFrame:
    """Return the test error during training, columns `step` and `test_error` (percent), from the history of `run`."""
    if "test_error" not in history or history["test_error"].isna().all():
        where = "/".join(run.parts[-3:-1])
        raise UserError(
            f"{run / 'history.csv'}: no test errors; set training.evaluate_every of '{where}' in paper.yaml and train"
            " again"
        )
    return history[["step", "test_error"]].dropna().reset_index(drop=True)


def head_result(run: Path, paper: Paper, head: str, protocol: str) -> dict[str, Any]:
    """Return the result of a head of a run under a protocol, as `recaps.evaluation.heads` wrote it."""
    file = (layout.scores if paper.heads[head].kind == "argmax" else layout.heads)(run)
    results = io.read_json(file)
    if protocol not in results.get(head, {}):
        raise UserError(f"{file}: has no result of head '{head}' under protocol '{protocol}'; delete it and run again")
    return dict(results[head][protocol])


def pictures(values: Array) -> Array:
    """Pictures in 0..1 as bytes. Values beyond are cut."""
    return np.asarray(np.rint(np.clip(values, 0, 1) * 255), np.uint8)


def read_arrays(run: Path, part: str) -> dict[str, Array]:
    """Return the arrays of a part of a run's record: bytes as values in 0..1, float16 as float32."""
    return {name: _plain(each) for name, each in npz.read(layout.arrays(run), part=part).items()}


def _plain(values: Array) -> Array:
    if values.dtype == np.uint8:
        return values.astype(np.float32) / 255
    return values.astype(np.float32) if values.dtype == np.float16 else values
