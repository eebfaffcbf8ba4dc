"""Learned templates: how similar two are under the best affine map, and whether a template stays with its stroke."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy import ndimage

from recaps.npz import Array

#: Largest factor by which an affine map may stretch or shrink a template in any direction. Without this limit, a small
#: uniform part of one stroke could be enlarged to match any other.
STRETCH = 2.0
#: Number of initial maps, steps from each of them, number of best maps that are kept, and steps from each of these.
STARTS, FIRST_STEPS, KEPT, STEPS = 128, 8, 16, 70
#: Learning rate of the search.
RATE = 0.05
#: Pictures whose mean square is below this are empty.
EMPTY = 1e-6


class Fits(NamedTuple):
    """The best affine maps between n pictures."""

    errors: Array
    """[n, n]: squared error between picture i and picture j under the best map, divided by the sum of squares of i. So
    an empty picture would have the error 1. The error to or from an empty picture is 1."""
    mapped: Array
    """[n, n, C, h, w]: picture j mapped to picture i."""

    def nearest(self) -> tuple[Array, Array]:
        """The index of the nearest other picture [n], and its distance [n].

        The distance is the larger of the errors in both directions. One direction is not enough: a map can move most of
        a picture off the canvas, so that the rest matches another picture.
        """
        apart = np.maximum(self.errors, self.errors.T)
        others = np.where(np.eye(len(apart), dtype=bool), np.inf, apart)
        return others.argmin(1), others.min(1)


def affine_fits(pictures: Array) -> Fits:
    """Search the best affine map between each pair of pictures, which are black outside.

    Adam searches all pairs at once, from the same random maps, half of which mirror. The best maps after a few steps
    are optimised further.

    Args:
        pictures: [n, C, h, w].
    """
    import torch

    shown = torch.from_numpy(np.ascontiguousarray(pictures, np.float32))
    energy = shown.square().sum((1, 2, 3))
    empty = energy < EMPTY * shown[0].numel()
    search = _Search(shown, energy.masked_fill(empty, 1))
    maps, mirror = search.starts()
    errors, maps = search.improve(maps, mirror, FIRST_STEPS)
    kept = errors.topk(KEPT, 0, largest=False).indices
    maps, mirror = torch.take_along_dim(maps, kept.unsqueeze(-1), 0), torch.take_along_dim(mirror, kept, 0)
    errors, maps = search.improve(maps, mirror, STEPS)
    best, place = errors.min(0, keepdim=True)
    mapped = search.drawn(torch.take_along_dim(maps, place.unsqueeze(-1), 0), mirror.gather(0, place))[0]
    best = best[0].masked_fill(empty[:, None] | empty, 1).fill_diagonal_(0)
    return Fits(best.numpy(), mapped.numpy())


class _Search:
    """The search for maps between n pictures.

    A map is six numbers: the angles of a rotation after and before the stretch, the logarithms of two stretch factors
    before squashing, and a shift in addition to the one that aligns the centres of ink. Maps [S, n, n, 6] are indexed
    by start, target and source. `mirror` [S, n, n], 1 or -1, flips the y axis of the source.
    """

    def __init__(self, shown: Any, scale: Any) -> None:
        self.shown, self.scale = shown, scale
        self.centres = shown.new_tensor(_centres(np.abs(shown.numpy()).sum(1)))

    def starts(self) -> tuple[Any, Any]:
        """The initial maps [S, n, n, 6] and their `mirror` [S, 1, 1]."""
        draw, n = np.random.default_rng(0), len(self.shown)
        numbers = [draw.uniform(0, 2 * math.pi, (STARTS, 2)), *(draw.normal(0, sd, (STARTS, 2)) for sd in (0.7, 0.4))]
        maps = self.shown.new_tensor(np.concatenate(numbers, 1))[:, None, None]
        return maps.repeat(1, n, n, 1), self.shown.new_tensor([1.0, -1.0]).repeat(STARTS // 2)[:, None, None]

    def drawn(self, maps: Any, mirror: Any) -> Any:
        """Every source mapped to every target, [S, n, n, C, h, w]."""
        import torch

        from recaps.nn.poses import warp

        linear = _turn(maps[..., 0]) * (STRETCH ** maps[..., 2:4].tanh()).unsqueeze(-2) @ _turn(maps[..., 1])
        linear = torch.stack([linear[..., 0], linear[..., 1] * mirror.unsqueeze(-1)], -1)
        shift = self.centres[:, None] + maps[..., 4:] - (linear @ self.centres.unsqueeze(-1)).squeeze(-1)
        poses = torch.cat([linear, shift.unsqueeze(-1)], -1).flatten(0, 1)
        height, width = self.shown.shape[2:]
        return warp(self.shown, poses, (height, width)).unflatten(0, (-1, len(self.shown)))

    def improve(self, maps: Any, mirror: Any, steps: int) -> tuple[Any, Any]:
        """The smallest errors [S, n, n] within some steps from the given maps, and the maps that reach them."""
        import torch

        maps = maps.clone().requires_grad_()
        adam = torch.optim.Adam([maps], lr=RATE)
        least, best = torch.full(maps.shape[:-1], torch.inf), maps.detach().clone()
        for step in range(steps + 1):
            missed = self.drawn(maps, mirror) - self.shown[:, None]
            errors = missed.square().sum((3, 4, 5)) / self.scale[:, None]
            best = torch.where((errors < least).unsqueeze(-1), maps, best).detach()
            least = torch.minimum(errors, least).detach()
            if step < steps:
                adam.zero_grad()
                errors.sum().backward()
                adam.step()
        return least, best


def _turn(angles: Any) -> Any:
    """Rotation matrices [..., 2, 2] of angles [...] in radians."""
    import torch

    cos, sin = angles.cos(), angles.sin()
    return torch.stack([torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)], -2)


def _centres(ink: Array) -> Array:
    """Centre (x, y) of ink [n, h, w], float32 [n, 2], from -1 to 1 between the edges of the picture; 0 without ink."""
    height, width = ink.shape[1:]
    down, across = ((2 * np.arange(side) + 1) / side - 1 for side in (height, width))
    total = np.maximum(ink.sum((1, 2)), 1e-12)
    return (np.stack([ink.sum(1) @ across, ink.sum(2) @ down], 1) / total[:, None]).astype(np.float32)


def same_template(owners: Array, angles: Array, ink: Array) -> tuple[Array, Array]:
    """Measure whether templates stay with their strokes when an image is rotated.

    Each drawing is rotated back and compared with the drawing of the original image, over the ink that both draw.

    Args:
        owners: the template that is visible at each pixel of the drawing of a rotated image, -1 for none, int
            [A, B, H, W]. The first of the A entries belongs to the original images.
        angles: the rotation of each entry in degrees, counter-clockwise, [A].
        ink: pixels of the original images that have ink, bool [B, H, W].

    Returns:
        The share of the compared pixels that the same template draws, and its expected value if the pixels of one
        drawing were shuffled, [A, B] each. The shares of the first entry are 1. NaN where no pixel can be compared.
    """
    first = owners[0]
    shares, by_chance = np.full((2, *owners.shape[:2]), np.nan)
    for place, degrees in enumerate(angles):
        back = turned_back(owners[place], float(degrees))
        both = ink & (first >= 0) & (back >= 0)
        for image, pixels in enumerate(both):
            if pixels.any():
                a, b = first[image][pixels], back[image][pixels]
                shares[place, image] = (a == b).mean()
                counts = [np.bincount(each, minlength=1 + max(a.max(), b.max())) / len(a) for each in (a, b)]
                by_chance[place, image] = counts[0] @ counts[1]
    return shares, by_chance


def turned_back(maps: Array, degrees: float) -> Array:
    """Rotate maps of integers [B, H, W] clockwise about their centre. Takes the nearest pixel, -1 outside the map."""
    turned = ndimage.rotate(maps, -degrees, (1, 2), reshape=False, order=0, mode="grid-constant", cval=-1)
    return np.asarray(turned)


def signed(angles: Array) -> Array:
    """Angles from 0 to 360 degrees as rotations to either side, above -180 and up to 180."""
    return np.asarray((angles + 179.5) % 360 - 179.5)
