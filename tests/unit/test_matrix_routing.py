"""Routings of matrix capsules against the loops of the papers, in value and gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from copy import deepcopy
from itertools import pairwise

import pytest
import reference
import torch
from reference import random
from torch import Tensor, nn

from recaps.errors import UserError
from recaps.nn import kernels
from recaps.nn.fields import Fields, convolutional, everything
from recaps.nn.kernels import LANES
from recaps.nn.kernels import connectionist as fused_connectionist
from recaps.nn.kernels import em as fused_em
from recaps.nn.kernels import similarity as fused_similarity
from recaps.nn.kernels.connectionist import fused_lstm_routing
from recaps.nn.routing.connectionist import ConnectionistRouting, lstm_routing
from recaps.nn.routing.em import EMRouting, softmax_over_parents, temperature_schedule
from recaps.nn.routing.interface import matrix_votes
from recaps.nn.routing.options import ConnectionistOptions, EMOptions, SimilarityOptions
from recaps.nn.routing.similarity import SimilarityRouting, compatibilities, similarity_routing

pytestmark = pytest.mark.unit


#: The compiled version of each routing.
ROUTINGS = {
    "em": (fused_em, "fused_em_routing"),
    "similarity": (fused_similarity, "fused_clusters"),
    "connectionist": (fused_connectionist, "fused_lstm_routing"),
}
#: Overlapping fields, separate fields, a single field, and fields that leave some capsules out.
FIELDS = [
    convolutional(3, 4, 2, kernel=2, stride=1),
    convolutional(4, 4, 1, kernel=2, stride=2),
    everything(5),
    convolutional(5, 3, 1, kernel=2, stride=2),
]


def routing(name: str, outputs: int, logits: bool = False) -> nn.Module:
    """Return a small routing with different values in all parameters."""
    torch.manual_seed(0)
    if name == "em":
        made: nn.Module = EMRouting(outputs, 0, logits, EMOptions(cost_inputs=None))
        made.temperatures = (0.1, 0.2, 0.3)
    elif name == "similarity":
        options = {"kernel_width": 1.5, "lambda_init": (1.0, 0.5), "class_scale": 1.0, "kernels": (4, 4, 4)}
        made = SimilarityRouting(outputs, 2, logits, SimilarityOptions(**options))
    else:
        made = small_connectionist(outputs, logits)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return made.double()


def small_connectionist(outputs: int, logits: bool = False) -> ConnectionistRouting:
    layers = {"compatibility_layers": ((8,), (), ()), "activation_layers": ((6,), (), ())}
    return ConnectionistRouting(outputs, 0, logits, ConnectionistOptions(lstm_units=5, **layers))


def inputs(fields: Fields, outputs: int, batch: int = 2) -> list[Tensor]:
    """Return poses, activations and transformations with magnitudes as in a network."""
    weight = random(fields.children.shape[1], outputs, 4, 4, seed=1).detach() / 4
    activations = random(batch, fields.inputs, seed=2).detach().sigmoid()
    return [random(batch, fields.inputs, 16), activations.requires_grad_(), weight.requires_grad_()]


def results(route: nn.Module, given: list[Tensor], fields: Fields) -> list[Tensor]:
    """Return the outputs of a routing, and the gradients of its inputs and parameters."""
    out = route(*given, fields)
    directions = [random(*each.shape, seed=k).to(each.dtype).detach() for k, each in enumerate(out[:2])]
    total = sum((each * direction).sum() for each, direction in zip(out[:2], directions, strict=True))
    return [*out, *torch.autograd.grad(total, [*given, *route.parameters()], materialize_grads=True)]


def plain_results(route: nn.Module, given: list[Tensor], fields: Fields) -> list[Tensor]:
    with kernels.off():
        return results(route, given, fields)


@pytest.fixture(params=["compiled", "plain"])
def kind(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """Compiled routings compute in single precision. The plain versions are compared in double precision."""
    with kernels.off() if request.param == "plain" else nullcontext():
        yield torch.float64 if request.param == "plain" else torch.float32


def copies(tensors: Sequence[Tensor], kind: torch.dtype) -> list[Tensor]:
    return [tensor.detach().to(kind).requires_grad_() for tensor in tensors]


def assert_near(mine: Tensor, exact: Tensor, tolerance: float = 1e-5) -> None:
    """In single precision, compare with the largest value, because terms cancel. EM also divides by small variances."""
    if mine.dtype == torch.float64:
        torch.testing.assert_close(mine, exact, rtol=1e-5, atol=1e-8)
    else:
        size = float(exact.detach().abs().max()) if exact.numel() else 0.0
        torch.testing.assert_close(mine.double(), exact, rtol=0, atol=tolerance * size + 4e-6)


def test_fields_are_windows_in_the_order_row_column_type() -> None:
    fields = convolutional(5, 6, 2, kernel=3, stride=2)
    assert (fields.height, fields.width, fields.inputs) == (2, 2, 60)
    window = [(row * 6 + column) * 2 + kind for row in (2, 3, 4) for column in (0, 1, 2) for kind in (0, 1)]
    assert fields.children[2].tolist() == window
    assert fields.parents.sum() == 4 * 18
    assert fields.parents.view(5, 6, 2)[2, 2].tolist() == [4, 4]


@pytest.mark.parametrize("fields", FIELDS)
def test_votes_match_the_loops(fields: Fields) -> None:
    poses, weight = random(2, fields.inputs, 16), random(fields.children.shape[1], 3, 4, 4, seed=1)
    expected = reference.matrix_votes(poses, weight, fields.children.tolist())
    torch.testing.assert_close(matrix_votes(poses, weight, fields), expected)


@pytest.mark.parametrize("fields", FIELDS)
@pytest.mark.parametrize(("iterations", "cost_inputs"), [(1, None), (2, None), (3, None), (3, 7.5)])
def test_em_routing_matches_the_loops(
    kind: torch.dtype, fields: Fields, iterations: int, cost_inputs: float | None
) -> None:
    children = fields.children.tolist()
    poses, weight = random(2, fields.inputs, 16), random(len(children[0]), 3, 4, 4, seed=1)
    logits = random(2, fields.inputs, seed=2)
    schedule = [0.1, 0.2, 0.3][:iterations]
    route = routing("em", 3)
    route.temperatures, route.cost_inputs = tuple(schedule), cost_inputs
    betas = copies([route.beta_u, route.beta_a], torch.float64)
    route.to(kind)
    own = copies([poses, logits, weight], kind)
    fast = route(own[0], own[1].sigmoid(), own[2], fields)
    votes = reference.matrix_votes(poses, weight, children)
    means, activations, coupling = reference.em_routing(
        votes, logits.sigmoid(), children, *betas, schedule, cost_inputs
    )
    assert_near(fast.poses, means, 5e-5)
    assert_near(fast.activations, activations, 5e-5)
    assert_near(fast.coupling, coupling.detach(), 5e-5)
    directions = random(*means.shape, seed=5).detach(), random(*activations.shape, seed=6).detach()
    total = (fast.poses * directions[0]).sum() + (fast.activations * directions[1]).sum()
    ours = torch.autograd.grad(total, [*own, route.beta_u, route.beta_a])
    leaves = (poses, logits, weight, *betas)
    theirs = torch.autograd.grad((means * directions[0]).sum() + (activations * directions[1]).sum(), leaves)
    for mine, slow in zip(ours, theirs, strict=True):
        assert_near(mine, slow, 5e-5)


@pytest.mark.parametrize("fields", FIELDS)
def test_every_input_capsule_spreads_one_unit_over_all_its_parents(fields: Fields) -> None:
    logits = 30 * random(2, *fields.children.shape, 3)
    shares = softmax_over_parents(logits, fields)
    sums = torch.zeros(2, fields.inputs, dtype=torch.float64)
    sums.index_add_(1, fields.children.flatten(), shares.sum(3).flatten(1))
    torch.testing.assert_close(sums, (fields.parents > 0).to(sums.dtype).expand_as(sums))


@pytest.mark.parametrize("fields", FIELDS)
@pytest.mark.parametrize("iterations", [1, 3])
def test_similarity_routing_matches_the_loops(kind: torch.dtype, fields: Fields, iterations: int) -> None:
    children = fields.children.tolist()
    poses, weight = random(2, fields.inputs, 16), random(len(children[0]), 3, 4, 4, seed=1)
    logits = random(2, fields.inputs, seed=2)
    penalties = (random(3, seed=3).abs() + 0.1, random(3, seed=4).abs())
    kernel = (random(4, seed=5), random(4, 3, seed=6) + 3)
    theta = (random(3, seed=7), random(3, seed=8), random(3, seed=9))
    leaves = (poses, weight, logits, *penalties, *kernel, *theta)
    own = copies(leaves, kind)
    fast = similarity_routing(
        own[0], own[2].sigmoid(), own[1], fields,
        penalties=(own[3], own[4]), kernel=(own[5], own[6]), activation=(own[7], own[8], own[9]), iterations=iterations,
    )  # fmt: skip
    votes = reference.matrix_votes(poses, weight, children)
    means, activations = reference.similarity_routing(
        votes, logits.sigmoid(), children, penalties, kernel, theta, iterations
    )
    assert_near(fast.poses, means)
    assert_near(fast.activations, activations)
    torch.testing.assert_close(fast.coupling.sum(2), torch.ones_like(fast.activations))
    ours = torch.autograd.grad(fast.poses.sum() + fast.activations.square().sum(), own)
    theirs = torch.autograd.grad(means.sum() + activations.square().sum(), leaves)
    for mine, slow in zip(ours, theirs, strict=True):
        assert_near(mine, slow)


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


@pytest.mark.parametrize("logits", [False, True])
def test_connectionist_routing_matches_pytorchs_cell_pair_by_pair(kind: torch.dtype, logits: bool) -> None:
    """In value and in the gradients of inputs and networks; the reference copies the weights of the cell."""
    torch.manual_seed(0)
    fields = convolutional(3, 3, 2, kernel=2, stride=1)
    route = small_connectionist(3, logits).double()
    given = inputs(fields, 3)
    poses, activations, weight = given
    own, ours = copies(given, kind), deepcopy(route).to(kind)
    fast = ours(*own, fields)
    votes = reference.matrix_votes(poses, weight, fields.children.tolist())
    means, outs = reference.connectionist_routing(votes, activations, fields.children, route, lstm_cell(route))
    assert_near(fast.poses, means)
    assert_near(fast.activations, outs if logits else outs.sigmoid())
    direction = random(*means.shape, seed=5).detach()

    def leaves(inputs: list[Tensor], route: ConnectionistRouting) -> list[Tensor]:
        return [*inputs, *route.compatibility.parameters(), *route.activation.parameters()]

    found = torch.autograd.grad((fast.poses * direction).sum() + fast.activations.sum(), leaves(own, ours))
    total = (means * direction).sum() + (outs if logits else outs.sigmoid()).sum()
    for mine, slow in zip(found, torch.autograd.grad(total, leaves(given, route)), strict=True):
        assert_near(mine, slow)


def lstm_cell(route: ConnectionistRouting) -> nn.LSTMCell:
    """Return PyTorch's cell with the weights of a routing. Its gates are i, f, g, o; ours are i, g, f, o."""
    cell = nn.LSTMCell(34, route.units).double()

    def reordered(matrix: Tensor) -> Tensor:
        return torch.cat([matrix.chunk(4)[k] for k in (0, 2, 1, 3)])

    with torch.no_grad():
        blocks = (route.from_pose, route.from_input, route.from_vote, route.from_compatibility)
        cell.weight_ih.copy_(reordered(torch.cat([block.weight for block in blocks], 1)))
        cell.weight_hh.copy_(reordered(route.from_hidden.weight))
        cell.bias_ih.copy_(reordered(route.from_pose.bias))
        cell.bias_ih[route.units : 2 * route.units] += 1
        cell.bias_hh.zero_()
    return cell


