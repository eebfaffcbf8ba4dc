"""Routing, votes, losses and masks against the loops of the papers, in value and gradient."""

from __future__ import annotations

import re
from typing import Any

import pytest
import reference
import torch
from reference import random
from torch import Tensor

from recaps.errors import UserError
from recaps.nn import convolution, kernels, layers, precision, winograd
from recaps.nn.kernels.dynamic import by_products, compiled
from recaps.nn.layers import Votes
from recaps.nn.losses.classes import correct
from recaps.nn.losses.margin import margin_loss
from recaps.nn.routing import dynamic
from recaps.nn.routing.dynamic import dynamic_routing
from recaps.nn.routing.interface import Routed
from recaps.nn.routing.options import DynamicOptions
from recaps.nn.squash import squash
from recaps.training import device as devices

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("leaky", [False, True])
@pytest.mark.parametrize("gradient", ["all", "last"])
@pytest.mark.parametrize("iterations", [1, 2, 3, 4])
@pytest.mark.parametrize("route", [dynamic_routing, by_products])
def test_dynamic_routing_matches_the_loops(route: Any, iterations: int, gradient: str, leaky: bool) -> None:
    votes, bias, direction = random(2, 5, 3, 4), random(3, 4, seed=1), random(2, 3, 4, seed=2)
    fast, coupling = route(votes, bias, iterations, gradient, leaky)
    slow, expected = reference.dynamic_routing(votes, bias, iterations, gradient, leaky)
    torch.testing.assert_close(fast, slow)
    torch.testing.assert_close(coupling, expected.detach())
    for ours, theirs in zip(
        torch.autograd.grad(fast, (votes, bias), direction),
        torch.autograd.grad(slow, (votes, bias), direction),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("dim", "outputs"), [(7, 5), (8, 16)])
@pytest.mark.parametrize("leaky", [False, True])
@pytest.mark.parametrize("gradient", ["all", "last"])
@pytest.mark.parametrize("iterations", [1, 3])
def test_compiled_dynamic_routing_matches_the_loops(
    iterations: int, gradient: str, leaky: bool, dim: int, outputs: int, threads: int
) -> None:
    """Also with an odd number of inputs, so that the threads' shares differ, and with sizes that no vector unit has."""
    outputs -= leaky
    capsules, weight, bias = random(3, 11, dim), random(11, dim, outputs, 6, seed=1), random(outputs, 6, seed=2)
    direction = random(3, outputs, 6, seed=3)
    slow, expected = reference.dynamic_routing(reference.votes(capsules, weight), bias, iterations, gradient, leaky)
    given = [each.detach().float().requires_grad_() for each in (capsules, weight, bias)]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        fast, coupling = compiled(*given, iterations, gradient, leaky)
        made = torch.autograd.grad(fast, given, direction.float())
    finally:
        torch.set_num_threads(before)
    assert coupling.shape == expected.shape
    wanted = torch.autograd.grad(slow, (capsules, weight, bias), direction)
    for ours, theirs in zip((fast, coupling, *made), (slow, expected, *wanted), strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=1e-5 * float(theirs.detach().abs().max()))


