"""*Routing Towards Discriminative Power of Class Capsules*: SUPCAPS whose routing coefficients are learned.

Dynamic routing is replaced by one weighted sum of votes. Its coefficients b are parameters, the same for all images
and free to be negative; nothing is iterated, neither in training nor afterwards. Algorithm 1: every step descends the
margin loss in the weights and ascends a discriminative objective in b (`recaps.papers.discriminative.routing`), both from
the same point, as in the released code.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recaps.config.training import Training
from recaps.models.model import Batch, learning_rate
from recaps.models.supcaps import SupCaps, check_classes
from recaps.nn.routing.interface import Routed
from recaps.papers.discriminative.options import DiscriminativeOptions
from recaps.papers.discriminative.routing import TwoWays, discriminative_routing, objective


class DiscriminativeCaps(SupCaps):
    """A capsule per class as a weighted sum of votes; shapes as in the base class."""

    options: DiscriminativeOptions

    def __init__(self, options: DiscriminativeOptions, image_shape: tuple[int, int, int]) -> None:
        super().__init__(options, image_shape)
        inputs, outputs = self.votes.weight.shape[0], self.votes.weight.shape[2]
        self.coefficients = nn.Parameter(torch.full((inputs, outputs), options.initial))

    def forward(self, images: Tensor) -> Routed:
        return self.route(images).routed

    def route(self, images: Tensor) -> TwoWays:
        """Class capsules (eq. 6), once for the loss and once for the objective."""
        return discriminative_routing(
            self.votes(self.primary_capsules(images)),
            self.coefficients,
            self.bias,
            squash_votes=self.options.squash_votes,
            squash_capsules=self.options.squash_capsules,
        )

    def configure(self, training: Training) -> None:
        self.training_options = training
        weights = [parameter for name, parameter in self.named_parameters() if name != "coefficients"]
        self.optimizer = torch.optim.Adam(weights, lr=training.learning_rate, eps=1e-8, fused=True)
        self.ascent = (
            torch.optim.Adam([self.coefficients], eps=1e-8, fused=True)
            if self.options.ascent == "adam"
            else torch.optim.SGD([self.coefficients], lr=self.options.gamma)
        )

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {"adam": self.optimizer, "ascent": self.ascent}

    def losses(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Those of SUPCAPS, and the `objective` r, apart from `loss`: its gradient is the coefficients' alone."""
        two_ways = self.route(batch["images"])
        each = objective(two_ways.capsules, batch["labels"])
        gain = each.mean() if self.options.normalisation == "means" else each.sum()
        return {
            **self.losses_of(two_ways.routed.capsules, batch),
            "objective": gain - self.options.penalty_weight * self.penalty(),
        }

    def penalty(self) -> Tensor:
        """|b_j|_2^2 or |b_j|_1, summed over the classes j (eqs. 10 and 14)."""
        size = self.coefficients.square() if self.options.penalty == "l2" else self.coefficients.abs()
        if self.options.penalty == "l1" and self.options.l1_factor == "printed":
            size = 2 * size
        return (size.mean(0) if self.options.normalisation == "means" else size.sum(0)).sum()

    def training_step(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """One step of algorithm 1: the weights go down the loss, b goes up the objective (eqs. 13 and 15)."""
        rate = learning_rate(self.training_options, step)
        self.optimizer.param_groups[0]["lr"] = rate
        if self.options.ascent == "adam":
            self.ascent.param_groups[0]["lr"] = max(self.options.ascent_rate * rate, self.training_options.lr_floor)
        losses = self.losses(batch, step)
        for optimizer in self.optimizers().values():
            optimizer.zero_grad(set_to_none=True)
        (losses["loss"] - losses["objective"]).backward()
        for optimizer in self.optimizers().values():
            optimizer.step()
        return {name: value.detach() for name, value in losses.items()}

    def latents(self, images: Tensor) -> dict[str, Tensor]:
        """`capsules` [B, L, D] and their lengths, `scores` [B, L]; the `mask` [B, L] of the longest; with a decoder,
        the summed squared `reconstruction_error` [B] from the longest."""
        return self.latents_of(self(images).capsules, images)

    def routing_operations(self, images: int) -> int:
        """Votes, their lengths, a weighted sum; for the gradients dot products besides, and those of votes twice."""
        inputs, input_dim, outputs, output_dim = self.votes.weight.shape
        forward = 2 * input_dim + 2 + 2
        backward = 2 * 2 * input_dim + 2 * 2 + 2 * 2
        return images * inputs * outputs * output_dim * (forward + backward)


def build(options: DiscriminativeOptions, image_shape: tuple[int, int, int], classes: int) -> DiscriminativeCaps:
    check_classes(options.capsules, classes)
    return DiscriminativeCaps(options, image_shape)