@pytest.mark.parametrize("fields", FIELDS)
@pytest.mark.parametrize(("units", "network", "iterations"), [(5, (), 1), (16, (6, 18), 3), (20, (8,), 2)])
def test_compiled_connectionist_routing_has_the_gradients_of_the_plain_one(
    fields: Fields, units: int, network: tuple[int, ...], iterations: int
) -> None:
    """With and without padding of sizes, and with full and partly filled last tiles."""
    torch.manual_seed(0)
    slots = fields.children.shape[1]
    poses, weight = random(3, fields.inputs, 16), random(slots, 5, 4, 4, seed=1)
    activations = random(3, fields.inputs, seed=2).detach().sigmoid().requires_grad_()
    shapes = [(4 * units, 16)] * 2 + [(4 * units, units), (3, 4 * units)]
    cell = tuple((random(*shape, seed=k) / 3).detach().requires_grad_() for k, shape in enumerate(shapes))
    sizes = [units, *network, 1]
    layers = [((random(b, a, seed=a) / 3).detach().requires_grad_(), random(b, seed=b)) for a, b in pairwise(sizes)]
    inputs = [poses, weight, activations, *cell, *(tensor for layer in layers for tensor in layer)]
    results = []
    for route in (fused_lstm_routing, lstm_routing):
        mean, combined, coupling = route(poses, activations, weight, fields, cell, layers, iterations)
        directions = random(*mean.shape, seed=8).detach(), random(*combined.shape, seed=9).detach()
        total = (mean * directions[0]).sum() + (combined * directions[1]).sum()
        gradients = torch.autograd.grad(total, inputs, materialize_grads=True, allow_unused=True)
        results.append([mean, combined, coupling, *gradients])
    *compared, last_bias = zip(*results, strict=True)
    for mine, plain in compared:
        assert_near(mine.float(), plain)
    # A constant that is added to all logits changes nothing. Its gradient is a sum over all pairs that cancels.
    for each in last_bias:
        torch.testing.assert_close(each.double(), torch.zeros_like(each).double(), rtol=0, atol=1e-5)


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1e-4, 1.0, 1e5])
@pytest.mark.parametrize("name", ROUTINGS)
def test_routings_are_finite_for_extreme_votes(name: str, dtype: torch.dtype, size: float) -> None:
    fields = convolutional(4, 4, 2, kernel=3, stride=1)
    poses = (size * random(2, fields.inputs, 16).detach()).to(dtype).requires_grad_()
    activations = (random(2, fields.inputs, seed=2).detach() > 0).float().requires_grad_()
    weight = random(18, 3, 4, 4, seed=1).detach().float().requires_grad_()
    for tensor in results(routing(name, 3).float(), [poses, activations, weight], fields):
        assert torch.isfinite(tensor).all()


