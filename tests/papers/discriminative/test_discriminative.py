"""Routing by learned coefficients: against the loops of algorithm 1, and what its objective does."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any, Literal

import pandas as pd
import pytest
import reference
import torch
from torch import Tensor

from recaps.arrays import Arrays
from recaps.config.training import Training
from recaps.errors import UserError
from recaps.models import build
from recaps.nn import kernels
from recaps.papers.discriminative import discriminative, record
from recaps.papers.discriminative.discriminative import DiscriminativeCaps
from recaps.papers.discriminative.options import DiscriminativeOptions
from recaps.papers.discriminative.routing import TwoWays, compiled_sums, objective, two_ways, weighted_sums

pytestmark = pytest.mark.unit

SMALL: dict[str, Any] = {"conv_channels": 4, "primary_types": 2, "capsules": 5, "capsule_dim": 6, "decoder": None}


def model(**options: Any) -> DiscriminativeCaps:
    torch.manual_seed(0)
    built = build(DiscriminativeOptions(**(SMALL | options)), (1, 20, 20), 5)
    assert isinstance(built, DiscriminativeCaps)
    with torch.no_grad():
        built.coefficients += 0.5 * torch.randn_like(built.coefficients)
    return built


def batch(n: int = 6) -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {"images": torch.rand(n, 1, 20, 20), "labels": torch.arange(n) % 5}


def route(
    votes: Tensor,
    b: Tensor,
    bias: Tensor,
    *,
    squash_votes: bool | Literal["classes"] = True,
    squash_capsules: bool = False,
) -> TwoWays:
    return two_ways(weighted_sums(votes, b, squash_votes), b, bias, squash_capsules)


def squashed(votes: Tensor) -> Tensor:
    return torch.stack([reference.squash(vote) for vote in votes.flatten(0, 2)]).view_as(votes)


@pytest.mark.parametrize("squash_votes", [True, False, "classes"])
@pytest.mark.parametrize("squash_capsules", [True, False])
def test_routing_matches_the_loops_in_value_and_gradient(
    squash_votes: bool | Literal["classes"], squash_capsules: bool
) -> None:
    torch.manual_seed(0)
    votes = torch.randn(2, 7, 3, 4, dtype=torch.float64, requires_grad=True)
    b = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    to_loss, to_objective = torch.randn(2, 2, 3, 4, dtype=torch.float64)
    two_ways = route(votes, b, bias, squash_votes=squash_votes, squash_capsules=squash_capsules)
    expected = reference.discriminative_capsules(votes, b, bias, squash_votes, squash_capsules)
    torch.testing.assert_close(two_ways.routed.capsules, expected)
    torch.testing.assert_close(two_ways.capsules, expected)
    assert torch.equal(two_ways.routed.coupling[1], b)
    ours = torch.autograd.grad(
        (two_ways.routed.capsules * to_loss).sum() + (two_ways.capsules * to_objective).sum(), (votes, b, bias)
    )
    theirs = torch.autograd.grad((expected * to_loss).sum(), (votes, bias), retain_graph=True)
    of_b = torch.autograd.grad((expected * to_objective).sum(), b)[0]
    for mine, slow in zip(ours, (theirs[0], of_b, theirs[1]), strict=True):
        torch.testing.assert_close(mine, slow)


@pytest.mark.parametrize(("dim", "outputs"), [(7, 5), (8, 16)])
@pytest.mark.parametrize("squash_votes", [True, False])
def test_compiled_routing_matches_the_loops(squash_votes: bool, dim: int, outputs: int) -> None:
    torch.manual_seed(0)
    wide = [torch.randn(*shape).double() for shape in ((3, 11, dim), (11, dim, outputs, 6), (11, outputs))]
    capsules, weight, b = (each.requires_grad_() for each in wide)
    to_loss, to_objective = torch.randn(2, 3, outputs, 6)
    given = [each.detach().float().requires_grad_() for each in (capsules, weight, b)]
    sums, again = compiled_sums(*given, squash_votes)
    ours = torch.autograd.grad((sums * to_loss).sum() + (again * to_objective).sum(), given)
    bias = torch.zeros(outputs, 6, dtype=torch.float64)
    votes = reference.votes(capsules, weight)
    expected = reference.discriminative_capsules(votes, b, bias, squash_votes=squash_votes, squash_capsules=False)
    theirs = torch.autograd.grad((expected * to_loss).sum(), (capsules, weight), retain_graph=True)
    of_b = torch.autograd.grad((expected * to_objective).sum(), b)
    torch.testing.assert_close(again, sums)
    for fast, slow in zip((sums, *ours), (expected, *theirs, *of_b), strict=True):
        torch.testing.assert_close(fast.double(), slow, rtol=0, atol=1e-5 * float(slow.detach().abs().max()))


def test_a_network_uses_compiled_routing_where_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    monkeypatch.setattr(discriminative, "compiled_sums", lambda *given: called.append(1) or compiled_sums(*given))
    net, images = model(), batch()["images"]
    made = net(images).capsules
    assert called == [1]
    with kernels.off():
        torch.testing.assert_close(made, net(images).capsules)
    assert called == [1]


def test_a_network_squashes_votes_over_the_classes() -> None:
    """Compiled routing squashes votes over their dimensions only, so it is not used."""
    net, images = model(squash_votes="classes"), batch()["images"]
    with torch.no_grad():
        net.votes.weight *= 100
        votes = net.votes(net.primary_capsules(images))
        expected = reference.discriminative_capsules(votes, net.coefficients, net.bias, "classes")
        torch.testing.assert_close(net(images).capsules, expected)
        assert (expected - reference.discriminative_capsules(votes, net.coefficients, net.bias)).abs().max() > 0.1


@pytest.mark.parametrize("squash_votes", [True, "classes"])
def test_votes_of_length_zero_have_finite_gradients(squash_votes: bool | Literal["classes"]) -> None:
    votes = torch.zeros(1, 3, 2, 4, requires_grad=True)
    b, bias = torch.ones(3, 2, requires_grad=True), torch.zeros(2, 4)
    two_ways = route(votes, b, bias, squash_votes=squash_votes)
    (two_ways.routed.capsules.sum() + two_ways.capsules.sum()).backward()
    assert votes.grad is not None
    assert b.grad is not None
    assert torch.isfinite(votes.grad).all()
    assert torch.isfinite(b.grad).all()


def test_bfloat16_votes_agree_with_float32() -> None:
    torch.manual_seed(0)
    votes, b, bias = torch.randn(4, 50, 5, 8), torch.randn(50, 5), torch.zeros(5, 8)
    exact = route(votes, b, bias).capsules
    rounded = route(votes.bfloat16(), b, bias).capsules
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, exact, atol=0.05, rtol=0.02)


@pytest.mark.parametrize(("penalty", "l1_factor"), [("l2", "exact"), ("l1", "exact"), ("l1", "printed")])
def test_a_step_of_plain_ascent_is_algorithm_1(penalty: str, l1_factor: str) -> None:
    """Bias zero: the printed equations have none."""
    options = {"penalty": penalty, "penalty_weight": 0.3, "l1_factor": l1_factor}
    net = model(ascent="plain", gamma=0.01, normalisation="sums", **options).double()
    with torch.no_grad():
        net.bias.zero_()
        net.coefficients[0, 0] = 0
    data = batch()
    data["images"] = data["images"].double()
    b = net.coefficients.detach().clone()
    votes = squashed(net.votes(net.primary_capsules(data["images"])).detach())
    labels = [[label] for label in data["labels"].tolist()]
    expected = reference.ascend(votes, b, labels, 0.01, 0.3, penalty, l1_inside=l1_factor == "printed")
    net.configure(Training(learning_rate=1e-3))
    net.training_step(data, 0)
    torch.testing.assert_close(net.coefficients.detach(), expected)
    assert (expected - b).abs().max() > 1e-3


def test_weights_learn_from_the_loss_alone() -> None:
    net, data = model(), batch()
    losses = net.losses(data)
    (losses["loss"] - losses["objective"]).backward()
    together = {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}
    weights = {name: p for name, p in net.named_parameters() if name != "coefficients"}
    alone = torch.autograd.grad(net.losses(data)["loss"], list(weights.values()))
    for name, gradient in zip(weights, alone, strict=True):
        torch.testing.assert_close(together[name], gradient)


def test_the_objective_is_length_of_the_labels_less_that_of_the_others() -> None:
    capsules = torch.zeros(2, 3, 2)
    capsules[:, 0, 0], capsules[:, 1, 1], capsules[:, 2, 0] = 3.0, 2.0, 1.0
    assert objective(capsules, torch.tensor([0, 2])).tolist() == [9 - 4 - 1, 1 - 9 - 4]
    assert objective(capsules, torch.tensor([[0, 1], [1, 2]])).tolist() == [9 + 4 - 1, 4 + 1 - 9]


@pytest.mark.parametrize("ascent", ["adam", "plain"])
def test_the_objective_rises_along_an_update(ascent: str) -> None:
    net, data = model(ascent=ascent, gamma=0.01), batch()
    net.configure(Training(learning_rate=1e-3))
    with torch.no_grad():
        before = float(net.losses(data)["objective"])
    frozen = {name: p.detach().clone() for name, p in net.named_parameters() if name != "coefficients"}
    net.training_step(data, 0)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name in frozen:
                parameter.copy_(frozen[name])
        assert float(net.losses(data)["objective"]) > before


def test_the_coefficients_climb_at_a_fifth_of_the_rate() -> None:
    net = model()
    net.configure(Training(learning_rate=1e-3))
    before = net.coefficients.detach().clone()
    net.training_step(batch(), 0)
    # Adam's first step is as long as its learning rate.
    assert (net.coefficients.detach() - before).abs().max() == pytest.approx(2e-4, rel=1e-3)


def test_l1_leaves_few_coefficients_and_l2_does_not() -> None:
    """Where the penalty is strong enough to matter; at the default weight it is not, see the paper's README."""
    near_zero = {}
    for penalty in ("l1", "l2"):
        net, data = model(penalty=penalty, penalty_weight=0.5, ascent="plain", gamma=0.05), batch()
        net.configure(Training(learning_rate=1e-6))
        for step in range(400):
            net.training_step(data, step)
        near_zero[penalty] = float((net.coefficients.abs() < 0.01).float().mean())
    assert near_zero["l1"] > 0.6
    assert near_zero["l2"] < 0.3


