"""Similarity routing, compiled, with a gradient written by hand. `recaps.nn.routing.similarity` is the plain version.

Output capsules do not compete, so a kernel computes all iterations of a position before the next position.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recaps.nn.fields import Fields
from recaps.nn.kernels import LANES
from recaps.nn.kernels.compiled import POSE, array, compiled, in_parts, kernel, lanes
from recaps.nn.kernels.inputs import Inputs, field_votes, gradients_of, inputs_of, no_gradients
from recaps.nn.kernels.poses import vote_adjoint
from recaps.nn.kernels.vector import add_to, at_least, exp, first, load, splat, store, total

#: Values of the votes of a slot.
SIZE = POSE * LANES
ZERO, ONE, TWO, MINUS = (np.float32(number) for number in (0, 1, 2, -1))


class Parameters(NamedTuple):
    """Mixture [Q], precisions [Q, LANES], lambda_2 and 1 / (lambda_1 + lambda_2) [LANES].

    Each part of the batch has its own gradients, and each lane its own gradient of the mixture.
    """

    mixture: Any
    precisions: Any
    lambda2: Any
    inverse: Any


class States(NamedTuple):
    """Coupling and similarity [B, P, T, n, LANES]; mean [B, P, T + 1, 16, LANES], starting with the unweighted mean."""

    coupling: Any
    similarity: Any
    mean: Any


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
        inputs = inputs_of(poses, log_activations, weight, fields)
        of_lanes = (lanes(each.float()) for each in (precisions, lambda2, inverse))
        parameters = Parameters(array(mixture.float()), *of_lanes)
        at, real = (len(poses), positions), np.float32
        coupling = np.empty((*at, iterations, slots, LANES), real)
        mean = np.empty((*at, iterations + 1, POSE, LANES), real)
        states, sums = States(coupling, np.empty_like(coupling), mean), np.empty((*at, 2, LANES), real)
        ctx.arguments, ctx.outputs = (inputs, parameters, states), outputs
        in_parts(_forward, *ctx.arguments, sums)
        ctx.save_for_backward(*tensors)
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
        inputs, parameters, _ = ctx.arguments
        grad_inputs, parts = no_gradients(inputs), torch.get_num_threads()
        shapes = (parameters.precisions.shape, parameters.precisions.shape, (LANES,), (LANES,))
        gradients = Parameters(*(np.zeros((parts, *shape), np.float32) for shape in shapes))
        grad_sums = torch.stack([grad_agreement, grad_presence], 2)
        at = [lanes(each.float()) for each in (grad_mean.transpose(2, 3), grad_sums)]
        in_parts(_backward, *ctx.arguments, *at, grad_inputs, gradients)
        by_mixture, *by_lane = (torch.from_numpy(each).sum(0)[..., : ctx.outputs] for each in gradients)
        made = (*gradients_of(grad_inputs, ctx.outputs), by_mixture.sum(1), *by_lane)
        return *(tensor.to(kind) for tensor, kind in zip(made, ctx.dtypes, strict=True)), None, None


@compiled
def _mixture(squared: Any, mixture: Any, precisions: Any) -> Any:
    """Similarity of votes at squared distances from a mean: a mixture of Gaussians."""
    found = splat(ZERO)
    for q in range(len(mixture)):
        found = found + mixture[q] * exp(MINUS * squared * load(precisions, q * LANES))
    return found


@compiled
def _mixture_adjoint(
    squared: Any, mixture: Any, precisions: Any, grad_similarity: Any, grad_mixture: Any, grad_precisions: Any
) -> Any:
    """Add the gradients of mixture and precisions, and return that of the squared distance."""
    found = splat(ZERO)
    for q in range(len(mixture)):
        precision = load(precisions, q * LANES)
        weighed = grad_similarity * exp(MINUS * squared * precision)
        add_to(grad_mixture, q * LANES, weighed)
        weighed = mixture[q] * weighed
        add_to(grad_precisions, q * LANES, MINUS * weighed * squared)
        found = found - weighed * precision
    return found


@compiled
def _squared_distance(votes: Any, start: Any, mean: Any) -> Any:
    a = b = splat(ZERO)
    for at in range(0, SIZE, 2 * LANES):
        off, other = load(votes, start + at) - load(mean, at), load(votes, start + at + LANES) - load(mean, at + LANES)
        a, b = a + off * off, b + other * other
    return a + b


@compiled
def _squared_distance_adjoint(
    votes: Any, start: Any, mean: Any, grad_squared: Any, grad_votes: Any, grad_mean: Any
) -> None:
    twice = TWO * grad_squared
    for at in range(0, SIZE, LANES):
        moved = twice * (load(votes, start + at) - load(mean, at))
        add_to(grad_votes, start + at, moved)
        add_to(grad_mean, at, MINUS * moved)


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


@compiled
def _weighed_adjoint(votes: Any, start: Any, share: Any, grad_mean: Any, grad_votes: Any) -> Any:
    """Add the gradient of one vote, and return that of its coupling."""
    found = splat(ZERO)
    for at in range(0, SIZE, LANES):
        d = load(grad_mean, at)
        found = found + d * load(votes, start + at)
        add_to(grad_votes, start + at, share * d)
    return found


@kernel
def _forward(part: int, parts: int, inputs: Inputs, parameters: Parameters, states: States, sums: Any) -> None:
    """Compute the states of all iterations, and agreement and presence [B, P, 2, LANES]."""
    (poses, logs, children, weight), (mixture, precisions, lambda2, inverse) = inputs, parameters
    coupling, similarity, mean = states
    batch, positions, steps, slots = coupling.shape[:4]
    votes, uniform = np.empty((slots, POSE, LANES), np.float32), np.empty((slots, LANES), np.float32)
    uniform[:] = ONE / np.float32(slots)
    for b in range(part * batch // parts, (part + 1) * batch // parts):
        for p in range(positions):
            field_votes(poses[b], children[p], weight, votes)
            _weighed(uniform, votes, mean[b, p, 0])
            for t in range(steps):
                for s in range(slots):
                    squared = _squared_distance(votes, s * SIZE, mean[b, p, t])
                    similar = _mixture(squared, mixture, precisions)
                    store(similarity[b, p, t], s * LANES, similar)
                    pull = load(lambda2, 0) * splat(logs[b, children[p, s]])
                    store(coupling[b, p, t], s * LANES, (similar + pull) * load(inverse, 0))
                _softmax(coupling[b, p, t])
                _weighed(coupling[b, p, t], votes, mean[b, p, t + 1])
            agreement = presence = splat(ZERO)
            for s in range(slots):
                share = load(coupling[b, p, steps - 1], s * LANES)
                agreement = agreement + share * load(similarity[b, p, steps - 1], s * LANES)
                presence = presence + share * splat(logs[b, children[p, s]])
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
    inputs: Inputs,
    parameters: Parameters,
    states: States,
    grad_mean: Any,
    grad_sums: Any,
    grad_inputs: Inputs,
    gradients: Parameters,
) -> None:
    """Add to the gradients of the inputs and parameters, from those of the last mean [B, P, 16, LANES] and of agreement
    and presence [B, P, 2, LANES]."""
    (poses, logs, children, weight), (mixture, precisions, lambda2, inverse) = inputs, parameters
    to_poses, to_logs, to_weight = grad_inputs.poses, grad_inputs.activations, grad_inputs.weight[part]
    to_mixture, to_precisions = gradients.mixture[part], gradients.precisions[part]
    to_lambda2, to_inverse = gradients.lambda2[part], gradients.inverse[part]
    coupling, similarity, means = states
    batch, positions, steps, slots = coupling.shape[:4]
    votes, grad_votes = np.empty((slots, POSE, LANES), np.float32), np.empty((slots, POSE, LANES), np.float32)
    grad_mu, before = np.empty((POSE, LANES), np.float32), np.empty((POSE, LANES), np.float32)
    grad_coupling, zero = np.empty((slots, LANES), np.float32), splat(ZERO)
    each = ONE / np.float32(slots)
    for b in range(part * batch // parts, (part + 1) * batch // parts):
        for p in range(positions):
            field_votes(poses[b], children[p], weight, votes)
            grad_votes[:] = ZERO
            grad_mu[:] = grad_mean[b, p]
            to_agreement, to_presence = load(grad_sums[b, p], 0), load(grad_sums[b, p], LANES)
            for t in range(steps - 1, -1, -1):
                shares, similar, mean = coupling[b, p, t], similarity[b, p, t], means[b, p, t]
                common = zero
                for s in range(slots):
                    share = load(shares, s * LANES)
                    grad_share = _weighed_adjoint(votes, s * SIZE, share, grad_mu, grad_votes)
                    grad_share = grad_share + to_agreement * load(similar, s * LANES)
                    grad_share = grad_share + to_presence * splat(logs[b, children[p, s]])
                    store(grad_coupling, s * LANES, grad_share)
                    common = common + share * grad_share
                before[:] = ZERO
                for s in range(slots):
                    child, at = children[p, s], s * LANES
                    log, share = splat(logs[b, child]), load(shares, at)
                    grad_logit = share * (load(grad_coupling, at) - common)
                    scaled = grad_logit * load(inverse, 0)
                    add_to(to_lambda2, 0, scaled * log)
                    add_to(to_inverse, 0, grad_logit * (load(similar, at) + load(lambda2, 0) * log))
                    to_logs[b, child] += first(total(scaled * load(lambda2, 0) + to_presence * share))
                    grad_similarity = scaled + to_agreement * share
                    squared = _squared_distance(votes, s * SIZE, mean)
                    grad_squared = _mixture_adjoint(
                        squared, mixture, precisions, grad_similarity, to_mixture, to_precisions
                    )
                    _squared_distance_adjoint(votes, s * SIZE, mean, grad_squared, grad_votes, before)
                grad_mu[:] = before
                to_agreement, to_presence = zero, zero  # only the last iteration has these outputs
            for s in range(slots):
                for at in range(0, SIZE, LANES):
                    add_to(grad_votes, s * SIZE + at, each * load(grad_mu, at))
                child = children[p, s]
                vote_adjoint(weight, s, poses[b, child], grad_votes, s * SIZE, LANES, to_weight, to_poses[b, child])
