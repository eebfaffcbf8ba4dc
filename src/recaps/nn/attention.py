"""Attention over sets and over feature maps.

`MAB`, `ISAB` and `PMA` are the blocks of *Set Transformer: A Framework for Attention-based Permutation-Invariant Neural
Networks* (Lee et al. 2019), section 3. Details follow the authors' code, except for the initial values of learned
members. `AttentivePooling` is from *Stacked Capsule Autoencoders*, section 2.2 and its supplement.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import relu


class MAB(nn.Module):
    """Multihead attention block (eqs. 6 and 7): attention from queries to the members of a set.

    As in the authors' code, scores are divided by the square root of the full width, not of the width of a head, and
    the residual connection adds the projected query.

    Shapes: queries [B, n, `queries`], members [B, m, `members`]; output [B, n, `width`]. A `bias` [B, m] is added to
    the scores of the members.
    """

    def __init__(self, queries: int, members: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(queries, width)
        self.key = nn.Linear(members, width)
        self.value = nn.Linear(members, width)
        self.out = nn.Linear(width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, queries: Tensor, members: Tensor, bias: Tensor | None = None) -> Tensor:
        projected = self.query(queries)
        query, key, value = (
            each.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for each in (projected * projected.shape[2] ** -0.5, self.key(members), self.value(members))
        )
        scores = query @ key.transpose(2, 3)
        if bias is not None:
            scores = scores + bias[:, None, None]
        seen = scores.softmax(3).to(value.dtype) @ value
        found = self.norms[0](projected + seen.transpose(1, 2).flatten(2))
        answer: Tensor = self.norms[1](found + relu(self.out(found)))
        return answer


class ISAB(nn.Module):
    """Induced set attention block (eqs. 9 and 10): attention from a few learned points to the members, and back.

    Shapes: input [B, n, `members`], output [B, n, `width`]. `deviation` is the initial standard deviation of the
    points. A `bias` [B, n] is added to the scores of the members.
    """

    def __init__(self, members: int, width: int, heads: int, points: int, deviation: float) -> None:
        super().__init__()
        self.points = _learned(points, width, deviation)
        self.gather = MAB(width, members, width, heads)
        self.spread = MAB(members, width, width, heads)

    def forward(self, members: Tensor, bias: Tensor | None = None) -> Tensor:
        seen = self.gather(self.points, members, bias)
        answer: Tensor = self.spread(members, seen)
        return answer


class PMA(nn.Module):
    """Pooling by multihead attention (eq. 11): attention from learned seeds to the members.

    As in the authors' code, no layer is applied to the members before.

    Shapes: input [B, n, `width`], output [B, `seeds`, `width`]. `deviation` is the initial standard deviation of the
    seeds. A `bias` [B, n] is added to the scores of the members.
    """

    def __init__(self, width: int, heads: int, seeds: int, deviation: float) -> None:
        super().__init__()
        self.seeds = _learned(seeds, width, deviation)
        self.attention = MAB(width, width, width, heads)

    def forward(self, members: Tensor, bias: Tensor | None = None) -> Tensor:
        answer: Tensor = self.attention(self.seeds, members, bias)
        return answer


class AttentivePooling(nn.Module):
    """Features of each capsule, averaged over the places of a feature map by an attention map of its own.

    A 1x1 convolution computes the features and the attention maps; a softmax over places normalises each map.

    Shapes: input [B, K, h, w], output [B, `capsules`, `features`], float32.
    """

    def __init__(self, channels: int, capsules: int, features: int) -> None:
        super().__init__()
        self.capsules = capsules
        self.layer = nn.Conv2d(channels, capsules * (features + 1), 1)

    def forward(self, maps: Tensor) -> Tensor:
        found = self.layer(maps).float().permute(0, 2, 3, 1).flatten(1, 2).unflatten(2, (self.capsules, -1))
        attention = found[..., -1:].softmax(1)
        return (found[..., :-1] * attention).sum(1)


def _learned(number: int, width: int, deviation: float) -> nn.Parameter:
    """Learned members that all sets share: [1, number, width]."""
    return nn.Parameter(deviation * torch.randn(1, number, width))
