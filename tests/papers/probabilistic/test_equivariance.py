"""How far poses turn with an image."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pandas as pd
import pytest
import torch
from torch import Tensor

from recaps.arrays import Arrays
from recaps.config.training import Training
from recaps.nn.poses import compose, rotated, warp
from recaps.papers.probabilistic import figures
from recaps.papers.probabilistic.capsules import build
from recaps.papers.probabilistic.equivariance import by_angle, turns
from recaps.papers.probabilistic.options import GenerativeOptions

pytestmark = pytest.mark.unit


def rotation(degrees: Tensor) -> Tensor:
    """Poses [N, 1, 2, 3] that rotate the canvas counter-clockwise, where y points down."""
    cos, sin, zero = torch.deg2rad(degrees).cos(), torch.deg2rad(degrees).sin(), torch.zeros(len(degrees))
    return torch.stack([cos, sin, zero, -sin, cos, zero], -1).view(-1, 1, 2, 3)


def test_poses_that_turn_with_the_image() -> None:
    angles, poses = torch.tensor([-90.0, -20.0, 0.0, 45.0, 170.0]), torch.randn(5, 3, 2, 3)
    found = turns(poses, compose(rotation(angles), poses), torch.rand(5, 3))
    torch.testing.assert_close(found, angles, atol=1e-3, rtol=1e-4)


def test_the_sense_is_that_of_rotated_images() -> None:
    template, pose = torch.zeros(1, 1, 9, 9), torch.eye(2, 3).expand(1, 1, 2, 3)
    template[..., :4, 4] = 1  # a hand that points up
    image = warp(template, compose(rotation(torch.tensor([90.0])), pose), (9, 9))[:, 0]
    torch.testing.assert_close(image, rotated(template, 90.0), atol=1e-5, rtol=0)


def test_the_nearest_rotation_of_a_search() -> None:
    before, after, weights = torch.randn(1, 4, 2, 3), torch.randn(1, 4, 2, 3), torch.rand(1, 4)
    tried = torch.arange(-180, 180, 0.1)
    turned = compose(rotation(tried), before.expand(len(tried), -1, -1, -1))[..., :2]
    distances = (weights * (turned - after[..., :2]).square().sum((2, 3))).sum(1)
    best = float(tried[distances.argmin()])
    found = float(turns(before, after, weights))
    assert math.cos(math.radians(found - best)) == pytest.approx(1, abs=1e-5)


def test_weights_of_zero_do_not_count() -> None:
    poses, angles = torch.randn(1, 2, 2, 3), torch.tensor([30.0])
    after = poses.clone()
    after[:, :1] = compose(rotation(angles), poses[:, :1])
    torch.testing.assert_close(turns(poses, after, torch.tensor([[1.0, 0.0]])), angles, atol=1e-3, rtol=0)


def test_turns_of_a_trained_run() -> None:
    torch.manual_seed(0)
    model = build(GenerativeOptions(objects=3, parts=4, width=16, points=4, layers=1), (1, 28, 28), 10).eval()
    pixels = torch.randint(0, 256, (5, 1, 28, 28), dtype=torch.uint8)
    run: Any = SimpleNamespace(
        model=lambda: model,
        split=lambda name: Arrays(pixels.numpy(), torch.arange(5).numpy(), {}, {"classes": 10}),
        resolve=lambda name: name,
        settings=SimpleNamespace(test="mnist/test", training=Training(steps=1, batch_size=2)),
        mean=lambda metric, values, unit, on: (metric, values),
    )
    made = dict(by_angle(run))
    assert len(made) == 2 * 13
    assert abs(made["object-turn-0"]).max() < 1e-4
    images = pixels / 255
    with torch.inference_mode():
        before, after = (model.infer(each) for each in (images, rotated(images, -30)))
        shares = model.generative.selections(before.objects, before.parts)  # [B, dummy and objects, parts]
    for image in range(5):
        moments = torch.zeros(2, 2)
        for place in range(3):
            a, b = (torch.eye(2) + each.object_belief.poses[image, place, :, :2] for each in (before, after))
            moments += shares[image, place + 1].sum() * b @ a.T
        angle = math.degrees(math.atan2(moments[0, 1] - moments[1, 0], moments.trace()))
        assert made["object-turn--30"][image] == pytest.approx(angle, abs=1e-3)


def test_the_figure_shows_means_over_seeds_by_angle() -> None:
    values = {(angle, seed): angle / 2 + seed for angle in (90, -90, 0) for seed in (0, 2)}
    rows = [
        {"variant": "capsules", "metric": f"{kind}-turn-{angle}", "value": sign * value}
        for kind, sign in (("object", 1), ("part", -1))
        for (angle, _), value in values.items()
    ]
    paper = SimpleNamespace(variants={"capsules": SimpleNamespace(title="Capsules")})
    drawing, data = figures.turns(cast(Any, SimpleNamespace(paper=paper, metrics=pd.DataFrame(rows))))
    assert data["angle"].tolist() == [-90, 0, 90] * 2
    assert data["turn"].tolist() == [-44, 1, 46, 44, -1, -46]
    assert [axis.get_title() for axis in drawing.axes] == ["Capsules"]
