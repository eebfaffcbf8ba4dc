"""The convolutional baseline."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import conv2d, linear, max_pool2d

from recaps.errors import UserError
from recaps.models import build
from recaps.models.options import ConvNetOptions


@pytest.mark.parametrize(("pooling", "side"), [(True, 4), (False, 20)])
def test_scores_are_those_of_the_layers_one_after_the_other(pooling: bool, side: int) -> None:
    torch.manual_seed(0)
    model = build(ConvNetOptions(channels=(3, 4), hidden=6, classes=5, pooling=pooling), (2, 28, 28), 5).double()
    weights = [each.detach() for each in model.parameters()]
    shapes = [(3, 2, 5, 5), (3,), (4, 3, 5, 5), (4,), (6, 4 * side * side), (6,), (5, 6), (5,)]
    assert [tuple(each.shape) for each in weights] == shapes
    images = torch.rand(3, 2, 28, 28, dtype=torch.float64)
    values = images
    for kernel, bias in (weights[:2], weights[2:4]):
        values = conv2d(values, kernel, bias).relu()
        values = max_pool2d(values, 2) if pooling else values
    hidden = linear(values.flatten(1), *weights[4:6]).relu()
    latents = model.latents(images)
    torch.testing.assert_close(latents["hidden"], hidden)
    expected = linear(hidden.float(), *(each.float() for each in weights[6:]))
    torch.testing.assert_close(latents["scores"].float(), expected)


def test_images_that_pooling_leaves_nothing_of_are_refused() -> None:
    with pytest.raises(UserError, match="images of 12x12 are too small for its convolutions"):
        build(ConvNetOptions(channels=(3, 4)), (1, 12, 12), 10)
    assert build(ConvNetOptions(channels=(3, 4), hidden=2, pooling=False), (1, 12, 12), 10)
