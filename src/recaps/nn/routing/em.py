"""EM routing: *Matrix Capsules with EM Routing*, procedure 1."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from recaps.nn.fields import Fields
from recaps.nn.kernels import SHARE, VARIANCE, fits
from recaps.nn.precision import float32
from recaps.nn.routing.interface import Consensus, PoseRouting, matrix_votes
from recaps.nn.routing.options import EMOptions

#: Activations are this far from 0 and 1 at least where their logits are returned.
SMALLEST = 1e-6


class EMRouting(PoseRouting):
    """EM routing (*Matrix Capsules with EM Routing*). Each type of output capsule has two learned costs."""

    Options = EMOptions

    def __init__(self, outputs: int, layer: int, logits: bool, options: EMOptions) -> None:
        super().__init__(outputs, layer, logits, options)
        self.logits, self.cost_inputs = logits, options.cost_inputs
        self.temperatures = tuple(temperature_schedule(options.iterations, options.final_temperature))
        self.beta_u = nn.Parameter(torch.zeros(outputs))
        self.beta_a = nn.Parameter(torch.zeros(outputs))

    def forward(self, poses: Tensor, activations: Tensor, weight: Tensor, fields: Fields) -> Consensus:
        # lambda (beta_a - scale cost) = lambda scale (beta_a / scale - cost)
        scale = 1.0 if self.cost_inputs is None else self.cost_inputs / len(weight)
        temperatures = [scale * each for each in self.temperatures]
        arguments = (poses, activations, weight, fields, self.beta_u, self.beta_a / scale, temperatures)
        if fits(poses, weight):
            from recaps.nn.kernels.em import fused_em_routing

            consensus = Consensus(*fused_em_routing(*arguments))
        else:
            consensus = em_routing(*arguments)
        if self.logits:
            return consensus._replace(activations=consensus.activations.logit(SMALLEST))
        return consensus


def em_routing(
    poses: Tensor,
    activations: Tensor,
    weight: Tensor,
    fields: Fields,
    beta_u: Tensor,
    beta_a: Tensor,
    temperatures: Sequence[float],
) -> Consensus:
    """Alternate two steps: fit a Gaussian for each output capsule to its votes, and assign the votes anew.

    Each input capsule distributes one unit over all output capsules whose field holds it. The softmax of the E-step
    therefore runs over the positions and the types of its parents. Densities are computed as logarithms. Gradients flow
    through all iterations.

    Args:
        poses: [B, C, 16].
        activations: of the input capsules, [B, C].
        weight: transformations divided by their norms, [n, J, 4, 4].
        fields: the input capsules in the field of each position.
        beta_u: cost of describing an input capsule by an output capsule, [J].
        beta_a: cost of an inactive output capsule, [J].
        temperatures: the inverse temperature lambda of each iteration.
    """
    with float32(poses):
        votes = matrix_votes(poses.float() if poses.element_size() < 4 else poses, weight, fields)
        seen = activations.to(votes.dtype)[:, fields.children].unsqueeze(3)  # [B, P, n, 1]
        shares = 1 / (fields.parents * weight.shape[1]).to(votes.dtype)
        coupling = shares[fields.children][None, :, :, None].expand(*votes.shape[:-1])
        mean, variance, logit = maximisation(votes, coupling * seen, beta_u, beta_a, temperatures[0])
        for temperature in temperatures[1:]:
            coupling = expectation(votes, mean, variance, logit, fields)
            mean, variance, logit = maximisation(votes, coupling * seen, beta_u, beta_a, temperature)
        return Consensus(mean, logit.sigmoid(), coupling.detach())


def maximisation(
    votes: Tensor, weights: Tensor, beta_u: Tensor, beta_a: Tensor, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Means and variances [B, P, J, 16] of the votes under weights [B, P, n, J], and activation logits [B, P, J]."""
    total = weights.sum(2)
    weighed, divisor = weights.unsqueeze(4), (total + SHARE).unsqueeze(3)
    mean = (weighed * votes).sum(2) / divisor
    variance = (weighed * (votes - mean.unsqueeze(2)).square()).sum(2) / divisor + VARIANCE
    cost = total * (votes.shape[-1] * beta_u + 0.5 * variance.log().sum(3))
    return mean, variance, temperature * (beta_a - cost)


def expectation(votes: Tensor, mean: Tensor, variance: Tensor, logit: Tensor, fields: Fields) -> Tensor:
    """Assignment [B, P, n, J]: the share of each input capsule that each of its parents gets."""
    normaliser = logsigmoid(logit) - 0.5 * (2 * math.pi * variance).log().sum(3)
    distance = ((votes - mean.unsqueeze(2)).square() / variance.unsqueeze(2)).sum(4)
    return softmax_over_parents(normaliser.unsqueeze(2) - 0.5 * distance, fields)


def softmax_over_parents(logits: Tensor, fields: Fields) -> Tensor:
    """Softmax of [B, P, n, J] over all entries of the same input capsule."""
    batch = len(logits)
    which = fields.children.flatten().expand(batch, -1)
    flat = logits.flatten(1, 2)
    highest = flat.new_full((batch, fields.inputs), -math.inf)
    highest = highest.scatter_reduce(1, which, flat.detach().amax(2), "amax")
    powers = (flat - highest.gather(1, which).unsqueeze(2)).exp()
    totals = flat.new_zeros(batch, fields.inputs).scatter_add(1, which, powers.sum(2))
    return (powers / totals.gather(1, which).unsqueeze(2)).view_as(logits)


def temperature_schedule(iterations: int, final: float = 0.01) -> list[float]:
    """lambda_t = final (1 - 0.95^(t+1)), as the authors stated it during the review of the paper."""
    return [final * (1 - 0.95 ** (t + 1)) for t in range(iterations)]
