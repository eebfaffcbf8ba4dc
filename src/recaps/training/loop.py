"""The training loop: steps, history and checkpoints. The folder of checkpoints is all that it writes to."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recaps import io
from recaps.errors import TryAgain, UserError
from recaps.models.model import Model
from recaps.models.schedule import learning_rate
from recaps.training import checkpoint
from recaps.training.batches import Batches
from recaps.training.interruption import Interrupted, StopRequests
from recaps.training.lease import Lease
from recaps.training.step import take_steps

#: The file of all starts of a run.
STARTS = "starts.json"


@dataclass
class Progress:
    """The state of a run besides model and optimisers, as a checkpoint holds it."""

    step: int = 0
    """Steps completed."""
    seconds: float = 0.0
    """Training time over all starts."""
    interruptions: int = 0
    """Number of times that the run was interrupted and started again."""
    sums: dict[str, float] = field(default_factory=dict)
    """Sums of the metrics since the last row of the history."""
    history: list[dict[str, float]] = field(default_factory=list)
    """A row per logging interval: means of the metrics over its steps."""
    starts: list[dict[str, Any]] = field(default_factory=list)
    """Device, PyTorch version, time and resources of every start."""


def fit(
    model: Model,
    batches: Batches,
    folder: Path,
    *,
    lease: Lease,
    checkpoint_seconds: float,
    start: dict[str, Any],
    test: Callable[[Callable[[], None]], float],
    report: Callable[[dict[str, float], bool], None],
) -> Progress:
    """Train `model` for all its steps, from the checkpoint in `folder` if there is one.

    Args:
        model: model on its device, with initial weights; trained in place.
        batches: the training batches.
        folder: folder of the checkpoints; a checkpoint that was made in another folder is refused.
        lease: the lease on the run, which is touched at every step.
        checkpoint_seconds: seconds between two checkpoints. The result does not depend on it.
        start: description of this start, for the record.
        test: returns the test error in percent, every `evaluate_every` steps. It should call its argument often, to
            keep the lease.
        report: called with every row of the history and whether it is new, first with those of earlier starts.

    Raises:
        Interrupted: the process received SIGTERM, SIGHUP or SIGINT; the state is saved.
        TryAgain: another process has taken the lease, or the disk is full at a snapshot or at the end. Work since the
            last checkpoint is then lost.
        UserError: the loss is not finite.
    """
    training = model.training_options
    model.train()
    with StopRequests() as stop:
        io.sweep([folder / "*"])
        progress = _resume(model, folder)
        unfinished = progress.step < training.steps
        _add_start(progress, start, folder, unfinished)
        for row in progress.history:  # so that the log is whole
            report(row, False)
        if progress.step and unfinished:
            print(f"continuing from step {progress.step} of {training.steps}", file=sys.stderr, flush=True)
        clock, saved = time.perf_counter(), time.perf_counter()
        waiting: list[dict[str, Tensor]] = []
        for metrics in take_steps(model, batches, range(progress.step, training.steps)):
            waiting.append(metrics)
            progress.step += 1
            if progress.step in training.snapshots.values():
                checkpoint.keep_snapshot(folder, model, progress.step)
            lease.touch()
            last = progress.step == training.steps
            testing = training.evaluate_every > 0 and (last or progress.step % training.evaluate_every == 0)
            if last or testing or progress.step % training.log_every == 0:
                clock = _collect(waiting, progress, folder, clock)
                row = _add_row(progress, training.batch_size, learning_rate(training, progress.step - 1))
                if testing:
                    row["test_error"] = test(lease.touch)
                report(row, True)
                clock = time.perf_counter()  # evaluation does not count as training time
            saving = stop.requested or time.perf_counter() - saved > checkpoint_seconds
            if saving and progress.step < training.steps:
                clock = _collect(waiting, progress, folder, clock)
                there = _save(model, progress, folder)
                saved = time.perf_counter()
                if stop.requested:
                    end = "" if there else " from the checkpoint before"
                    raise Interrupted(
                        f"stopped at step {progress.step} of {training.steps}; run again to continue{end}"
                    )
        _check_weights(model, progress, folder)
        # Kept in case writing the results fails; the optimisers' state is no longer needed.
        checkpoint.save(folder, _state(model, progress) | {"optimizers": {}})
    return progress


def _collect(waiting: list[dict[str, Tensor]], progress: Progress, folder: Path, clock: float) -> float:
    """Add the metrics of the last steps and the time since `clock` to `progress`; return the current time.

    Only this function waits for the device.
    """
    first = progress.step - len(waiting)
    for offset, metrics in enumerate(_numbers(waiting)):
        for name, number in metrics.items():
            if not math.isfinite(number) and first + offset == 0:
                mend = "correct the model or its routing, or try precision: float32"
                raise UserError(f"training stopped: '{name}' is {number} before the first update; {mend}")
            if not math.isfinite(number):
                raise _not_finite(f"'{name}' is {number}", first + offset, folder)
            progress.sums[name] = progress.sums.get(name, 0.0) + number
        progress.sums["_steps"] = progress.sums.get("_steps", 0) + 1
    waiting.clear()
    now = time.perf_counter()
    progress.seconds += now - clock
    return now


def _numbers(waiting: list[dict[str, Tensor]]) -> list[dict[str, float]]:
    """Copy the metrics of steps to the host, all at once."""
    if not waiting:
        return []
    values = iter(torch.stack([value.float() for metrics in waiting for value in metrics.values()]).tolist())
    return [{name: next(values) for name in metrics} for metrics in waiting]


def _add_row(progress: Progress, batch_size: int, rate: float) -> dict[str, float]:
    steps = progress.sums.pop("_steps")
    before = progress.history[-1]["seconds"] if progress.history else 0.0
    elapsed = max(progress.seconds - before, 1e-9)
    row = {
        "step": progress.step,
        "seconds": round(progress.seconds, 3),
        "images_per_second": round(steps * batch_size / elapsed, 2),
        "learning_rate": rate,
        **{name: total / steps for name, total in progress.sums.items()},
    }
    progress.sums = {}
    progress.history.append(row)
    return row


def _save(model: Model, progress: Progress, folder: Path) -> bool:
    """Save a checkpoint; return False if the disk is full. The run continues, with the checkpoint before it."""
    _check_weights(model, progress, folder)
    try:
        checkpoint.save(folder, _state(model, progress))
    except TryAgain as error:
        print(f"no checkpoint of step {progress.step}: {error}", file=sys.stderr, flush=True)
        return False
    return True


def _state(model: Model, progress: Progress) -> dict[str, Any]:
    return {
        "model": model.state_dict(),
        "optimizers": {name: optimizer.state_dict() for name, optimizer in model.optimizers().items()},
        "progress": vars(progress),
    }


def _resume(model: Model, folder: Path) -> Progress:
    state = checkpoint.load(folder)
    if state is None:
        return Progress()
    model.load_state_dict(state["model"])
    for name, saved in state["optimizers"].items():
        model.optimizers()[name].load_state_dict(saved)
    return Progress(**state["progress"])


def _add_start(progress: Progress, start: dict[str, Any], folder: Path, unfinished: bool) -> None:
    """Add a start to the record. A file keeps them, too, as some are stopped before their first checkpoint."""
    file = folder / STARTS
    earlier = max(progress.starts, io.read_json(file) if file.exists() else [], key=len)
    progress.starts = [*earlier, start]
    progress.interruptions = len(earlier) if unfinished else progress.interruptions
    with suppress(TryAgain):  # the disk is full; the checkpoints hold them, too
        io.write_json(file, progress.starts)


def _check_weights(model: Model, progress: Progress, folder: Path) -> None:
    """Check that the weights are finite, which a finite loss does not imply, before they replace a checkpoint."""
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise _not_finite(f"a weight of '{name}' is not finite", progress.step - 1, folder)


def _not_finite(what: str, step: int, folder: Path) -> UserError:
    file = folder / checkpoint.FILE
    good = f"the last good checkpoint is {file}" if file.exists() else "no checkpoint yet"
    return UserError(
        f"training stopped: {what} at step {step} ({good}); try a smaller learning_rate or precision: float32"
    )
