"""Capsules on a product of a sphere, a flat space and (0, 1), S^m x R^n x (0, 1), which section 4.2 proposes.

The paper's capsule is a point of S^15 x (0, 1): a direction, and a length that says whether it is on. There -u is as
possible as u, and gives the negative picture. In a flat space it is not. A point r of R^n has the homogeneous
coordinates (r, 1), so the points with |r| <= 1 are the directions in the cone |r| <= h of values (r, h). A capsule is
on a product if its direction is u = (v, w) / sqrt(2), with v on S^m and w in that cone. Without the limit on r, most
capsules of a short trial learned points that are infinitely far, h = 0, and these are a sphere again.

The rules of learning stay. The energy of a capsule that is on is -log(|z|^2) where each u is possible, since z . u is
largest, |z|, for u = z / |z|. On the product, z . u is largest for the v and w that are nearest to the two parts of z;
`nearest` is that u times z . u. It takes the place of z, and eq. 18 has the same form (a test compares it with
automatic differentiation).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from recaps.papers.experts.experts import Experts


class ProductExperts(Experts):
    """Capsules of `capsule_dim` dimensions, whose last `flat_dim` are homogeneous coordinates of a flat space."""

    def nearest(self, sums: Tensor) -> Tensor:
        direction = self.direction(sums)
        return (sums * direction).sum(-1, keepdim=True).clamp_min(0) * direction

    def sampled(self, drawn: Tensor) -> Tensor:
        """A draw whose last coordinate is negative has the homogeneous coordinates of its opposite."""
        flat = drawn[..., -self.options.flat_dim :]
        turned = torch.where(flat[..., -1:] < 0, -flat, flat)
        length = drawn.norm(dim=-1, keepdim=True)
        return length * self.direction(torch.cat([drawn[..., : -self.options.flat_dim], turned], dim=-1))

    def direction(self, values: Tensor) -> Tensor:
        """The u = (v, w) / sqrt(2), or w without a sphere, whose product with z is largest: [..., D] to [..., D]."""
        flat_dim = self.options.flat_dim
        w = in_cone(values[..., -flat_dim:])
        if flat_dim == values.shape[-1]:
            return w
        return torch.cat([normalize(values[..., :-flat_dim], dim=-1), w], dim=-1) / 2**0.5


def in_cone(values: Tensor) -> Tensor:
    """Return the direction in the cone |r| <= h that is nearest to that of (r, h): [..., n + 1] to [..., n + 1]."""
    r, h = values[..., :-1], values[..., -1:]
    inside = r.norm(dim=-1, keepdim=True) <= h
    edge = torch.cat([normalize(r, dim=-1), torch.ones_like(h)], dim=-1) / 2**0.5
    return torch.where(inside, normalize(values, dim=-1), edge)
