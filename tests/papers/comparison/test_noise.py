"""Trials that tell what it is in noisy images that models fail on."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from recaps.models.model import Model
from recaps.papers.comparison import probes
from recaps.papers.comparison.noise import NEAR, TRIALS, expected, near_digit, noisy

pytestmark = pytest.mark.unit


class ByBrightness:
    """Class 0 if an image is dark on average, else class 1."""

    def latents(self, images: Tensor) -> dict[str, Tensor]:
        mean = images.mean((1, 2, 3))
        return {"scores": torch.stack((torch.full_like(mean, 0.05), mean), 1)}


def dots(n: int = 6, side: int = 24) -> Tensor:
    """Images with a white pixel at their centre."""
    images = torch.zeros(n, 1, side, side)
    images[:, :, side // 2, side // 2] = 1
    return images


def test_the_mean_of_the_noise_is_that_of_many_draws() -> None:
    images = torch.linspace(0, 1, 11).reshape(1, 1, 1, 11)
    draws = torch.randn(200_000, 1, 1, 11, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(expected(images), noisy(images, draws).mean(0, keepdim=True), atol=2e-3, rtol=0)
    assert expected(images)[0, 0, 0, 0] == pytest.approx(0.2 / (2 * np.pi) ** 0.5, abs=1e-4)


def test_near_is_a_square_around_each_pixel() -> None:
    near = near_digit(dots(1))[0, 0]
    expected = torch.zeros(24, 24, dtype=torch.bool)
    expected[12 - NEAR : 13 + NEAR, 12 - NEAR : 13 + NEAR] = True
    assert torch.equal(near, expected)


def test_the_two_parts_make_the_whole() -> None:
    images, noise = dots(), torch.randn(6, 1, 24, 24, generator=torch.Generator().manual_seed(0))
    near, elsewhere, whole = (TRIALS[name](images, noise) for name in ("near-the-digit", "elsewhere", "as-in-the-test"))
    torch.testing.assert_close(near + elsewhere - images, whole)
    assert torch.equal(TRIALS["none"](images, noise), images)
    assert TRIALS["not-clipped"](images, noise).min() < 0


def test_a_model_that_sees_brightness_fails_on_the_mean_alone() -> None:
    right = probes.noise(cast(Model, ByBrightness()), dots(), torch.zeros(6, dtype=torch.long))
    assert list(right) == list(TRIALS)
    share = {name: float(each.float().mean()) for name, each in right.items()}
    assert share["none"] == share["not-clipped"] == share["deviation-0.05"] == 1
    assert share["as-in-the-test"] == share["mean-alone"] == 0
