"""Routings of matrix capsules against the loops of the papers, in value and gradient."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest
import reference
import torch
from torch import Tensor

from recaps.nn.fields import Fields, convolutional, everything
from recaps.nn.routing import fused_connectionist
from recaps.nn.routing.connectionist import ConnectionistRouting, lstm_routing
from recaps.nn.routing.em import em_routing, softmax_over_parents, temperature_schedule
from recaps.nn.routing.fused_connectionist import fused_lstm_routing
from recaps.nn.routing.fused_em import fused_em_routing
from recaps.nn.routing.matrix import matrix_votes
from recaps.nn.routing.similarity import SimilarityRouting, compatibilities, similarity_routing

pytestmark = pytest.mark.unit


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


FIELDS = [convolutional(3, 4, 2, kernel=2, stride=1), convolutional(4, 4, 1, kernel=2, stride=2), everything(5)]


def test_fields_are_windows_in_the_order_row_column_type() -> None:
    fields = convolutional(5, 6, 2, kernel=3, stride=2)
    assert (fields.height, fields.width, fields.inputs) == (2, 2, 60)
    window = [(row * 6 + column) * 2 + kind for row in (2, 3, 4) for column in (0, 1, 2) for kind in (0, 1)]
    assert fields.children[2].tolist() == window
    assert fields.parents().sum() == 4 * 18
    assert fields.parents().view(5, 6, 2)[2, 2].tolist() == [4, 4]


@pytest.mark.parametrize("fields", FIELDS)
def test_votes_match_the_loops(fields: Fields) -> None:
    poses, weight = random(2, fields.inputs, 16), random(fields.children.shape[1], 3, 4, 4, seed=1)
    expected = reference.matrix_votes(poses, weight, fields.children.tolist())
    torch.testing.assert_close(matrix_votes(poses, weight, fields), expected)


@pytest.mark.parametrize("fields", FIELDS)
@pytest.mark.parametrize("iterations", [1, 2, 3])
@pytest.mark.parametrize("route", [em_routing, fused_em_routing])
def test_em_routing_matches_the_loops(route: Any, fields: Fields, iterations: int) -> None:
    children = fields.children.tolist()
    poses, weight = random(2, fields.inputs, 16), random(len(children[0]), 3, 4, 4, seed=1)
    logits, beta_u, beta_a = random(2, fields.inputs, seed=2), random(3, seed=3), random(3, seed=4)
    inputs = (poses, logits, weight, beta_u, beta_a)
    schedule = [0.1, 0.2, 0.3][:iterations]
    fast = route(poses, logits.sigmoid(), weight, fields, beta_u, beta_a, schedule)
    votes = reference.matrix_votes(poses, weight, children)
    means, activations, coupling = reference.em_routing(votes, logits.sigmoid(), children, beta_u, beta_a, schedule)
    torch.testing.assert_close(fast.poses, means)
    torch.testing.assert_close(fast.activations, activations)
    torch.testing.assert_close(fast.coupling, coupling.detach())
    directions = random(*means.shape, seed=5).detach(), random(*activations.shape, seed=6).detach()
    ours = torch.autograd.grad((fast.poses * directions[0]).sum() + (fast.activations * directions[1]).sum(), inputs)
    theirs = torch.autograd.grad((means * directions[0]).sum() + (activations * directions[1]).sum(), inputs)
    for mine, slow in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, slow, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("fields", FIELDS)
def test_every_input_capsule_spreads_one_unit_over_all_its_parents(fields: Fields) -> None:
    logits = 30 * random(2, *fields.children.shape, 3)
    shares = softmax_over_parents(logits, fields)
    sums = torch.zeros(2, fields.inputs, dtype=torch.float64)
    sums.index_add_(1, fields.children.flatten(), shares.sum(3).flatten(1))
    torch.testing.assert_close(sums, torch.ones_like(sums))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1e-4, 1.0, 1e3])
@pytest.mark.parametrize("route", [em_routing, fused_em_routing])
def test_em_routing_is_finite_for_extreme_votes(route: Any, dtype: torch.dtype, size: float) -> None:
    fields = convolutional(4, 4, 2, kernel=3, stride=1)
    poses = (size * random(2, fields.inputs, 16).detach()).to(dtype).requires_grad_()
    activations = torch.rand(2, fields.inputs).round().requires_grad_()
    weight = random(18, 3, 4, 4, seed=1).detach().float().requires_grad_()
    out = route(poses, activations, weight, fields, torch.zeros(3), torch.zeros(3), temperature_schedule(3))
    (out.poses.sum() + out.activations.sum()).backward()
    for tensor in (out.poses, out.activations, poses.grad, weight.grad, activations.grad):
        assert tensor is not None
        assert torch.isfinite(tensor).all()


@pytest.mark.parametrize("fields", FIELDS)
@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize("compiled", [False, True])
def test_similarity_routing_matches_the_loops(fields: Fields, iterations: int, compiled: bool) -> None:
    children = fields.children.tolist()
    poses, weight = random(2, fields.inputs, 16), random(len(children[0]), 3, 4, 4, seed=1)
    logits = random(2, fields.inputs, seed=2)
    penalties = (random(3, seed=3).abs() + 0.1, random(3, seed=4).abs())
    kernel = (random(4, seed=5), random(4, 3, seed=6) + 3)
    theta = (random(3, seed=7), random(3, seed=8), random(3, seed=9))
    leaves = (poses, weight, logits, *penalties, *kernel, *theta)
    fast = similarity_routing(
        poses, logits.sigmoid(), weight, fields,
        penalties=penalties, kernel=kernel, activation=theta, iterations=iterations, compiled=compiled,
    )  # fmt: skip
    votes = reference.matrix_votes(poses, weight, children)
    means, activations = reference.similarity_routing(
        votes, logits.sigmoid(), children, penalties, kernel, theta, iterations
    )
    torch.testing.assert_close(fast.poses, means)
    torch.testing.assert_close(fast.activations, activations)
    torch.testing.assert_close(fast.coupling.sum(2), torch.ones_like(fast.activations))
    ours = torch.autograd.grad(fast.poses.sum() + fast.activations.square().sum(), leaves)
    theirs = torch.autograd.grad(means.sum() + activations.square().sum(), leaves)
    for mine, slow in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, slow)


def test_the_closed_form_of_the_compatibilities_is_the_constrained_minimum() -> None:
    """Equation 11 against a numerical minimiser of equations 2 and 3 on the simplex."""
    from scipy.optimize import minimize

    for seed in range(5):
        similarity, activations = (
            random(6, 1, seed=seed).detach().abs(),
            random(6, 1, seed=seed + 10).detach().sigmoid(),
        )
        lambda1, lambda2 = random(2, 1, seed=seed + 20).detach().abs() + 0.05
        ours = compatibilities(similarity, activations.log(), lambda2, lambda1 + lambda2)[:, 0]
        k, a = similarity[:, 0].numpy(), activations[:, 0].numpy()

        def objective(c, k=k, a=a, one=float(lambda1), two=float(lambda2)):  # type: ignore[no-untyped-def]
            import numpy as np

            return -c @ k + one * (c * np.log(6 * c)).sum() + two * (c * np.log(c / a)).sum()

        start = [1 / 6] * 6
        found = minimize(
            objective, start, bounds=[(1e-9, 1)] * 6, constraints={"type": "eq", "fun": lambda c: c.sum() - 1},
            method="SLSQP", options={"ftol": 1e-14, "maxiter": 500},
        )  # fmt: skip
        torch.testing.assert_close(ours, torch.tensor(found.x), atol=2e-4, rtol=0)
        assert objective(ours.numpy()) <= found.fun + 1e-7


def test_the_limits_of_the_penalties() -> None:
    similarity, activations = random(5, 2).detach(), random(5, 1, seed=1).detach().sigmoid()
    one, none, huge = torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64), torch.full((2,), 1e9)
    torch.testing.assert_close(
        compatibilities(similarity, activations.log(), none, one), similarity.softmax(0), atol=1e-5, rtol=0
    )
    uniform = compatibilities(similarity, activations.log(), none, huge.double())
    torch.testing.assert_close(uniform, torch.full_like(uniform, 0.2))
    proportional = compatibilities(similarity, activations.log(), huge.double(), huge.double())
    torch.testing.assert_close(proportional[:, 0], activations[:, 0] / activations.sum(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("compiled", [False, True])
def test_connectionist_routing_matches_pytorchs_cell_pair_by_pair(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(fused_connectionist, "fused_lstm_routing", lstm_routing)
    torch.manual_seed(0)
    fields = convolutional(3, 3, 2, kernel=2, stride=1)
    routing = ConnectionistRouting((8,), (6,), units=5).double()
    cell = torch.nn.LSTMCell(34, 5).double()
    with torch.no_grad():
        blocks = (routing.from_pose, routing.from_input, routing.from_vote, routing.from_compatibility)
        order = [0, 2, 1, 3]  # PyTorch's gates are i, f, g, o, ours i, g, f, o
        reorder = lambda matrix: torch.cat([matrix.chunk(4)[k] for k in order])  # noqa: E731
        cell.weight_ih.copy_(reorder(torch.cat([block.weight for block in blocks], 1)))
        cell.weight_hh.copy_(reorder(routing.from_hidden.weight))
        bias = reorder(routing.from_pose.bias)
        bias[5:10] += 1
        cell.bias_ih.copy_(bias)
        cell.bias_hh.zero_()
    poses, weight = random(2, fields.inputs, 16), random(8, 3, 4, 4, seed=1)
    activations = random(2, fields.inputs, seed=2).sigmoid()
    fast = routing(poses, activations, weight, fields)
    votes = reference.matrix_votes(poses, weight, fields.children.tolist())
    for b in range(2):
        for p in range(4):
            for j in range(3):
                v, a = votes[b, p, :, j], activations[b, fields.children[p]]
                c, mu, state = torch.full((8,), 1 / 8, dtype=torch.float64), v.mean(0), None
                for _ in range(3):
                    read = torch.cat([mu.expand(8, -1), a[:, None], v, c[:, None]], 1)
                    state = cell(read, state)
                    c = routing.compatibility(state[0])[:, 0].softmax(0)
                    mu = c @ v
                assert state is not None
                out = routing.activation(c @ state[1]).sigmoid()[0]
                torch.testing.assert_close(fast.poses[b, p, j], mu)
                torch.testing.assert_close(fast.activations[b, p, j], out)


@pytest.mark.parametrize("fields", FIELDS)
@pytest.mark.parametrize(("units", "network", "iterations"), [(5, (), 1), (16, (6, 18), 3), (20, (8,), 2)])
def test_compiled_connectionist_routing_has_the_gradients_of_the_plain_one(
    fields: Fields, units: int, network: tuple[int, ...], iterations: int
) -> None:
    """Sizes that are padded and sizes that are not, and numbers of slots that fill the last tile and that do not."""
    torch.manual_seed(0)
    slots = fields.children.shape[1]
    poses, weight = random(3, fields.inputs, 16), random(slots, 5, 4, 4, seed=1)
    activations = random(3, fields.inputs, seed=2).detach().sigmoid().requires_grad_()
    cell = tuple(
        random(*shape, seed=k) for k, shape in enumerate([(4 * units, 16)] * 2 + [(4 * units, units), (3, 4 * units)])
    )
    sizes = [units, *network, 1]
    layers = [(random(b, a, seed=a), random(b, seed=b)) for a, b in pairwise(sizes)]
    inputs = [poses, weight, activations, *cell, *(tensor for layer in layers for tensor in layer)]
    results = []
    for route in (fused_lstm_routing, lstm_routing):
        mean, combined, coupling = route(poses, activations, weight, fields, cell, layers, iterations)
        directions = random(*mean.shape, seed=8).detach(), random(*combined.shape, seed=9).detach()
        total = (mean * directions[0]).sum() + (combined * directions[1]).sum()
        gradients = torch.autograd.grad(total, inputs, materialize_grads=True, allow_unused=True)
        results.append([mean, combined, coupling, *gradients])
    for mine, plain in zip(*results, strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1e-4, 1.0, 1e3])
@pytest.mark.parametrize(
    "routing", [SimilarityRouting(3, 4, 1.0, (12.0, 1.0)), ConnectionistRouting((8,), (6,), units=5)]
)
def test_learned_routings_are_finite_for_extreme_votes(
    routing: torch.nn.Module, dtype: torch.dtype, size: float
) -> None:
    fields = convolutional(4, 4, 2, kernel=3, stride=1)
    poses = (size * random(2, fields.inputs, 16).detach()).to(dtype).requires_grad_()
    activations = torch.rand(2, fields.inputs).round().requires_grad_()
    weight = random(18, 3, 4, 4, seed=1).detach().float().requires_grad_()
    out = routing(poses, activations, weight, fields)
    gradients = torch.autograd.grad(out.poses.sum() + out.activations.sum(), (poses, activations, weight))
    for tensor in (out.poses, out.activations, *gradients):
        assert torch.isfinite(tensor).all()


def test_compiled_routing_keeps_the_number_of_threads() -> None:
    """In a process of its own: Numba starts its threads once."""
    program = """
import torch
from recaps.nn.fields import everything
from recaps.nn.routing.em import EMRouting
torch.set_num_threads(1)
EMRouting(3, [0.1])(torch.rand(2, 5, 16), torch.rand(2, 5), torch.rand(5, 3, 4, 4), everything(5))
print(torch.get_num_threads())
"""
    environment = {**os.environ, "NUMBA_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split() == ["1"]
