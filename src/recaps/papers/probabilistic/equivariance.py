"""Whether poses turn with the digit. The paper does not measure it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recaps.evaluation.record import MetricRow, Run
from recaps.nn.poses import rotated
from recaps.training.batches import view
from recaps.training.images import images_of

#: The first test images are rotated by these angles, in degrees.
IMAGES = 500
ANGLES = range(-90, 91, 15)


def by_angle(run: Run) -> list[MetricRow]:
    """How far poses turn if the image is rotated: `object-turn-<angle>` and `part-turn-<angle>`, in degrees.

    An object counts by the number of parts that are expected to select it, and a part by its presence, both before
    the image is rotated.
    """
    model: Any = run.model()
    split, on = run.split(run.settings.test), run.resolve(run.settings.test)
    batch = images_of(split, torch.device("cpu"))(torch.arange(min(IMAGES, len(split.labels))))
    images = view(batch["images"], run.settings.training)
    rows = []
    with torch.inference_mode():
        upright = model.infer(images)
        chosen = model.generative.selections(upright.objects, upright.parts)[:, 1:].sum(2)
        present = upright.part_belief.logits.sigmoid()
        for angle in ANGLES:
            found = model.infer(rotated(images, float(angle)))
            objects, objects_turned = (torch.eye(2, 3) + each.object_belief.poses for each in (upright, found))
            parts, parts_turned = (each.part_belief.poses for each in (upright, found))
            measured = {"object": turns(objects, objects_turned, chosen), "part": turns(parts, parts_turned, present)}
            for name, values in measured.items():
                rows.append(run.mean(f"{name}-turn-{angle}", values.numpy(), "degrees", on))
    return rows


def turns(before: Tensor, after: Tensor, weights: Tensor) -> Tensor:
    """The rotation, counter-clockwise in degrees, that takes some poses nearest to others.

    Of all rotations R, it maximises the weighted sum over capsules of the trace of (R A)' B, where A and B are the
    linear parts of the poses before and after. Translations do not count.

    Args:
        before, after: [B, n, 2, 3].
        weights: [B, n].

    Returns:
        [B], between -180 and 180.
    """
    products = after[..., :2] @ before[..., :2].transpose(-1, -2)
    (a, b), (c, d) = (row.unbind(-1) for row in (weights[..., None, None] * products).sum(1).unbind(-2))
    # y points down, so a rotation by t is ((cos t, sin t), (-sin t, cos t)).
    return torch.rad2deg(torch.atan2(b - c, a + d))
