"""Compiled routing of vector votes, with gradients written by hand: by agreement and by learned coefficients.

A kernel reads the votes of an input capsule once per iteration, for the dot products and for the weighted sums. It
takes votes in the order input capsule, image, in which the layer of votes computes them. Votes in bfloat16 are widened
as they are read: a bfloat16 is the upper half of a float32. All sums are float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recaps.nn.kernels.compiled import array, compiled, expm1, in_parts, kernel

#: Added to squared lengths by `recaps.nn.squash`.
EPSILON = np.float32(1e-8)


def route_by_agreement(
    votes: Tensor, bias: Tensor, iterations: int, through_all: bool, leaky: bool
) -> tuple[Tensor, Tensor]:
    """`recaps.nn.routing.dynamic.dynamic_routing`.

    Votes [B, I, J, D] are float32 or bfloat16. The bias [J, D] is float32.
    """
    made: tuple[Tensor, Tensor] = _ByAgreement.apply(votes, bias, iterations, through_all, leaky)
    return made


def route_by_coefficients(votes: Tensor, coefficients: Tensor, squash_votes: bool) -> tuple[Tensor, Tensor]:
    """Sum votes [B, I, J, D] under coefficients [I, J] in float32: [B, J, D], twice.

    The first output has gradients for the votes, the second for the coefficients.
    """
    made: tuple[Tensor, Tensor] = _ByCoefficients.apply(votes, coefficients, squash_votes)
    return made


class _ByAgreement(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, votes: Tensor, bias: Tensor, iterations: int, through_all: bool, leaky: bool
    ) -> tuple[Tensor, Tensor]:
        batch, inputs, outputs, dim = votes.shape
        votes = _by_capsule(votes)
        couplings = np.empty((iterations, inputs, batch, outputs), np.float32)
        sums = np.empty((iterations, batch, outputs, dim), np.float32)
        totals, capsules = np.empty_like(sums), np.empty((batch, outputs, dim), np.float32)
        in_parts(_agree, _bits(votes), array(bias), leaky, couplings, sums, totals, capsules)
        ctx.save_for_backward(votes)
        ctx.state, ctx.through_all = (couplings, sums, totals), through_all
        coupling = torch.from_numpy(couplings[-1]).transpose(0, 1)
        ctx.mark_non_differentiable(coupling)
        return torch.from_numpy(capsules), coupling

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        (votes,) = ctx.saved_tensors
        at_votes = torch.empty_like(votes)
        at_bias = np.zeros((torch.get_num_threads(), *gradient.shape[1:]), np.float32)
        given = _bits(votes), *ctx.state, array(gradient), ctx.through_all
        in_parts(_agree_backward, *given, _bits(at_votes), at_bias)
        return at_votes.transpose(0, 1), torch.from_numpy(at_bias.sum(0)), None, None, None


class _ByCoefficients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, votes: Tensor, coefficients: Tensor, squash_votes: bool) -> tuple[Tensor, Tensor]:
        votes = _by_capsule(votes)
        sums = np.empty(votes.shape[1:], np.float32)
        in_parts(_weigh, _bits(votes), array(coefficients), squash_votes, sums)
        ctx.save_for_backward(votes, coefficients)
        ctx.squash_votes = squash_votes
        made = torch.from_numpy(sums)
        return made, made.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_votes: Tensor, to_coefficients: Tensor) -> tuple[Tensor, Tensor, None]:
        votes, coefficients = ctx.saved_tensors
        at_votes = torch.empty_like(votes)
        at_coefficients = np.zeros((torch.get_num_threads(), *coefficients.shape), np.float32)
        given = _bits(votes), array(coefficients), ctx.squash_votes, array(to_votes), array(to_coefficients)
        in_parts(_weigh_backward, *given, _bits(at_votes), at_coefficients)
        return at_votes.transpose(0, 1), torch.from_numpy(at_coefficients.sum(0)), None


def _by_capsule(votes: Tensor) -> Tensor:
    """[B, I, J, D] to [I, B, J, D], which is the order in which `recaps.nn.layers.Votes` writes them."""
    return votes.transpose(0, 1).contiguous()


def _bits(votes: Tensor) -> Any:
    """Return an array [I, B, J * D] of unsigned integers that shares the memory of votes [I, B, J, D]."""
    flat = votes.detach().flatten(2)
    if flat.dtype == torch.bfloat16:
        return flat.view(torch.int16).numpy().view(np.uint16)
    return flat.numpy().view(np.uint32)


@compiled
def _load(votes: Any, bits: Any) -> None:
    """Write the votes of one input capsule to `bits`, the bits of a float32 array [J * D]."""
    shift = np.uint32(32 - 8 * votes.itemsize)
    for k in range(len(bits)):
        bits[k] = np.uint32(votes[k]) << shift


@compiled
def _store(bits: Any, votes: Any) -> None:
    """The inverse of `_load`. bfloat16 is rounded to the nearest value, and to the even one of two."""
    narrow = votes.itemsize == 2
    shift = np.uint32(16 if narrow else 0)
    below, odd = np.uint32(0x7FFF if narrow else 0), np.uint32(1 if narrow else 0)
    for k in range(len(bits)):
        votes[k] = (bits[k] + below + ((bits[k] >> shift) & odd)) >> shift


@compiled
def _dots(row: Any, vectors: Any, found: Any) -> None:
    """Dot product of each vote of `row` [J * D] with its vector [J, D]."""
    outputs, dim = vectors.shape
    for j in range(outputs):
        dot = np.float32(0)
        for d in range(dim):
            dot += row[j * dim + d] * vectors[j, d]
        found[j] = dot


@compiled
def _add(row: Any, weights: Any, sums: Any) -> None:
    """Add the votes of `row` [J * D], each times its weight [J], to the sums [J, D]."""
    outputs, dim = sums.shape
    for j in range(outputs):
        weight = weights[j]
        for d in range(dim):
            sums[j, d] += weight * row[j * dim + d]


@compiled
def _spread(weights: Any, vectors: Any, row: Any) -> None:
    """Add the vectors [J, D], each times its weight [J], to `row` [J * D]: the adjoint of `_add`."""
    outputs, dim = vectors.shape
    for j in range(outputs):
        weight = weights[j]
        for d in range(dim):
            row[j * dim + d] += weight * vectors[j, d]


@compiled
def _softmax(logits: Any, leaky: bool) -> None:
    """Softmax in place. `leaky` adds one more logit, which is zero, and drops its share."""
    one, total = np.float32(1), np.float32(0)
    highest = np.float32(0) if leaky else logits[0]
    for j in range(len(logits)):
        highest = max(highest, logits[j])
    for j in range(len(logits)):
        logits[j] = one + expm1(logits[j] - highest, np.float32)
        total += logits[j]
    if leaky:
        total += one + expm1(-highest, np.float32)
    for j in range(len(logits)):
        logits[j] /= total


@compiled
def _scale(squared: Any) -> Any:
    """Return the factor of squash, and twice its derivative by the squared length."""
    one = np.float32(1)
    root = np.sqrt(squared)
    return root / (one + squared), (one - squared) / (root * (one + squared) * (one + squared))


@kernel
def _agree(
    part: int, parts: int, votes: Any, bias: Any, leaky: bool, couplings: Any, sums: Any, totals: Any, capsules: Any
) -> None:
    """Shapes: couplings [T, I, B, J]; sums and totals, the sums of the capsules before each iteration, [T, B, J, D]."""
    inputs, batch = votes.shape[:2]
    steps, _, outputs, dim = sums.shape
    bits = np.empty(outputs * dim, np.uint32)
    row = bits.view(np.float32)
    images = range(part * batch // parts, (part + 1) * batch // parts)
    for t in range(steps):
        for b in images:
            sums[t, b] = bias
            if t == 0:
                totals[t, b] = np.float32(0)
        for i in range(inputs):
            for b in images:
                _load(votes[i, b], bits)
                coupling = couplings[t, i, b]
                if t == 0:
                    coupling[:] = np.float32(1) / np.float32(outputs + leaky)
                else:
                    _dots(row, totals[t, b], coupling)
                    _softmax(coupling, leaky)
                _add(row, coupling, sums[t, b])
        for b in images:
            for j in range(outputs):
                squared = EPSILON
                for d in range(dim):
                    squared += sums[t, b, j, d] * sums[t, b, j, d]
                scale = _scale(squared)[0]
                for d in range(dim):
                    capsules[b, j, d] = scale * sums[t, b, j, d]
                    if t + 1 < steps:
                        totals[t + 1, b, j, d] = totals[t, b, j, d] + capsules[b, j, d]


@kernel
def _agree_backward(
    part: int,
    parts: int,
    votes: Any,
    couplings: Any,
    sums: Any,
    totals: Any,
    given: Any,
    through_all: bool,
    at_votes: Any,
    at_bias: Any,
) -> None:
    """Compute the gradients of votes [I, B, J * D] and bias [parts, J, D] from that of the capsules [B, J, D]."""
    inputs, batch = votes.shape[:2]
    steps, _, outputs, dim = sums.shape
    first = 0 if through_all else steps - 1
    start, end = part * batch // parts, (part + 1) * batch // parts
    bits = np.empty(outputs * dim, np.uint32)
    row = bits.view(np.float32)
    at_sums = np.empty((steps, end - start, outputs, dim), np.float32)
    at_logits = np.empty((steps, inputs, end - start, outputs), np.float32)
    at_capsules = given[start:end].copy()
    for t in range(steps - 1, first - 1, -1):
        for b in range(start, end):
            own = at_capsules[b - start]
            for j in range(outputs):
                squared, along = EPSILON, np.float32(0)
                for d in range(dim):
                    squared += sums[t, b, j, d] * sums[t, b, j, d]
                    along += sums[t, b, j, d] * own[j, d]
                scale, slope = _scale(squared)
                for d in range(dim):
                    at_sums[t, b - start, j, d] = scale * own[j, d] + slope * along * sums[t, b, j, d]
                    at_bias[part, j, d] += at_sums[t, b - start, j, d]
        if t == steps - 1:
            at_capsules[:] = np.float32(0)
        if t > 0 and through_all:
            for i in range(inputs):
                for b in range(start, end):
                    _load(votes[i, b], bits)
                    coupling, at_logit = couplings[t, i, b], at_logits[t, i, b - start]
                    _dots(row, at_sums[t, b - start], at_logit)
                    mean = np.float32(0)
                    for j in range(outputs):
                        mean += coupling[j] * at_logit[j]
                    for j in range(outputs):
                        at_logit[j] = coupling[j] * (at_logit[j] - mean)
                    _add(row, at_logit, at_capsules[b - start])
    for i in range(inputs):
        for b in range(start, end):
            row[:] = np.float32(0)
            for t in range(first, steps):
                _spread(couplings[t, i, b], at_sums[t, b - start], row)
                if t > 0 and through_all:
                    _spread(at_logits[t, i, b - start], totals[t, b], row)
            _store(bits, at_votes[i, b])


@kernel
def _weigh(part: int, parts: int, votes: Any, coefficients: Any, squash_votes: bool, sums: Any) -> None:
    """Shapes: votes [I, B, J * D], coefficients [I, J], sums [B, J, D]."""
    inputs, batch = votes.shape[:2]
    outputs, dim = sums.shape[1:]
    bits = np.empty(outputs * dim, np.uint32)
    row = bits.view(np.float32)
    vectors = row.reshape(outputs, dim)
    weights = np.empty(outputs, np.float32)
    images = range(part * batch // parts, (part + 1) * batch // parts)
    for b in images:
        sums[b] = np.float32(0)
    for i in range(inputs):
        for b in images:
            _load(votes[i, b], bits)
            weights[:] = np.float32(1)
            if squash_votes:
                _dots(row, vectors, weights)
                for j in range(outputs):
                    weights[j] = _scale(weights[j] + EPSILON)[0]
            for j in range(outputs):
                weights[j] *= coefficients[i, j]
            _add(row, weights, sums[b])


@kernel
def _weigh_backward(
    part: int,
    parts: int,
    votes: Any,
    coefficients: Any,
    squash_votes: bool,
    to_votes: Any,
    to_coefficients: Any,
    at_votes: Any,
    at_coefficients: Any,
) -> None:
    """Compute the gradients of votes [I, B, J * D] from those of the first sums, and of coefficients [parts, I, J] from
    those of the second sums."""
    inputs, batch = votes.shape[:2]
    outputs, dim = to_votes.shape[1:]
    bits, made = np.empty(outputs * dim, np.uint32), np.empty(outputs * dim, np.uint32)
    row, at_row = bits.view(np.float32), made.view(np.float32)
    vectors = row.reshape(outputs, dim)
    squared, agreement, scales, along = (
        np.empty(outputs, np.float32),
        np.empty(outputs, np.float32),
        np.empty(outputs, np.float32),
        np.empty(outputs, np.float32),
    )
    for i in range(inputs):
        for b in range(part * batch // parts, (part + 1) * batch // parts):
            _load(votes[i, b], bits)
            _dots(row, to_coefficients[b], agreement)
            scales[:] = np.float32(1)
            if squash_votes:
                _dots(row, vectors, squared)
                _dots(row, to_votes[b], along)
                for j in range(outputs):
                    scales[j], slope = _scale(squared[j] + EPSILON)
                    along[j] *= coefficients[i, j] * slope
            for j in range(outputs):
                at_coefficients[part, i, j] += scales[j] * agreement[j]
                scales[j] *= coefficients[i, j]
            at_row[:] = np.float32(0)
            _spread(scales, to_votes[b], at_row)
            if squash_votes:
                _spread(along, vectors, at_row)
            _store(made, at_votes[i, b])
