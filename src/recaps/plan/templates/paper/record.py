"""The record of a run of the paper `example`: every number and array that its claims, tables and figures need."""

from __future__ import annotations

from recaps.evaluation.record import Record, Run


def record(run: Run) -> Record:
    """Return the accuracy of each head, the mean length of the longest capsule, and the lengths that figure 1 shows."""
    scores = run.latents("mnist/test", "scores")["scores"]
    rows = [*run.accuracies(), run.mean("longest", scores.max(1), "ratio", run.resolve("mnist/test"))]
    return Record(rows, {"lengths": {"lengths": run.probe("lengths")["lengths"]}})