def test_b_is_constant_at_test_time() -> None:
    """An image's capsules are a fixed weighted sum of its votes, whatever else is in the batch, before and after."""
    net, images = model().eval(), batch()["images"]
    with torch.no_grad():
        together = net(images).capsules
        votes = net.votes(net.primary_capsules(images[:1]))
        expected = reference.discriminative_capsules(votes, net.coefficients, net.bias)
        net.latents(images[1:])
        torch.testing.assert_close(together[:1], expected)
        torch.testing.assert_close(net(images[:1]).capsules, expected)


def test_it_learns() -> None:
    net = model(capsules=5, decoder=(16,))
    net.configure(Training(learning_rate=3e-3))
    images = torch.zeros(5, 1, 20, 20)
    for k in range(5):
        images[k, :, 3 * k : 3 * k + 4, 5:15] = 1
    data = {"images": images, "labels": torch.arange(5)}
    history = [net.training_step(data, step) for step in range(60)]
    assert history[-1]["margin"] < 0.5 * history[0]["margin"]
    assert history[-1]["objective"] > history[0]["objective"]
    assert history[-1]["accuracy"] == 1


def test_a_capsule_for_every_class_is_needed() -> None:
    with pytest.raises(UserError, match=r"model\.capsules: 5, but the data has 10 classes"):
        build(DiscriminativeOptions(**SMALL), (1, 20, 20), 10)


