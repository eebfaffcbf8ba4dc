"""Several layers of latent capsules, which the paper expects to work with sparse training only (section 4)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recaps.models.model import Batch
from recaps.models.network import support
from recaps.nn.layers import Votes
from recaps.nn.routing import registry
from recaps.nn.routing.interface import Routed
from recaps.papers.sparse.options import SparseCapsOptions
from recaps.papers.sparse.sparsecaps import Boosting, SparseCaps


class DeeperSparseCaps(SparseCaps):
    """Layers of latent capsules, of which the last one is that of the base class."""

    def __init__(self, options: SparseCapsOptions, image_shape: tuple[int, int, int]) -> None:
        super().__init__(options, image_shape)
        inputs, dim = self.votes.weight.shape[:2]
        first = Hidden(options, inputs, dim, options.primary_types)
        others = [Hidden(options, options.capsules, options.capsule_dim, 1) for _ in range(options.layers - 2)]
        self.hidden = nn.ModuleList([first, *others])
        self.votes = Votes(options.capsules, options.capsule_dim, options.capsules, options.capsule_dim)
        self.routing = registry.build(options.routing, options.capsules, options.capsules, options.capsule_dim)

    def forward(self, images: Tensor) -> Routed:
        capsules = self.primary_capsules(images)
        for layer in self.hidden:
            capsules = layer(capsules)
        return self.routing.routed(capsules, self.votes.weight, self.bias)

    def support(self, coupling: Tensor) -> Tensor:
        return support(coupling, 1)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        losses = super().losses(batch)
        for layer in self.hidden if self.training else ():
            layer.observe(update=not self.settled)  # type: ignore[operator]
        return losses


class Hidden(nn.Module):
    """A layer of latent capsules whose output is masked: [B, I, d] to [B, L, D].

    Args:
        options: the options of the model.
        inputs: number of input capsules, I.
        dim: their dimensions, d.
        types: input capsules whose largest coupling counts for the support; 1: each of them counts.
    """

    supports: Tensor

    def __init__(self, options: SparseCapsOptions, inputs: int, dim: int, types: int) -> None:
        super().__init__()
        self.types, self.grouping = types, options.mask_grouping
        self.routing = registry.build(options.routing, inputs, options.capsules, options.capsule_dim)
        self.votes = Votes(inputs, dim, options.capsules, options.capsule_dim)
        self.bias = nn.Parameter(torch.full((options.capsules, options.capsule_dim), 0.1))
        self.boosting = Boosting(options) if options.learning == "sparse" else None

    def forward(self, capsules: Tensor) -> Tensor:
        routed = self.routing.routed(capsules, self.votes.weight, self.bias)
        if self.boosting is None:
            return routed.capsules
        self.supports = support(routed.coupling, self.types, self.grouping)
        return routed.capsules * self.boosting.mask(self.supports).unsqueeze(2)

    def observe(self, update: bool) -> None:
        """Update the boosts after the forward pass of a training step."""
        if self.boosting is not None:
            self.boosting.observe(self.supports, update)
