"""The classification error of a model on a split."""

from __future__ import annotations

from collections.abc import Callable

import torch

from recaps.config.training import Training
from recaps.models.model import Model
from recaps.nn.losses.classes import correct
from recaps.training.batches import view
from recaps.training.images import Images


def error_on(
    model: Model,
    images: Images,
    training: Training,
    device: torch.device,
    alive: Callable[[], None] = lambda: None,
    batch_size: int = 250,
) -> float:
    """Return the error, in percent, on the first `training.evaluate_images` images.

    `alive` is called before every batch.
    """
    n = min(training.evaluate_images or len(images), len(images))
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        for start in range(0, n, batch_size):
            alive()
            batch = images(torch.arange(start, min(start + batch_size, n), device=device))
            wrong += (~correct(model.class_scores(view(batch["images"], training)), batch["labels"])).sum()
    model.train(was_training)
    return 100 * int(wrong) / n
