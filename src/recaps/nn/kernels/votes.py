"""Compiled sums of votes, with gradients written by hand: under coupling coefficients and under learned coefficients.

Votes are the largest tensor of a network: 151 million values for a batch at 40x40. A kernel computes the votes of one
input capsule for one image when it needs them, which is faster than reading them from memory. The output capsules are
the lanes of a vector, so that the dot products or weights of all outputs are one vector. All arrays are float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from recaps.nn.kernels import LANES, SQUASH
from recaps.nn.kernels.compiled import array, compiled, in_parts, kernel
from recaps.nn.kernels.vector import exp, first, largest, load, splat, sqrt, store, total

#: Dimensions of an input capsule that are multiplied at a time.
AT_A_TIME = 4
#: Input capsules whose weights stay in the cache while a kernel goes through the images; 8 kB each for D = 16.
BLOCK, BLOCK_BACKWARD = 4, 2
EPSILON = np.float32(SQUASH)
ZERO, ONE = np.float32(0), np.float32(1)
#: The logit of outputs that do not exist.
LOWEST = np.float32(-1e30)


def padded(capsules: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Prepare input capsules [B, I, d] and the weights [I, d, J, D] of their votes u_hat_ij = W_ij u_i.

    Returns:
        [I, B, P] and [I, P, D, LANES]. P is d, rounded up to a multiple of `AT_A_TIME`; new values are zeros.
    """
    missing = -capsules.shape[2] % AT_A_TIME
    capsules, weight = pad(capsules.transpose(0, 1), (0, missing)), pad(_lanes(weight), (0, 0, 0, 0, 0, missing))
    return capsules.contiguous(), weight.contiguous()


def by_agreement(
    capsules: Tensor, weight: Tensor, towards: Tensor, *, leaky: bool = False, constant: bool = False
) -> tuple[Tensor, Tensor]:
    """Sum votes, coupled with their outputs by agreement: sum_i c_ij u_hat_ij with c_i = softmax_j(u_hat_ij . t_j).

    Args:
        capsules: [I, B, P], `padded`.
        weight: [I, P, D, LANES], `padded`.
        towards: t, [B, J, D].
        leaky: add one more output with logit zero to the softmax and discard its coupling.
        constant: the coupling is a constant for gradients.

    Returns:
        The sums [B, J, D] and the coupling c [B, I, J]. The coupling carries no gradient.
    """
    outputs = towards.shape[1]
    sums, coupling = _ByAgreement.apply(capsules, weight, _lanes(towards), outputs + leaky, constant)
    return sums[..., :outputs].transpose(1, 2), coupling[..., :outputs].transpose(0, 1)


def by_coefficients(capsules: Tensor, weight: Tensor, coefficients: Tensor, squash: bool) -> tuple[Tensor, Tensor]:
    """Sum votes under coefficients, twice: sum_i b_ij u_hat_ij.

    Args:
        capsules: [I, B, P], `padded`.
        weight: [I, P, D, LANES], `padded`.
        coefficients: b, [I, J].
        squash: squash the votes before the sum.

    Returns:
        The sums [B, J, D] twice. The first has gradients for capsules and weights, the second for the coefficients.
    """
    outputs = coefficients.shape[1]
    both = _ByCoefficients.apply(capsules, weight, pad(coefficients, (0, LANES - outputs)), squash)
    one, other = (sums[..., :outputs].transpose(1, 2) for sums in both)
    return one, other


def _lanes(vectors: Tensor) -> Tensor:
    """[..., J, D] to [..., D, LANES], with zeros after the J outputs."""
    return pad(vectors.transpose(-1, -2), (0, LANES - vectors.shape[-2]))


class _ByAgreement(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, capsules: Tensor, weight: Tensor, towards: Tensor, present: int, constant: bool
    ) -> tuple[Tensor, Tensor]:
        coupling = np.empty((*capsules.shape[:2], LANES), np.float32)
        arrays = array(capsules), array(weight), array(towards)
        ctx.arrays, ctx.constant = (*arrays, coupling), constant
        sums = _sum(_agree, towards.shape, *arrays, present, coupling)
        shares = torch.from_numpy(coupling)
        ctx.mark_non_differentiable(shares)
        return sums, shares

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        capsules, weight = (np.empty_like(each) for each in ctx.arrays[:2])
        given = *ctx.arrays, array(gradient), ctx.constant, capsules, weight
        grad_towards = _sum(_agree_backward, gradient.shape, *given)
        return torch.from_numpy(capsules), torch.from_numpy(weight), grad_towards, None, None


