"""Products of expert capsules: the mathematics of the paper, the learning rules against loops, the model in phases."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import reference
import resuming
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.nn.functional import conv_transpose2d, normalize

from recaps.arrays import read
from recaps.config.training import Training
from recaps.errors import UserError
from recaps.models import build
from recaps.nn.routing.cosine import cosine_coupling, cosine_routing
from recaps.nn.squash import squash, unsquash
from recaps.papers.experts import probes
from recaps.papers.experts.contrastive_divergence import (
    correlation,
    decoder_update,
    encoder_update,
    energy,
    log_marginal,
    mixed,
    mixed_back,
)
from recaps.papers.experts.experts import Experts, phase_at, phase_ends, transposed
from recaps.papers.experts.options import ExpertsOptions

pytestmark = pytest.mark.unit


def test_unsquash_survives_zero_and_one() -> None:
    x = torch.tensor([[0.0, 0.0], [0.6, 0.8], [3.0, 4.0]], requires_grad=True)
    z = unsquash(x)
    z.sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    assert torch.equal(z[0], torch.zeros(2))
    assert torch.isfinite(z).all()
    assert 900 < float(z[1].detach().norm()) < 1100
    assert unsquash(torch.ones(2, 4, dtype=torch.bfloat16) / 4).dtype == torch.float32


# Routing


@pytest.mark.parametrize("iterations", [1, 2, 3, 4])
def test_cosine_routing_matches_the_loops_in_value_and_gradient(iterations: int) -> None:
    votes, direction = reference.random(2, 5, 3, 4), reference.random(2, 3, 4, seed=1)
    fast, coupling = cosine_routing(votes, iterations)
    slow, expected = reference.cosine_routing(votes, iterations)
    torch.testing.assert_close(fast, slow)
    torch.testing.assert_close(coupling, expected)
    assert not coupling.requires_grad
    ours, theirs = (torch.autograd.grad(each, votes, direction)[0] for each in (fast, slow))
    torch.testing.assert_close(ours, theirs)


def test_every_output_divides_one_unit_among_its_inputs() -> None:
    coupling = cosine_coupling(reference.random(2, 6, 4, 3), 3)
    torch.testing.assert_close(coupling.sum(1), torch.ones(2, 4, dtype=torch.float64))
    assert coupling.std() > 0.01


@pytest.mark.parametrize("iterations", [1, 2, 4])
def test_along_the_outputs_every_input_divides_one_unit_among_them(iterations: int) -> None:
    votes = reference.random(2, 6, 4, 3).detach()
    coupling = cosine_coupling(votes, iterations, axis=2)
    for image, found in zip(votes, coupling, strict=True):
        logits = torch.zeros(6, 4, dtype=torch.float64)
        for iteration in range(iterations):
            shares = torch.stack([row.exp() / row.exp().sum() for row in logits])
            if iteration < iterations - 1:
                for j in range(4):
                    total = sum(shares[i, j] * image[i, j] for i in range(6))
                    for i in range(6):
                        logits[i, j] += torch.nn.functional.cosine_similarity(image[i, j], total, dim=0)
        torch.testing.assert_close(found, shares)


def test_coupling_does_not_depend_on_the_length_of_a_vote_but_through_the_sum() -> None:
    votes = reference.random(2, 6, 4, 3)
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
    weight, capsules = reference.random(5, 3, 4, 4), squash(reference.random(images, 5, 3, seed=1)).detach()
    coupling = cosine_coupling(torch.einsum("bid,idje->bije", capsules, weight))
    return capsules, coupling, weight


def firing_probability(sums: Tensor) -> Tensor:
    """|z_j|^2 / (1 + |z_j|^2), the length of squash(z_j) (equations 5 and 12): [B, J, D] to [B, J]."""
    squared = sums.square().sum(2)
    return squared / (1 + squared)


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
    weight, (i, d, j, e) = reference.random(*shape), shape
    capsules, outputs, coupling = (
        reference.random(2, i, d, seed=1),
        reference.random(2, j, e, seed=2),
        reference.random(2, i, j, seed=3),
    )
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


def test_capsules_that_are_on_or_off_while_they_mix() -> None:
    capsules, coupling, weight = network(3)
    shape = mixed(capsules, coupling, weight).shape[:2]
    uniform = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = encoder_update(capsules, coupling, weight.detach(), uniform).change
    expected = reference.encoder_update(capsules, coupling, weight.detach().permute(0, 2, 3, 1), uniform)
    torch.testing.assert_close(found.permute(0, 2, 3, 1), expected)
    others = [encoder_update(capsules, coupling, weight.detach(), each).change for each in (None, 1 - uniform)]
    assert not any(torch.allclose(found, other) for other in others)


def test_the_decoders_update_matches_its_rule() -> None:
    capsules, targets = squash(reference.random(3, 4, 6)).detach(), reference.random(3, 5, 3, seed=1).detach()
    weight = reference.random(4, 6, 5, 3, seed=2).detach()
    coupling = cosine_coupling(torch.einsum("bjd,jdie->bjie", capsules, weight))
    torch.testing.assert_close(coupling.sum(1), torch.ones(3, 5, dtype=torch.float64))
    update = decoder_update(capsules, coupling, weight, targets)
    expected = reference.decoder_update(capsules, coupling, weight.permute(0, 2, 3, 1), targets)
    torch.testing.assert_close(update.change.permute(0, 2, 3, 1), expected)
    assert expected.abs().max() > 1e-3


# The model

SMALL: dict[str, Any] = {"channels": (4, 8), "primary_dim": 4, "capsules": 3, "capsule_dim": 5, "samples": 6}
ENDS = (10, 20, 30)  # of the phases in `training`


def training(**changes: Any) -> Training:
    return Training(**({"steps": 30, "batch_size": 8, "log_every": 5, "precision": "float32"} | changes))


def model(shape: tuple[int, int, int] = (1, 20, 20), **options: Any) -> Experts:
    torch.manual_seed(0)
    built = build(ExpertsOptions(**({**SMALL, "autoencoder": 1 / 3, "encoder": 1 / 3} | options)), shape, 10)
    assert isinstance(built, Experts)
    return built


def batch(n: int = 8, side: int = 20) -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {"images": torch.rand(n, 1, side, side), "labels": torch.arange(n) % 10}


def trained(steps: int = 30, **options: Any) -> Experts:
    net, data = model(**options), batch()
    net.configure(training())
    for step in range(steps):
        net.training_step(data, step)
    return net


def test_the_network_has_the_papers_sizes() -> None:
    net = build(ExpertsOptions(), (1, 28, 28), 10)
    assert isinstance(net, Experts)
    assert net.encoder.weight.shape == (576, 8, 20, 16)
    assert net.decoder.weight.shape == (20, 16, 576, 8)
    assert net.autoencoder.first.weight.shape == (128, 1, 9, 9)
    assert net.autoencoder.second.weight.shape == (128, 128, 9, 9)
    images = torch.rand(2, 1, 28, 28)
    with torch.inference_mode():
        assert net.autoencoder.encode(images).shape == (2, 128, 6, 6)
        assert net.input_capsules(images).shape == (2, 576, 8)
        latents = net.latents(images)
        assert latents["capsules"].shape == (2, 20, 16)
        assert net.reconstruct(images).shape == (2, 1, 28, 28)
    torch.testing.assert_close(latents["lengths"], latents["capsules"].norm(dim=2))


def test_a_capsule_is_some_consecutive_channels_at_one_place() -> None:
    net = model()
    code = torch.rand(2, 8, 2, 2)
    capsules = net.autoencoder.as_capsules(code)
    assert torch.equal(capsules[1, 2 * (2 * 1 + 0) + 1], code[1, 4:8, 1, 0])
    assert torch.equal(net.autoencoder.as_maps(capsules), code)


@pytest.mark.parametrize("shape", [(1, 20, 20), (3, 21, 23)])
def test_pictures_come_back_through_the_same_filters(shape: tuple[int, int, int]) -> None:
    net = model(shape)
    images = torch.rand(2, *shape)
    assert net.reconstruct(images).shape == images.shape
    names = [name for name, p in net.autoencoder.named_parameters() if p.ndim > 1]
    assert names == ["first.weight", "second.weight"]


def test_without_biases_no_code_is_grey_and_the_opposite_code_the_negative() -> None:
    """Exactly so where nothing leaks: figure 2's negatives."""
    net, code = model(leaky_slope=1), torch.randn(2, 8, 2, 2)
    assert not [name for name, _ in net.autoencoder.named_parameters() if "bias" in name]
    with torch.inference_mode():
        assert torch.equal(net.autoencoder.logits(torch.zeros_like(code)), torch.zeros(2, 1, 20, 20))
        torch.testing.assert_close(net.autoencoder.logits(-code), -net.autoencoder.logits(code))
    with_biases = model(bias=True).autoencoder
    biases = {name: p.numel() for name, p in with_biases.named_parameters() if "bias" in name}
    assert biases == {"bias_between": 4, "bias_images": 1, "first.bias": 4, "second.bias": 8}
    with torch.no_grad():
        with_biases.bias_images += 3
    assert torch.equal(with_biases.logits(torch.zeros_like(code)), torch.full((2, 1, 20, 20), 3.0))


