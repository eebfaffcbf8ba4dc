"""Attentive pooling: from maps of features to capsules, each looking at its own places.

*Stacked Capsule Autoencoders*, section 2.2 and its supplement.
"""

from __future__ import annotations

from torch import Tensor, nn


class AttentivePooling(nn.Module):
    """Features of each capsule, averaged over the places by an attention map of its own.

    A 1x1 convolution makes both; a map is normalised over places by a softmax.

    Shapes: input [B, K, h, w], output [B, capsules, features], float32.
    """

    def __init__(self, channels: int, capsules: int, features: int) -> None:
        super().__init__()
        self.capsules = capsules
        self.layer = nn.Conv2d(channels, capsules * (features + 1), 1)

    def forward(self, maps: Tensor) -> Tensor:
        found = self.layer(maps).float().permute(0, 2, 3, 1).flatten(1, 2).unflatten(2, (self.capsules, -1))
        attention = found[..., -1:].softmax(1)
        return (found[..., :-1] * attention).sum(1)
