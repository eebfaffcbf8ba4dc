"""Three layers of capsules with learned coefficients, against a network that is written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from recaps.config.training import Training
from recaps.nn.squash import squash
from recaps.papers.discriminative.deeper import DeeperCaps, build
from recaps.papers.discriminative.options import DeeperOptions, DiscriminativeOptions

pytestmark = pytest.mark.unit

COEFFICIENTS = ("coefficients", "hidden_coefficients")


@pytest.fixture
def model() -> DeeperCaps:
    torch.manual_seed(0)
    small = {"conv_channels": 4, "primary_types": 2, "decoder": None, "hidden_capsules": 5, "hidden_dim": 3}
    model = build(DeeperOptions.model_validate(small), (1, 20, 20), 10)
    for values in model.all_coefficients():
        values.data.normal_()
    return model


def batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {"images": torch.rand(6, 1, 20, 20, generator=generator), "labels": torch.arange(6)}


def by_hand(model: DeeperCaps, images: Tensor) -> Tensor:
    capsules = model.primary_capsules(images)
    hidden = torch.stack(
        [
            sum(
                model.hidden_coefficients[i, j] * squash(capsules[:, i] @ model.hidden_votes.weight[i, :, j])
                for i in range(capsules.shape[1])
            )
            for j in range(5)
        ],
        1,
    )
    hidden = squash(hidden + model.hidden_bias)
    classes = [
        sum(model.coefficients[i, j] * squash(hidden[:, i] @ model.votes.weight[i, :, j]) for i in range(5))
        for j in range(10)
    ]
    return torch.stack(classes, 1) + model.bias


def test_the_class_capsules_are_sums_of_votes_in_both_layers(model: DeeperCaps) -> None:
    images = batch()["images"]
    torch.testing.assert_close(model(images).capsules, by_hand(model, images), rtol=1e-4, atol=1e-5)


def test_coefficients_of_both_layers_ascend_the_objective_and_weights_descend_the_loss(model: DeeperCaps) -> None:
    given = batch()
    losses = model.losses(given)
    (losses["loss"] - losses["objective"]).backward()
    found = {name: values.grad.clone() for name, values in model.named_parameters() if values.grad is not None}
    capsules = by_hand(model, given["images"])
    signs = 2 * torch.nn.functional.one_hot(given["labels"], 10) - 1
    objective = (signs * capsules.square().sum(2)).sum(1).mean()
    penalty = sum(values.square().mean(0).sum() for values in model.all_coefficients())
    objective = objective - model.options.penalty_weight * penalty
    loss = model.losses_of(capsules, given)["loss"]
    for name, values in model.named_parameters():
        wanted = -objective if name in COEFFICIENTS else loss
        (gradient,) = torch.autograd.grad(wanted, values, retain_graph=True)
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-5, msg=name)


def test_both_layers_learn(model: DeeperCaps) -> None:
    before = {name: values.clone() for name, values in model.state_dict().items()}
    model.configure(Training(steps=5, batch_size=6))
    for step in range(2):
        model.training_step(batch(), step)
    assert not [name for name, values in model.state_dict().items() if torch.equal(values, before[name])]


@pytest.mark.parametrize("options", [DeeperOptions, DiscriminativeOptions])
def test_coefficients_stay_at_or_above_zero(options: type[DeeperOptions | DiscriminativeOptions]) -> None:
    import importlib

    small = {"conv_channels": 4, "primary_types": 2, "decoder": None, "nonnegative": True, "initial": 0.01}
    chosen = options.model_validate(small | {"ascent_rate": 5})
    model = importlib.import_module(chosen.module).build(chosen, (1, 20, 20), 10)
    model.configure(Training(steps=9, batch_size=6, learning_rate=0.01))
    for step in range(4):
        model.training_step(batch(), step)
    assert all((values >= 0).all() for values in model.all_coefficients())
    assert any((values == 0).any() for values in model.all_coefficients())