def test_transposed_convolution_is_pytorchs() -> None:
    maps, weight = torch.randn(2, 5, 6, 7), torch.randn(5, 3, 4, 4)
    torch.testing.assert_close(transposed(maps, weight), conv_transpose2d(maps, weight), rtol=1e-4, atol=1e-5)


def test_without_a_chain_the_code_comes_back_as_it_was() -> None:
    """Squash and unsquash, and the scale, undo each other."""
    net = trained(15).eval()
    assert net.scale != 1
    with torch.inference_mode():
        images = batch()["images"]
        inputs = net.input_capsules(images)
        directly = net.autoencoder.logits(net.autoencoder.encode(images)).sigmoid()
        torch.testing.assert_close(net.pictures(inputs), directly, rtol=1e-3, atol=1e-4)
        assert float(inputs.norm(dim=2).mean()) == pytest.approx(0.25, rel=1e-3)


def test_phases_divide_the_steps_and_end_at_rows_of_the_history() -> None:
    options = ExpertsOptions(autoencoder=0.5, encoder=0.2)
    assert phase_ends(options, training(steps=100, log_every=1)) == (50, 70, 100)
    assert phase_ends(options, training(steps=104, log_every=10)) == (50, 70, 104)
    ends = phase_ends(ExpertsOptions(autoencoder=0, encoder=0), training(steps=100))
    assert ends == (0, 0, 100)
    halves = ExpertsOptions(autoencoder=0.5, encoder=0.5)
    for steps in (100, 104, 106):
        ends = phase_ends(halves, training(steps=steps, log_every=10))
        assert ends == (50, steps, steps), "no step is left for the decoder"
        assert phase_ends(ExpertsOptions(autoencoder=1, encoder=0), training(steps=steps, log_every=10))[0] == steps
    assert [phase_at(ENDS, step) for step in (0, 9, 10, 19, 20, 29)] == [
        phase for phase in ("autoencoder", "encoder", "decoder") for _ in range(2)
    ]
    with pytest.raises(UserError, match=r"training\.log_every: .* none of the 100 steps is left for the encoder"):
        phase_ends(options, training(steps=100, log_every=50))
    with pytest.raises(ValueError, match="their sum is greater than 1"):
        ExpertsOptions(autoencoder=0.5, encoder=0.6)


