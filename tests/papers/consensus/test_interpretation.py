"""What routing does in each iteration, and kernels that a layer shares."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from recaps.arrays import Arrays
from recaps.config.training import Training
from recaps.nn.routing.options import ConnectionistOptions, EMOptions, SimilarityOptions
from recaps.papers.consensus.interpretation import by_iteration
from recaps.papers.consensus.matrixcaps import MatrixCaps, build
from recaps.papers.consensus.options import MatrixCapsOptions

pytestmark = pytest.mark.unit


def model(routing: ConnectionistOptions | EMOptions | SimilarityOptions) -> MatrixCaps:
    torch.manual_seed(0)
    options = MatrixCapsOptions(conv_channels=8, types=(2, 3, 3), compiled=False, routing=routing)
    return build(options, (1, 28, 28), 4).eval()


def pixels() -> Tensor:
    return torch.randint(0, 256, (6, 1, 28, 28), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


@pytest.mark.parametrize("kind", [ConnectionistOptions, EMOptions, SimilarityOptions])
def test_each_row_is_of_a_network_with_as_many_iterations(kind: Any) -> None:
    labels = torch.tensor([0, 1, 2, 3, 0, 1])
    arrays = Arrays(pixels().numpy(), labels.numpy(), {}, {"classes": 4})
    training = Training(steps=1, batch_size=2)
    run: Any = SimpleNamespace(
        model=lambda: model(kind()),
        split=lambda name: arrays,
        resolve=lambda name: name,
        settings=SimpleNamespace(test="mnist/test", training=training, model=SimpleNamespace(routing=kind())),
        number=lambda metric, value, unit, on, n: (metric, value, n),
        mean=lambda metric, values, unit, on: (metric, values.mean(), len(values)),
    )
    made = {metric: (value, n) for metric, value, n in by_iteration(run)}
    assert len(made) == 3 * 4
    for t in (1, 2, 3):
        routed = model(kind(iterations=t)).routed(pixels().float() / 255)
        error = 100 * (routed[2].activations.squeeze(1).argmax(1) != labels).float().mean()
        assert made[f"error-{t}"] == (pytest.approx(float(error)), 6)
        shares = []
        for coupling in routed[2].coupling[:, 0].transpose(1, 2):  # [classes, inputs] of an image
            for of_class in (coupling / coupling.sum(1, keepdim=True)).tolist():
                entropy = -sum(share * math.log(share) for share in of_class if share)
                shares.append(math.exp(entropy) / len(of_class))
        assert made[f"effective-share-class-{t}"] == (pytest.approx(sum(shares) / len(shares), rel=1e-4), 6)


def test_a_shared_kernel_is_the_same_for_all_channels_and_learns_from_all() -> None:
    own, shared = model(SimilarityOptions()), model(SimilarityOptions(channel_widths=False))
    loaded = own.state_dict()
    for name, values in shared.state_dict().items():
        if name.endswith("widths"):
            assert values.shape[1] == 1
            loaded[name] = values.expand_as(loaded[name]).clone()
        else:
            loaded[name] = values
    own.load_state_dict(loaded)
    images = pixels().float() / 255
    torch.testing.assert_close(own(images), shared(images))
    for net in (own, shared):
        net.class_scores(images).square().sum().backward()
    pairs = [
        (wide.grad, narrow.grad)
        for (name, wide), (_, narrow) in zip(own.named_parameters(), shared.named_parameters(), strict=True)
        if name.endswith("widths")
    ]
    assert len(pairs) == 3
    for wide, narrow in pairs:
        torch.testing.assert_close(wide.sum(1, keepdim=True), narrow)
