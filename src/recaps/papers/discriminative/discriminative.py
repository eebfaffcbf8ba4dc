"""*Routing Towards Discriminative Power of Class Capsules*: SUPCAPS with learned routing coefficients.

One weighted sum of votes replaces dynamic routing. Its coefficients b are parameters: they are the same for all images
and may be negative. Neither training nor testing iterates. In each step of algorithm 1, the weights descend the margin
loss and b ascends a discriminative objective (`recaps.papers.discriminative.routing`). As in the released code, both
gradients are taken before either update.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import reduce
from operator import add

import torch
from torch import Tensor, nn

from recaps.config.training import Training
from recaps.models.model import Batch, set_rate
from recaps.models.schedule import learning_rate
from recaps.models.supcaps import SupCaps
from recaps.nn.kernels import fits_votes
from recaps.nn.precision import backward
from recaps.nn.routing.interface import Routed
from recaps.papers.discriminative.options import DiscriminativeOptions, LearnedCoefficients
from recaps.papers.discriminative.routing import TwoWays, compiled_sums, objective, two_ways, weighted_sums


class DiscriminativeCaps(SupCaps):
    """Each class capsule is a weighted sum of votes. Shapes are those of the base class."""

    options: LearnedCoefficients

    def __init__(self, options: LearnedCoefficients, image_shape: tuple[int, int, int]) -> None:
        super().__init__(options, image_shape)
        inputs, outputs = self.votes.weight.shape[0], self.votes.weight.shape[2]
        self.coefficients = nn.Parameter(torch.full((inputs, outputs), options.initial))

    def forward(self, images: Tensor) -> Routed:
        return self.route(images).routed

    def route(self, images: Tensor) -> TwoWays:
        """Compute the class capsules (eq. 6), once for the loss and once for the objective."""
        capsules, options = self.primary_capsules(images), self.options
        if options.squash_votes != "classes" and fits_votes(capsules, self.votes.weight):
            sums = compiled_sums(capsules, self.votes.weight, self.coefficients, options.squash_votes)
        else:
            sums = weighted_sums(self.votes(capsules), self.coefficients, options.squash_votes)
        return two_ways(sums, self.coefficients, self.bias, options.squash_capsules)

    def configure(self, training: Training) -> None:
        self.training_options = training
        coefficients = self.all_coefficients()
        weights = [each for each in self.parameters() if not any(each is other for other in coefficients)]
        self.optimizer = torch.optim.Adam(weights, lr=training.learning_rate, eps=1e-8, fused=True)
        self.ascent = (
            torch.optim.Adam(coefficients, eps=1e-8, fused=True)
            if self.options.ascent == "adam"
            else torch.optim.SGD(coefficients, lr=self.options.gamma if self.options.ascent == "plain" else 0.0)
        )

    def all_coefficients(self) -> list[nn.Parameter]:
        """The coefficients of all layers."""
        return [self.coefficients]

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {"adam": self.optimizer, "ascent": self.ascent}

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the losses of SUPCAPS and the `objective` r (eqs. 10 and 14), which is not part of `loss`.

        Only the coefficients receive the gradient of the objective.
        """
        two_ways = self.route(batch["images"])
        each = objective(two_ways.capsules, batch["labels"])
        gain = each.mean() if self.options.normalisation == "means" else each.sum()
        return {
            **self.losses_of(two_ways.routed.capsules, batch),
            "objective": gain - self.options.penalty_weight * self.penalty(),
        }

    def penalty(self) -> Tensor:
        """Return the penalty, |b_j|_2^2 (eq. 10) or |b_j|_1 (eq. 14), summed over the classes j and over layers."""
        return reduce(add, map(self._penalty, self.all_coefficients()))

    def _penalty(self, coefficients: Tensor) -> Tensor:
        size = coefficients.square() if self.options.penalty == "l2" else coefficients.abs()
        if self.options.penalty == "l1" and self.options.l1_factor == "printed":
            size = 2 * size
        return (size.mean(0) if self.options.normalisation == "means" else size.sum(0)).sum()

    def schedule(self, step: int) -> Hashable:
        if self.options.ascent == "adam":
            rate = self.options.ascent_rate * learning_rate(self.training_options, step)
            set_rate(self.ascent.param_groups[0], max(rate, self.training_options.lr_floor))
        return super().schedule(step)

    def work(self, batch: Batch) -> dict[str, Tensor]:
        """Take one step of algorithm 1: the weights descend the loss, b ascends the objective (eqs. 13 and 15)."""
        losses = self.losses(batch)
        for optimizer in self.optimizers().values():
            optimizer.zero_grad(set_to_none=True)
        backward(losses["loss"] - losses["objective"])
        for optimizer in self.optimizers().values():
            optimizer.step()
        if self.options.nonnegative:
            with torch.no_grad():
                for coefficients in self.all_coefficients():
                    coefficients.clamp_(min=0)
        return {name: value.detach() for name, value in losses.items()}

    def latents(self, images: Tensor) -> dict[str, Tensor]:
        """Return `capsules` [B, L, D], their lengths as `scores` [B, L], and the `mask` [B, L] of the longest capsule.

        With a decoder, also `reconstruction_error` [B], the squared error summed over the pixels of the picture that is
        decoded from the longest capsule.
        """
        return self.latents_of(self(images).capsules, images)

    def own_operations(self, images: int) -> int:
        """Count the votes, their lengths and the weighted sum; then dot products and two products for the gradients."""
        inputs, input_dim, outputs, output_dim = self.votes.weight.shape
        forward = 2 * input_dim + 2 + 2
        backward = 2 * 2 * input_dim + 2 * 2 + 2 * 2
        return images * inputs * outputs * output_dim * (forward + backward)


def build(options: DiscriminativeOptions, image_shape: tuple[int, int, int], classes: int) -> DiscriminativeCaps:
    options.check_classes(classes)
    return DiscriminativeCaps(options, image_shape)
