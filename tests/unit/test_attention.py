"""Set transformer blocks and attentive pooling against loops, and their symmetry in the order of a set."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from reference import random
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from recaps.nn.attention import ISAB, MAB, PMA, AttentivePooling

pytestmark = pytest.mark.unit

WIDTH, HEADS = 6, 2


def seeded(kind: Any, *arguments: float) -> Any:
    """A block in float64 whose biases and norms are not what they start as."""
    torch.manual_seed(0)
    block = kind(*arguments).double()
    for name, values in block.named_parameters():
        if name.endswith("bias") or ".norms." in f".{name}":
            nn.init.uniform_(values, -0.5, 1.5)
    return block


def mab_by_loops(block: MAB, queries: Tensor, members: Tensor, bias: Tensor | None = None) -> Tensor:
    """One query and one head after the other, as the authors' code says it in matrices."""
    found = []
    for image in range(len(queries)):
        for place in range(queries.shape[1]):
            query = block.query(queries[image, place])
            heads = []
            for part in torch.arange(WIDTH).split(WIDTH // HEADS):
                scores = [block.key(each)[part] @ query[part] / math.sqrt(WIDTH) for each in members[image]]
                if bias is not None:
                    scores = [score + more for score, more in zip(scores, bias[image], strict=True)]
                total = torch.stack([score.exp() for score in scores]).sum()
                answers = [
                    score.exp() / total * block.value(each)[part]
                    for score, each in zip(scores, members[image], strict=True)
                ]
                heads.append(query[part] + torch.stack(answers).sum(0))
            norms = [(WIDTH,), block.norms[0].weight, block.norms[0].bias]
            seen = layer_norm(torch.cat(heads), *norms)
            seen = seen + block.out(seen).clamp_min(0)
            found.append(layer_norm(seen, (WIDTH,), block.norms[1].weight, block.norms[1].bias))
    return torch.stack(found).unflatten(0, queries.shape[:2])


@pytest.mark.parametrize("biased", [False, True])
def test_mab_matches_the_loops_in_value_and_gradient(biased: bool) -> None:
    bias = random(2, 5, seed=3) if biased else None
    block, queries, members, direction = seeded(MAB, 3, 4, WIDTH, HEADS), random(2, 3, 3), random(2, 5, 4), random(6)
    fast, slow = block(queries, members, bias), mab_by_loops(block, queries, members, bias)
    torch.testing.assert_close(fast, slow)
    inputs = [queries, members, *([] if bias is None else [bias]), *block.parameters()]
    ours, theirs = (torch.autograd.grad((each * direction).sum(), inputs) for each in (fast, slow))
    torch.testing.assert_close(ours, theirs)


def test_blocks_are_made_of_mabs_as_in_the_paper() -> None:
    members = random(2, 5, 4)
    isab, pma = seeded(ISAB, 4, WIDTH, HEADS, 3, 1.0), seeded(PMA, 4, HEADS, 2, 1.0)
    points = isab.points.expand(2, -1, -1)
    torch.testing.assert_close(isab(members), isab.spread(members, isab.gather(points, members)))
    torch.testing.assert_close(pma(members), pma.attention(pma.seeds.expand(2, -1, -1), members))
    assert [each(members).shape for each in (isab, pma)] == [(2, 5, WIDTH), (2, 2, 4)]


@pytest.mark.parametrize("block", [seeded(ISAB, 4, 4, HEADS, 3, 1.0), seeded(PMA, 4, HEADS, 3, 1.0)])
def test_order_of_the_members_is_kept_or_does_not_matter(block: Any) -> None:
    members, order = random(2, 5, 4), torch.tensor([3, 0, 4, 1, 2])
    shuffled, plain = block(members[:, order]), block(members)
    torch.testing.assert_close(shuffled, plain if isinstance(block, PMA) else plain[:, order])


def test_learned_members_start_as_far_apart_as_asked() -> None:
    seeds = seeded(PMA, 40, HEADS, 30, 0.5).seeds.detach()
    assert seeds.shape == (1, 30, 40)
    assert float(seeds.std()) == pytest.approx(0.5, rel=0.1)


def test_under_autocast_the_answer_is_nearly_the_same() -> None:
    block, members = seeded(ISAB, 4, WIDTH, HEADS, 3, 1.0).float(), random(2, 5, 4).detach().float()
    with torch.autocast("cpu", torch.bfloat16):
        made = block(members).float()
    torch.testing.assert_close(made, block(members), atol=0.05, rtol=0)


# Attentive pooling


def test_attentive_pooling_matches_the_loops() -> None:
    layer, maps = AttentivePooling(4, capsules=3, features=2), torch.randn(2, 4, 3, 5)
    pooled = layer(maps)
    assert pooled.shape == (2, 3, 2)
    for b in range(2):
        for capsule in range(3):
            made, weights = [], []
            for y in range(3):
                for x in range(5):
                    out = layer.layer.weight[:, :, 0, 0] @ maps[b, :, y, x] + layer.layer.bias
                    made.append(out[3 * capsule : 3 * capsule + 2])
                    weights.append(out[3 * capsule + 2].exp())
            expected = sum(w * each for w, each in zip(weights, made, strict=True)) / sum(weights)
            torch.testing.assert_close(pooled[b, capsule], expected)


def test_attentive_pooling_sums_in_float32() -> None:
    layer = AttentivePooling(4, capsules=3, features=2)
    with torch.autocast("cpu", torch.bfloat16):
        pooled = layer(torch.randn(2, 4, 3, 5))
    assert pooled.dtype == torch.float32
    assert not torch.equal(pooled, pooled.bfloat16().float())
