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


def test_a_list_of_hidden_layers() -> None:
    model = build(ConvNetOptions(channels=(3,), hidden=(7, 6)), (1, 12, 12), 10)
    assert [tuple(each.shape) for each in model.parameters() if each.ndim == 2] == [(7, 3 * 16), (6, 7), (10, 6)]
    assert model.latents(torch.rand(2, 1, 12, 12))["hidden"].shape == (2, 6)


def test_released_initial_values() -> None:
    torch.manual_seed(0)
    model = build(ConvNetOptions(channels=(64, 64), hidden=200, initial="released"), (1, 28, 28), 10)
    for name, values in model.named_parameters():
        if name.endswith("bias"):
            assert torch.equal(values, torch.full_like(values, 0.1))
        else:
            deviation = 0.05 if values.ndim == 4 else 0.1
            # Cut at two standard deviations, which leaves 0.88 of them.
            assert values.abs().max() <= 2 * deviation
            assert values.std().item() == pytest.approx(0.88 * deviation, rel=0.06)


def test_margin_loss_is_that_of_the_released_code() -> None:
    """Its function `_margin_loss` shifts the scores by 0.5 and has a margin of 0.4; half of it counts."""
    model = build(ConvNetOptions(channels=(3,), hidden=4, loss="margin"), (1, 12, 12), 10)
    images, labels = torch.rand(5, 1, 12, 12), torch.tensor([0, 3, 9, 9, 1])
    expected = 0.0
    for scores, label in zip(model.class_scores(images).detach(), labels, strict=True):
        for place, score in enumerate(scores - 0.5):
            if place == label:
                expected += 0.5 * float(score < 0.4) * float(score - 0.4) ** 2
            else:
                expected += 0.5 * 0.5 * float(score > -0.4) * float(score + 0.4) ** 2
    losses = model.losses({"images": images, "labels": labels})
    assert losses["loss"].item() == pytest.approx(expected / 50, rel=1e-5)


def test_dropout_depends_on_the_step_and_is_off_in_evaluation() -> None:
    model = build(ConvNetOptions(channels=(3,), hidden=400, dropout=0.5), (1, 12, 12), 10)
    batch = {"images": torch.rand(5, 1, 12, 12), "labels": torch.zeros(5, dtype=torch.long)}
    found = []
    for step in (0, 0, 1):
        model.noise.schedule(step)
        found.append(model.losses(batch)["loss"])
    first, again, second = found
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert torch.equal(model.class_scores(batch["images"]), model.class_scores(batch["images"]))
    plain = build(ConvNetOptions(channels=(3,), hidden=400), (1, 12, 12), 10)
    assert set(model.state_dict()) - set(plain.state_dict()) == {"noise.key"}
