"""EM routing, compiled, with a gradient written by hand. `recaps.nn.routing.em` is the plain version."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recaps.nn.fields import Fields
from recaps.nn.kernels import LANES, SHARE, VARIANCE
from recaps.nn.kernels.compiled import POSE, array, compiled, in_parts, kernel, lanes, vote, vote_adjoint

LOG_2_PI = POSE * math.log(2 * math.pi)


def fused_em_routing(
    poses: Tensor,
    activations: Tensor,
    weight: Tensor,
    fields: Fields,
    beta_u: Tensor,
    beta_a: Tensor,
    temperatures: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `recaps.nn.routing.em.em_routing` for at most `LANES` types of output capsules on a CPU."""
    made: tuple[Tensor, Tensor, Tensor] = _FusedEM.apply(
        poses, activations, weight, beta_u, beta_a, fields, torch.tensor(temperatures, dtype=torch.float64)
    )
    return made


class _FusedEM(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        poses: Tensor,
        activations: Tensor,
        weight: Tensor,
        beta_u: Tensor,
        beta_a: Tensor,
        fields: Fields,
        temperatures: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        kind = torch.promote_types(poses.dtype, torch.float32)
        outputs, (positions, slots) = weight.shape[1], fields.children.shape
        arrays = [
            array(poses.to(kind)),
            array(activations.to(kind)),
            array(fields.children.int()),
            lanes(weight.to(kind).flatten(2).transpose(1, 2)),
            lanes(beta_u.to(kind)),
            lanes(beta_a.to(kind)),
            array(temperatures.to(kind)),
        ]
        steps, batch = len(temperatures), len(poses)
        real = arrays[0].dtype
        shares = 1 / (fields.parents() * outputs)[fields.children].to(kind)
        coupling = np.empty((steps, batch, positions, slots, LANES), real)
        coupling[0] = lanes(shares[:, :, None].expand(-1, -1, outputs))
        mean = np.empty((steps, batch, positions, POSE, LANES), real)
        variance = np.empty_like(mean)
        total = np.empty((steps, batch, positions, LANES), real)
        activation = np.empty_like(total)
        state = (coupling, mean, variance, total, activation)
        in_parts(_forward, *arrays, outputs, *state)
        ctx.save_for_backward(poses, activations, weight, beta_u, beta_a)
        ctx.arrays, ctx.state, ctx.outputs = arrays, state, outputs
        ctx.dtypes = [tensor.dtype for tensor in (poses, activations, weight, beta_u, beta_a)]
        made = [
            torch.from_numpy(mean[-1, ..., :outputs]).transpose(2, 3).contiguous(),
            torch.from_numpy(activation[-1, ..., :outputs].copy()),
            torch.from_numpy(coupling[-1, ..., :outputs].copy()),
        ]
        ctx.mark_non_differentiable(made[2])
        return made[0], made[1], made[2]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, at_mean: Tensor, at_activation: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors  # raises an error if one was changed in place
        poses, _activations, children, weight, *_rest = ctx.arrays
        real, threads = poses.dtype, torch.get_num_threads()
        positions, slots = children.shape
        gradients = (
            np.zeros_like(poses),
            np.zeros(poses.shape[:2], real),
            np.zeros((threads, *weight.shape), real),
            np.zeros((threads, LANES), real),
            np.zeros((threads, LANES), real),
        )
        scratch = np.empty((threads, 2, positions, slots, LANES), real)
        at = (lanes(at_mean.transpose(2, 3)), lanes(at_activation))
        in_parts(_backward, *ctx.arrays, ctx.outputs, *ctx.state, *at, *gradients, scratch)
        by_pose, by_activation, by_weight, by_beta_u, by_beta_a = (torch.from_numpy(each) for each in gradients)
        to_weight = by_weight.sum(0)[..., : ctx.outputs].transpose(1, 2).unflatten(2, (4, 4))
        betas = (each.sum(0)[: ctx.outputs] for each in (by_beta_u, by_beta_a))
        made = (by_pose, by_activation, to_weight, *betas)
        return *(tensor.to(kind) for tensor, kind in zip(made, ctx.dtypes, strict=True)), None, None


@compiled
def _sum_of_logs(values: Any, sums: Any) -> None:
    """Sum of logarithms over the 16 values of a pose, as logarithms of products of two: [16, LANES] to [LANES]."""
    width = values.shape[-1]
    for j in range(width):
        sums[j] = 0
    for h in range(0, POSE, 2):
        for j in range(width):
            sums[j] += np.log(values[h, j] * values[h + 1, j])


@kernel
def _forward(
    part: int,
    parts: int,
    poses: Any,
    activations: Any,
    children: Any,
    weight: Any,
    beta_u: Any,
    beta_a: Any,
    temperatures: Any,
    outputs: int,
    coupling: Any,
    mean: Any,
    variance: Any,
    total: Any,
    activation: Any,
) -> None:
    """Shapes: weight [n, 16, LANES], coupling [T, B, P, n, LANES], mean and variance [T, B, P, 16, LANES], total and
    activation [T, B, P, LANES]."""
    width = weight.shape[-1]
    steps, batch, positions, slots = coupling.shape[:4]
    real = poses.dtype
    votes, offset = np.empty((slots, POSE, width), real), np.empty(width, real)
    highest, sums = np.empty(poses.shape[1], real), np.empty(poses.shape[1], real)
    for b in range(part * batch // parts, (part + 1) * batch // parts):
        for t in range(steps):
            for p in range(positions):
                for s in range(slots):
                    vote(weight[s], poses[b, children[p, s]], votes[s])
                own = (mean[t, b, p], variance[t, b, p], total[t, b, p])
                _maximise(votes, activations[b], children[p], coupling[t, b, p], *own)
                _activate(*own, beta_u, beta_a, temperatures[t], activation[t, b, p], offset)
                if t + 1 < steps:
                    _log_densities(votes, mean[t, b, p], variance[t, b, p], offset, coupling[t + 1, b, p])
            if t + 1 < steps:
                _softmax_over_parents(coupling[t + 1, b], children, outputs, highest, sums)


@compiled
def _maximise(votes: Any, activations: Any, children: Any, coupling: Any, mean: Any, variance: Any, total: Any) -> None:
    """Mean, variance and total weight of the votes at one position."""
    width = votes.shape[-1]
    real = votes.dtype.type
    slots = len(children)
    share = np.empty(width, votes.dtype)
    mean[:] = real(0)
    variance[:] = real(0)
    total[:] = real(0)
    for s in range(slots):
        for j in range(width):
            share[j] = coupling[s, j] * activations[children[s]]
            total[j] += share[j]
        for h in range(POSE):
            for j in range(width):
                mean[h, j] += share[j] * votes[s, h, j]
    for h in range(POSE):
        for j in range(width):
            mean[h, j] /= total[j] + real(SHARE)
    for s in range(slots):
        for j in range(width):
            share[j] = coupling[s, j] * activations[children[s]]
        for h in range(POSE):
            for j in range(width):
                off = votes[s, h, j] - mean[h, j]
                variance[h, j] += share[j] * off * off
    for h in range(POSE):
        for j in range(width):
            variance[h, j] = variance[h, j] / (total[j] + real(SHARE)) + real(VARIANCE)


@compiled
def _activate(
    mean: Any, variance: Any, total: Any, beta_u: Any, beta_a: Any, temperature: Any, activation: Any, offset: Any
) -> None:
    """Activation, and the part of the log density that is equal for all votes."""
    width = variance.shape[-1]
    real = variance.dtype.type
    _sum_of_logs(variance, offset)
    for j in range(width):
        cost = total[j] * (real(POSE) * beta_u[j] + real(0.5) * offset[j])
        logit = temperature * (beta_a[j] - cost)
        activation[j] = real(1) / (real(1) + np.exp(-logit))
        log_activation = -np.log(real(1) + np.exp(-logit)) if logit > real(-30) else logit
        offset[j] = log_activation - real(0.5) * (offset[j] + real(LOG_2_PI))


@compiled
def _log_densities(votes: Any, mean: Any, variance: Any, offset: Any, logits: Any) -> None:
    width = votes.shape[-1]
    real = votes.dtype.type
    precision = np.empty((POSE, width), votes.dtype)
    for h in range(POSE):
        for j in range(width):
            precision[h, j] = real(0.5) / variance[h, j]
    for s in range(len(votes)):
        for j in range(width):
            logits[s, j] = offset[j]
        for h in range(POSE):
            for j in range(width):
                off = votes[s, h, j] - mean[h, j]
                logits[s, j] -= off * off * precision[h, j]


@compiled
def _softmax_over_parents(logits: Any, children: Any, outputs: int, highest: Any, sums: Any) -> None:
    """Softmax in place over all entries [P, n, outputs] of the same input capsule. The other lanes become zero."""
    width = logits.shape[-1]
    real = logits.dtype.type
    positions, slots = children.shape
    highest[:] = real(-np.inf)
    sums[:] = real(0)
    for p in range(positions):
        for s in range(slots):
            top = highest[children[p, s]]
            for j in range(outputs):
                top = max(top, logits[p, s, j])
            highest[children[p, s]] = top
    for p in range(positions):
        for s in range(slots):
            top, added = highest[children[p, s]], real(0)
            for j in range(width):
                logits[p, s, j] = np.exp(logits[p, s, j] - top) if j < outputs else real(0)
            for j in range(outputs):
                added += logits[p, s, j]
            sums[children[p, s]] += added
    for p in range(positions):
        for s in range(slots):
            for j in range(width):
                logits[p, s, j] /= sums[children[p, s]]


@kernel
def _backward(
    part: int,
    parts: int,
    poses: Any,
    activations: Any,
    children: Any,
    weight: Any,
    beta_u: Any,
    beta_a: Any,
    temperatures: Any,
    outputs: int,
    coupling: Any,
    mean: Any,
    variance: Any,
    total: Any,
    activation: Any,
    given_mean: Any,
    given_activation: Any,
    at_poses: Any,
    at_activations: Any,
    at_weight: Any,
    at_beta_u: Any,
    at_beta_a: Any,
    scratch: Any,
) -> None:
    """Compute the gradients of all inputs from those of the last mean [B, P, 16, LANES] and activation [B, P, LANES].
    Each part has its own gradients of weight and betas."""
    width = weight.shape[-1]
    steps, batch, positions, slots = coupling.shape[:4]
    real = poses.dtype.type
    votes = np.empty((slots, POSE, width), poses.dtype)
    at_mean, at_variance = np.empty((POSE, width), poses.dtype), np.empty((POSE, width), poses.dtype)
    at_logit, at_total = np.empty(width, poses.dtype), np.empty(width, poses.dtype)
    sums = np.empty(poses.shape[1], poses.dtype)
    at_coupling, at_density = scratch[part, 0], scratch[part, 1]
    for b in range(part * batch // parts, (part + 1) * batch // parts):
        at_density[:] = real(0)
        for t in range(steps - 1, -1, -1):
            if t + 1 < steps:
                _softmax_adjoint(coupling[t + 1, b], children, outputs, at_coupling, at_density, sums)
            for p in range(positions):
                for s in range(slots):
                    vote(weight[s], poses[b, children[p, s]], votes[s])
                own = (mean[t, b, p], variance[t, b, p])
                if t + 1 == steps:
                    at_mean[:] = given_mean[b, p]
                    at_variance[:] = real(0)
                    for j in range(width):
                        on = activation[t, b, p, j]
                        at_logit[j] = given_activation[b, p, j] * on * (real(1) - on)
                else:
                    _density_adjoint(votes, *own, activation[t, b, p], at_density[p], at_mean, at_variance, at_logit)
                _activation_adjoint(
                    *own,
                    total[t, b, p],
                    beta_u,
                    temperatures[t],
                    outputs,
                    at_logit,
                    at_mean,
                    at_variance,
                    at_total,
                    at_beta_u[part],
                    at_beta_a[part],
                )
                _maximisation_adjoint(
                    votes,
                    *own,
                    total[t, b, p],
                    coupling[t, b, p],
                    activations[b],
                    children[p],
                    outputs,
                    at_mean,
                    at_variance,
                    at_total,
                    at_density[p],
                    weight,
                    poses[b],
                    at_coupling[p],
                    at_activations[b],
                    at_weight[part],
                    at_poses[b],
                )


@compiled
def _softmax_adjoint(coupling: Any, children: Any, outputs: int, at_coupling: Any, at_logits: Any, sums: Any) -> None:
    width = coupling.shape[-1]
    positions, slots = children.shape
    sums[:] = coupling.dtype.type(0)
    for p in range(positions):
        for s in range(slots):
            added = sums[children[p, s]]
            for j in range(outputs):
                added += coupling[p, s, j] * at_coupling[p, s, j]
            sums[children[p, s]] = added
    for p in range(positions):
        for s in range(slots):
            for j in range(width):
                at_logits[p, s, j] = coupling[p, s, j] * (at_coupling[p, s, j] - sums[children[p, s]])


@compiled
def _density_adjoint(
    votes: Any,
    mean: Any,
    variance: Any,
    activation: Any,
    at_density: Any,
    at_mean: Any,
    at_variance: Any,
    at_logit: Any,
) -> None:
    """Gradients through the log densities, except for those of the votes."""
    width = votes.shape[-1]
    real = votes.dtype.type
    at_mean[:] = real(0)
    at_variance[:] = real(0)
    at_logit[:] = real(0)
    precision = np.empty((POSE, width), votes.dtype)
    for h in range(POSE):
        for j in range(width):
            precision[h, j] = real(1) / variance[h, j]
    for s in range(len(votes)):
        for j in range(width):
            at_logit[j] += at_density[s, j]
        for h in range(POSE):
            for j in range(width):
                off = (votes[s, h, j] - mean[h, j]) * precision[h, j]
                at_mean[h, j] += at_density[s, j] * off
                at_variance[h, j] += at_density[s, j] * off * off
    for h in range(POSE):
        for j in range(width):
            at_variance[h, j] = real(0.5) * (at_variance[h, j] - at_logit[j] * precision[h, j])
    for j in range(width):
        at_logit[j] *= real(1) - activation[j]


@compiled
def _activation_adjoint(
    mean: Any,
    variance: Any,
    total: Any,
    beta_u: Any,
    temperature: Any,
    outputs: int,
    at_logit: Any,
    at_mean: Any,
    at_variance: Any,
    at_total: Any,
    at_beta_u: Any,
    at_beta_a: Any,
) -> None:
    width = variance.shape[-1]
    real = variance.dtype.type
    logs = np.empty(width, variance.dtype)
    _sum_of_logs(variance, logs)
    for j in range(width):
        at_cost = -temperature * at_logit[j]
        at_total[j] = at_cost * (real(POSE) * beta_u[j] + real(0.5) * logs[j])
        logs[j] = real(0.5) * at_cost * total[j]
        if j < outputs:
            at_beta_a[j] += temperature * at_logit[j]
            at_beta_u[j] += at_cost * total[j] * real(POSE)
    for h in range(POSE):
        for j in range(width):
            at_variance[h, j] += logs[j] / variance[h, j]
            # The divisor of the mean is slightly larger than the sum of weights, so deviations do not cancel exactly.
            at_mean[h, j] -= real(2 * SHARE) / (total[j] + real(SHARE)) * mean[h, j] * at_variance[h, j]


@compiled
def _maximisation_adjoint(
    votes: Any,
    mean: Any,
    variance: Any,
    total: Any,
    coupling: Any,
    activations: Any,
    children: Any,
    outputs: int,
    at_mean: Any,
    at_variance: Any,
    at_total: Any,
    at_density: Any,
    weight: Any,
    poses: Any,
    at_coupling: Any,
    at_activations: Any,
    at_weight: Any,
    at_poses: Any,
) -> None:
    """Gradients of votes through mean, variance and log density, and from them those of weights and poses."""
    width = votes.shape[-1]
    real = votes.dtype.type
    at_votes = np.empty((POSE, width), votes.dtype)
    precision, inverse = np.empty((POSE, width), votes.dtype), np.empty(width, votes.dtype)
    share, at_share = np.empty(width, votes.dtype), np.empty(width, votes.dtype)
    for j in range(width):
        inverse[j] = real(1) / (total[j] + real(SHARE))
    for h in range(POSE):
        for j in range(width):
            precision[h, j] = real(1) / variance[h, j]
    for s in range(len(children)):
        child = children[s]
        for j in range(width):
            share[j] = coupling[s, j] * activations[child] * inverse[j]
            at_share[j] = real(0)
        for h in range(POSE):
            for j in range(width):
                off = votes[s, h, j] - mean[h, j]
                spread = variance[h, j] - real(VARIANCE)
                at_share[j] += off * at_mean[h, j] + (off * off - spread) * at_variance[h, j]
                from_moments = share[j] * (at_mean[h, j] + real(2) * at_variance[h, j] * off)
                at_votes[h, j] = from_moments - at_density[s, j] * off * precision[h, j]
        added = at_activations[child]
        for j in range(width):
            at_weighed = at_total[j] + at_share[j] * inverse[j] if j < outputs else real(0)
            added += at_weighed * coupling[s, j]
            at_coupling[s, j] = at_weighed * activations[child]
        at_activations[child] = added
        vote_adjoint(weight[s], poses[child], at_votes, at_weight[s], at_poses[child])
