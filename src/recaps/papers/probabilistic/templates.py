"""Templates that a model draws with: how nearly two are the same up to an affine map, and which one draws a stroke."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from recaps.datasets.warp import rotation
from recaps.npz import Array

#: An affine map may make a template at most this many times as large, or as small, in any direction. Without a limit a
#: small, even part of one stroke could be blown up to be any other.
STRETCH = 2.0
#: Maps that the search starts from, the steps that it takes from each, and from so many that are then best.
STARTS, FIRST_STEPS, KEPT, STEPS = 128, 8, 16, 70
RATE = 0.05
#: Pictures whose mean square is below this are empty.
EMPTY = 1e-6


class Fits(NamedTuple):
    """The affine maps that take n pictures nearest to each other."""

    errors: Array
    """[n, n]: squared error of picture j, mapped as near to picture i as can be, over the squares of i, which is what
    an empty picture would have. An empty picture has 1 to all others."""
    mapped: Array
    """[n, n, C, h, w]: picture j as it was mapped to i."""

    def nearest(self) -> tuple[Array, Array]:
        """For each picture the number of the one that is most like it, [n], and how far they are apart, [n].

        That is the larger of the errors both ways: a part of a picture, the rest of which is moved off the canvas, may
        be like another, but that is not like the whole.
        """
        apart = np.maximum(self.errors, self.errors.T)
        others = np.where(np.eye(len(apart), dtype=bool), np.inf, apart)
        return others.argmin(1), others.min(1)


def affine_fits(pictures: Array) -> Fits:
    """The best affine map between each two of some pictures, which are black outside.

    All pairs are searched at once, by Adam from the same random maps, which also mirror; those that are best after a
    few steps go on.

    Args:
        pictures: [n, C, h, w].
    """
    import torch

    shown = torch.from_numpy(np.ascontiguousarray(pictures, np.float32))
    energy = shown.square().sum((1, 2, 3))
    empty = energy < EMPTY * shown[0].numel()
    search = _Search(shown, torch.where(empty, torch.ones_like(energy), energy))
    maps, mirror = search.starts()
    errors, maps = search.improve(maps, mirror, FIRST_STEPS)
    kept = errors.topk(KEPT, 0, largest=False).indices
    maps, mirror = _picked(maps, kept), mirror.expand_as(errors).gather(0, kept)
    errors, maps = search.improve(maps, mirror, STEPS)
    best, place = errors.min(0, keepdim=True)
    mapped = search.drawn(_picked(maps, place), mirror.gather(0, place))[0]
    best = torch.where(empty[:, None] | empty, torch.ones_like(best[0]), best[0])
    best.fill_diagonal_(0)
    return Fits(best.numpy(), mapped.numpy())


class _Search:
    """The search for maps between n pictures.

    A map is six numbers: an angle after and one before stretching, the logarithms of two stretches before they are
    squashed, and a shift beside that which lays the centres of ink over each other. Maps [S, n, n, 6] are from S starts
    to each target from each source; `mirror`, 1 or -1, [S, n, n], turns the source's y axis.
    """

    def __init__(self, shown: Any, scale: Any) -> None:
        self.shown, self.scale = shown, scale
        self.centres = shown.new_tensor(_centres(np.abs(shown.numpy()).sum(1)))

    def starts(self) -> tuple[Any, Any]:
        """The maps that the search starts from, and whether they mirror: [S, n, n, 6], [S, 1, 1]."""
        draw, n = np.random.default_rng(0), len(self.shown)
        numbers = (
            draw.uniform(0, 2 * math.pi, (STARTS, 2)),
            draw.normal(0, 0.7, (STARTS, 2)),
            draw.normal(0, 0.4, (STARTS, 2)),
        )
        maps = self.shown.new_tensor(np.concatenate(numbers, 1))[:, None, None]
        return maps.repeat(1, n, n, 1), self.shown.new_tensor([1.0, -1.0]).repeat(STARTS // 2)[:, None, None]

    def drawn(self, maps: Any, mirror: Any) -> Any:
        """Every source as it is mapped to every target, [S, n, n, C, h, w]."""
        import torch

        from recaps.nn.poses import warp

        linear = _turn(maps[..., 0]) * (STRETCH ** maps[..., 2:4].tanh()).unsqueeze(-2) @ _turn(maps[..., 1])
        linear = torch.stack([linear[..., 0], linear[..., 1] * mirror.unsqueeze(-1)], -1)
        shift = self.centres[:, None] + maps[..., 4:] - (linear @ self.centres.unsqueeze(-1)).squeeze(-1)
        poses = torch.cat([linear, shift.unsqueeze(-1)], -1).flatten(0, 1)
        height, width = self.shown.shape[2:]
        return warp(self.shown, poses, (height, width)).unflatten(0, (-1, len(self.shown)))

    def improve(self, maps: Any, mirror: Any, steps: int) -> tuple[Any, Any]:
        """The least errors [S, n, n] on the way from some maps, and the maps that have them."""
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


def _picked(maps: Any, places: Any) -> Any:
    """Of maps [S, n, n, 6] those at some places [K, n, n]: [K, n, n, 6]."""
    return maps.gather(0, places.unsqueeze(-1).expand(-1, -1, -1, maps.shape[-1]))


def _turn(angles: Any) -> Any:
    """Matrices [..., 2, 2] that turn by angles [...], in radians."""
    import torch

    cos, sin = angles.cos(), angles.sin()
    return torch.stack([torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)], -2)


def _centres(ink: Array) -> Array:
    """Centre (x, y) of the ink [n, h, w], float32 [n, 2], from -1 to 1 between the picture's edges; 0 without ink."""
    height, width = ink.shape[1:]
    down, across = ((2 * np.arange(side) + 1) / side - 1 for side in (height, width))
    total = np.maximum(ink.sum((1, 2)), 1e-12)
    return (np.stack([ink.sum(1) @ across, ink.sum(2) @ down], 1) / total[:, None]).astype(np.float32)


class Agreement(NamedTuple):
    """How far two drawings of a stroke are made with the same templates."""

    shares: Array
    """Share of the compared pixels that the same template draws; nan where no pixel can be compared."""
    by_chance: Array
    """What that share would be if the pixels of one drawing were shuffled."""


def same_template(owners: Array, angles: Array, ink: Array) -> Agreement:
    """Whether templates stay with their strokes when an image is turned.

    Each drawing is turned back and compared with that of the image as it was, over the ink that both draw.

    Args:
        owners: which template is seen at each pixel of the drawing of an image that was turned, -1 where none is,
            int [A, B, H, W]; the first of the images as they were.
        angles: by how much each was turned, in degrees, counter-clockwise, [A].
        ink: where the images as they were have ink, bool [B, H, W].

    Returns:
        Both [A, B]; 1 for the first.
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
    return Agreement(shares, by_chance)


def turned_back(maps: Array, degrees: float) -> Array:
    """Maps of whole numbers [B, H, W], turned clockwise about their centre; the nearest pixel, -1 from outside."""
    height, width = maps.shape[1:]
    x, y = np.meshgrid(np.arange(width) - (width - 1) / 2, np.arange(height) - (height - 1) / 2)
    # Content at p was moved to R p; so what belongs at p is now there.
    across, down = rotation(np.asarray(degrees, np.float64)) @ np.stack([x.ravel(), y.ravel()])
    columns, rows = (np.rint(each + (side - 1) / 2).astype(int) for each, side in ((across, width), (down, height)))
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    found = maps[:, rows.clip(0, height - 1), columns.clip(0, width - 1)]
    return np.where(inside, found, -1).reshape(maps.shape)
