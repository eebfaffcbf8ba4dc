"""Products of expert capsules: the mathematics of the paper, the learning rules against loops, the model in phases."""

from __future__ import annotations

import itertools
import math

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from recaps.nn.experts import (
    correlation,
    decoder_update,
    encoder_update,
    energy,
    firing_probability,
    log_marginal,
    mixed,
    mixed_back,
)
from recaps.nn.routing.cosine import cosine_coupling, cosine_routing
from recaps.nn.squash import squash
from recaps.nn.unsquash import unsquash

pytestmark = pytest.mark.unit


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


# Squash and its inverse

vectors = arrays.arrays(np.float64, (3, 4), elements=st.floats(-100, 100, allow_subnormal=False))


@given(vectors)
def test_unsquash_undoes_squash(values: np.ndarray) -> None:
    z = torch.tensor(values)
    z = z[z.norm(dim=1) > 1e-5]
    torch.testing.assert_close(unsquash(squash(z, epsilon=0)), z, rtol=1e-9, atol=0)


@given(vectors)
def test_squash_undoes_unsquash(values: np.ndarray) -> None:
    lengths = torch.tensor(values).norm(dim=1, keepdim=True)
    x = torch.tensor(values) / lengths.clamp_min(1) * 0.99
    x = x[x.norm(dim=1) > 1e-9]
    torch.testing.assert_close(squash(unsquash(x), epsilon=0), x, rtol=1e-9, atol=0)


@given(vectors)
def test_the_length_of_a_squashed_capsule_is_a_sigmoid_of_its_log_squared_length(values: np.ndarray) -> None:
    z = torch.tensor(values)
    z = z[z.norm(dim=1) > 1e-5]
    torch.testing.assert_close(squash(z, epsilon=0).norm(dim=1), z.square().sum(1).log().sigmoid())


def test_unsquash_survives_zero_and_one() -> None:
    x = torch.tensor([[0.0, 0.0], [0.6, 0.8], [3.0, 4.0]], requires_grad=True)
    z = unsquash(x)
    z.sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    assert torch.equal(z[0], torch.zeros(2))
    assert torch.isfinite(z).all()
    assert 900 < float(z[1].norm()) < 1100
    assert unsquash(torch.ones(2, 4, dtype=torch.bfloat16) / 4).dtype == torch.float32


# Routing


@pytest.mark.parametrize("iterations", [1, 2, 3, 4])
def test_cosine_routing_matches_the_loops_in_value_and_gradient(iterations: int) -> None:
    votes, direction = random(2, 5, 3, 4), random(2, 3, 4, seed=1)
    fast, coupling = cosine_routing(votes, iterations)
    slow, expected = reference.cosine_routing(votes, iterations)
    torch.testing.assert_close(fast, slow)
    torch.testing.assert_close(coupling, expected)
    assert not coupling.requires_grad
    ours, theirs = (torch.autograd.grad(each, votes, direction)[0] for each in (fast, slow))
    torch.testing.assert_close(ours, theirs)


def test_every_output_divides_one_unit_among_its_inputs() -> None:
    coupling = cosine_coupling(random(2, 6, 4, 3), 3)
    torch.testing.assert_close(coupling.sum(1), torch.ones(2, 4, dtype=torch.float64))
    assert coupling.std() > 0.01


def test_coupling_does_not_depend_on_the_length_of_a_vote_but_through_the_sum() -> None:
    votes = random(2, 6, 4, 3)
    torch.testing.assert_close(cosine_coupling(votes), cosine_coupling(1000 * votes))


def test_votes_of_zero_agree_with_nothing() -> None:
    votes = torch.zeros(1, 5, 2, 4)
    votes[0, 0] = torch.tensor([1.0, 2.0, 0.0, 0.0])
    capsules, coupling = cosine_routing(votes.requires_grad_(), 3)
    capsules.sum().backward()
    expected = math.exp(2) / (math.exp(2) + 4)  # a cosine of 1 in each of two rounds, against four of 0
    torch.testing.assert_close(coupling[0, 0], torch.full((2,), expected))
    assert votes.grad is not None
    assert torch.isfinite(votes.grad).all()
    nothing, even = cosine_routing(torch.zeros(1, 5, 2, 4))
    assert not nothing.any()
    torch.testing.assert_close(even, torch.full((1, 5, 2), 0.2))


# Energy, its marginal and its gradient