def test_the_error_without_negative_coefficients() -> None:
    """Only where a coefficient can become negative: Adam moves it by about half the learning rate in a step."""
    net, images = model(ascent_rate=0.5), batch(40)["images"]
    with torch.no_grad():
        net.coefficients.copy_(torch.randn_like(net.coefficients))
        clamped = copy.deepcopy(net)
        clamped.coefficients.clamp_(min=0)
        pixels = (images * 255).byte()
        chosen, before = (each(pixels / 255).capsules.norm(dim=2).argmax(1) for each in (clamped, net))
    assert (chosen != before).any()
    arrays = Arrays(pixels.numpy(), chosen.numpy(), {}, {"classes": 10})
    settings = SimpleNamespace(test="mnist/test", model=net.options, training=Training(steps=200, learning_rate=0.1))
    run: Any = SimpleNamespace(
        settings=settings,
        test_set="mnist/test",
        model=lambda: copy.deepcopy(net),
        split=lambda name: arrays,
        number=lambda metric, value, unit, on, n: (metric, value, n),
    )
    assert record.without_negatives(run) == [("error-without-negatives", 0, 40)]
    settings.training = Training(steps=2, learning_rate=0.1)
    assert record.without_negatives(run) == []


def test_the_margin_loss_is_that_of_the_capsules_alone() -> None:
    history = pd.DataFrame({"step": [50, 100], "loss": [0.9, 0.8], "margin": [0.3, 0.1]})
    run: Any = SimpleNamespace(history=lambda: history, number=lambda metric, value, unit: (metric, value, unit))
    [(metric, value, unit)] = record.margin_loss(run)
    assert (metric, unit) == ("margin-loss", "loss")
    assert value == pytest.approx(0.2)
