"""Attention among the members of a set.

*Set Transformer: A Framework for Attention-based Permutation-Invariant Neural Networks* (Lee et al. 2019), section 3,
in the details as its authors' code has it, but for how learned members begin.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import relu


class MAB(nn.Module):
    """Multihead attention block (eqs. 6 and 7): queries look at the members of a set.

    As in the authors' code, scores are divided by the root of the full width and not of a head's, and it is the
    projected query that the answer is added to.

    Shapes: queries [B, n, `queries`], members [B, m, `members`]; output [B, n, `width`].
    """

    def __init__(self, queries: int, members: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(queries, width)
        self.key = nn.Linear(members, width)
        self.value = nn.Linear(members, width)
        self.out = nn.Linear(width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, queries: Tensor, members: Tensor) -> Tensor:
        projected = self.query(queries)
        query, key, value = (
            each.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for each in (projected * projected.shape[2] ** -0.5, self.key(members), self.value(members))
        )
        seen = (query @ key.transpose(2, 3)).softmax(3).to(value.dtype) @ value
        found = self.norms[0](projected + seen.transpose(1, 2).flatten(2))
        answer: Tensor = self.norms[1](found + relu(self.out(found)))
        return answer


class ISAB(nn.Module):
    """Induced set attention block (eqs. 9 and 10): a few learned points look at the members, then these at them.

    [B, n, `members`] to [B, n, `width`]. `deviation`: of the points at the start.
    """

    def __init__(self, members: int, width: int, heads: int, points: int, deviation: float) -> None:
        super().__init__()
        self.points = _learned(points, width, deviation)
        self.gather = MAB(width, members, width, heads)
        self.spread = MAB(members, width, width, heads)

    def forward(self, members: Tensor) -> Tensor:
        seen = self.gather(self.points, members)
        answer: Tensor = self.spread(members, seen)
        return answer


class PMA(nn.Module):
    """Pooling by multihead attention (eq. 11), [B, n, `width`] to [B, `seeds`, `width`].

    As in the authors' code, members are not put through a layer of their own before. `deviation`: of the seeds at the
    start.
    """

    def __init__(self, width: int, heads: int, seeds: int, deviation: float) -> None:
        super().__init__()
        self.seeds = _learned(seeds, width, deviation)
        self.attention = MAB(width, width, width, heads)

    def forward(self, members: Tensor) -> Tensor:
        answer: Tensor = self.attention(self.seeds, members)
        return answer


def _learned(number: int, width: int, deviation: float) -> nn.Parameter:
    """Learned members, the same for every set: [1, number, width]."""
    return nn.Parameter(deviation * torch.randn(1, number, width))