@pytest.mark.parametrize("leaky", [False, True])
def test_a_network_uses_compiled_routing_where_it_fits(leaky: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    fused = dynamic.compiled
    monkeypatch.setattr(dynamic, "compiled", lambda *given: called.append(1) or fused(*given))
    routing = dynamic.DynamicRouting(5, 3, 4, DynamicOptions(leaky=leaky))
    capsules, weight, bias = (random(*shape).detach().float() for shape in ((2, 5, 8), (5, 8, 3, 4), (3, 4)))
    made = routing.route(capsules, weight, bias)
    assert called == [1]
    with kernels.off():
        slow = routing.route(capsules, weight, bias)
    assert called == [1]
    torch.testing.assert_close(tuple(made), tuple(slow))


def test_compiled_routing_stays_in_float32_under_autocast() -> None:
    capsules, weight, bias = (random(*shape).detach().float() for shape in ((2, 5, 8), (5, 8, 3, 4), (3, 4)))
    exact, _ = compiled(capsules, weight, bias)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(compiled(capsules, weight, bias)[0], exact)


def test_compiled_routing_keeps_nan() -> None:
    capsules, weight, bias = (random(*shape).detach().float() for shape in ((2, 5, 8), (5, 8, 3, 4), (3, 4)))
    capsules[0, 0, 0] = torch.nan
    made, _ = compiled(capsules, weight, bias)
    assert made[0].isnan().all()
    assert made[1].isfinite().all()


def test_compiled_routing_survives_large_votes() -> None:
    """Logits of several hundred, of either sign."""
    capsules, weight, bias = random(2, 5, 8), 100 * random(5, 8, 3, 4, seed=1).detach(), random(3, 4, seed=2)
    slow, _ = dynamic_routing(layers.votes(capsules, weight), bias)
    fast, _ = compiled(capsules.float(), weight.float(), bias.float())
    torch.testing.assert_close(fast, slow.float(), rtol=1e-4, atol=1e-4)


def test_compiled_routing_is_for_float32_on_cpus_and_a_limited_number_of_outputs() -> None:
    capsules, weight = torch.zeros(1, 2, 3), torch.zeros(2, 3, kernels.LANES, 4)
    assert kernels.fits_votes(capsules, weight)
    assert not kernels.fits_votes(capsules, weight, more=1)
    assert not kernels.fits_votes(capsules.double(), weight.double())
    assert not kernels.fits_votes(capsules.to("meta"), weight.to("meta"))
    with kernels.off():
        assert not kernels.fits_votes(capsules, weight)


@pytest.mark.parametrize(("name", "wrong"), [("capsules", (2, 4, 3)), ("coupling", (2, 3, 5))])
def test_a_routing_that_returns_another_shape_is_refused(name: str, wrong: tuple[int, ...]) -> None:
    """It could train without a word: the transposed capsules have a length for each dimension."""

    class Transposed(dynamic.DynamicRouting):
        def forward(self, votes: Tensor, bias: Tensor) -> Routed:
            made = super().forward(votes, bias)
            return made._replace(**{name: getattr(made, name).transpose(1, 2)})

    given = random(2, 5, 8), random(5, 8, 3, 4), random(3, 4)
    routing = Transposed(5, 3, 4, DynamicOptions())
    assert routing.route(*given)
    with pytest.raises(
        UserError, match=rf"Transposed returns {name} of shape {re.escape(str(list(wrong)))} instead of"
    ):
        routing.routed(*given)


def test_the_two_readings_of_the_routing_gradient_differ() -> None:
    votes, bias = random(2, 5, 3, 4), random(3, 4, seed=1)
    through_all, _ = by_products(votes, bias, 3, "all")
    last, _ = by_products(votes, bias, 3, "last")
    torch.testing.assert_close(through_all, last)
    one, other = (torch.autograd.grad(v.square().sum(), votes)[0] for v in (through_all, last))
    assert (one - other).abs().max() > 1e-3


def test_bfloat16_routing_is_close_to_float32() -> None:
    votes = random(4, 60, 10, 16).detach().float() * 0.1
    bias = torch.full((10, 16), 0.1)
    exact, _ = by_products(votes, bias, 3)
    rounded, coupling = by_products(votes.bfloat16(), bias, 3)
    assert rounded.dtype == coupling.dtype == torch.float32
    assert (rounded - exact).norm() / exact.norm() < 0.02


@pytest.mark.parametrize(("gradient", "leaky"), [("all", False), ("all", True), ("last", False)])
def test_gradients_of_bfloat16_routing_are_close_to_float32(gradient: str, leaky: bool) -> None:
    """As on a GPU: votes in bfloat16, the bias in float32."""
    votes, bias = 0.3 * random(4, 60, 10, 16).detach().float(), torch.full((10, 16), 0.1)
    found = []
    for each in (votes, votes.bfloat16()):
        leaves = (each.requires_grad_(), bias.clone().requires_grad_())
        capsules, _ = by_products(*leaves, 3, gradient, leaky)
        found.append(torch.autograd.grad(capsules.square().sum(), leaves))
    for exact, rounded in zip(*found, strict=True):
        assert (rounded.float() - exact).norm() / exact.norm() < 0.03


def test_votes_match_the_loops() -> None:
    torch.manual_seed(0)
    layer = Votes(5, 3, 2, 4).double()
    capsules, direction = random(2, 5, 3), random(2, 5, 2, 4, seed=1)
    fast, slow = layer(capsules), reference.votes(capsules, layer.weight)
    torch.testing.assert_close(fast, slow)
    assert fast.is_contiguous()
    for ours, theirs in zip(
        torch.autograd.grad(fast, (capsules, layer.weight), direction),
        torch.autograd.grad(slow, (capsules, layer.weight), direction),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(("side", "stride", "locations"), [(24, 1, 24), (24, 2, 12), (13, 2, 7), (9, 1, 9)])
def test_padding_is_tensorflows(side: int, stride: int, locations: int) -> None:
    """`SAME`: ceil(side / stride) locations, the odd row or column of zeros after the image."""
    made = convolution.padded(torch.ones(1, 1, side, side), 9, stride)
    total = made.shape[2] - side
    assert total == max((locations - 1) * stride + 9 - side, 0)
    before = total // 2
    assert made[0, 0, before : before + side, before : before + side].sum() == made.sum() == side * side
    assert (made.shape[2] - 9) // stride + 1 == locations == convolution.size_after(side, 9, stride, same=True)


@pytest.mark.parametrize("chunk", [1, 10**9])
@pytest.mark.parametrize("side", [11, 14])
def test_convolution_matches_pytorchs_in_value_and_gradient(
    chunk: int, side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolution, "CHUNK", chunk)
    images, weight = random(3, 2, side, side), random(4, 2, 5, 5, seed=1)
    fast, slow = convolution.convolve(images, weight, 2), torch.nn.functional.conv2d(images, weight, stride=2)
    torch.testing.assert_close(fast, slow)
    direction = random(*slow.shape, seed=2).detach()
    for ours, theirs in zip(
        torch.autograd.grad(fast, (images, weight), direction),
        torch.autograd.grad(slow, (images, weight), direction),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("height", "width", "kernel", "stride"),
    [(20, 20, 9, 2), (19, 14, 9, 2), (32, 21, 9, 2), (13, 13, 5, 1), (12, 17, 4, 3)],
)
def test_products_of_tiles_are_convolutions(height: int, width: int, kernel: int, stride: int) -> None:
    with torch.inference_mode():  # first in a test of the network
        winograd.convolve(torch.ones(1, 2, height, width), torch.ones(2, 2, kernel, kernel), stride)
    images, weight = random(2, 3, height, width), random(4, 3, kernel, kernel, seed=1)
    slow = torch.nn.functional.conv2d(images, weight, stride=stride)
    direction = random(*slow.shape, seed=2).detach()
    wanted = torch.autograd.grad(slow, (images, weight), direction)
    for dtype, error in ((torch.float64, 1e-12), (torch.float32, 2e-4)):
        fast = winograd.convolve(images.to(dtype), weight.to(dtype), stride)
        made = torch.autograd.grad(fast, (images, weight), direction.to(dtype))
        for ours, theirs in zip((fast, *made), (slow, *wanted), strict=True):
            assert (ours.double() - theirs).square().mean().sqrt() <= error * theirs.square().mean().sqrt()


@pytest.mark.parametrize(
    ("channels", "side", "dtype", "used"),
    [
        (32, 20, torch.float32, True),
        (32, 20, torch.bfloat16, False),
        (32, 20, torch.float64, False),
        (32, 10, torch.float32, False),
        (2, 20, torch.float32, False),
    ],
)
def test_tiles_are_used_where_they_pay(
    channels: int, side: int, dtype: torch.dtype, used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[int] = []
    plain = winograd.convolve
    monkeypatch.setattr(winograd, "convolve", lambda *given: called.append(1) or plain(*given))
    images, weight = (random(*shape).detach().to(dtype) for shape in ((1, channels, side, side), (16, channels, 9, 9)))
    made = convolution.convolve(images, weight, 2)
    assert (bool(called), made.dtype) == (used, dtype)
    with kernels.off():
        exact = convolution.convolve(images, weight, 2)
    torch.testing.assert_close(made, exact, rtol=0, atol=0.01 * float(exact.abs().max()))


def test_values_that_slow_products_down_are_zero() -> None:
    torch.set_flush_denormal(False)
    tiny = torch.tensor([2e-38])
    assert (tiny * 0.1).item() > 0
    devices.choose("cpu")
    assert (tiny * 0.1).item() == 0


@pytest.mark.parametrize("shape", [(300, 300), (20, 128, 96)])
def test_float32_products_are_not_rounded_to_bfloat16(shape: tuple[int, ...]) -> None:
    devices.choose("cpu")
    first, second = random(*shape).detach().float(), random(*shape, seed=1).detach().float()
    made, exact = first @ second.mT, first.double() @ second.double().mT
    torch.testing.assert_close(made.double(), exact, rtol=0, atol=2e-6 * float(exact.abs().max()))


@pytest.mark.parametrize(
    ("vendor", "vectors", "amx", "used"),
    [
        ("AuthenticAMD", "AVX512", False, True),
        ("AuthenticAMD", "AVX2", False, False),
        ("AuthenticAMD", "AVX512", True, False),
        ("GenuineIntel", "AVX512", False, False),
        ("GenuineIntel", "AVX512", True, False),
    ],
)
def test_where_onednn_multiplies_float32_matrices(
    vendor: str, vectors: str, amx: bool, used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "cpuinfo", {"vendor_id": vendor}.get)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: vectors)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": amx})
    products = torch.backends.mkldnn.matmul
    before = products.fp32_precision
    products.fp32_precision = "ieee"
    try:
        devices.multiply_by_onednn()
        assert products.fp32_precision == ("bf16" if used else "ieee")
    finally:
        products.fp32_precision = before


def test_gradients_have_the_precision_of_the_forward_pass() -> None:
    weight = random(8, 8).detach().float().requires_grad_()
    inputs = random(8, 8, seed=1).detach().float()
    with torch.autocast("cpu", torch.bfloat16):
        with precision.float32(inputs):
            loss = (inputs @ weight @ inputs).sum()
        precision.backward(loss)
    made = weight.grad
    assert made is not None
    exact = torch.autograd.grad((inputs.double() @ weight.double() @ inputs.double()).sum(), weight)[0]
    torch.testing.assert_close(made, exact, rtol=1e-5, atol=1e-5)


def test_squash_matches_and_survives_zero() -> None:
    vectors = random(3, 4)
    torch.testing.assert_close(squash(vectors), torch.stack([reference.squash(v) for v in vectors]))
    zero = torch.zeros(1, 4, requires_grad=True)
    squash(zero).sum().backward()
    assert zero.grad is not None
    assert torch.isfinite(zero.grad).all()
    assert squash(torch.ones(2, 4, dtype=torch.bfloat16)).dtype == torch.float32


def test_margin_loss_matches_the_loops() -> None:
    lengths, labels = random(4, 5).detach().abs().requires_grad_(), torch.tensor([0, 4, 2, 2])
    fast, slow = margin_loss(lengths, labels), reference.margin_loss(lengths, labels)
    torch.testing.assert_close(fast, slow)
    ours, theirs = (torch.autograd.grad(loss.sum(), lengths)[0] for loss in (fast, slow))
    torch.testing.assert_close(ours, theirs)


def test_margin_loss_of_several_labels_counts_each_as_present() -> None:
    lengths = random(2, 5).detach().abs()
    both = margin_loss(lengths, torch.tensor([[0, 4], [3, 1]]))
    for column in range(2):
        one = margin_loss(lengths, torch.tensor([[0, 4], [3, 1]])[:, column])
        rows = torch.arange(2)
        labels = torch.tensor([[0, 4], [3, 1]])[:, column]
        torch.testing.assert_close(both[rows, labels], one[rows, labels])
    absent = margin_loss(lengths, torch.tensor([0, 3]))
    torch.testing.assert_close(both[0, [1, 2, 3]], absent[0, [1, 2, 3]])


def test_right_is_a_question_of_sets() -> None:
    scores = torch.tensor([[0.1, 0.9, 0.5], [0.8, 0.2, 0.3]])
    assert correct(scores, torch.tensor([1, 2])).tolist() == [True, False]
    assert correct(scores, torch.tensor([[2, 1], [0, 1]])).tolist() == [True, False]