@pytest.mark.parametrize(("phase", "end"), [("autoencoder", 10), ("encoder", 20), ("decoder", 30)])
def test_all_but_what_a_phase_learns_stays_as_it_is_to_the_bit(phase: str, end: int) -> None:
    net, data = trained(end - 10), batch()
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    for step in range(end - 10, end):
        net.training_step(data, step)
    for name, parameter in net.named_parameters():
        assert torch.equal(parameter, before[name]) == (name.split(".")[0] != phase), name


@pytest.mark.parametrize(("over", "axis"), [("inputs", 1), ("outputs", 2)])
def test_a_step_of_the_encoder_is_algorithm_1(over: str, axis: int) -> None:
    options = {"momentum": 0.0, "encoder_decay": 0.0, "encoder_rate": 2.0, "rate_end": 1.0}
    net, data = trained(10, coupling_axis=over, **options), batch()
    before = net.encoder.weight.detach().clone()
    net.training_step(data, 10)  # sets the scale as well
    with torch.no_grad():
        capsules = squash(net.input_capsules(data["images"]))
        coupling = cosine_coupling(torch.einsum("bid,idje->bije", capsules, before), axis=axis)
    expected = reference.encoder_update(capsules, coupling, before.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    torch.testing.assert_close(net.encoder.weight.detach(), before + 2 * 8 * expected)


def test_a_step_with_capsules_that_are_on_or_off() -> None:
    options = {
        "momentum": 0.0,
        "encoder_decay": 0.0,
        "encoder_rate": 2.0,
        "rate_end": 1.0,
        "mixing": "drawn",
        "coupling_axis": "outputs",
    }
    net, data = trained(10, **options), batch()
    before = net.encoder.weight.detach().clone()
    net.training_step(data, 10)
    with torch.no_grad():
        capsules = squash(net.input_capsules(data["images"]))
        coupling = cosine_coupling(torch.einsum("bid,idje->bije", capsules, before), axis=2)
    uniform = torch.rand(8, 3, generator=net.noise.generator(torch.device("cpu"), "mixing", 10))
    expected = reference.encoder_update(capsules, coupling, before.permute(0, 2, 3, 1), uniform).permute(0, 3, 1, 2)
    torch.testing.assert_close(net.encoder.weight.detach(), before + 2 * 8 * expected)


@pytest.mark.parametrize("over", ["inputs", "outputs"])
def test_what_couplings_sum_to_one_over(over: str) -> None:
    """W sends from inputs to outputs, U from outputs to inputs."""
    net = model(coupling_axis=over, decoder_axis=over)
    with torch.inference_mode():
        up = net.coupling(net.encoder, squash(torch.randn(2, 8, 4)))
        down = net.coupling(net.decoder, squash(torch.randn(2, 3, 5)))
    assert (up.shape, down.shape) == ((2, 8, 3), (2, 3, 8))
    for found in (up, down.transpose(1, 2)):
        sums = found.sum(1 if over == "inputs" else 2)
        torch.testing.assert_close(sums, torch.ones_like(sums))


def test_regularisation_takes_off_a_part_of_the_weights() -> None:
    after = []
    for decay in (0.0, 0.25):
        net = trained(10, momentum=0.0, encoder_decay=decay)
        before = net.encoder.weight.detach().clone()
        net.training_step(batch(), 10)
        after.append(net.encoder.weight.detach())
    torch.testing.assert_close(after[1], after[0] - 0.25 * before)


def test_rates_shrink_along_each_phase() -> None:
    net, data = trained(10, encoder_rate=2.0, decoder_rate=3.0, rate_end=0.01), batch()
    rates = []
    for step in range(10, 30):
        net.training_step(data, step)
        rates.append(net.descents[net.phase].param_groups[0]["lr"])
    assert rates[0] == 8 * 2
    assert rates[5] == pytest.approx(8 * 0.2)
    assert rates[10] == 3 * 3
    assert rates[15] == pytest.approx(3 * 0.3)


def test_dropout_is_a_function_of_seed_and_step() -> None:
    net, values = model(), torch.ones(1000)
    drop = lambda step: net.noise.dropout(values, 0.25, "dropout", step)  # noqa: E731
    assert torch.equal(drop(3), drop(3))
    assert not torch.equal(drop(3), drop(4))
    torch.testing.assert_close(drop(3).unique(), torch.tensor([0, 4 / 3]))
    assert 0.7 < float((drop(3) > 0).float().mean()) < 0.8
    torch.manual_seed(1)
    other = build(ExpertsOptions(**SMALL), (1, 20, 20), 10)
    assert isinstance(other, Experts)
    assert not torch.equal(other.noise.dropout(values, 0.25, "dropout", 3), drop(3))
    assert net.noise.dropout(values, 0, "dropout") is values


def test_dropout_does_not_depend_on_the_order_in_memory() -> None:
    noise, values = model().noise, torch.ones(4, 3, 5, 5)
    torch.testing.assert_close(
        noise.dropout(values.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1), 0.25, "dropout", 3),
        noise.dropout(values, 0.25, "dropout", 3),
        rtol=0,
        atol=0,
    )


