"""Adversarial examples of linear classifiers, whose best attack is known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from recaps.evaluation.attacks import Scores, attacked, lead

pytestmark = pytest.mark.unit

STRENGTH = 0.1


@pytest.fixture
def images() -> Tensor:
    return 0.2 + 0.6 * torch.rand(12, 1, 5, 5, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def labels() -> Tensor:
    return torch.arange(12) % 2


def linear(classes: int = 2) -> Scores:
    weight = torch.randn(classes, 25, generator=torch.Generator().manual_seed(2))
    return lambda images: images.flatten(1) @ weight.T


def test_the_lead_is_positive_where_the_classifier_errs(images: Tensor) -> None:
    scores, labels = linear(5)(images), torch.arange(12) % 5
    assert torch.equal(lead(scores, labels) > 0, scores.argmax(1) != labels)


@pytest.mark.parametrize(("steps", "seed"), [(1, None), (20, 0)])
def test_the_best_attack_of_a_linear_classifier_moves_every_pixel_as_far_as_it_may(
    images: Tensor, labels: Tensor, steps: int, seed: int | None
) -> None:
    """No pixel is near 0 or 1, so the lead rises by the strength times the sum of |w_wrong - w_right|."""
    scores = linear()
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    made = attacked(scores, images, labels, STRENGTH, steps, generator)
    weight = linear()(torch.eye(25).reshape(25, 1, 5, 5)).T
    gain = STRENGTH * (weight[1 - labels] - weight[labels]).abs().sum(1)
    torch.testing.assert_close(lead(scores(made), labels), lead(scores(images), labels) + gain)


@pytest.mark.parametrize("steps", [1, 7])
def test_no_pixel_moves_too_far_or_leaves_the_range(labels: Tensor, steps: int) -> None:
    images = torch.rand(12, 1, 5, 5, generator=torch.Generator().manual_seed(3)).round(decimals=1)
    made = attacked(linear(), images, labels, STRENGTH, steps, torch.Generator().manual_seed(4))
    assert (made - images).abs().max() <= STRENGTH + 1e-6
    assert made.min() >= 0
    assert made.max() <= 1


def test_the_best_place_on_the_way_is_kept(labels: Tensor) -> None:
    """The lead of this classifier has its maximum inside the ball, where steps of a fixed size jump over it."""
    images, seen = torch.full((12, 1, 5, 5), 0.5), list[Tensor]()

    def scores(images: Tensor) -> Tensor:
        wrong = -(images - 0.53).square().sum((1, 2, 3))
        both = wrong.unsqueeze(1) * torch.nn.functional.one_hot(1 - labels, 2)
        seen.append(lead(both.detach(), labels))
        return both

    made = attacked(scores, images, labels, STRENGTH, 9, torch.Generator().manual_seed(0))
    highest = torch.stack(seen).amax(0)
    assert len(seen) == 10
    assert (highest > seen[-1]).any()
    assert torch.equal(lead(scores(made), labels), highest)
    # The one step of FGSM overshoots, so the image itself was better.
    assert torch.equal(attacked(scores, images, labels, STRENGTH, 1, None), images)
