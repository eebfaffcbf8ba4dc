"""GPU-hours that a cluster reserved and that trainings used, from the run records."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def summary(files: Iterable[str | Path]) -> str:
    """GPU-hours of trainings by paper, as lines of text; empty if no run had a GPU of a cluster.

    Asked: GPUs times the time limit, for each start that reached a checkpoint. Used: time in training steps.
    """
    from recaps.report.measured import read_records  # imports pandas, which would slow down the start of every workflow

    rows: dict[str, list[float]] = {}
    for run in read_records(file for file in map(Path, files) if file.exists()):
        reserved = [(start.get("gpus", 0), start.get("minutes", 0)) for start in run["starts"]]
        most = max((gpus for gpus, _ in reserved), default=0)
        if most and "trained" not in run:
            hours = sum(gpus * minutes / 60 for gpus, minutes in reserved), run["wall_seconds"] * most / 3600
            before = rows.get(run["paper"], [0, 0, 0, 0])
            rows[run["paper"]] = [sum(pair) for pair in zip(before, (1, len(reserved), *hours), strict=True)]
    if not rows:
        return ""
    rows["all"] = [sum(column) for column in zip(*rows.values(), strict=True)]
    lines = [f"{'trainings':<16} {'runs':>6} {'starts':>7} {'GPU-hours asked':>16} {'used':>8}"]
    for name, (runs, starts, asked, used) in rows.items():
        lines.append(f"{name:<16} {runs:>6.0f} {starts:>7.0f} {asked:>16.1f} {used:>8.2f}")
    return "\n".join(lines) + "\n"