SETTINGS: dict[str, Any] = {
    "model": {**SMALL, "family": "experts", "autoencoder": 1 / 3, "encoder": 1 / 3},
    "training": {"steps": 30, "batch_size": 8, "log_every": 5},
}


def test_cut_in_every_phase_a_run_ends_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resuming.check(SETTINGS, tmp_path, [4, 10, 13, 20, 27], monkeypatch)


@pytest.mark.parametrize("gaussian", ["standard", "visited"])
def test_samples_have_the_lengths_of_their_gaussian(gaussian: str) -> None:
    """Samples have mean zero; `visited` has the second moments of the capsule's outputs in training."""
    net = trained(gaussian=gaussian, samples=20000).eval()
    wide = torch.tensor([1.0, 1, 0.1, 0.1, 0])
    seen = 0.6 * squash(wide * torch.randn(50, 3, 5, generator=torch.Generator().manual_seed(0)))
    with torch.inference_mode():
        net.visited.zero_()
        net.visited[:50] = seen  # U has learned from fewer images than are kept
        drawn = net.drawn()
    assert drawn.mean(0).abs().max() < 0.02
    assert drawn.norm(dim=2).max() <= 1 + 1e-6
    moments = torch.einsum("njd,nje->jde", drawn, drawn) / len(drawn)
    if gaussian == "visited":
        wanted = torch.einsum("kjd,kje->jde", seen, seen) / len(seen)
        assert wanted[:, 0, 0].min() > 0.04
    else:
        standard = squash(torch.randn(20_000, 5, generator=torch.Generator().manual_seed(1)))
        wanted = torch.eye(5) * standard.square().sum(1).mean() / 5
    torch.testing.assert_close(moments, wanted.expand_as(moments), rtol=0.1, atol=0.005)