@pytest.mark.parametrize("name", ["similarity", "connectionist"])
def test_logits_are_activations_before_the_sigmoid(name: str) -> None:
    """In similarity routing, logits also lack the term of presence, the mean of log a under the compatibilities."""
    given, fields = inputs(FIELDS[0], 3), FIELDS[0]
    route, class_layer = routing(name, 3), routing(name, 3, logits=True)
    found, logits = route(*given, fields), class_layer(*given, fields)
    torch.testing.assert_close(logits.poses, found.poses)
    added = torch.zeros(3)
    if name == "similarity":
        seen = (given[1] + 1e-6).log()[:, fields.children]
        added = route.theta3.abs() * (found.coupling * seen[..., None]).sum(2)
        assert (added < 0).all()
    torch.testing.assert_close((logits.activations + added).sigmoid(), found.activations)


# Compiled versions against plain ones


@pytest.mark.parametrize("name", ROUTINGS)
@pytest.mark.parametrize("outputs", [1, LANES, LANES + 1])
def test_the_compiled_version_runs_for_up_to_16_types_of_output_capsules(
    name: str, outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, route = inputs(FIELDS[0], outputs), routing(name, outputs)
    module, function = ROUTINGS[name]
    compiled, calls = getattr(module, function), []

    def recorded(*arguments: object) -> object:
        calls.append(arguments)
        return compiled(*arguments)

    monkeypatch.setattr(module, function, recorded)
    expected = results(route, given, FIELDS[0])
    assert not calls, "compiled routings do not compute in double precision"
    found = results(route.float(), copies(given, torch.float32), FIELDS[0])
    assert len(calls) == (outputs <= LANES)
    for mine, plain in zip(found, expected, strict=True):
        assert_near(mine, plain)


@pytest.mark.parametrize("name", ["poses", "activations", "coupling"])
def test_a_routing_that_returns_another_shape_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    route, fields = routing("em", 3), FIELDS[0]
    given = inputs(fields, 3)
    assert route.routed(*given, fields)
    forward = route.forward
    monkeypatch.setattr(
        route, "forward", lambda *given: (made := forward(*given))._replace(**{name: getattr(made, name)[:, :1]})
    )
    with pytest.raises(UserError, match=rf"EMRouting returns {name} of shape \[2, 1, .* instead of \[2, "):
        route.routed(*given, fields)


@pytest.mark.parametrize("name", ROUTINGS)
@pytest.mark.parametrize("batch", [0, 1])
def test_no_image_and_a_single_one(name: str, batch: int) -> None:
    given, route = inputs(FIELDS[3], 3, batch), routing(name, 3)
    expected = results(route, given, FIELDS[3])
    found = results(route.float(), copies(given, torch.float32), FIELDS[3])
    for mine, plain in zip(found, expected, strict=True):
        assert mine.shape == plain.shape
        assert_near(mine, plain)


@pytest.mark.parametrize("name", ROUTINGS)
@pytest.mark.parametrize("outputs", [1, LANES])
def test_single_precision_is_as_exact_as_that_of_tensor_operations(name: str, outputs: int) -> None:
    """Errors are about 1e-6 of the largest value, and 1e-4 where terms cancel, as in the gradient of beta_u."""
    fields = convolutional(6, 6, 4, kernel=3, stride=1)
    given, route = inputs(fields, outputs), routing(name, outputs)
    exact = plain_results(route, given, fields)
    single = [each.detach().float().requires_grad_() for each in given]
    found = results(route.float(), single, fields)
    for mine, plain, expected in zip(found, plain_results(route, single, fields), exact, strict=True):
        assert mine.dtype == torch.float32
        size, error, usual = (
            float(each.detach().abs().max()) for each in (expected, mine - expected, plain - expected)
        )
        assert error <= 4 * usual + 1e-5 * size + 1e-6


@pytest.mark.parametrize("name", ROUTINGS)
def test_gradients_of_parameters_are_as_exact_for_a_large_batch(name: str) -> None:
    """Against the sum over batches of four images, in double precision."""
    fields, outputs = convolutional(5, 5, 2, kernel=3, stride=1), 5
    given, route = copies(inputs(fields, outputs, 96), torch.float32), routing(name, outputs).float()
    parameters = [given[2], *route.parameters()]

    def gradients(images: slice) -> list[Tensor]:
        out = route(given[0][images], given[1][images], given[2], fields)
        return list(torch.autograd.grad(out.poses.square().sum() + out.activations.sum(), parameters))

    parts = [gradients(slice(start, start + 4)) for start in range(0, 96, 4)]
    for whole, *each in zip(gradients(slice(None)), *parts, strict=True):
        assert_near(whole, torch.stack(each).double().sum(0), 2e-5)


@pytest.mark.parametrize("size", [1e2, 1e4, 1e6])
def test_gradients_of_em_routing_for_large_poses(size: float) -> None:
    """Their weighted deviations from the mean are rounded, and do not add up to zero."""
    fields = convolutional(4, 4, 2, kernel=3, stride=1)
    given = [each.detach() * (size if place == 0 else 1) for place, each in enumerate(inputs(fields, 3))]
    exact = plain_results(routing("em", 3), copies(given, torch.float64), fields)
    single, route = copies(given, torch.float32), routing("em", 3).float()
    found = results(route, single, fields)
    for mine, plain, expected in zip(found, plain_results(route, single, fields), exact, strict=True):
        largest, error, usual = (
            float(each.detach().abs().max()) for each in (expected, mine - expected, plain - expected)
        )
        assert error <= 12 * usual + 1e-5 * largest


@pytest.mark.parametrize("activation", [1e-8, 1e-5])
def test_gradients_of_em_routing_for_faint_capsules(activation: float) -> None:
    """The divisor is larger than the sum of weights, so that the deviations from the mean do not add up to zero."""
    fields = convolutional(4, 4, 2, kernel=3, stride=1)
    given = inputs(fields, 3)
    given[1] = torch.full_like(given[1], activation)
    exact = plain_results(routing("em", 3), copies(given, torch.float64), fields)
    found = results(routing("em", 3).float(), copies(given, torch.float32), fields)
    for mine, expected in zip(found, exact, strict=True):
        assert_near(mine, expected, 2e-4)


@pytest.mark.parametrize(
    ("name", "which"), [(name, which) for name in ROUTINGS for which in (0, 1, 2) if (name, which) != ("similarity", 1)]
)
def test_a_change_in_place_before_the_gradient_is_an_error(name: str, which: int) -> None:
    """A change of poses, activations or transformations. Similarity routing gets the logarithm of activations."""
    given = [each.detach().float() for each in inputs(FIELDS[0], 3)]
    given[which].requires_grad_()
    changed = given[which] = given[which].clone()
    out = routing(name, 3).float()(*given, FIELDS[0])
    with torch.no_grad():
        changed.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.poses.sum().backward()


@pytest.mark.parametrize("name", ROUTINGS)
@pytest.mark.parametrize("which", [0, 1])
def test_nan_is_preserved(name: str, which: int) -> None:
    """A NaN in a pose or an activation reaches the same values as with tensor operations."""
    fields = convolutional(3, 5, 1, kernel=3, stride=1)
    given, route = copies(inputs(fields, 3), torch.float32), routing(name, 3).float()
    with torch.no_grad():
        given[which][0, 0] = float("nan")
    found, expected = results(route, given, fields), plain_results(route, given, fields)
    assert found[0][0].isnan().any()
    assert not found[0][1].isnan().any()
    for mine, plain in zip(found, expected, strict=True):
        assert torch.equal(mine.isnan(), plain.isnan())


@pytest.mark.parametrize("name", ROUTINGS)
def test_the_number_of_threads_changes_gradients_by_rounding_and_poses_not_at_all(name: str) -> None:
    """Five images: the parts of 2 and 3 threads have different sizes."""
    given, route = copies(inputs(FIELDS[0], 3, batch=5), torch.float32), routing(name, 3).float()
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(results(route, given, FIELDS[0]))
    finally:
        torch.set_num_threads(before)
    for poses, activations, coupling, *gradients in found[1:]:
        assert torch.equal(poses, found[0][0])
        assert torch.equal(coupling, found[0][2])
        torch.testing.assert_close([activations, *gradients], [found[0][1], *found[0][3:]], rtol=1e-4, atol=1e-5)


def test_the_inverse_temperature_rises_to_its_final_value() -> None:
    """lambda_t = final (1 - 0.95^(t + 1)), from t = 0."""
    assert temperature_schedule(3, 0.02) == pytest.approx([0.001, 0.00195, 0.0028525])
    options = EMOptions(iterations=2, final_temperature=0.02)
    assert EMRouting(2, 0, False, options).temperatures == pytest.approx((0.001, 0.00195))


def test_logits_of_saturated_activations_are_finite_and_have_a_gradient() -> None:
    """Activations of 0 and 1 count as 1e-6 and 1 - 1e-6."""
    fields = everything(4)
    poses, activations, weight = inputs(fields, 2)
    for cost, expected in ((-1e6, math.log(1e-6 / (1 - 1e-6))), (1e6, math.log((1 - 1e-6) / 1e-6))):
        route = EMRouting(2, 2, True, EMOptions(cost_inputs=None)).double()
        with torch.no_grad():
            route.beta_a.fill_(cost)
        logits = route(poses, activations, weight, fields).activations
        torch.testing.assert_close(logits, torch.full_like(logits, expected))
        gradients = torch.autograd.grad(logits.sum(), (poses, route.beta_a), allow_unused=True)
        assert all(each is None or each.isfinite().all() for each in gradients)


def test_penalties_of_similarity_routing_count_by_their_size_and_the_scale_in_the_class_layer_alone() -> None:
    fields = everything(5)
    given = inputs(fields, 3)
    route = routing("similarity", 3)
    before = route(*given, fields)
    with torch.no_grad():
        for penalty in (route.lambda1, route.lambda2):
            penalty.neg_()
    for one, other in zip(route(*given, fields), before, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    means = []
    for layer in range(3):
        torch.manual_seed(0)
        made = SimilarityRouting(2000, layer, False, SimilarityOptions(class_scale=30.0))
        means.append(float(made.theta1.detach().mean()))
    assert means == pytest.approx([0, 0, 30], abs=0.01)


@pytest.mark.parametrize("units", [3, 8])
def test_the_cell_starts_in_glorots_range_of_one_matrix(units: int) -> None:
    route = ConnectionistRouting(2, 0, False, ConnectionistOptions(lstm_units=units))
    bound = math.sqrt(6 / (2 * 16 + 2 + units + 4 * units))
    for name, parameter in route.named_parameters():
        if name.startswith("from_") and parameter.ndim == 1:
            assert not parameter.any()
        elif name.startswith("from_"):
            assert parameter.abs().max() <= bound
            if parameter.numel() > 100:
                assert parameter.abs().max() > 0.9 * bound
