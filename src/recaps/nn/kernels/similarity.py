"""Similarity routing, compiled, with a gradient written by hand. `recaps.nn.routing.similarity` is the plain version.

Output capsules do not compete, so a kernel computes all iterations of a position before the next position.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recaps.nn.fields import Fields
from recaps.nn.kernels import LANES
from recaps.nn.kernels.compiled import POSE, array, compiled, in_parts, kernel, lanes
from recaps.nn.kernels.poses import vote, vote_adjoint
from recaps.nn.kernels.vector import add_to, at_least, exp, first, load, splat, store, total

#: Values of the votes of a slot.
SIZE = POSE * LANES
ZERO, ONE, TWO, MINUS = (np.float32(number) for number in (0, 1, 2, -1))


def fused_clusters(
    poses: Tensor,
    log_activations: Tensor,
    weight: Tensor,
    fields: Fields,
    mixture: Tensor,
    precisions: Tensor,
    lambda2: Tensor,
    total: Tensor,
    iterations: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All iterations of similarity routing.

    Args:
        poses: [B, C, 16].
        log_activations: log a, [B, C].
        weight: [n, J, 4, 4].
        fields: the input capsules in the field of each position.
        mixture: weights of the Gaussians, with sum 1, [Q].
        precisions: 1 / (2 l^2), [Q, J].
        lambda2: [J].
        total: lambda_1 + lambda_2, [J].
        iterations: at least 1.

    Returns:
        Poses [B, P, J, 16]; sum_i c_i k_i and sum_i c_i log a_i [B, P, J]; compatibilities [B, P, n, J].
    """
    made: tuple[Tensor, Tensor, Tensor, Tensor] = _FusedClusters.apply(
        poses, log_activations, weight, mixture, precisions, lambda2, 1 / total, fields, iterations
    )
    return made


class _FusedClusters(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        *tensors, fields, iterations = arguments
        poses, log_activations, weight, mixture, precisions, lambda2, inverse = tensors
        outputs, (positions, slots) = weight.shape[1], fields.children.shape
        arrays = [
            array(poses.float()),
            array(log_activations.float()),
            array(fields.children.int()),
            lanes(weight.float().flatten(2).transpose(1, 2)),
            array(mixture.float()),
            *(lanes(each.float()) for each in (precisions, lambda2, inverse)),
        ]
        real, batch = arrays[0].dtype, len(poses)
        coupling = np.empty((batch, positions, iterations, slots, LANES), real)
        similarity = np.empty_like(coupling)
        mean = np.empty((batch, positions, iterations + 1, POSE, LANES), real)
        sums = np.empty((batch, positions, 2, LANES), real)
        in_parts(_forward, *arrays, coupling, similarity, mean, sums)
        ctx.save_for_backward(*tensors)
        ctx.arrays, ctx.state, ctx.outputs = arrays, (coupling, similarity, mean), outputs
        ctx.dtypes = [tensor.dtype for tensor in tensors]
        compatibility = torch.from_numpy(coupling[:, :, -1, :, :outputs].copy())
        ctx.mark_non_differentiable(compatibility)
        agreement, presence = (torch.from_numpy(sums[:, :, which, :outputs].copy()) for which in (0, 1))
        return (
            torch.from_numpy(mean[:, :, -1, :, :outputs]).transpose(2, 3).contiguous(),
            agreement,
            presence,
            compatibility,
        )

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_mean: Tensor, grad_agreement: Tensor, grad_presence: Tensor, _: Tensor
    ) -> tuple[Any, ...]:
        _ = ctx.saved_tensors  # raises an error if one was changed in place
        poses, log_activations, _children, weight, mixture, precisions, *_rest = ctx.arrays
        threads, real = torch.get_num_threads(), poses.dtype
        gradients = [
            np.zeros_like(poses),
            np.zeros_like(log_activations),
            np.zeros((threads, *weight.shape), real),
            np.zeros((threads, len(mixture), LANES), real),
            np.zeros((threads, *precisions.shape), real),
            np.zeros((threads, LANES), real),
            np.zeros((threads, LANES), real),
        ]
        at = [lanes(each.float()) for each in (grad_mean.transpose(2, 3), grad_agreement, grad_presence)]
        in_parts(_backward, *ctx.arrays, *ctx.state, *at, *gradients)
        by_pose, by_log, by_weight, by_mixture, *by_lane = (torch.from_numpy(each) for each in gradients)
        to_weight = by_weight.sum(0)[..., : ctx.outputs].transpose(1, 2).unflatten(2, (4, 4))
        to_mixture = by_mixture.sum(0)[:, : ctx.outputs].sum(1)
        made = (by_pose, by_log, to_weight, to_mixture, *(each.sum(0)[..., : ctx.outputs] for each in by_lane))
        return *(tensor.to(kind) for tensor, kind in zip(made, ctx.dtypes, strict=True)), None, None


