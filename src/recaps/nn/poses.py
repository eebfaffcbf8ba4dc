"""Poses: affine maps of the plane, and templates drawn at poses.

A pose is a 2x3 matrix [..., 2, 3] that maps coordinates (x, y, 1) of a template or an object to those of the canvas. x
points right and y down, from -1 to 1 between the outer edges of the picture. Pixels are samples at their centres. The
identity makes a template fill the canvas.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import grid_sample, pad

from recaps.nn import kernels

#: Smallest magnitude of a determinant in a division.
SMALLEST = 1e-3


def compose(parent: Tensor, child: Tensor) -> Tensor:
    """The pose that applies `child`, then `parent`: [..., 2, 3], [..., 2, 3] to [..., 2, 3]."""
    return parent[..., :1] * child[..., :1, :] + parent[..., 1:2] * child[..., 1:, :] + pad(parent[..., 2:], (2, 0))


def bounded_pose(scale_x: Tensor, scale_y: Tensor, angle: Tensor, shear: Tensor, right: Tensor, down: Tensor) -> Tensor:
    """A pose [..., 2, 3] from six unbounded numbers [...], as in *Stacked Capsule Autoencoders*.

    Scales lie between 0.01 and 1.01, the angle is in turns, the shear and the translation lie between -1 and 1.
    """
    scale_x, scale_y = scale_x.sigmoid() + 0.01, scale_y.sigmoid() + 0.01
    shear, right, down = ((5 * each).tanh() for each in (shear, right, down))
    cos, sin = (2 * math.pi * angle).cos(), (2 * math.pi * angle).sin()
    across = [scale_x * cos + shear * scale_y * sin, shear * scale_y * cos - scale_x * sin, right]
    # Each entry of the matrices is contiguous in memory, because summing six arrays is faster than six neighbours.
    return torch.stack([*across, scale_y * sin, scale_y * cos, down]).unflatten(0, (2, 3)).movedim((0, 1), (-2, -1))


def inverse(pose: Tensor) -> Tensor:
    """The pose that undoes `pose`, [..., 2, 3].

    A determinant below `SMALLEST` in magnitude is set to `SMALLEST` with its own sign, so that gradients stay finite.
    """
    a, b, right, c, d, down = pose.flatten(-2).unbind(-1)
    determinant = a * d - b * c
    determinant = torch.where(determinant < 0, determinant.clamp_max(-SMALLEST), determinant.clamp_min(SMALLEST))
    rows = [d, -b, b * down - d * right, -c, a, c * right - a * down]
    return (torch.stack(rows, -1) / determinant.unsqueeze(-1)).unflatten(-1, (2, 3))


def warp(templates: Tensor, poses: Tensor, size: tuple[int, int]) -> Tensor:
    """Draw templates on a canvas, with bilinear interpolation and zeros outside the template.

    Args:
        templates: [J, C, h, w], shared by all images.
        poses: poses that map template to canvas, [B, J, 2, 3].
        size: rows and columns of the canvas, (H, W).

    Returns:
        [B, J, C, H, W], float32 or wider.
    """
    kind = torch.promote_types(torch.promote_types(templates.dtype, poses.dtype), torch.float32)
    templates, back = templates.to(kind), inverse(poses.to(kind))
    if kernels.enabled() and kind == torch.float32 and templates.device.type == "cpu":
        from recaps.nn.kernels.warp import drawn

        return drawn(templates, back, size)
    images, (height, width) = len(back), size
    places = _places(back.transpose(0, 1), size).reshape(len(templates), images * height, width, 2)
    made = grid_sample(templates, places, align_corners=False)
    return made.unflatten(2, (images, height)).permute(2, 0, 1, 3, 4)


def rotated(images: Tensor, degrees: Tensor | float) -> Tensor:
    """Rotate images counter-clockwise about their centre, with bilinear interpolation and zeros outside the image.

    Args:
        images: [B, C, H, W].
        degrees: [B], or one angle for all images.
    """
    height, width = images.shape[2:]
    angle = torch.as_tensor(degrees, dtype=images.dtype, device=images.device).expand(len(images)) * (math.pi / 180)
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    rows = [cos, sin * (height / width), zero, -sin * (width / height), cos, zero]
    poses = torch.stack(rows, -1).unflatten(-1, (2, 3))
    return grid_sample(images, _places(inverse(poses), (height, width)), align_corners=False)


def _places(back: Tensor, size: tuple[int, int]) -> Tensor:
    """Template coordinates of each pixel of the canvas: poses from canvas to template [..., 2, 3] to [..., H, W, 2]."""
    across, down = (
        (2 * torch.arange(side, dtype=back.dtype, device=back.device) + 1) / side - 1 for side in reversed(size)
    )
    columns = back[..., None, None, :, :].unbind(-1)
    return (across[:, None] * columns[0] + columns[2]) + down[:, None, None] * columns[1]