def test_a_capsule_that_is_alone_has_all_the_coupling() -> None:
    net = trained(sample_coupling="alone").eval()
    capsules = squash(torch.randn(3, 5))
    with torch.inference_mode():
        made = net.generated(capsules)
        for place, capsule in enumerate(capsules):
            inputs = torch.stack(
                [net.decoder.weight[place, :, i].T @ capsule for i in range(net.decoder.weight.shape[2])]
            )
            expected = net.pictures(inputs[None] / net.options.decoder_scale)
            torch.testing.assert_close(made[place : place + 1], expected)


def test_samples_with_the_length_of_the_code_of_images() -> None:
    net = trained(sample_coupling="matched", code_length=0.2).eval()
    capsules, seen = squash(torch.randn(3, 5)), list[torch.Tensor]()
    with torch.inference_mode():
        net.pictures = lambda code: seen.append(code) or code  # type: ignore[method-assign, assignment]
        net.generated(capsules)
        net.options = net.options.model_copy(update={"sample_coupling": "alone"})
        net.generated(capsules)
    matched, alone = seen
    for a, b in zip(matched, alone, strict=True):
        torch.testing.assert_close(a.norm(dim=1).mean(), torch.tensor(0.2))
        torch.testing.assert_close(a / a.norm(), b / b.norm())
    with pytest.raises(ValidationError, match="matched needs a code_length"):
        ExpertsOptions(sample_coupling="matched", code_length=None)


