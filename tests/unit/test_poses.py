"""Poses and templates drawn at poses, against loops over pixels."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from reference import random
from torch import Tensor

from recaps.nn import kernels
from recaps.nn.poses import SMALLEST, compose, inverse, rotated, warp

pytestmark = pytest.mark.unit

IDENTITY = torch.eye(2, 3, dtype=torch.float64)


def applied(pose: Tensor, point: Tensor) -> Tensor:
    return pose[:, :2] @ point + pose[:, 2]


# Poses


def test_composition_applies_the_child_then_the_parent() -> None:
    parent, child, point = random(4, 1, 2, 3), random(3, 2, 3, seed=1), random(2, seed=2)
    composed = compose(parent, child)
    assert composed.shape == (4, 3, 2, 3)
    for i in range(4):
        for j in range(3):
            expected = applied(parent[i, 0], applied(child[j], point))
            torch.testing.assert_close(applied(composed[i, j], point), expected)


def test_the_inverse_undoes_a_pose_on_both_sides() -> None:
    poses = random(5, 2, 3)
    for one, other in ((poses, inverse(poses)), (inverse(poses), poses)):
        torch.testing.assert_close(compose(one, other), IDENTITY.expand(5, 2, 3))


@pytest.mark.parametrize(("determinant", "counts_as"), [(0.0, SMALLEST), (1e-5, SMALLEST), (-1e-5, -SMALLEST)])
def test_the_inverse_of_what_is_almost_flat_is_finite_and_keeps_its_sign(determinant: float, counts_as: float) -> None:
    pose = torch.tensor([[1.0, 0.0, 0.5], [0.0, determinant, 0.0]], requires_grad=True)
    back = inverse(pose)
    back.sum().backward()
    torch.testing.assert_close(back[1, 1], torch.tensor(1 / counts_as))
    assert pose.grad is not None
    assert torch.isfinite(pose.grad).all()


# Drawing


def drawn_by_loops(templates: Tensor, poses: Tensor, size: tuple[int, int]) -> Tensor:
    """Pixel by pixel: where its centre lies in the template, and the four pixels around that place."""
    (height, width), (rows, columns) = size, templates.shape[2:]

    def at(template: Tensor, row: int, column: int) -> Tensor:
        inside = 0 <= row < rows and 0 <= column < columns
        return template[:, row, column] if inside else torch.zeros_like(template[:, 0, 0])

    pictures = []
    for image in poses:
        for template, pose in zip(templates, image, strict=True):
            linear = torch.linalg.inv(pose[:, :2])
            for y in range(height):
                for x in range(width):
                    centre = poses.new_tensor([(x + 0.5) / width * 2 - 1, (y + 0.5) / height * 2 - 1])
                    place = linear @ (centre - pose[:, 2])
                    u, v = (place[0] + 1) / 2 * columns - 0.5, (place[1] + 1) / 2 * rows - 0.5
                    left, top = math.floor(u.detach()), math.floor(v.detach())
                    pictures.append(
                        sum(
                            (1 - abs(u - column)) * (1 - abs(v - row)) * at(template, row, column)
                            for column in (left, left + 1)
                            for row in (top, top + 1)
                        )
                    )
    channels = templates.shape[1]
    return torch.stack(pictures).reshape(*poses.shape[:2], height, width, channels).permute(0, 1, 4, 2, 3)


@pytest.mark.parametrize("kind", [torch.float64, torch.float32], ids=["plain", "compiled"])
def test_warp_matches_the_loops_in_value_and_gradient(kind: torch.dtype) -> None:
    templates, poses, size = random(3, 2, 3, 5), random(2, 3, 2, 3, seed=1), (6, 7)
    fast, slow = warp(templates.to(kind), poses.to(kind), size).double(), drawn_by_loops(templates, poses, size)
    close = partial(torch.testing.assert_close, **({"rtol": 1e-3, "atol": 1e-4} if kind == torch.float32 else {}))
    close(fast, slow)
    assert 0.1 < (fast == 0).double().mean() < 0.9, "partly outside"
    direction = torch.randn_like(slow)
    for ours, theirs in zip(
        torch.autograd.grad(fast, (templates, poses), direction),
        torch.autograd.grad(slow, (templates, poses), direction),
        strict=True,
    ):
        close(ours, theirs)


@pytest.mark.parametrize("scale", [0.02, 0.4, 3.0])
def test_the_compiled_warp_agrees_with_the_plain_one(scale: float) -> None:
    """Small, turned, mirrored, far outside the canvas, and nearly flat."""
    templates, poses = random(6, 2, 11, 12).float(), scale * random(7, 6, 2, 3, seed=1).float()
    poses = poses.detach()
    poses[0, 0, 0, 2], poses[1, :, 1] = 40.0, poses[1, :, 0] + 1e-6
    poses.requires_grad_()
    fast = warp(templates, poses, (28, 20))
    with kernels.off():
        slow = warp(templates, poses, (28, 20))
    torch.testing.assert_close(fast, slow, rtol=1e-3, atol=0.02)
    direction = torch.randn_like(slow)
    ours, theirs = (torch.autograd.grad(made, templates, direction)[0] for made in (fast, slow))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3 * float(theirs.abs().max()))


def test_the_identity_fills_the_canvas() -> None:
    templates = random(3, 2, 5, 4)
    same = warp(templates, IDENTITY.expand(2, 3, 2, 3), (5, 4))
    torch.testing.assert_close(same, templates.expand(2, 3, 2, 5, 4))
    larger = warp(torch.ones(1, 1, 3, 3), IDENTITY.float().expand(1, 1, 2, 3), (30, 30))
    torch.testing.assert_close(larger[..., 5:25, 5:25], torch.ones(1, 1, 1, 20, 20))
    assert (larger > 0).all()
    assert (larger < 1 + 1e-6).all()


def test_poses_map_templates_to_the_canvas() -> None:
    """A quarter of the size, to the right of and below the centre."""
    pose = torch.tensor([[0.25, 0.0, 0.5], [0.0, 0.25, 0.25]])
    picture = warp(torch.ones(1, 1, 4, 4), pose.expand(1, 1, 2, 3), (32, 32))[0, 0, 0]
    expected = torch.zeros(32, 32)
    expected[16:24, 20:28] = 1
    inner = torch.zeros(32, 32, dtype=torch.bool)
    inner[17:23, 21:27] = True
    assert (picture[inner] == 1).all()
    torch.testing.assert_close(picture.sum() / 64, torch.tensor(1.0))
    torch.testing.assert_close(picture.argmax() // 32, torch.tensor(17))
    assert not picture[expected == 0].gt(0.5).any()


def test_warp_is_in_float32_at_least() -> None:
    templates, poses = torch.rand(2, 1, 3, 3), IDENTITY.float().expand(1, 2, 2, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(warp(templates, poses, (4, 4)), warp(templates, poses, (4, 4)).float())
    assert warp(templates.bfloat16(), poses, (4, 4)).dtype == torch.float32


def test_threads_do_not_change_a_bit() -> None:
    templates, poses = random(5, 1, 4, 4).float().detach().requires_grad_(), random(9, 5, 2, 3, seed=1).float()
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            drawn = warp(templates, poses, (12, 12))
            found.append((drawn, *torch.autograd.grad(drawn.square().sum(), (templates,))))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


# Whole images


def test_quarter_turns_are_exact_and_counter_clockwise() -> None:
    images = torch.rand(4, 2, 6, 6)
    turned = rotated(images, torch.tensor([0.0, 90.0, 180.0, 270.0]))
    for quarter in range(4):
        torch.testing.assert_close(turned[quarter], torch.rot90(images[quarter], quarter, (1, 2)))
    torch.testing.assert_close(rotated(images, 90.0), torch.rot90(images, 1, (2, 3)))
    torch.testing.assert_close(rotated(images[..., :4], 180.0), torch.rot90(images[..., :4], 2, (2, 3)))


def test_rotation_keeps_shapes_where_the_canvas_is_no_square() -> None:
    images = torch.zeros(1, 1, 12, 20)
    images[0, 0, 5:7, 6:14] = 1  # lies about the centre
    upright = torch.zeros(1, 1, 12, 20)
    upright[0, 0, 2:10, 9:11] = 1
    torch.testing.assert_close(rotated(images, 90.0), upright)


def test_a_rotation_fills_with_zeros() -> None:
    turned = rotated(torch.ones(1, 1, 20, 20), 45.0)[0, 0]
    assert turned[0, 0] == turned[0, -1] == turned[-1, 0] == turned[-1, -1] == 0
    assert turned[10, 10] == pytest.approx(1)
