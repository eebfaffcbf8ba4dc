"""EM routing, compiled, with a gradient written by hand. `recaps.nn.routing.em` is the plain version."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recaps.nn.fields import Fields
from recaps.nn.kernels import LANES, SHARE, VARIANCE
from recaps.nn.kernels.compiled import POSE, array, compiled, in_parts, kernel, lanes
from recaps.nn.kernels.inputs import Inputs, field_votes, gradients_of, inputs_of, no_gradients
from recaps.nn.kernels.poses import vote_adjoint
from recaps.nn.kernels.vector import add_to, at_least, at_most, exp, expm1, first, largest, load, log, splat, store
from recaps.nn.kernels.vector import total as sum_of_lanes

#: Values of the votes of a slot, and of the components that are processed at a time.
SIZE, FOUR_ROWS = POSE * LANES, 4 * LANES
ZERO, HALF, ONE, TWO, SIXTEEN, MINUS = (np.float32(number) for number in (0, 0.5, 1, 2, POSE, -1))
SMALLEST_SHARE, SMALLEST_VARIANCE = np.float32(SHARE), np.float32(VARIANCE)
CONSTANT = np.float32(POSE * math.log(2 * math.pi))
#: The logit of lanes that hold no output.
LOWEST = np.float32(-np.inf)


class Parameters(NamedTuple):
    """Each [LANES]; the gradients of each part of the batch [parts, LANES]."""

    beta_u: Any
    beta_a: Any


class States(NamedTuple):
    """Coupling [n, LANES], mean and variance [16, LANES], total and activation [LANES], of each [T, B, P] or of one."""

    coupling: Any
    mean: Any
    variance: Any
    total: Any
    activation: Any


class Moments(NamedTuple):
    """Gradients of the mean and variance of the votes at one position, each [16, LANES]."""

    mean: Any
    variance: Any


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
        outputs, (positions, slots) = weight.shape[1], fields.children.shape
        inputs = inputs_of(poses, activations, weight, fields)
        parameters = Parameters(lanes(beta_u.float()), lanes(beta_a.float()))
        steps, batch = len(temperatures), len(poses)
        shapes = ((slots, LANES), (POSE, LANES), (POSE, LANES), (LANES,), (LANES,))
        states = States(*(np.empty((steps, batch, positions, *shape), np.float32) for shape in shapes))
        shares = 1 / (fields.parents * outputs)[fields.children].float()
        states.coupling[0] = lanes(shares[:, :, None].expand(-1, -1, outputs))
        ctx.arguments = inputs, parameters, array(temperatures.float()), outputs, states
        in_parts(_forward, *ctx.arguments)
        ctx.save_for_backward(poses, activations, weight, beta_u, beta_a)
        ctx.dtypes = [tensor.dtype for tensor in (poses, activations, weight, beta_u, beta_a)]
        made = [
            torch.from_numpy(states.mean[-1, ..., :outputs]).transpose(2, 3).contiguous(),
            torch.from_numpy(states.activation[-1, ..., :outputs].copy()),
            torch.from_numpy(states.coupling[-1, ..., :outputs].copy()),
        ]
        ctx.mark_non_differentiable(made[2])
        return made[0], made[1], made[2]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_mean: Tensor, grad_activation: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors  # raises an error if one was changed in place
        inputs, parameters, _, outputs, _ = ctx.arguments
        grad_inputs, parts = no_gradients(inputs), torch.get_num_threads()
        gradients = Parameters(*(np.zeros((parts, LANES), np.float32) for _ in parameters))
        at = (lanes(grad_mean.transpose(2, 3).float()), lanes(grad_activation.float()))
        in_parts(_backward, *ctx.arguments, *at, grad_inputs, gradients)
        betas = (torch.from_numpy(each).sum(0)[:outputs] for each in gradients)
        made = (*gradients_of(grad_inputs, outputs), *betas)
        return *(tensor.to(kind) for tensor, kind in zip(made, ctx.dtypes, strict=True)), None, None


@compiled
def _sum_of_logs(values: Any) -> Any:
    """Sum of logarithms over the 16 values of a pose."""
    found = splat(ZERO)
    for at in range(0, values.size, LANES):
        found = found + log(load(values, at))
    return found


@kernel
def _forward(
    part: int, parts: int, inputs: Inputs, parameters: Parameters, temperatures: Any, outputs: int, states: States
) -> None:
    """Compute the states of all iterations, from the coupling of the first."""
    poses, activations, children, weight = inputs
    (steps, batch, positions, slots), capsules = states.coupling.shape[:4], poses.shape[1]
    votes, share = np.empty((slots, POSE, LANES), np.float32), np.empty((slots, LANES), np.float32)
    highest, sums = np.empty((capsules, LANES), np.float32), np.empty((capsules, LANES), np.float32)
    present = _present(outputs)
    for b in range(part * batch // parts, (part + 1) * batch // parts):
        for t in range(steps):
            for p in range(positions):
                field_votes(poses[b], children[p], weight, votes)
                own = _at(states, t, b, p)
                _maximise(votes, activations[b], children[p], share, own)
                offset = _activate(own, parameters, temperatures[t])
                if t + 1 < steps:
                    _log_densities(votes, own, offset, states.coupling[t + 1, b, p])
            if t + 1 < steps:
                _softmax_over_parents(states.coupling[t + 1, b], children, present, highest, sums)


@compiled
def _at(states: Any, t: Any, b: Any, p: Any) -> Any:
    """Return the states of one position."""
    coupling, mean, variance, total, activation = states
    return States(coupling[t, b, p], mean[t, b, p], variance[t, b, p], total[t, b, p], activation[t, b, p])


@compiled
def _present(outputs: Any) -> Any:
    """Return factors (1 for outputs, 0 for padding) and terms (0 for outputs, `LOWEST` for padding), [2, LANES]."""
    rows = np.zeros((2, LANES), np.float32)
    rows[0, :outputs] = ONE
    rows[1, outputs:] = LOWEST
    return rows


@compiled
def _maximise(votes: Any, activations: Any, children: Any, share: Any, own: Any) -> None:
    """Mean, variance and total weight of the votes at one position; `share` [n, LANES] is scratch memory."""
    slots, added = len(children), splat(ZERO)
    for s in range(slots):
        weight = load(own.coupling, s * LANES) * splat(activations[children[s]])
        store(share, s * LANES, weight)
        added = added + weight
    store(own.total, 0, added)
    inverse = ONE / (added + SMALLEST_SHARE)
    for at in range(0, SIZE, FOUR_ROWS):
        w = x = y = z = splat(ZERO)
        for s in range(slots):
            weight, v = load(share, s * LANES), s * SIZE + at
            w, x = w + weight * load(votes, v), x + weight * load(votes, v + LANES)
            y, z = y + weight * load(votes, v + 2 * LANES), z + weight * load(votes, v + 3 * LANES)
        m0, m1, m2, m3 = w * inverse, x * inverse, y * inverse, z * inverse
        w = x = y = z = splat(ZERO)
        for s in range(slots):
            weight, v = load(share, s * LANES), s * SIZE + at
            d0, d1 = load(votes, v) - m0, load(votes, v + LANES) - m1
            d2, d3 = load(votes, v + 2 * LANES) - m2, load(votes, v + 3 * LANES) - m3
            w, x, y, z = w + weight * d0 * d0, x + weight * d1 * d1, y + weight * d2 * d2, z + weight * d3 * d3
        _store_four(own.mean, at, m0, m1, m2, m3)
        s0, s1, s2, s3 = w * inverse, x * inverse, y * inverse, z * inverse
        least = SMALLEST_VARIANCE
        _store_four(own.variance, at, s0 + least, s1 + least, s2 + least, s3 + least)


@compiled
def _load_four(array: Any, at: Any) -> Any:
    return load(array, at), load(array, at + LANES), load(array, at + 2 * LANES), load(array, at + 3 * LANES)


@compiled
def _store_four(array: Any, at: Any, a: Any, b: Any, c: Any, d: Any) -> None:
    store(array, at, a)
    store(array, at + LANES, b)
    store(array, at + 2 * LANES, c)
    store(array, at + 3 * LANES, d)


@compiled
def _activate(own: Any, parameters: Any, temperature: Any) -> Any:
    """Write the activation, and return the part of the log density that is equal for all votes."""
    logs = _sum_of_logs(own.variance)
    cost = load(own.total, 0) * (SIXTEEN * load(parameters.beta_u, 0) + HALF * logs)
    logit = temperature * (load(parameters.beta_a, 0) - cost)
    store(own.activation, 0, ONE / (TWO + expm1(MINUS * logit)))
    # log(sigmoid(x)) = min(x, 0) - log(1 + exp(-|x|))
    below = at_most(logit, splat(ZERO))
    log_activation = below - log(ONE + exp(below + below - logit))
    return log_activation - HALF * (logs + CONSTANT)


@compiled
def _log_densities(votes: Any, own: Any, offset: Any, logits: Any) -> None:
    slots = len(votes)
    for s in range(slots):
        store(logits, s * LANES, offset)
    for at in range(0, SIZE, FOUR_ROWS):
        m0, m1, m2, m3 = _load_four(own.mean, at)
        v0, v1, v2, v3 = _load_four(own.variance, at)
        p0, p1, p2, p3 = HALF / v0, HALF / v1, HALF / v2, HALF / v3
        for s in range(slots):
            v, to = s * SIZE + at, s * LANES
            d0, d1 = load(votes, v) - m0, load(votes, v + LANES) - m1
            d2, d3 = load(votes, v + 2 * LANES) - m2, load(votes, v + 3 * LANES) - m3
            store(logits, to, load(logits, to) - ((d0 * d0 * p0 + d1 * d1 * p1) + (d2 * d2 * p2 + d3 * d3 * p3)))


@compiled
def _softmax_over_parents(logits: Any, children: Any, present: Any, highest: Any, sums: Any) -> None:
    """Softmax in place over all entries [P, n, outputs] of the same input capsule. The other lanes become zero."""
    positions, slots = children.shape
    highest[:] = LOWEST
    sums[:] = ZERO
    is_output, absent = load(present, 0), load(present, LANES)
    for p in range(positions):
        for s in range(slots):
            at = children[p, s] * LANES
            store(highest, at, at_least(load(highest, at), load(logits, (p * slots + s) * LANES) + absent))
    for at in range(0, highest.size, LANES):
        store(highest, at, largest(load(highest, at)))
    for p in range(positions):
        for s in range(slots):
            own, at = (p * slots + s) * LANES, children[p, s] * LANES
            # `exp` is clipped, so that the lanes without an output are finite.
            power = is_output * exp(load(logits, own) - load(highest, at))
            store(logits, own, power)
            add_to(sums, at, power)
    for at in range(0, sums.size, LANES):
        store(sums, at, ONE / sum_of_lanes(load(sums, at)))
    for p in range(positions):
        for s in range(slots):
            own = (p * slots + s) * LANES
            store(logits, own, load(logits, own) * load(sums, children[p, s] * LANES))


@kernel
def _backward(
    part: int,
    parts: int,
    inputs: Inputs,
    parameters: Parameters,
    temperatures: Any,
    outputs: int,
    states: States,
    grad_mean: Any,
    grad_activation: Any,
    grad_inputs: Inputs,
    gradients: Parameters,
) -> None:
    """Add to the gradients of the inputs and parameters, from those of the last mean [B, P, 16, LANES] and activation
    [B, P, LANES]."""
    poses, activations, children, weight = inputs
    to_poses, to_activations, to_weight = grad_inputs.poses, grad_inputs.activations, grad_inputs.weight[part]
    (steps, batch, positions, slots), capsules = states.coupling.shape[:4], poses.shape[1]
    votes, grad_vote = np.empty((slots, POSE, LANES), np.float32), np.empty((POSE, LANES), np.float32)
    precision, grad = np.empty_like(grad_vote), Moments(np.empty_like(grad_vote), np.empty_like(grad_vote))
    share, sums = np.empty((slots, LANES), np.float32), np.empty((capsules, LANES), np.float32)
    grad_density, is_output = np.empty((positions, slots, LANES), np.float32), load(_present(outputs), 0)
    grad_coupling, to = np.empty_like(grad_density), Parameters(gradients.beta_u[part], gradients.beta_a[part])
    for b in range(part * batch // parts, (part + 1) * batch // parts):
        grad_density[:] = ZERO
        for t in range(steps - 1, -1, -1):
            if t + 1 < steps:
                _softmax_adjoint(states.coupling[t + 1, b], children, grad_coupling, grad_density, sums)
            for p in range(positions):
                field_votes(poses[b], children[p], weight, votes)
                own = _at(states, t, b, p)
                shares, on = own.coupling, load(own.activation, 0)
                for at in range(0, SIZE, LANES):
                    store(precision, at, ONE / load(own.variance, at))
                if t + 1 == steps:
                    grad.mean[:] = grad_mean[b, p]
                    grad.variance[:] = ZERO
                    grad_logit = load(grad_activation[b, p], 0) * on * (ONE - on)
                else:
                    grad_logit = _density_adjoint(votes, own.mean, precision, grad_density[p], grad) * (ONE - on)
                grad_total = _activation_adjoint(own, precision, parameters, temperatures[t], grad_logit, grad, to)
                inverse = ONE / (load(own.total, 0) + SMALLEST_SHARE)
                for s in range(slots):
                    seen = splat(activations[b, children[p, s]])
                    store(share, s * LANES, load(shares, s * LANES) * seen * inverse)
                _deviations_adjoint(votes, own.mean, share, grad)
                for s in range(slots):
                    child, at = children[p, s], s * LANES
                    factors = load(share, at), load(grad_density[p], at)
                    grad_share = _vote_adjoint(votes[s], own, precision, *factors, grad, grad_vote)
                    grad_weighed = is_output * (grad_total + grad_share * inverse)
                    to_activations[b, child] += first(sum_of_lanes(grad_weighed * load(shares, at)))
                    store(grad_coupling[p], at, grad_weighed * splat(activations[b, child]))
                    vote_adjoint(weight, s, poses[b, child], grad_vote, 0, LANES, to_weight, to_poses[b, child])


@compiled
def _softmax_adjoint(coupling: Any, children: Any, grad_coupling: Any, grad_logits: Any, sums: Any) -> None:
    positions, slots = children.shape
    sums[:] = ZERO
    for p in range(positions):
        for s in range(slots):
            own, at = (p * slots + s) * LANES, children[p, s] * LANES
            add_to(sums, at, load(coupling, own) * load(grad_coupling, own))
    for at in range(0, sums.size, LANES):
        store(sums, at, sum_of_lanes(load(sums, at)))
    for p in range(positions):
        for s in range(slots):
            own = (p * slots + s) * LANES
            off = load(grad_coupling, own) - load(sums, children[p, s] * LANES)
            store(grad_logits, own, load(coupling, own) * off)


@compiled
def _density_adjoint(votes: Any, mean: Any, precision: Any, grad_density: Any, grad: Any) -> Any:
    """Set the gradients of mean and variance through the log densities, and return that of their common part."""
    slots, grad_offset = len(votes), splat(ZERO)
    for s in range(slots):
        grad_offset = grad_offset + load(grad_density, s * LANES)
    for at in range(0, SIZE, 2 * LANES):
        m0, m1, p0, p1 = load(mean, at), load(mean, at + LANES), load(precision, at), load(precision, at + LANES)
        w = x = y = z = splat(ZERO)
        for s in range(slots):
            d, v = load(grad_density, s * LANES), s * SIZE + at
            off0, off1 = (load(votes, v) - m0) * p0, (load(votes, v + LANES) - m1) * p1
            d0, d1 = d * off0, d * off1
            w, x, y, z = w + d0, x + d1, y + d0 * off0, z + d1 * off1
        store(grad.mean, at, w)
        store(grad.mean, at + LANES, x)
        store(grad.variance, at, HALF * (y - grad_offset * p0))
        store(grad.variance, at + LANES, HALF * (z - grad_offset * p1))
    return grad_offset


@compiled
def _activation_adjoint(
    own: Any, precision: Any, parameters: Any, temperature: Any, grad_logit: Any, grad: Any, gradients: Any
) -> Any:
    """Add the gradients of variance and betas through the activation, and return that of the total weight."""
    grad_cost, total = MINUS * temperature * grad_logit, load(own.total, 0)
    grad_total = grad_cost * (SIXTEEN * load(parameters.beta_u, 0) + HALF * _sum_of_logs(own.variance))
    add_to(gradients.beta_a, 0, temperature * grad_logit)
    add_to(gradients.beta_u, 0, grad_cost * total * SIXTEEN)
    grad_logs = HALF * grad_cost * total
    for at in range(0, SIZE, LANES):
        add_to(grad.variance, at, grad_logs * load(precision, at))
    return grad_total


@compiled
def _deviations_adjoint(votes: Any, mean: Any, share: Any, grad: Any) -> None:
    """Add the gradient of the mean through the deviations from it; share [n, LANES] has the divisor.

    Their weighted sum is not zero: the divisor is larger than the sum of weights, and large means are rounded.
    """
    for at in range(0, SIZE, FOUR_ROWS):
        m0, m1, m2, m3 = _load_four(mean, at)
        w = x = y = z = splat(ZERO)
        for s in range(len(share)):
            weight, v = load(share, s * LANES), s * SIZE + at
            w, x = w + weight * (load(votes, v) - m0), x + weight * (load(votes, v + LANES) - m1)
            y, z = y + weight * (load(votes, v + 2 * LANES) - m2), z + weight * (load(votes, v + 3 * LANES) - m3)
        v0, v1, v2, v3 = _load_four(grad.variance, at)
        a0, a1, a2, a3 = _load_four(grad.mean, at)
        _store_four(grad.mean, at, a0 - TWO * w * v0, a1 - TWO * x * v1, a2 - TWO * y * v2, a3 - TWO * z * v3)


@compiled
def _vote_adjoint(
    votes: Any, own: Any, precision: Any, share: Any, grad_density: Any, grad: Any, grad_vote: Any
) -> Any:
    """Set the gradient of a vote through mean, variance and log density, and return that of its share."""
    grad_share = splat(ZERO)
    for at in range(0, SIZE, LANES):
        off, grad_m, grad_v = load(votes, at) - load(own.mean, at), load(grad.mean, at), load(grad.variance, at)
        spread = load(own.variance, at) - SMALLEST_VARIANCE
        grad_share = grad_share + (off * grad_m + (off * off - spread) * grad_v)
        store(grad_vote, at, share * (grad_m + TWO * grad_v * off) - grad_density * off * load(precision, at))
    return grad_share