def test_pictures_of_one_capsule_alone() -> None:
    net = trained(sample_coupling="routed").eval()
    with torch.inference_mode():
        made = probes.samples(net, torch.rand(1, 1, 20, 20), torch.tensor([0]))
        assert {name: tuple(values.shape) for name, values in made.items()} == dict.fromkeys(
            ("complete", "restricted", "opposite"), (6, 3, 1, 20, 20)
        )
        capsules = torch.zeros(1, 3, 5)
        values = squash(torch.randn(3, 5))
        capsules[0, 1] = values[1]
        torch.testing.assert_close(net.generated(values)[1:2], net.pictures(net.decode(capsules)))
        again = probes.samples(net, torch.rand(1, 1, 20, 20), torch.tensor([0]))
    assert torch.equal(made["complete"], again["complete"])
    # A restricted sample is the complete one or its opposite.
    same = [(made["restricted"] == made[name]).all(-1).all(-1).all(-1) for name in ("complete", "opposite")]
    assert (same[0] ^ same[1]).all()
    assert same[0].any()
    assert same[1].any()


@pytest.mark.parametrize("restricted", ["mean_direction", "nearest"])
def test_the_restricted_domain_is_the_half_that_training_visited(restricted: str) -> None:
    net, data = trained(restricted=restricted), batch()
    with torch.inference_mode():
        capsules = net.encode(net.input_capsules(data["images"]))
        assert (net.side(capsules) == 1).all()
        assert (net.side(-capsules) == -1).all()
    visited = net.visited_sum / net.visited_sum.norm(dim=1, keepdim=True)
    mean = capsules.mean(0)
    torch.testing.assert_close(visited, mean / mean.norm(dim=1, keepdim=True), rtol=1e-3, atol=1e-3)
    assert (model(restricted=restricted).side(torch.randn(4, 3, 5)) == 1).all(), "nothing has been visited yet"


def test_the_chain_is_shown_beside_the_autoencoder_alone() -> None:
    net, images = trained().eval(), batch()["images"]
    with torch.inference_mode():
        made = probes.chain(net, images, batch()["labels"])
        latents = net.latents(images)
    assert torch.equal(made["images"], images)
    for name, error in (("chain", "reconstruction_error"), ("autoencoder", "autoencoder_error")):
        torch.testing.assert_close((made[name] - images).square().sum((1, 2, 3)), latents[error])


def test_operations_are_counted_for_the_phase_that_learns() -> None:
    net = trained(10)
    assert net.own_operations(8) == 0
    net.training_step(batch(), 10)
    encoder = net.own_operations(8)
    net.training_step(batch(), 20)
    assert 0 < encoder < net.own_operations(8)
    assert net.own_operations(16) == 2 * net.own_operations(8)


@pytest.mark.parametrize(("over", "of_u", "rates"), [("outputs", "inputs", (0.1, 8)), ("inputs", "outputs", (20, 0.3))])
def test_the_chain_learns_to_reconstruct_digits(tmp_path: Path, over: str, of_u: str, rates: Any) -> None:
    """Squared error of other digits than it learned from; an untrained decoder's pictures are off by 120 and more."""
    images = torch.tensor(read(resuming.digits(tmp_path, 300)).images).float() / 255
    options = {"coupling_axis": over, "decoder_axis": of_u, "encoder_rate": rates[0], "decoder_rate": rates[1]}
    net = model((1, 28, 28), channels=(12, 24), primary_dim=8, capsules=6, capsule_dim=16, bias=True, **options)
    plan = training(steps=240, batch_size=20, learning_rate=5e-3, log_every=10)
    net.configure(plan)
    history = [net.training_step({"images": images[torch.randint(250, (20,))]}, step) for step in range(plan.steps)]
    with torch.inference_mode():
        latents = net.latents(images[250:])
    assert history[79]["reconstruction_error"] < 20
    assert history[159]["loss"] < 0.5 * history[80]["loss"]
    assert history[239]["reconstruction_error"] < 0.5 * history[160]["reconstruction_error"]
    assert latents["autoencoder_error"].mean() < 15
    assert latents["reconstruction_error"].mean() < 55


