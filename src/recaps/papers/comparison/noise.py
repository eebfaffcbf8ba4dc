"""What it is in noisy images that models fail on: noise in parts of the image, weaker noise, or brightness."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import Normal
from torch.nn.functional import max_pool2d

#: Standard deviation of the noise of the test `noisy`, as a part of white.
DEVIATION = 0.2
#: Pixels at most this far from the digit, along each axis, are near it. It is the reach of a 9x9 convolution.
NEAR = 4


def noisy(images: Tensor, noise: Tensor, deviation: float = DEVIATION) -> Tensor:
    """Add noise and clip, as the test does. Both are [N, 1, H, W]; images are in 0..1, noise has variance 1."""
    return (images + deviation * noise).clamp(0, 1)


def expected(images: Tensor, deviation: float = DEVIATION) -> Tensor:
    """Return the mean of `noisy` over all noise, pixel by pixel: grey where the image is black."""
    normal = Normal(0.0, 1.0)
    low, high = -images / deviation, (1 - images) / deviation
    below_white = normal.cdf(high)
    fluctuation = deviation * (normal.log_prob(low).exp() - normal.log_prob(high).exp())
    return images * (below_white - normal.cdf(low)) + fluctuation + 1 - below_white


def near_digit(images: Tensor) -> Tensor:
    """Return where a pixel of the digit is at most `NEAR` pixels away along each axis, as bool [N, 1, H, W]."""
    return max_pool2d((images > 0).float(), 2 * NEAR + 1, stride=1, padding=NEAR) > 0


TRIALS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "none": lambda images, noise: images,
    "as-in-the-test": noisy,
    "deviation-0.1": lambda images, noise: noisy(images, noise, 0.1),
    "deviation-0.05": lambda images, noise: noisy(images, noise, 0.05),
    "not-clipped": lambda images, noise: images + DEVIATION * noise,
    "mean-alone": lambda images, noise: expected(images),
    "near-the-digit": lambda images, noise: torch.where(near_digit(images), noisy(images, noise), images),
    "elsewhere": lambda images, noise: torch.where(near_digit(images), images, noisy(images, noise)),
}