def network(images: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Squashed capsules [B, 5, 3], the coupling and weight to four capsules of four dimensions."""
    weight, capsules = random(5, 3, 4, 4), squash(random(images, 5, 3, seed=1)).detach()
    coupling = cosine_coupling(torch.einsum("bid,idje->bije", capsules, weight))
    return capsules, coupling, weight


def states(outputs: int) -> Tensor:
    return torch.tensor(list(itertools.product([0.0, 1.0], repeat=outputs)), dtype=torch.float64)


def test_marginal_and_conditional_are_sums_over_all_states() -> None:
    """Equations 10 and 12 from equations 7 and 8, at whatever Z."""
    sums = mixed(*network()).detach()
    for z in sums:
        every = states(len(z))
        weights = (-energy(z.expand(len(every), -1, -1), every)).exp()
        torch.testing.assert_close(weights.sum().log(), log_marginal(z[None])[0])
        on = (weights.unsqueeze(1) * every).sum(0) / weights.sum()
        torch.testing.assert_close(on, firing_probability(z[None])[0])
        torch.testing.assert_close(on, squash(z, epsilon=0).norm(dim=1))


def test_capsules_fire_independently() -> None:
    """Equation 11."""
    z = mixed(*network())[0].detach()
    every, on = states(len(z)), firing_probability(z[None])[0]
    weights = (-energy(z.expand(len(every), -1, -1), every)).exp()
    torch.testing.assert_close(weights / weights.sum(), torch.where(every == 1, on, 1 - on).prod(1))


def test_a_capsule_of_length_zero_has_an_energy() -> None:
    z = torch.zeros(1, 2, 3)
    assert energy(z, torch.zeros(1, 2)).tolist() == [0]
    assert energy(z, torch.tensor([[0.0, 1.0]])).tolist() == [math.inf]
    assert log_marginal(z).tolist() == [0]
    assert not firing_probability(z).any()


def test_the_datas_part_of_equation_18_is_the_gradient_of_the_marginal() -> None:
    capsules, coupling, weight = network()
    by_states = [
        torch.logsumexp(-energy(z.expand(16, -1, -1), states(4)), 0) for z in mixed(capsules, coupling, weight)
    ]
    of_states = torch.autograd.grad(torch.stack(by_states).sum(), weight)[0]
    of_marginal = torch.autograd.grad(log_marginal(mixed(capsules, coupling, weight)).sum(), weight)[0]
    sums = mixed(capsules, coupling, weight).detach()
    by_hand = 2 * correlation(capsules, coupling, sums / (1 + sums.square().sum(2, keepdim=True)))
    torch.testing.assert_close(by_hand, of_marginal)
    torch.testing.assert_close(by_hand, of_states)


def test_the_update_is_the_difference_of_two_gradients() -> None:
    """Contrastive divergence: data's less that of the mixed capsules, which are constants."""
    capsules, coupling, weight = network()
    update = encoder_update(capsules, coupling, weight.detach())
    gap = log_marginal(mixed(capsules, coupling, weight)) - log_marginal(mixed(update.inputs, coupling, weight))
    torch.testing.assert_close(update.change, torch.autograd.grad(gap.mean(), weight)[0])


# The update rules against their loops


@pytest.mark.parametrize("shape", [(5, 3, 4, 6), (5, 6, 4, 3), (4, 4, 4, 4)])
def test_mixing_is_a_weighted_sum_of_votes_either_way(shape: tuple[int, int, int, int]) -> None:
    """Whichever side's capsules are longer."""
    weight, (i, d, j, e) = random(*shape), shape
    capsules, outputs, coupling = random(2, i, d, seed=1), random(2, j, e, seed=2), random(2, i, j, seed=3)
    expected = torch.einsum("bij,bid,idje->bje", coupling, capsules, weight)
    torch.testing.assert_close(mixed(capsules, coupling, weight), expected)
    back = torch.einsum("bij,bje,idje->bid", coupling, outputs, weight)
    torch.testing.assert_close(mixed_back(outputs, coupling, weight), back)
    both = torch.einsum("bij,bid,bje->idje", coupling, capsules, outputs)
    torch.testing.assert_close(correlation(capsules, coupling, outputs), both)


def test_the_encoders_update_matches_algorithm_1() -> None:
    capsules, coupling, weight = network(3)
    update = encoder_update(capsules, coupling, weight.detach())
    expected = reference.encoder_update(capsules, coupling, weight.detach().permute(0, 2, 3, 1))
    torch.testing.assert_close(update.change.permute(0, 2, 3, 1), expected)
    assert expected.abs().max() > 1e-3


def test_the_decoders_update_matches_its_rule() -> None:
    capsules, targets = squash(random(3, 4, 6)).detach(), random(3, 5, 3, seed=1).detach()
    weight = random(4, 6, 5, 3, seed=2).detach()
    coupling = cosine_coupling(torch.einsum("bjd,jdie->bjie", capsules, weight))
    torch.testing.assert_close(coupling.sum(1), torch.ones(3, 5, dtype=torch.float64))
    update = decoder_update(capsules, coupling, weight, targets)
    expected = reference.decoder_update(capsules, coupling, weight.permute(0, 2, 3, 1), targets)
    torch.testing.assert_close(update.change.permute(0, 2, 3, 1), expected)
    assert expected.abs().max() > 1e-3
