"""Layers of capsules with 4x4 matrices as poses."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recaps.nn.fields import Fields
from recaps.nn.initial import truncated_normal

SIDE = 4
POSE = SIDE * SIDE


class PrimaryMatrixCapsules(nn.Module):
    """1x1 convolutions to poses and activations. Poses are divided by their Frobenius norm.

    Shapes: input [B, channels, h, w]; output poses [B, C, 16] and activations [B, C], where C = h * w * types. Capsules
    have the order row, column, type.
    """

    def __init__(self, channels: int, types: int) -> None:
        super().__init__()
        self.pose = nn.Conv2d(channels, types * POSE, 1)
        self.activation = nn.Conv2d(channels, types, 1)
        assert self.activation.bias is not None
        with torch.no_grad():
            self.activation.bias.copy_(truncated_normal(types, std=0.1, mean=0.8))

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        poses = self.pose(features).relu().permute(0, 2, 3, 1).unflatten(3, (-1, POSE)).flatten(1, 3)
        poses = poses.to(self.pose.weight.dtype)
        activations = self.activation(features).permute(0, 2, 3, 1).flatten(1).to(poses.dtype).sigmoid()
        return poses / (poses.norm(dim=2, keepdim=True) + 1e-7), activations


class Transformations(nn.Module):
    """One 4x4 matrix for each slot of a field and each type of output capsule, shared by all positions.

    *Learning to compute inner consensus*, eq. 1: votes are W M / |W|_F. `coordinates` [C, 16], if given, are added to
    the poses first ("coordinate addition").
    """

    def __init__(self, fields: Fields, outputs: int, coordinates: Tensor | None) -> None:
        super().__init__()
        slots = fields.children.shape[1]
        noise = torch.empty(slots, outputs, SIDE, SIDE).uniform_(-0.1, 0.1)
        self.weight = nn.Parameter(torch.eye(SIDE) + noise)
        self.coordinates: Tensor | None
        self.register_buffer("coordinates", coordinates, persistent=False)

    def normalised(self) -> Tensor:
        """W / |W|_F, [n, J, 4, 4]."""
        norm = (self.weight.square().sum((2, 3), keepdim=True) + 1e-5).sqrt()
        return self.weight / (norm + 1e-6)

    def with_coordinates(self, poses: Tensor) -> Tensor:
        """Add the coordinates to poses [B, C, 16]."""
        return poses if self.coordinates is None else poses + self.coordinates.to(poses.dtype)


def coordinates(height: int, width: int, types: int) -> Tensor:
    """The coordinates that are added to poses, [C, 16]: (row + 0.5) / height to the first entry of the pose of each
    capsule, (column + 0.5) / width to the second."""
    added = torch.zeros(height, width, types, POSE)
    added[..., 0] = ((torch.arange(height) + 0.5) / height)[:, None, None]
    added[..., 1] = ((torch.arange(width) + 0.5) / width)[None, :, None]
    return added.flatten(0, 2)
