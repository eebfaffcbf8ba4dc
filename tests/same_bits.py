"""Whether two folders of a scale hold the same numbers, bit by bit: weights, histories without times, and metrics.

`python tests/same_bits.py OLD/results/smoke NEW/results/smoke`
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from safetensors.numpy import load_file

#: Columns of a history, units and ends of names of metrics that are times.
TIMES = ("seconds", "images_per_second")
TIMED = ("minutes", "hours", "seconds", "images/s")
RATIOS = ("time-ratio", "time-without-decoder")


def differing(old: Path, new: Path) -> list[str]:
    """Return what one of the folders lacks, and what differs."""
    found = []
    for pattern, same in (
        ("runs/*/*/seed-*/model.safetensors", _same_weights),
        ("runs/*/*/seed-*/history.csv", _same_history),
        ("papers/*/metrics.csv", _same_metrics),
    ):
        files = sorted({file.relative_to(folder) for folder in (old, new) for file in folder.glob(pattern)})
        for file in files:
            there = [(folder / file).exists() for folder in (old, new)]
            if not all(there) or not same(old / file, new / file):
                found.append(f"{file}: {'differs' if all(there) else 'only in one of them'}")
        print(f"{pattern}: {len(files)} files")
    return found


def _same_weights(old: Path, new: Path) -> bool:
    a, b = load_file(old), load_file(new)
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name], equal_nan=True) for name in a)


def _same_history(old: Path, new: Path) -> bool:
    a, b = (pd.read_csv(file, dtype=str).drop(columns=list(TIMES), errors="ignore") for file in (old, new))
    return a.equals(b)


def _same_metrics(old: Path, new: Path) -> bool:
    a, b = (_timeless(pd.read_csv(file, dtype=str, keep_default_na=False)) for file in (old, new))
    return a.equals(b)


def _timeless(rows: pd.DataFrame) -> pd.DataFrame:
    timed = rows["unit"].isin(TIMED) | rows["metric"].isin(RATIOS)
    return rows[~timed].sort_values(["variant", "seed", "metric"]).reset_index(drop=True)


if __name__ == "__main__":
    lines = differing(*map(Path, sys.argv[1:3]))
    print("\n".join(lines) or "the same bits")
    sys.exit(bool(lines))