@compiled
def _mixture(squared: Any, mixture: Any, precisions: Any) -> Any:
    """Similarity of votes at squared distances from a mean: a mixture of Gaussians."""
    found = splat(ZERO)
    for q in range(len(mixture)):
        found = found + mixture[q] * exp(MINUS * squared * load(precisions, q * LANES))
    return found


@compiled
def _squared_distance(votes: Any, start: Any, mean: Any) -> Any:
    a = b = splat(ZERO)
    for at in range(0, SIZE, 2 * LANES):
        off, other = load(votes, start + at) - load(mean, at), load(votes, start + at + LANES) - load(mean, at + LANES)
        a, b = a + off * off, b + other * other
    return a + b


@compiled
def _weighed(coupling: Any, votes: Any, mean: Any) -> None:
    """Set mean [16, LANES] to sum_i c_i V_i."""
    for at in range(0, SIZE, 4 * LANES):
        w = x = y = z = splat(ZERO)
        for s in range(len(coupling)):
            c, v = load(coupling, s * LANES), s * SIZE + at
            w, x = w + c * load(votes, v), x + c * load(votes, v + LANES)
            y, z = y + c * load(votes, v + 2 * LANES), z + c * load(votes, v + 3 * LANES)
        store(mean, at, w)
        store(mean, at + LANES, x)
        store(mean, at + 2 * LANES, y)
        store(mean, at + 3 * LANES, z)


