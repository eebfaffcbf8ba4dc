"""A second layer of experts, trained in the same way on the capsules of the first, which stays as it is."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recaps.nn.layers import Votes
from recaps.nn.squash import squash, unsquash
from recaps.papers.experts.experts import KEPT, Experts
from recaps.papers.experts.options import ExpertsOptions


class DeeperExperts(Experts):
    """Images [B, C, H, W] to capsules of the second layer [B, J, D] and back. `encoder`, `decoder`: the first layer."""

    def __init__(self, options: ExpertsOptions, image_shape: tuple[int, int, int]) -> None:
        super().__init__(options, image_shape)
        first, second = (options.capsules, options.capsule_dim), (options.upper_capsules, options.capsule_dim)
        self.upper_encoder = Votes(*first, *second)
        self.upper_decoder = Votes(*second, *first)
        for part in self.learning:
            nn.init.normal_(part.weight, std=options.initial)
        self.register_buffer("visited_sum", torch.zeros(second))
        self.register_buffer("visited", torch.zeros(KEPT, *second))

    @property
    def learning(self) -> tuple[Votes, Votes]:
        return self.upper_encoder, self.upper_decoder

    def below(self, inputs: Tensor) -> Tensor:
        return unsquash(self.up(self.encoder, inputs))

    def lower(self, made: Tensor) -> Tensor:
        return self.down(self.decoder, squash(made))

    def own_operations(self, images: int) -> int:
        """Those of the layer that learns, and of encoding by the first."""
        if self.phase == "autoencoder":
            return 0
        inputs, dim, outputs, length = self.encoder.weight.shape
        votes = inputs * outputs * length
        return super().own_operations(images) + images * votes * (2 * dim + 2 + 4 * self.options.iterations - 2)
