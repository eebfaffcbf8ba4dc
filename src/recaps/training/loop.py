"""The training loop: steps, history, checkpoints. It knows nothing of files beyond the checkpoint's folder."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recaps.errors import TryAgain, UserError
from recaps.models.model import Model, learning_rate
from recaps.training import checkpoint
from recaps.training.batches import Batches
from recaps.training.device import arithmetic
from recaps.training.interruption import Interrupted, StopRequests
from recaps.training.lease import Lease


@dataclass
class Progress:
    """Where a run is; together with model and optimisers, all that a checkpoint holds."""

    step: int = 0
    """Steps done."""
    seconds: float = 0.0
    """Time trained, over all starts."""
    interruptions: int = 0
    """Times that the run was cut and continued."""
    sums: dict[str, float] = field(default_factory=dict)
    """Sums of the metrics since the last row of the history."""
    history: list[dict[str, float]] = field(default_factory=list)
    """A row per logging interval: means of the metrics over its steps."""
    starts: list[dict[str, Any]] = field(default_factory=list)
    """Of every start: device, PyTorch version, time, and what it was given."""


def fit(
    model: Model,
    batches: Batches,
    folder: Path,
    fingerprint: str,
    *,
    checkpoint_seconds: float = 120,
    start: dict[str, Any],
    test: Callable[[Callable[[], None]], float] = lambda alive: math.nan,
    report: Callable[[dict[str, float]], None] = lambda row: None,
) -> Progress:
    """Train `model` to the end of its steps, from the checkpoint in `folder` if there is one.

    Args:
        model: on its device, with its initial weights; changed in place.
        batches: the training batches.
        folder: the checkpoint's folder.
        fingerprint: of the settings; a checkpoint with another one is refused.
        checkpoint_seconds: time between two checkpoints. The result does not depend on when they are made.
        start: what to remember of this start.
        test: gives the test error, in percent, that the history has every `evaluate_every` steps; is to call its
            argument now and then, so that the lease stays fresh.
        report: called with every new row of the history.

    Raises:
        Interrupted: SIGTERM came; the state is saved.
        TryAgain: another trainer is at work in `folder`, or the disk is full at the end.
        UserError: the loss is not finite.
    """
    training = model.training_options
    model.train()
    with Lease(folder) as lease, StopRequests() as stop:
        checkpoint.sweep(folder)
        progress = _resume(model, folder, fingerprint)
        progress.starts.append(start)
        clock, saved = time.perf_counter(), time.perf_counter()
        waiting: list[dict[str, Tensor]] = []
        while progress.step < training.steps:
            with arithmetic(batches.device, training.precision):
                waiting.append(model.training_step(batches(progress.step), progress.step))
            progress.step += 1
            lease.touch()
            last = progress.step == training.steps
            testing = training.evaluate_every > 0 and (last or progress.step % training.evaluate_every == 0)
            logging = last or testing or progress.step % training.log_every == 0
            if logging:
                clock = _collect(waiting, progress, folder, clock)
                row = _add_row(progress, training.batch_size, learning_rate(training, progress.step - 1))
                if testing:
                    row["test_error"] = test(lease.touch)
                    clock = time.perf_counter()  # its time is not training time
                report(row)
            stopping = stop.requested
            saving = stopping or time.perf_counter() - saved > checkpoint_seconds
            if saving and not logging:
                clock = _collect(waiting, progress, folder, clock)
            if saving and progress.step < training.steps:
                _check_weights(model, progress, folder)
                there = _save(model, progress, folder, fingerprint)
                saved = time.perf_counter()
            if stopping and progress.step < training.steps:
                where = "there" if there else "the checkpoint before"
                raise Interrupted(
                    f"stopped at step {progress.step} of {training.steps}; run again to go on from {where}"
                )
        _check_weights(model, progress, folder)
        # Kept until the results are known to be safe; without the optimisers' state, which nobody needs any more.
        checkpoint.save(folder, _state(model, progress) | {"optimizers": {}}, fingerprint)
    return progress


def _collect(waiting: list[dict[str, Tensor]], progress: Progress, folder: Path, clock: float) -> float:
    """Add the metrics of the last steps to the sums, and the time since `clock`; return the time now.

    The only place where the device is waited for.
    """
    first = progress.step - len(waiting)
    for offset, metrics in enumerate(waiting):
        for name, value in metrics.items():
            number = float(value)
            if not math.isfinite(number):
                raise _not_finite(f"'{name}' is {number}", first + offset, folder)
            progress.sums[name] = progress.sums.get(name, 0.0) + number
        progress.sums["_steps"] = progress.sums.get("_steps", 0) + 1
    waiting.clear()
    now = time.perf_counter()
    progress.seconds += now - clock
    return now


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


def _save(model: Model, progress: Progress, folder: Path, fingerprint: str) -> bool:
    """Save a checkpoint, and say whether it could be. A full disk ends no training: the one before is still there."""
    try:
        checkpoint.save(folder, _state(model, progress), fingerprint)
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


def _resume(model: Model, folder: Path, fingerprint: str) -> Progress:
    state = checkpoint.load(folder, fingerprint)
    if state is None:
        return Progress()
    model.load_state_dict(state["model"])
    for name, saved in state["optimizers"].items():
        model.optimizers()[name].load_state_dict(saved)
    progress = Progress(**state["progress"])
    progress.interruptions += progress.step < model.training_options.steps
    return progress


def _check_weights(model: Model, progress: Progress, folder: Path) -> None:
    """A finite loss can still leave weights that are not; they must not replace a good checkpoint."""
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise _not_finite(f"a weight of '{name}' is not finite", progress.step - 1, folder)


def _not_finite(what: str, step: int, folder: Path) -> UserError:
    file = folder / checkpoint.FILE
    good = f"the last good checkpoint is {file}" if file.exists() else "no checkpoint yet"
    return UserError(
        f"training stopped: {what} at step {step} ({good}); try a smaller learning_rate or precision: float32"
    )
