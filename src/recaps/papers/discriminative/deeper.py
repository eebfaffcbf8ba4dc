"""Learned coefficients in a network with three layers of capsules.

Section III.C says that coefficients of such networks can be "updated through chain rule". So the coefficients of both
layers ascend the objective of the class capsules, and all weights descend the loss.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recaps.nn.layers import Votes
from recaps.nn.routing.interface import Routed
from recaps.nn.squash import squash
from recaps.papers.discriminative.discriminative import DiscriminativeCaps
from recaps.papers.discriminative.options import DeeperOptions
from recaps.papers.discriminative.routing import TwoWays


class DeeperCaps(DiscriminativeCaps):
    """Primary, hidden and class capsules. Shapes are those of the base class."""

    options: DeeperOptions

    def __init__(self, options: DeeperOptions, image_shape: tuple[int, int, int]) -> None:
        super().__init__(options, image_shape)
        inputs, hidden = self.votes.weight.shape[0], options.hidden_capsules
        self.hidden_votes = Votes(inputs, options.primary_dim, hidden, options.hidden_dim)
        self.hidden_bias = nn.Parameter(torch.full((hidden, options.hidden_dim), 0.1))
        self.hidden_coefficients = nn.Parameter(torch.full((inputs, hidden), options.initial))
        self.votes = Votes(hidden, options.hidden_dim, options.capsules, options.capsule_dim)
        self.coefficients = nn.Parameter(torch.full((hidden, options.capsules), options.initial))

    def route(self, images: Tensor) -> TwoWays:
        """Compute the class capsules twice: the loss has no gradients for the coefficients, the objective no others."""
        primary = self.primary_capsules(images)
        weights = [self.hidden_votes.weight, self.hidden_bias, self.votes.weight, self.bias]
        fixed = [each.detach() for each in weights]
        coefficients = self.all_coefficients()
        for_loss = self._through(primary, weights, [each.detach() for each in coefficients])
        for_objective = self._through(primary.detach(), fixed, coefficients)
        return TwoWays(Routed(for_loss, self.coefficients.detach().expand(len(images), -1, -1)), for_objective)

    @staticmethod
    def _through(primary: Tensor, weights: Sequence[Tensor], coefficients: Sequence[Tensor]) -> Tensor:
        hidden = squash(weighted(primary, weights[0], coefficients[0]) + weights[1])
        return weighted(hidden, weights[2], coefficients[1]) + weights[3]

    def all_coefficients(self) -> list[nn.Parameter]:
        return [self.hidden_coefficients, self.coefficients]

    def own_operations(self, images: int) -> int:
        """Count votes, their squash and the weighted sums of both layers, and twice as much for the gradients."""
        layers = (self.hidden_votes.weight.shape, self.votes.weight.shape)
        return sum(3 * images * inputs * outputs * dim * (2 * fewer + 4) for inputs, fewer, outputs, dim in layers)


def weighted(capsules: Tensor, weight: Tensor, coefficients: Tensor) -> Tensor:
    """Sum squashed votes: [B, I, d], [I, d, J, D] and [I, J] to [B, J, D]."""
    votes = squash(torch.einsum("bid,idjk->bijk", capsules, weight))
    return torch.einsum("bijk,ij->bjk", votes, coefficients)


def build(options: DeeperOptions, image_shape: tuple[int, int, int], classes: int) -> DeeperCaps:
    options.check_classes(classes)
    return DeeperCaps(options, image_shape)
