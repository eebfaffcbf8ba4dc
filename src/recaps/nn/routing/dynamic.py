"""Dynamic routing by agreement: *Dynamic Routing Between Capsules*, procedure 1."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import pad

from recaps.nn import kernels
from recaps.nn.kernels.dynamic import by_products, compiled
from recaps.nn.routing.interface import Routed, VoteRouting
from recaps.nn.routing.options import DynamicOptions
from recaps.nn.squash import squash


def dynamic_routing(
    votes: Tensor,
    bias: Tensor,
    iterations: int = 3,
    gradient: str = "all",
    leaky: bool = False,
    prior: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Route votes by agreement: *Dynamic Routing Between Capsules*, procedure 1.

    As in the released code, each iteration adds a bias to the weighted sum before squash.

    Args:
        votes: u_hat [B, I, J, D].
        bias: [J, D].
        iterations: routing iterations, at least 1.
        gradient: `all`: gradients flow through every iteration; `last`: the coupling coefficients are constants.
        leaky: add one more output with logit zero to the softmax and discard its coupling.
        prior: logits b_ij before the first iteration, the same for all inputs, [J]; None: zeros.

    Returns:
        Capsules v [B, J, D], and the coupling c [B, I, J] of the last iteration, without a gradient.
    """
    logits = votes.new_zeros(votes.shape[:3]) if prior is None else prior.expand(votes.shape[:3])
    for iteration in range(iterations):
        coupling = (pad(logits, (0, 1)) if leaky else logits).softmax(2)[:, :, : votes.shape[2]]
        weights = coupling.detach() if gradient == "last" else coupling
        capsules = squash((weights.unsqueeze(3) * votes).sum(1) + bias)
        if iteration < iterations - 1:
            logits = logits + (votes * capsules.unsqueeze(1)).sum(3)
    return capsules, coupling.detach()


class DynamicRouting(VoteRouting):
    """Routing by agreement, as in SUPCAPS."""

    Options = DynamicOptions

    def __init__(self, inputs: int, outputs: int, dim: int, options: DynamicOptions) -> None:
        super().__init__(inputs, outputs, dim, options)
        self.how = options.iterations, options.gradient, options.leaky

    def forward(self, votes: Tensor, bias: Tensor) -> Routed:
        route = by_products if kernels.enabled() else dynamic_routing
        return Routed(*route(votes, bias, *self.how))

    def route(self, capsules: Tensor, weight: Tensor, bias: Tensor) -> Routed:
        if kernels.fits_votes(capsules, weight, self.options.leaky):
            return Routed(*compiled(capsules, weight, bias, *self.how))
        return super().route(capsules, weight, bias)

    def operations(self, values: int) -> int:
        """T weighted sums and T - 1 dot products."""
        return 2 * (2 * self.options.iterations - 1) * values
