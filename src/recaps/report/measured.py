"""The metrics of a finished scale and the records of its runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from recaps import layout
from recaps.errors import UserError
from recaps.io import read_json
from recaps.layout import Layout
from recaps.report.statistics import Estimate, over_seeds, proportion_error, sd

#: One row per variant, seed and metric. Optional columns: `se` (standard error of the value over the test images) and
#: `measured_on` (the set that was used, e.g. `affnist-generated/test`).
COLUMNS = ("paper", "variant", "seed", "metric", "value", "n", "unit", "stand_in")

#: The metrics of all papers, below the folder of a scale.
METRICS = str(Layout(Path()).metrics("*"))

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Measured:
    """One metric of one variant, over its seeds."""

    values: tuple[float, ...]
    seeds: tuple[int, ...]
    n: int | None
    unit: str
    stand_in: bool
    test_error: float | None
    """Standard error of one value over the finite test set, or of equal values over the model's own parts; or None."""
    measured_on: str

    @property
    def estimate(self) -> Estimate:
        return over_seeds(self.values, self.test_error)

    @property
    def sd(self) -> float:
        return sd(self.values)


def finished_papers(folder: Path) -> list[str]:
    """The papers that have metrics in the folder of a scale."""
    return [file.parent.name for file in sorted(Path(folder).glob(METRICS))]


def read_metrics(files: Iterable[Path]) -> pd.DataFrame:
    """Return the rows of all `metrics.csv` files, without values that are not finite.

    Raises:
        UserError: a file is missing or is not a table of metrics.
    """
    return pd.concat([_read(Path(file)) for file in files] or [pd.DataFrame(columns=COLUMNS)], ignore_index=True)


def _read(file: Path) -> pd.DataFrame:
    try:
        frame = pd.read_csv(file, dtype={"paper": str, "variant": str, "metric": str, "unit": str, "stand_in": str})
        frame["value"] = pd.to_numeric(frame["value"])
    except FileNotFoundError as error:
        raise UserError(f"{file}: no such file; first run the stage that writes it") from error
    except (KeyError, ValueError, pd.errors.ParserError) as error:
        raise UserError(f"{file}: not a table of metrics ({' '.join(str(error).split())})") from error
    missing = [column for column in COLUMNS if column not in frame]
    if missing:
        raise UserError(f"{file}: not a table of metrics: no column '{missing[0]}'; delete it and run again")
    frame["stand_in"] = frame["stand_in"].str.lower() == "true"
    return frame[np.isfinite(frame["value"].to_numpy(float))]


def measured_seeds(file: Path) -> dict[str, list[int]]:
    """The seeds of each variant that a `metrics.csv` contains; none if there is no such file.

    These are the runs of a paper. Other runs in its folder were trained with other settings or for something else.
    """
    if not file.exists():
        return {}
    seeds = read_metrics([file]).groupby("variant", sort=False)["seed"]
    return {str(variant): sorted({int(seed) for seed in each}) for variant, each in seeds}


def collect(metrics: pd.DataFrame) -> dict[tuple[str, str, str], Measured]:
    """Return every metric, by (paper, variant, metric)."""
    groups = metrics.sort_values("seed", kind="stable").groupby(["paper", "variant", "metric"], sort=False)
    return {(str(key[0]), str(key[1]), str(key[2])): _measured(rows) for key, rows in groups}


def _measured(rows: pd.DataFrame) -> Measured:
    first = rows.iloc[0]
    unit = str(first["unit"])
    error = float(first["se"]) if "se" in rows and pd.notna(first["se"]) else None
    whole = {"percent": 100.0, "fraction": 1.0}.get(unit)
    on = str(first["measured_on"]) if "measured_on" in rows and pd.notna(first["measured_on"]) else ""
    # All seeds are tested on one set; what a model itself has, such as its templates, is new with each seed.
    number = rows["n"].sum() if whole and not on else first["n"]
    n = int(number) if number > 0 else None
    if error is None and n is not None and whole is not None:
        error = whole * proportion_error(float(first["value"]) / whole, n)
    return Measured(
        values=tuple(float(value) for value in rows["value"]),
        seeds=tuple(int(seed) for seed in rows["seed"]),
        n=n,
        unit=unit,
        stand_in=bool(rows["stand_in"].any()),
        test_error=error,
        measured_on=on,
    )


def read_records(files: Iterable[Path]) -> list[dict[str, Any]]:
    """Return the run records.

    Raises:
        UserError: a file is missing or is not the record of a run.
    """
    records = []
    for file in files:
        record = read_json(Path(file))
        if not isinstance(record, dict) or not {"paper", "variant", "seed"} <= record.keys():
            raise UserError(f"{file}: not the record of a run; delete the run's folder and run again")
        records.append(record)
    return records


def head_results(run: Path) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Return the results of all heads of a run, each with its head and protocol; none of files that do not exist."""
    files = [file for file in (layout.scores(run), layout.heads(run)) if file.exists()]
    heads = [(head, results) for file in files for head, results in read_json(file).items()]
    return [(head, protocol, result) for head, results in heads for protocol, result in results.items()]


def stand_in(records: Sequence[Record]) -> bool:
    return any(record.get("dataset", {}).get("stand_in", False) for record in records)


def dirty(records: Sequence[Record]) -> bool:
    return any(record.get("git", {}).get("dirty", False) for record in records)


def duration(seconds: float) -> str:
    """`42 s`, `12 min`, `3 h 05 min`."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