class _ByCoefficients(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, capsules: Tensor, weight: Tensor, coefficients: Tensor, squash: bool
    ) -> tuple[Tensor, Tensor]:
        ctx.arrays = array(capsules), array(weight), array(coefficients)
        ctx.squash = squash
        made = _sum(_weigh, (capsules.shape[1], *weight.shape[2:]), *ctx.arrays, squash)
        return made, made.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_votes: Tensor, to_coefficients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        made = tuple(np.empty_like(each) for each in ctx.arrays)
        in_parts(_weigh_backward, *ctx.arrays, ctx.squash, array(to_votes), array(to_coefficients), *made)
        capsules, weight, coefficients = map(torch.from_numpy, made)
        return capsules, weight, coefficients, None


def _sum(kernel: Any, shape: Any, *arguments: Any) -> Tensor:
    """Call a kernel in parts, with an array of zeros [parts, *shape] as its last argument, and return their sum."""
    sums = np.zeros((torch.get_num_threads(), *shape), np.float32)
    in_parts(kernel, *arguments, sums)
    return torch.from_numpy(sums[0] if len(sums) == 1 else sums.sum(0))


@compiled
def _votes(weight: Any, capsule: Any, votes: Any) -> None:
    """votes = W u: [P, D, LANES] and [P] to [D, LANES]."""
    size = votes.size
    for p in range(0, len(capsule), AT_A_TIME):
        a, b, c, d = splat(capsule[p]), splat(capsule[p + 1]), splat(capsule[p + 2]), splat(capsule[p + 3])
        first = p * size
        for k in range(0, size, LANES):
            added = a * load(weight, first + k) + b * load(weight, first + size + k)
            added = added + (c * load(weight, first + 2 * size + k) + d * load(weight, first + 3 * size + k))
            store(votes, k, added if p == 0 else load(votes, k) + added)


@compiled
def _votes_backward(weight: Any, capsule: Any, grad_votes: Any, grad_weight: Any, grad_capsule: Any) -> None:
    """Add the gradient of the weight to `grad_weight`, and write that of the capsule."""
    size = grad_votes.size
    for p in range(len(capsule)):
        value, dot = splat(capsule[p]), splat(ZERO)
        for k in range(0, size, LANES):
            direction, place = load(grad_votes, k), p * size + k
            dot = dot + load(weight, place) * direction
            store(grad_weight, place, load(grad_weight, place) + value * direction)
        grad_capsule[p] = first(total(dot))


@compiled
def _dots(votes: Any, vectors: Any) -> Any:
    """Dot product of each vote with the vector of its output: [D, LANES] twice to a vector."""
    dots = load(votes, 0) * load(vectors, 0)
    for k in range(LANES, votes.size, LANES):
        dots = dots + load(votes, k) * load(vectors, k)
    return dots


@compiled
def _add(weights: Any, votes: Any, sums: Any) -> None:
    """Add the votes [D, LANES], each times the weight of its output, to the sums [D, LANES]."""
    for k in range(0, votes.size, LANES):
        store(sums, k, load(sums, k) + weights * load(votes, k))


@compiled
def _softmax(logits: Any) -> Any:
    """Softmax over the lanes."""
    shares = exp(logits - largest(logits))
    return shares / total(shares)


@compiled
def _scale(squared: Any) -> Any:
    """Return the factor of squash for vectors of these squared lengths."""
    return sqrt(squared) / (ONE + squared)


@compiled
def _slope(squared: Any) -> Any:
    """Return twice the derivative of the factor of squash by the squared length."""
    return (ONE - squared) / (sqrt(squared) * (ONE + squared) * (ONE + squared))


