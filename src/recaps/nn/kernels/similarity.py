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
from recaps.nn.kernels.compiled import POSE, array, compiled, expm1, in_parts, kernel, lanes, vote, vote_adjoint


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
        kind = torch.promote_types(poses.dtype, torch.float32)
        outputs, (positions, slots) = weight.shape[1], fields.children.shape
        arrays = [
            array(poses.to(kind)),
            array(log_activations.to(kind)),
            array(fields.children.int()),
            lanes(weight.to(kind).flatten(2).transpose(1, 2)),
            array(mixture.to(kind)),
            *(lanes(each.to(kind)) for each in (precisions, lambda2, inverse)),
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
    def backward(ctx: Any, at_mean: Tensor, at_agreement: Tensor, at_presence: Tensor, _: Tensor) -> tuple[Any, ...]:
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
        at = [lanes(at_mean.transpose(2, 3)), lanes(at_agreement), lanes(at_presence)]
        in_parts(_backward, *ctx.arrays, *ctx.state, *at, *gradients)
        by_pose, by_log, by_weight, by_mixture, *by_lane = (torch.from_numpy(each) for each in gradients)
        to_weight = by_weight.sum(0)[..., : ctx.outputs].transpose(1, 2).unflatten(2, (4, 4))
        to_mixture = by_mixture.sum(0)[:, : ctx.outputs].sum(1)
        made = (by_pose, by_log, to_weight, to_mixture, *(each.sum(0)[..., : ctx.outputs] for each in by_lane))
        return *(tensor.to(kind) for tensor, kind in zip(made, ctx.dtypes, strict=True)), None, None


@compiled
def _power(exponents: Any, powers: Any) -> None:
    """exp of values that are zero or negative, clipped at -30: [LANES]."""
    width = exponents.shape[-1]
    real = exponents.dtype.type
    for j in range(width):
        powers[j] = max(real(1) + expm1(exponents[j], real), real(0))


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
    width = weight.shape[-1]
    batch, positions, steps, slots = coupling.shape[:4]
    real = poses.dtype.type
    votes = np.empty((slots, POSE, width), poses.dtype)
    squared, exponent, power = (
        np.empty(width, poses.dtype),
        np.empty(width, poses.dtype),
        np.empty(width, poses.dtype),
    )
    for b in range(part * batch // parts, (part + 1) * batch // parts):
        for p in range(positions):
            mean[b, p, 0] = real(0)
            for s in range(slots):
                vote(weight[s], poses[b, children[p, s]], votes[s])
                for h in range(POSE):
                    for j in range(width):
                        mean[b, p, 0, h, j] += votes[s, h, j]
            for h in range(POSE):
                for j in range(width):
                    mean[b, p, 0, h, j] /= real(slots)
            for t in range(steps):
                for s in range(slots):
                    squared[:] = real(0)
                    for h in range(POSE):
                        for j in range(width):
                            off = votes[s, h, j] - mean[b, p, t, h, j]
                            squared[j] += off * off
                    similarity[b, p, t, s] = real(0)
                    for q in range(len(mixture)):
                        for j in range(width):
                            exponent[j] = -squared[j] * precisions[q, j]
                        _power(exponent, power)
                        for j in range(width):
                            similarity[b, p, t, s, j] += mixture[q] * power[j]
                    for j in range(width):
                        pull = lambda2[j] * log_activations[b, children[p, s]]
                        coupling[b, p, t, s, j] = (similarity[b, p, t, s, j] + pull) * inverse[j]
                _softmax(coupling[b, p, t], exponent, power, squared)
                mean[b, p, t + 1] = real(0)
                for s in range(slots):
                    for h in range(POSE):
                        for j in range(width):
                            mean[b, p, t + 1, h, j] += coupling[b, p, t, s, j] * votes[s, h, j]
            sums[b, p] = real(0)
            for s in range(slots):
                for j in range(width):
                    share = coupling[b, p, steps - 1, s, j]
                    sums[b, p, 0, j] += share * similarity[b, p, steps - 1, s, j]
                    sums[b, p, 1, j] += share * log_activations[b, children[p, s]]


@compiled
def _softmax(logits: Any, exponent: Any, power: Any, total: Any) -> None:
    """Softmax in place over the slots of [n, LANES]. The other arguments are scratch memory."""
    width = logits.shape[-1]
    real = logits.dtype.type
    highest = logits[0].copy()
    total[:] = real(0)
    for s in range(len(logits)):
        for j in range(width):
            highest[j] = max(highest[j], logits[s, j])
    for s in range(len(logits)):
        for j in range(width):
            exponent[j] = logits[s, j] - highest[j]
        _power(exponent, power)
        for j in range(width):
            logits[s, j] = power[j]
            total[j] += power[j]
    for s in range(len(logits)):
        for j in range(width):
            logits[s, j] /= total[j]


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
    at_poses: Any,
    at_logs: Any,
    at_weight: Any,
    at_mixture: Any,
    at_precisions: Any,
    at_lambda2: Any,
    at_inverse: Any,
) -> None:
    """Compute the gradients of all inputs from those of the last mean [B, P, 16, LANES], agreement and presence
    [B, P, LANES]. Each part has its own gradients of parameters, and each lane its own gradient of the mixture."""
    width = weight.shape[-1]
    batch, positions, steps, slots = coupling.shape[:4]
    real = poses.dtype.type
    votes, at_votes = np.empty((slots, POSE, width), poses.dtype), np.empty((slots, POSE, width), poses.dtype)
    at_mean, before = np.empty((POSE, width), poses.dtype), np.empty((POSE, width), poses.dtype)
    at_coupling = np.empty((slots, width), poses.dtype)
    common, squared, slope = (
        np.empty(width, poses.dtype),
        np.empty(width, poses.dtype),
        np.empty(width, poses.dtype),
    )
    exponent, power, at_similarity = (
        np.empty(width, poses.dtype),
        np.empty(width, poses.dtype),
        np.empty(width, poses.dtype),
    )
    for b in range(part * batch // parts, (part + 1) * batch // parts):
        for p in range(positions):
            for s in range(slots):
                vote(weight[s], poses[b, children[p, s]], votes[s])
            at_votes[:] = real(0)
            at_mean[:] = given_mean[b, p]
            for t in range(steps - 1, -1, -1):
                last = t == steps - 1
                common[:] = real(0)
                for s in range(slots):
                    log = log_activations[b, children[p, s]]
                    for j in range(width):
                        at_coupling[s, j] = (
                            given_agreement[b, p, j] * similarity[b, p, t, s, j] + given_presence[b, p, j] * log
                            if last
                            else real(0)
                        )
                    for h in range(POSE):
                        for j in range(width):
                            at_coupling[s, j] += at_mean[h, j] * votes[s, h, j]
                            at_votes[s, h, j] += coupling[b, p, t, s, j] * at_mean[h, j]
                    for j in range(width):
                        common[j] += coupling[b, p, t, s, j] * at_coupling[s, j]
                before[:] = real(0)
                for s in range(slots):
                    child = children[p, s]
                    log, to_log = log_activations[b, child], real(0)
                    squared[:] = real(0)
                    slope[:] = real(0)
                    for j in range(width):
                        share = coupling[b, p, t, s, j]
                        at_logit = share * (at_coupling[s, j] - common[j])
                        at_similarity[j] = at_logit * inverse[j]
                        at_lambda2[part, j] += at_logit * log * inverse[j]
                        at_inverse[part, j] += at_logit * (similarity[b, p, t, s, j] + lambda2[j] * log)
                        to_log += at_logit * lambda2[j] * inverse[j]
                        if last:
                            at_similarity[j] += given_agreement[b, p, j] * share
                            to_log += given_presence[b, p, j] * share
                    at_logs[b, child] += to_log
                    for h in range(POSE):
                        for j in range(width):
                            off = votes[s, h, j] - mean[b, p, t, h, j]
                            squared[j] += off * off
                    for q in range(len(mixture)):
                        for j in range(width):
                            exponent[j] = -squared[j] * precisions[q, j]
                        _power(exponent, power)
                        for j in range(width):
                            weighed = at_similarity[j] * power[j]
                            at_mixture[part, q, j] += weighed
                            at_precisions[part, q, j] -= weighed * mixture[q] * squared[j]
                            slope[j] -= weighed * mixture[q] * precisions[q, j]
                    for h in range(POSE):
                        for j in range(width):
                            moved = real(2) * slope[j] * (votes[s, h, j] - mean[b, p, t, h, j])
                            at_votes[s, h, j] += moved
                            before[h, j] -= moved
                at_mean[:] = before
            for s in range(slots):
                for h in range(POSE):
                    for j in range(width):
                        at_votes[s, h, j] += at_mean[h, j] / real(slots)
                child = children[p, s]
                vote_adjoint(weight[s], poses[b, child], at_votes[s], at_weight[part, s], at_poses[b, child])
