"""The learning rate as a function of the step. Imports no PyTorch."""

from __future__ import annotations

from recaps.config.training import Training


def learning_rate(training: Training, step: int, factor: float = 1.0) -> float:
    """Return the learning rate at a step, counted from 0, times a factor.

    It is max(`learning_rate` * `lr_decay` ** (step / `lr_decay_steps`), `lr_floor`), and rises linearly to this in the
    first `warmup` steps.
    """
    decayed = training.learning_rate * training.lr_decay ** (step / training.lr_decay_steps)
    return max(decayed, training.lr_floor) * (factor * min(1, (step + 1) / max(1, training.warmup)))