# Two layers


def test_a_second_layer_learns_from_the_capsules_of_the_first_alone() -> None:
    options = {"code_length": None, "sample_coupling": "alone"}
    net, data = model(layers=2, upper_capsules=2, autoencoder=0.0, encoder=0.5, **options), batch()
    net.configure(training())
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    for step in range(30):
        net.training_step(data, step)
    changed = {name for name, p in net.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {"upper_encoder.weight", "upper_decoder.weight"}
    assert net.visited.shape == (128, 2, 5)
    assert net.sample()["restricted"].shape == (6, 2, 1, 20, 20)
    assert net.reconstruct(data["images"]).shape == (8, 1, 20, 20)


def test_a_step_of_the_second_layer_is_algorithm_1_on_the_capsules_of_the_first() -> None:
    options = {"momentum": 0.0, "encoder_decay": 0.0, "encoder_rate": 2.0, "rate_end": 1.0, "autoencoder": 0.0}
    options |= {"code_length": None, "sample_coupling": "alone"}
    net, data = model(layers=2, upper_capsules=2, coupling_axis="outputs", **options), batch()
    net.configure(training())
    before = net.learning[0].weight.detach().clone()
    net.training_step(data, 0)
    first = Experts(ExpertsOptions(**SMALL), (1, 20, 20))
    first.load_state_dict(
        {name: net.state_dict()[name] for name in first.state_dict() if "visited" not in name}
        | {name: values for name, values in first.state_dict().items() if "visited" in name}
    )
    with torch.no_grad():
        capsules = first.encode(first.input_capsules(data["images"]))
        coupling = cosine_coupling(torch.einsum("bid,idje->bije", capsules, before), axis=2)
    expected = reference.encoder_update(capsules, coupling, before.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    torch.testing.assert_close(net.learning[0].weight.detach(), before + 2 * 3 * expected, rtol=1e-4, atol=1e-7)


# Capsules on a product of a sphere and a flat space


@pytest.mark.parametrize("flat", [3, 5])
def test_the_nearest_point_has_the_largest_product_with_the_sum(flat: int) -> None:
    """Beside random points of the product; `flat` 5 of 5 dimensions has no sphere."""
    net = model(flat_dim=flat)
    sums = reference.random(16, 3, 5).detach()
    points = reference.random(400_000, 5, seed=1).detach()
    points = points[points[:, -flat:-1].norm(dim=1) <= points[:, -1]]
    if flat < 5:
        points = torch.cat([normalize(points[:, :-flat], dim=1), normalize(points[:, -flat:], dim=1)], dim=1)
    largest = (sums @ normalize(points, dim=1).T).amax(2)
    found = net.nearest(sums)
    torch.testing.assert_close(found.square().sum(2), (sums * found).sum(2))
    torch.testing.assert_close(found.norm(dim=2), largest.clamp_min(0), rtol=0.05, atol=0.03)
    assert (found.norm(dim=2) >= largest - 1e-12).all()
    assert (largest < 0).any()
    inside = sums[..., -flat:-1].norm(dim=2) <= sums[..., -1]
    assert inside.any()
    assert not inside.all()
    torch.testing.assert_close(net.nearest(found), found)


@pytest.mark.parametrize("flat", [2, 3])
def test_the_update_on_a_product_is_the_difference_of_two_gradients(flat: int) -> None:
    capsules, coupling, weight = network()
    net = model(flat_dim=flat)
    update = encoder_update(capsules, coupling, weight.detach(), nearest=net.nearest)
    data, mixed_again = (net.nearest(mixed(each, coupling, weight)) for each in (capsules, update.inputs))
    gap = log_marginal(data) - log_marginal(mixed_again)
    torch.testing.assert_close(update.change, torch.autograd.grad(gap.mean(), weight)[0])
    assert not torch.allclose(update.change, encoder_update(capsules, coupling, weight.detach()).change)


def test_capsules_of_a_product_never_leave_it() -> None:
    net, data = model(flat_dim=3), batch()
    net.configure(training())
    for step in range(25):
        net.training_step(data, step)
    with torch.no_grad():
        capsules = net.encode(net.input_capsules(data["images"]))
    assert (capsules[..., 2:-1].norm(dim=2) <= capsules[..., -1] + 1e-6).all()
    for part in (capsules[..., :2], capsules[..., 2:]):
        torch.testing.assert_close(part.norm(dim=2), capsules.norm(dim=2) / 2**0.5, rtol=1e-4, atol=1e-7)
    drawn = net.drawn()
    samples = net.sampled(drawn)
    assert (drawn[..., -1] < 0).any()
    torch.testing.assert_close(net.nearest(samples), samples)
    # The opposite of a sample has the same point of the flat space, and the opposite one of the sphere.
    torch.testing.assert_close(net.sampled(-drawn)[..., 2:], samples[..., 2:])
    torch.testing.assert_close(net.sampled(-drawn)[..., :2], -samples[..., :2])


def test_a_step_of_both_layers_on_a_product_is_the_rule_for_it() -> None:
    options = {"momentum": 0.0, "encoder_decay": 0.0, "decoder_decay": 0.0, "rate_end": 1.0}
    net, data = model(flat_dim=3, encoder_rate=2.0, decoder_rate=3.0, initial=1.0, **options), batch()
    net.configure(training())
    for step in range(20):
        net.training_step(data, step)
    with torch.no_grad():
        inputs = net.input_capsules(data["images"])
        capsules = squash(inputs)
        coupling = net.coupling(net.encoder, capsules)
        wanted = encoder_update(capsules, coupling, net.encoder.weight, nearest=net.nearest)
        on_sphere = encoder_update(capsules, coupling, net.encoder.weight)
        before = net.encoder.weight.clone()
        net.phase = "encoder"
        net._learn_encoder(inputs)
        torch.testing.assert_close(net.encoder.weight, before + 2 * 8 * wanted.change)
        assert not torch.allclose(wanted.change, on_sphere.change)
        capsules = net.encode(inputs)
        coupling = net.coupling(net.decoder, capsules)
        scale = net.options.decoder_scale
        wanted_back = decoder_update(capsules, coupling, net.decoder.weight, scale * inputs, net.nearest)
        on_sphere_back = decoder_update(capsules, coupling, net.decoder.weight, scale * inputs)
        before = net.decoder.weight.clone()
        net.phase = "decoder"
        net._learn_decoder(inputs, data["images"])
        torch.testing.assert_close(net.decoder.weight, before + 3 * 3 * wanted_back.change)
        assert not torch.allclose(wanted_back.change, on_sphere_back.change)


def test_samples_of_a_flat_space_have_no_opposites() -> None:
    net, data = model(flat_dim=5), batch()
    net.configure(training())
    for step in range(25):
        net.training_step(data, step)
    samples = net.sample()
    torch.testing.assert_close(samples["opposite"], samples["complete"])


def test_what_a_run_visited_counts_from_the_first_step_of_its_decoder() -> None:
    net, data = model(), batch()
    net.configure(training())
    net.visited_sum += 100
    for step in range(21):
        net.training_step(data, step)
    with torch.no_grad():
        torch.testing.assert_close(net.visited_sum, net.encode(net.input_capsules(data["images"])).sum(0))
