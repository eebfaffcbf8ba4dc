"""Boosts inside the routing, and EM routing of vectors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from recaps.config.training import Training
from recaps.nn.kernels import VARIANCE
from recaps.nn.routing.dynamic import dynamic_routing
from recaps.nn.squash import squash
from recaps.papers.sparse.em import VectorEM, VectorEMOptions
from recaps.papers.sparse.options import SparseCapsOptions
from recaps.papers.sparse.sparsecaps import SparseCaps

pytestmark = pytest.mark.unit

SMALL = {"conv_channels": 4, "primary_types": 2, "capsules": 5, "capsule_dim": 6, "decoder": (7,), "boost_every": 1}
EM = "recaps.papers.sparse.em:VectorEM"


def model(**options: Any) -> SparseCaps:
    torch.manual_seed(0)
    return SparseCaps(SparseCapsOptions.model_validate(SMALL | options), (1, 20, 20))


def numbers(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_boosts_multiply_the_coupling_in_each_iteration() -> None:
    votes, bias, boost = numbers(2, 4, 3, 6), numbers(3, 6), torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    agreement = torch.zeros(2, 4, 3, dtype=torch.float64)
    for _ in range(3):
        powers = boost * agreement.exp()
        coupling = powers / powers.sum(2, keepdim=True)
        capsules = squash(torch.einsum("bij,bijd->bjd", coupling, votes) + bias)
        agreement = agreement + torch.einsum("bijd,bjd->bij", votes, capsules)
    made = dynamic_routing(votes, bias, prior=boost.log())
    torch.testing.assert_close(made, (capsules, coupling))
    assert torch.equal(dynamic_routing(votes, bias)[0], dynamic_routing(votes, bias, prior=torch.zeros(3).double())[0])


def test_boosts_in_the_routing_change_coupling_and_leave_the_ranks_of_supports() -> None:
    net, images = model(boosts="routing"), numbers(4, 1, 20, 20).float()
    before = net(images)
    torch.testing.assert_close(before, model()(images))  # all boosts are 1 at first
    assert net.boosting is not None
    net.boosting.boost[2] = 50.0
    after = net(images)
    assert (after.coupling[..., 2] > before.coupling[..., 2]).all()
    supports = torch.tensor([[3.0, 2.0, 1.0, 0.0, 4.0]])
    assert net.ranks(supports).tolist() == [[1, 2, 3, 4, 0]]


@pytest.mark.parametrize("wrong", [{"learning": "dense"}, {"layers": 2}, {"routing": EM}])
def test_only_the_network_of_the_paper_has_boosts_in_the_routing(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="boosts: routing needs"):
        SparseCapsOptions.model_validate(SMALL | {"boosts": "routing"} | wrong)


def test_em_routing_of_vectors_is_procedure_1() -> None:
    torch.manual_seed(0)
    routing = VectorEM(4, 3, 6, VectorEMOptions(cost_inputs=8, final_temperature=0.5)).double()
    routing.requires_grad_(False)
    routing.beta_u.copy_(torch.tensor([0.1, -0.2, 0.3]))
    routing.beta_a.copy_(torch.tensor([0.5, 0.0, -0.5]))
    capsules, weight, bias = numbers(1, 4, 5), numbers(4, 5, 3, 6), torch.zeros(3, 6, dtype=torch.float64)
    made = routing.routed(capsules, weight, bias)
    votes = [[capsules[0, i] @ weight[i, :, j] for j in range(3)] for i in range(4)]
    assigned = [[1 / 3] * 3 for _ in range(4)]
    for t in range(3):
        mean, variance, activation = [], [], []
        for j in range(3):  # the M-step
            shares = [assigned[i][j] * float(capsules[0, i].norm()) for i in range(4)]
            mean.append(sum(share * votes[i][j] for i, share in enumerate(shares)) / sum(shares))
            squares = (share * (votes[i][j] - mean[j]) ** 2 for i, share in enumerate(shares))
            variance.append(sum(squares) / sum(shares) + VARIANCE)
            cost = sum(shares) * (6 * float(routing.beta_u[j]) + 0.5 * float(variance[j].log().sum()))
            temperature = 0.5 * (1 - 0.95 ** (t + 1))
            activation.append(1 / (1 + math.exp(-temperature * (float(routing.beta_a[j]) - 2 * cost))))
        last = assigned
        assigned = []  # the E-step
        for i in range(4):
            densities = [activation[j] * _density(votes[i][j], mean[j], variance[j]) for j in range(3)]
            assigned.append([each / sum(densities) for each in densities])
    expected = torch.stack([activation[j] * mean[j] / mean[j].norm() for j in range(3)])
    torch.testing.assert_close(made.capsules[0], expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(made.coupling[0], torch.tensor(last, dtype=torch.float64), rtol=1e-5, atol=1e-7)


def _density(vote: Tensor, mean: Tensor, variance: Tensor) -> float:
    each = (-((vote - mean) ** 2) / (2 * variance)).exp() / (2 * math.pi * variance).sqrt()
    return float(each.prod())


@pytest.mark.parametrize("options", [{"boosts": "routing"}, {"routing": EM}, {"routing": EM, "learning": "dense"}])
def test_all_parameters_learn(options: dict[str, Any]) -> None:
    net, images = model(**options), numbers(4, 1, 20, 20).float()
    before = {name: values.clone() for name, values in net.named_parameters()}
    net.configure(Training(steps=200, batch_size=4))
    net.train()
    for step in range(3):
        net.training_step({"images": images}, step)
    assert not [name for name, values in net.named_parameters() if torch.equal(values, before[name])]


def test_em_routing_of_vectors_is_computed_in_float32_and_moves_with_the_model() -> None:
    net = model(routing=EM)
    with torch.autocast("cpu", torch.bfloat16):
        assert net(numbers(4, 1, 20, 20).float()).capsules.dtype == torch.float32
    assert len([*net.routing.buffers()]) == 2
    assert not [each for each in vars(net.routing).values() if isinstance(each, Tensor | tuple)]
