"""GPU-hours that a cluster reserved and that trainings used, from the run records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

HOUR = 3600


def summary(files: Iterable[str | Path]) -> str:
    """GPU-hours of trainings by paper, as lines of text; empty if no run had a GPU of a cluster.

    Asked: GPUs times the time limit, for each start that reached a checkpoint. Used: time in training steps.
    """
    from recaps.report.measured import read_records  # imports pandas, which would slow down the start of every workflow

    rows: dict[str, list[float]] = {}
    for run in read_records(file for file in map(Path, files) if file.exists()):
        if any(start.get("gpus") for start in run["starts"]) and "trained" not in run:
            row = rows.setdefault(run["paper"], [0, 0, 0, 0])
            for place, value in enumerate((1, len(run["starts"]), _asked(run), _used(run))):
                row[place] += value
    if not rows:
        return ""
    rows["all"] = [sum(column) for column in zip(*rows.values(), strict=True)]
    lines = [f"{'trainings':<16} {'runs':>6} {'starts':>7} {'GPU-hours asked':>16} {'used':>8}"]
    for name, (runs, starts, asked, used) in rows.items():
        lines.append(f"{name:<16} {runs:>6.0f} {starts:>7.0f} {asked:>16.1f} {used:>8.2f}")
    return "\n".join(lines) + "\n"


def _asked(run: Mapping[str, Any]) -> float:
    return sum(start.get("gpus", 0) * start.get("minutes", 0) / 60 for start in run["starts"])


def _used(run: Mapping[str, Any]) -> float:
    return run["wall_seconds"] * max(start.get("gpus", 0) for start in run["starts"]) / HOUR
