"""What trained routing does in each iteration; the author intends to "study the interpretability" (section 7)."""

from __future__ import annotations

from typing import Any

import torch

from recaps.evaluation.record import MetricRow, Run
from recaps.nn.routing.em import EMRouting
from recaps.papers.consensus.probes import effective_share
from recaps.papers.consensus.variants import CAPSULE_LAYERS
from recaps.training.batches import view
from recaps.training.images import images_of

#: The first test images are routed.
IMAGES = 500


def by_iteration(run: Run) -> list[MetricRow]:
    """What a trained network does if its routing ends after t = 1, 2, ... iterations.

    `error-t`: the error in percent. `effective-share-<layer>-t`: the share of its inputs that an output capsule uses,
    see the probe `routing`.
    """
    model: Any = run.model()
    split, on = run.split(run.settings.test), run.resolve(run.settings.test)
    batch = images_of(split, torch.device("cpu"))(torch.arange(min(IMAGES, len(split.labels))))
    images = view(batch["images"], run.settings.training)
    rows = []
    for t in range(run.settings.model.routing.iterations, 0, -1):
        for layer in model.layers:
            if isinstance(layer.routing, EMRouting):
                layer.routing.temperatures = layer.routing.temperatures[:t]
            else:
                layer.routing.iterations = t
        with torch.inference_mode():
            routed = model.routed(images)
        wrong = routed[-1].activations.squeeze(1).argmax(1) != batch["labels"]
        rows.append(run.number(f"error-{t}", 100 * float(wrong.float().mean()), "percent", on, n=len(wrong)))
        for name, each in zip(CAPSULE_LAYERS, routed, strict=True):
            shares = effective_share(each.coupling).mean((1, 2))
            rows.append(run.mean(f"effective-share-{name}-{t}", shares.numpy(), "fraction", on))
    return rows