@kernel
def _forward(
    part: int,
    parts: int,
    poses: Any,
    log_activations: Any,
    children: Any,
    weight: Any,
    mixture: Any,
    precisions: Any,
    lambda2: Any,
    inverse: Any,
    coupling: Any,
    similarity: Any,
    mean: Any,
    sums: Any,
) -> None:
    """Shapes: coupling and similarity [B, P, T, n, LANES]; mean [B, P, T + 1, 16, LANES], starting with the unweighted
    mean; sums [B, P, 2, LANES], agreement and presence."""
    batch, positions, steps, slots = coupling.shape[:4]
    votes, uniform = np.empty((slots, POSE, LANES), np.float32), np.empty((slots, LANES), np.float32)
    uniform[:] = ONE / np.float32(slots)
    for b in range(part * batch // parts, (part + 1) * batch // parts):
        for p in range(positions):
            for s in range(slots):
                vote(weight, s, poses[b, children[p, s]], votes, s * SIZE, LANES)
            _weighed(uniform, votes, mean[b, p, 0])
            for t in range(steps):
                for s in range(slots):
                    squared = _squared_distance(votes, s * SIZE, mean[b, p, t])
                    similar = _mixture(squared, mixture, precisions)
                    store(similarity[b, p, t], s * LANES, similar)
                    pull = load(lambda2, 0) * splat(log_activations[b, children[p, s]])
                    store(coupling[b, p, t], s * LANES, (similar + pull) * load(inverse, 0))
                _softmax(coupling[b, p, t])
                _weighed(coupling[b, p, t], votes, mean[b, p, t + 1])
            agreement = presence = splat(ZERO)
            for s in range(slots):
                share = load(coupling[b, p, steps - 1], s * LANES)
                agreement = agreement + share * load(similarity[b, p, steps - 1], s * LANES)
                presence = presence + share * splat(log_activations[b, children[p, s]])
            store(sums[b, p], 0, agreement)
            store(sums[b, p], LANES, presence)


@compiled
def _softmax(logits: Any) -> None:
    """Softmax in place over the slots of [n, LANES]."""
    highest, added = load(logits, 0), splat(ZERO)
    for at in range(LANES, logits.size, LANES):
        highest = at_least(highest, load(logits, at))
    for at in range(0, logits.size, LANES):
        power = exp(load(logits, at) - highest)
        added = added + power
        store(logits, at, power)
    for at in range(0, logits.size, LANES):
        store(logits, at, load(logits, at) / added)


@kernel
def _backward(
    part: int,
    parts: int,
    poses: Any,
    log_activations: Any,
    children: Any,
    weight: Any,
    mixture: Any,
    precisions: Any,
    lambda2: Any,
    inverse: Any,
    coupling: Any,
    similarity: Any,
    mean: Any,
    given_mean: Any,
    given_agreement: Any,
    given_presence: Any,
    grad_poses: Any,
    grad_logs: Any,
    grad_weight: Any,
    grad_mixture: Any,
    grad_precisions: Any,
    grad_lambda2: Any,
    grad_inverse: Any,
) -> None:
    """Compute the gradients of all inputs from those of the last mean [B, P, 16, LANES], agreement and presence
    [B, P, LANES]. Each part has its own gradients of parameters, and each lane its own gradient of the mixture."""
    batch, positions, steps, slots = coupling.shape[:4]
    votes, grad_votes = np.empty((slots, POSE, LANES), np.float32), np.empty((slots, POSE, LANES), np.float32)
    grad_mean, before = np.empty((POSE, LANES), np.float32), np.empty((POSE, LANES), np.float32)
    grad_coupling, zero = np.empty((slots, LANES), np.float32), splat(ZERO)
    each = ONE / np.float32(slots)
    for b in range(part * batch // parts, (part + 1) * batch // parts):
        for p in range(positions):
            for s in range(slots):
                vote(weight, s, poses[b, children[p, s]], votes, s * SIZE, LANES)
            grad_votes[:] = ZERO
            grad_mean[:] = given_mean[b, p]
            to_agreement, to_presence = load(given_agreement[b, p], 0), load(given_presence[b, p], 0)
            for t in range(steps - 1, -1, -1):
                shares, similar = coupling[b, p, t], similarity[b, p, t]
                common = zero
                for s in range(slots):
                    share, grad_share = load(shares, s * LANES), zero
                    for at in range(0, SIZE, LANES):
                        v, grad_m = s * SIZE + at, load(grad_mean, at)
                        grad_share = grad_share + grad_m * load(votes, v)
                        store(grad_votes, v, load(grad_votes, v) + share * grad_m)
                    grad_share = grad_share + to_agreement * load(similar, s * LANES)
                    grad_share = grad_share + to_presence * splat(log_activations[b, children[p, s]])
                    store(grad_coupling, s * LANES, grad_share)
                    common = common + share * grad_share
                before[:] = ZERO
                for s in range(slots):
                    child, at = children[p, s], s * LANES
                    log, share = splat(log_activations[b, child]), load(shares, at)
                    grad_logit = share * (load(grad_coupling, at) - common)
                    scaled = grad_logit * load(inverse, 0)
                    add_to(grad_lambda2[part], 0, scaled * log)
                    add_to(grad_inverse[part], 0, grad_logit * (load(similar, at) + load(lambda2, 0) * log))
                    grad_logs[b, child] += first(total(scaled * load(lambda2, 0) + to_presence * share))
                    grad_similarity = scaled + to_agreement * share
                    squared, slope = _squared_distance(votes, s * SIZE, mean[b, p, t]), zero
                    for q in range(len(mixture)):
                        precision = load(precisions, q * LANES)
                        weighed = grad_similarity * exp(MINUS * squared * precision)
                        add_to(grad_mixture[part], q * LANES, weighed)
                        weighed = mixture[q] * weighed
                        add_to(grad_precisions[part], q * LANES, MINUS * weighed * squared)
                        slope = slope - weighed * precision
                    slope = TWO * slope
                    for at in range(0, SIZE, LANES):
                        moved = slope * (load(votes, s * SIZE + at) - load(mean[b, p, t], at))
                        add_to(grad_votes, s * SIZE + at, moved)
                        add_to(before, at, MINUS * moved)
                grad_mean[:] = before
                to_agreement, to_presence = zero, zero  # only the last iteration has these outputs
            for s in range(slots):
                for at in range(0, SIZE, LANES):
                    add_to(grad_votes, s * SIZE + at, each * load(grad_mean, at))
                own = (
                    poses[b, children[p, s]],
                    grad_votes,
                    s * SIZE,
                    LANES,
                    grad_weight[part],
                    grad_poses[b, children[p, s]],
                )
                vote_adjoint(weight, s, *own)