@kernel
def _agree(
    part: int, parts: int, capsules: Any, weight: Any, towards: Any, present: int, coupling: Any, sums: Any
) -> None:
    """Shapes: capsules [I, B, P], weight [I, P, D, LANES], towards [B, D, LANES], coupling [I, B, LANES], and
    sums [parts, B, D, LANES]. The outputs from `present` on do not exist."""
    inputs, batch = capsules.shape[:2]
    votes, lowest = np.empty(weight.shape[2:], np.float32), np.zeros(LANES, np.float32)
    lowest[present:] = LOWEST
    absent = load(lowest, 0)
    end = (part + 1) * inputs // parts
    for start in range(part * inputs // parts, end, BLOCK):
        for b in range(batch):
            for i in range(start, min(start + BLOCK, end)):
                _votes(weight[i], capsules[i, b], votes)
                shares = _softmax(_dots(votes, towards[b]) + absent)
                store(coupling[i, b], 0, shares)
                _add(shares, votes, sums[part, b])


@kernel
def _agree_backward(
    part: int,
    parts: int,
    capsules: Any,
    weight: Any,
    towards: Any,
    coupling: Any,
    grad_sums: Any,
    constant: bool,
    grad_capsules: Any,
    grad_weight: Any,
    grad_towards: Any,
) -> None:
    """The gradients have the shapes of their values; `grad_towards` has one more axis, [parts, ...]."""
    inputs, batch = capsules.shape[:2]
    votes = np.empty(weight.shape[2:], np.float32)
    end = (part + 1) * inputs // parts
    for start in range(part * inputs // parts, end, BLOCK_BACKWARD):
        grad_weight[start : min(start + BLOCK_BACKWARD, end)] = ZERO
        for b in range(batch):
            for i in range(start, min(start + BLOCK_BACKWARD, end)):
                shares = load(coupling[i, b], 0)
                grad_logits = splat(ZERO)
                if not constant:
                    _votes(weight[i], capsules[i, b], votes)
                    agreement = shares * _dots(votes, grad_sums[b])
                    grad_logits = agreement - shares * total(agreement)
                    _add(grad_logits, votes, grad_towards[part, b])
                for k in range(0, votes.size, LANES):
                    store(votes, k, shares * load(grad_sums[b], k) + grad_logits * load(towards[b], k))
                _votes_backward(weight[i], capsules[i, b], votes, grad_weight[i], grad_capsules[i, b])


@kernel
def _weigh(part: int, parts: int, capsules: Any, weight: Any, coefficients: Any, squash: bool, sums: Any) -> None:
    """Shapes as in `_agree`; coefficients [I, LANES]."""
    inputs, batch = capsules.shape[:2]
    votes = np.empty(weight.shape[2:], np.float32)
    end = (part + 1) * inputs // parts
    for start in range(part * inputs // parts, end, BLOCK):
        for b in range(batch):
            for i in range(start, min(start + BLOCK, end)):
                _votes(weight[i], capsules[i, b], votes)
                weights = load(coefficients[i], 0)
                if squash:
                    weights = weights * _scale(_dots(votes, votes) + EPSILON)
                _add(weights, votes, sums[part, b])


@kernel
def _weigh_backward(
    part: int,
    parts: int,
    capsules: Any,
    weight: Any,
    coefficients: Any,
    squash: bool,
    to_votes: Any,
    to_coefficients: Any,
    grad_capsules: Any,
    grad_weight: Any,
    grad_coefficients: Any,
) -> None:
    """Compute the gradients of capsules and weight from that of the first sums, [B, D, LANES], and of the coefficients
    from that of the second sums."""
    inputs, batch = capsules.shape[:2]
    votes = np.empty(weight.shape[2:], np.float32)
    end = (part + 1) * inputs // parts
    for start in range(part * inputs // parts, end, BLOCK_BACKWARD):
        grad_weight[start : min(start + BLOCK_BACKWARD, end)] = ZERO
        grad_coefficients[start : min(start + BLOCK_BACKWARD, end)] = ZERO
        for b in range(batch):
            for i in range(start, min(start + BLOCK_BACKWARD, end)):
                _votes(weight[i], capsules[i, b], votes)
                weights, along = load(coefficients[i], 0), splat(ZERO)
                grad_weights = _dots(votes, to_coefficients[b])
                if squash:
                    squared = _dots(votes, votes) + EPSILON
                    scale = _scale(squared)
                    along = weights * _slope(squared) * _dots(votes, to_votes[b])
                    weights, grad_weights = weights * scale, grad_weights * scale
                store(grad_coefficients[i], 0, load(grad_coefficients[i], 0) + grad_weights)
                for k in range(0, votes.size, LANES):
                    store(votes, k, weights * load(to_votes[b], k) + along * load(votes, k))
                _votes_backward(weight[i], capsules[i, b], votes, grad_weight[i], grad_capsules[i, b])
