"""Votes V = W M of pose matrices for compiled routings, and their gradients.

W is a transformation [16, LANES] for each slot of a field, and M the pose [16] of its input capsule; matrices are
stored row by row. A vote has 16 rows of `LANES` values, `stride` apart.
"""

from __future__ import annotations

from typing import Any

from recaps.nn.kernels import LANES
from recaps.nn.kernels.compiled import POSE, compiled
from recaps.nn.kernels.vector import add_to, load, load_one, store, totals


@compiled
def vote(weight: Any, slot: Any, pose: Any, votes: Any, start: Any, stride: Any) -> None:
    """Write the vote of one slot to `votes` from index `start`."""
    for a in range(0, POSE, 4):
        at = (slot * POSE + a) * LANES
        w, x, y, z = (
            load(weight, at),
            load(weight, at + LANES),
            load(weight, at + 2 * LANES),
            load(weight, at + 3 * LANES),
        )
        for b in range(4):
            first, second = w * load_one(pose, b) + x * load_one(pose, 4 + b), y * load_one(pose, 8 + b)
            store(votes, start + (a + b) * stride, first + (second + z * load_one(pose, 12 + b)))


@compiled
def vote_adjoint(
    weight: Any, slot: Any, pose: Any, grad_votes: Any, start: Any, stride: Any, grad_weight: Any, grad_pose: Any
) -> None:
    """Add the gradients of weight and pose from that of the vote, which starts at index `start` of `grad_votes`."""
    for a in range(4):
        for c in range(4):
            to, v = (slot * POSE + 4 * a + c) * LANES, start + 4 * a * stride
            low = load(grad_votes, v) * load_one(pose, 4 * c) + load(grad_votes, v + stride) * load_one(pose, 4 * c + 1)
            high = load(grad_votes, v + 2 * stride) * load_one(pose, 4 * c + 2)
            high = high + load(grad_votes, v + 3 * stride) * load_one(pose, 4 * c + 3)
            add_to(grad_weight, to, (low + high))
    r0, r1, r2, r3 = (
        _row(weight, slot, grad_votes, start, stride, 0),
        _row(weight, slot, grad_votes, start, stride, 1),
        _row(weight, slot, grad_votes, start, stride, 2),
        _row(weight, slot, grad_votes, start, stride, 3),
    )
    added = totals(
        r0[0], r0[1], r0[2], r0[3], r1[0], r1[1], r1[2], r1[3], r2[0], r2[1], r2[2], r2[3], r3[0], r3[1], r3[2], r3[3]
    )
    add_to(grad_pose, 0, added)


@compiled
def _row(weight: Any, slot: Any, grad_votes: Any, start: Any, stride: Any, c: Any) -> Any:
    """Row c of the gradient of the pose, in parts that are still to be summed over the lanes."""
    return (
        _entry(weight, slot, grad_votes, start, stride, c),
        _entry(weight, slot, grad_votes, start + stride, stride, c),
        _entry(weight, slot, grad_votes, start + 2 * stride, stride, c),
        _entry(weight, slot, grad_votes, start + 3 * stride, stride, c),
    )


@compiled
def _entry(weight: Any, slot: Any, grad_votes: Any, start: Any, stride: Any, c: Any) -> Any:
    at, down = (slot * POSE + c) * LANES, 4 * LANES
    low = load(weight, at) * load(grad_votes, start) + load(weight, at + down) * load(grad_votes, start + 4 * stride)
    high = load(weight, at + 2 * down) * load(grad_votes, start + 8 * stride)
    return low + (high + load(weight, at + 3 * down) * load(grad_votes, start + 12 * stride))
