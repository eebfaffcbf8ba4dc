"""Routing by self-attention against loops over all pairs of votes."""

from __future__ import annotations

import pytest
import reference
import torch

from recaps.nn.routing.attention import AttentionRouting, attention_routing
from recaps.nn.routing.options import AttentionOptions

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("inputs", "outputs", "dim"), [(6, 3, 4), (1, 2, 5), (4, 1, 3)])
def test_routing_matches_the_loops_in_value_and_gradient(inputs: int, outputs: int, dim: int) -> None:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()

    leaves = (random(2, inputs, outputs, dim), random(inputs, outputs))
    found, (capsules, coupling) = attention_routing(*leaves), reference.attention_routing(*leaves)
    torch.testing.assert_close(found.capsules, capsules)
    torch.testing.assert_close(found.coupling, coupling.detach())
    direction = random(*capsules.shape).detach()
    ours = torch.autograd.grad((found.capsules * direction).sum(), leaves)
    theirs = torch.autograd.grad((capsules * direction).sum(), leaves)
    for mine, slow in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, slow)


def test_votes_of_zero_have_a_uniform_coupling_and_a_finite_gradient() -> None:
    votes = torch.zeros(2, 5, 4, 3, requires_grad=True)
    routed = AttentionRouting(5, 4, 3, AttentionOptions())(votes, torch.zeros(4, 3))
    torch.testing.assert_close(routed.coupling, torch.full((2, 5, 4), 0.25))
    assert not routed.coupling.requires_grad
    assert (routed.capsules == 0).all()
    routed.capsules.sum().backward()
    assert votes.grad is not None
    assert votes.grad.isfinite().all()


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_routing_is_computed_in_single_precision(kind: torch.dtype) -> None:
    votes = torch.randn(2, 30, 4, 3, generator=torch.Generator().manual_seed(0)).to(kind)
    route = AttentionRouting(30, 4, 3, AttentionOptions())
    with torch.autocast("cpu", torch.bfloat16):
        found = route(votes, torch.zeros(4, 3))
    exact = attention_routing(votes.double(), route.prior.double())
    for mine, expected in zip(found, exact, strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine.double(), expected, rtol=0, atol=1e-5)
