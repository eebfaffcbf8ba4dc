"""Adversarial examples: images that were changed a little, so that a classifier errs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Scores = Callable[[Tensor], Tensor]
"""A classifier: images [B, C, H, W] to class scores [B, classes]. It has gradients for the images."""


def lead(scores: Tensor, labels: Tensor) -> Tensor:
    """How far the highest score of a wrong class is above the label's, [B, classes] and [B] to [B]. Above 0: an error.

    Attacks raise it. Unlike a cross-entropy, it has a gradient also where the scores are far apart.
    """
    right = torch.nn.functional.one_hot(labels, scores.shape[1]).bool()
    return scores.masked_fill(right, -torch.inf).amax(1) - scores[right]


def attacked(
    scores: Scores, images: Tensor, labels: Tensor, strength: float, steps: int, generator: torch.Generator | None
) -> Tensor:
    """Change each pixel by at most `strength`, so that the classifier errs: projected gradient descent (PGD).

    It starts at a random place (Madry et al., 2018), and each step changes a pixel by 2.5 * strength / steps. With one
    step and without a generator, it is the fast gradient sign method (FGSM, Goodfellow et al., 2015).

    Args:
        images: [B, C, H, W] in 0..1.
        labels: int64 [B].
        steps: number of gradients.
        generator: draws the random start; None: start at the images.

    Returns:
        Of each image the place on the way where the lead of a wrong class is largest, [B, C, H, W] in 0..1.
    """
    size = strength if steps == 1 else 2.5 * strength / steps
    low, high = (images - strength).clamp_min(0), (images + strength).clamp_max(1)
    place = images
    if generator is not None:
        place = low + (high - low) * torch.rand(images.shape, generator=generator)
    best, largest = images, torch.full((len(images),), -torch.inf)
    for _ in range(steps):
        place = place.detach().requires_grad_()
        reached = lead(scores(place), labels)
        best, largest = _better(best, largest, place, reached)
        (gradient,) = torch.autograd.grad(reached.sum(), place)
        place = torch.clamp(place.detach() + size * gradient.sign(), low, high)
    with torch.no_grad():
        return _better(best, largest, place, lead(scores(place), labels))[0]


def _better(best: Tensor, largest: Tensor, place: Tensor, reached: Tensor) -> tuple[Tensor, Tensor]:
    place, reached = place.detach(), reached.detach()
    higher = reached > largest
    return torch.where(higher[:, None, None, None], place, best), torch.where(higher, reached, largest)
