"""Connectionist routing, compiled, with a gradient written by hand.

`recaps.nn.routing.connectionist.lstm_routing` is the plain version. Pairs of an input and an output capsule are the
columns of matrices. A kernel processes `TOGETHER` slots of a field at a time, each with all types of output capsules,
so that the states of these pairs stay in the cache. The states of a batch would take gigabytes, so only the inputs are
saved, and the backward pass first computes each position again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from recaps.nn.fields import Fields
from recaps.nn.kernels import LANES
from recaps.nn.kernels.compiled import POSE, array, compiled, expm1, in_parts, kernel, lanes, vote, vote_adjoint

#: Slots that are processed at a time, and the columns that they occupy.
TOGETHER = 4
COLUMNS = TOGETHER * LANES
#: Numbers of units and neurons are padded to a multiple of this.
BLOCK = 16


def fused_lstm_routing(
    poses: Tensor,
    activations: Tensor,
    weight: Tensor,
    fields: Fields,
    cell: tuple[Tensor, Tensor, Tensor, Tensor],
    network: Sequence[tuple[Tensor, Tensor]],
    iterations: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `recaps.nn.routing.connectionist.lstm_routing` for at most `LANES` types of output capsules on a CPU."""
    from_pose, from_vote, from_hidden, vectors = cell
    units = from_hidden.shape[1]
    hidden, biases = network[:-1], [bias for _, bias in network]
    widths = [_blocks(each) for each in (units, *(len(bias) for _, bias in hidden))]
    gates = [_gates(each, units, widths[0]) for each in (from_pose, from_vote, from_hidden)]
    packed = [
        _padded(matrix, after, before).flatten()
        for (matrix, _), before, after in zip(network, widths, [*widths[1:], 1], strict=True)
    ]
    offsets = [_padded(bias, after) for bias, after in zip(biases, [*widths[1:], 1], strict=True)]
    mean, combined, coupling = _FusedLSTM.apply(
        poses,
        activations,
        weight,
        *gates[:2],
        _padded(gates[2], 4 * widths[0], widths[0]),
        _gates(vectors.T, units, widths[0]).T,
        torch.cat(packed),
        torch.cat(offsets),
        fields,
        tuple(widths),
        iterations,
    )
    return mean, combined[..., :units], coupling


def _blocks(number: int) -> int:
    return -(-number // BLOCK) * BLOCK


def _padded(tensor: Tensor, *shape: int) -> Tensor:
    """Add zeros at the end of each axis."""
    added = [each for have, want in zip(tensor.shape[::-1], shape[::-1], strict=True) for each in (0, want - have)]
    return pad(tensor, added)


def _gates(matrix: Tensor, units: int, padded: int) -> Tensor:
    """Reorder rows from gate by gate, [4 * units, K], to unit by unit, [4 * padded, K]. Added units stay zero."""
    return _padded(matrix.unflatten(0, (4, units)), 4, padded, matrix.shape[1]).transpose(0, 1).flatten(0, 1)


class _FusedLSTM(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        *tensors, fields, widths, iterations = arguments
        poses, activations, weight = tensors[:3]
        kind = torch.promote_types(poses.dtype, torch.float32)
        (positions, slots), outputs = fields.children.shape, weight.shape[1]
        spare = -slots % TOGETHER  # extra slots hold the field's first capsule with zero weights, and get no coupling
        parameters = [array(each.to(kind)) for each in tensors[3:]]
        arrays = [
            array(poses.to(kind)),
            array(activations.to(kind)),
            array(torch.cat([fields.children, fields.children[:, :1].expand(-1, spare)], 1).int()),
            lanes(pad(weight.to(kind).flatten(2).transpose(1, 2), (0, 0, 0, 0, 0, spare))),
            *parameters,
            np.array(widths),
            slots,
        ]
        batch, real = len(poses), arrays[0].dtype
        mean = np.empty((batch, positions, POSE, LANES), real)
        combined = np.empty((batch, positions, widths[0], LANES), real)
        coupling = np.empty((batch, positions, slots + spare, LANES), real)
        in_parts(_forward, *arrays, mean, combined, coupling, iterations)
        ctx.save_for_backward(*tensors)
        ctx.arrays, ctx.iterations, ctx.outputs, ctx.slots = arrays, iterations, outputs, slots
        ctx.dtypes = [tensor.dtype for tensor in tensors]
        shares = torch.from_numpy(coupling[:, :, :slots, :outputs].copy())
        ctx.mark_non_differentiable(shares)
        made = [torch.from_numpy(each[..., :outputs]).transpose(2, 3).contiguous() for each in (mean, combined)]
        return made[0], made[1], shares

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, at_mean: Tensor, at_combined: Tensor, _: Tensor) -> tuple[Any, ...]:
        _ = ctx.saved_tensors  # raises an error if one was changed in place
        poses, activations, _children, weight, *parameters, _widths, _slots = ctx.arrays
        threads = torch.get_num_threads()
        shared = [np.zeros((threads, *each.shape), poses.dtype) for each in (weight, *parameters)]
        gradients = [np.zeros_like(poses), np.zeros_like(activations), *shared]
        at = [lanes(each.transpose(2, 3)) for each in (at_mean, at_combined)]
        in_parts(_backward, *ctx.arrays, *at, *gradients, ctx.iterations)
        by_pose, by_activation, *by_parameter = (torch.from_numpy(each) for each in gradients)
        by_weight, *rest = (each.sum(0) for each in by_parameter)
        to_weight = by_weight[: ctx.slots, :, : ctx.outputs].transpose(1, 2).unflatten(2, (4, 4))
        made = (by_pose, by_activation, to_weight, *rest)
        return *(tensor.to(kind) for tensor, kind in zip(made, ctx.dtypes, strict=True)), None, None, None


@compiled
def _product(matrix: Any, start: int, rows: int, depth: int, columns: Any, out: Any) -> None:
    """Add the product of a matrix [rows, depth], stored in `matrix` from `start`, and columns [depth * COLUMNS]."""
    for row in range(rows):
        at = row * COLUMNS
        for block in range(0, depth, BLOCK):
            w = matrix[start + row * depth + block : start + row * depth + block + BLOCK]
            x = columns[block * COLUMNS : (block + BLOCK) * COLUMNS]
            w0, w1, w2, w3, w4, w5, w6, w7 = w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]
            w8, w9, w10, w11, w12, w13, w14, w15 = w[8], w[9], w[10], w[11], w[12], w[13], w[14], w[15]
            for q in range(COLUMNS):
                out[at + q] += (
                    w0 * x[q]
                    + w1 * x[COLUMNS + q]
                    + w2 * x[2 * COLUMNS + q]
                    + w3 * x[3 * COLUMNS + q]
                    + w4 * x[4 * COLUMNS + q]
                    + w5 * x[5 * COLUMNS + q]
                    + w6 * x[6 * COLUMNS + q]
                    + w7 * x[7 * COLUMNS + q]
                    + w8 * x[8 * COLUMNS + q]
                    + w9 * x[9 * COLUMNS + q]
                    + w10 * x[10 * COLUMNS + q]
                    + w11 * x[11 * COLUMNS + q]
                    + w12 * x[12 * COLUMNS + q]
                    + w13 * x[13 * COLUMNS + q]
                    + w14 * x[14 * COLUMNS + q]
                    + w15 * x[15 * COLUMNS + q]
                )


@compiled
def _outer(left: Any, rows: int, right: Any, depth: int, out: Any, start: int) -> None:
    """Add left [rows * COLUMNS] times the transpose of right [depth * COLUMNS] to `out` from `start`."""
    for row in range(rows):
        at = row * COLUMNS
        for k in range(0, depth, 4):
            to = start + row * depth + k
            x = right[k * COLUMNS : (k + 4) * COLUMNS]
            s0, s1, s2, s3 = out[to], out[to + 1], out[to + 2], out[to + 3]
            for q in range(COLUMNS):
                d = left[at + q]
                s0 += d * x[q]
                s1 += d * x[COLUMNS + q]
                s2 += d * x[2 * COLUMNS + q]
                s3 += d * x[3 * COLUMNS + q]
            out[to], out[to + 1], out[to + 2], out[to + 3] = s0, s1, s2, s3


@compiled
def _step(gates: Any, units: int, cell: Any, hidden: Any) -> None:
    """One step of the cell, in place: gates [4 * units * COLUMNS] and states [units * COLUMNS]."""
    real = gates.dtype.type
    one, two = real(1), real(2)
    for unit in range(units):
        gate, state = gates[4 * unit * COLUMNS : 4 * (unit + 1) * COLUMNS], cell[unit * COLUMNS : (unit + 1) * COLUMNS]
        out = hidden[unit * COLUMNS : (unit + 1) * COLUMNS]
        for q in range(COLUMNS):
            # sigmoid(x) = 1 / (2 + expm1(-x)), tanh(x) = -expm1(-2x) / (2 + expm1(-2x)); two share a division.
            i, g = expm1(-gate[q], real), expm1(-two * gate[COLUMNS + q], real)
            f, o = expm1(-gate[2 * COLUMNS + q] - one, real), expm1(-gate[3 * COLUMNS + q], real)
            first, second = one / ((two + i) * (two + g)), one / ((two + f) * (two + o))
            enter, value = first * (two + g), -g * first * (two + i)
            forget, leave = second * (two + o), second * (two + f)
            after = enter * value + forget * state[q]
            t = expm1(-two * after, real)
            gate[q], gate[COLUMNS + q] = enter, value
            gate[2 * COLUMNS + q], gate[3 * COLUMNS + q] = forget, leave
            state[q] = after
            out[q] = -leave * t / (two + t)


@compiled
def _step_adjoint(gates: Any, units: int, before: Any, cell: Any, at_hidden: Any, at_cell: Any) -> None:
    """Replace the gates' values by the gradients of their inputs, and at_cell by the gradient of `before`."""
    real = gates.dtype.type
    one, two = real(1), real(2)
    for unit in range(units):
        gate, own = gates[4 * unit * COLUMNS : 4 * (unit + 1) * COLUMNS], slice(unit * COLUMNS, (unit + 1) * COLUMNS)
        was, state, at_out, at_state = before[own], cell[own], at_hidden[own], at_cell[own]
        for q in range(COLUMNS):
            enter, value = gate[q], gate[COLUMNS + q]
            forget, leave = gate[2 * COLUMNS + q], gate[3 * COLUMNS + q]
            t = expm1(-two * state[q], real)
            tanh = -t / (two + t)
            at = at_state[q] + at_out[q] * leave * (one - tanh * tanh)
            gate[q] = at * value * enter * (one - enter)
            gate[COLUMNS + q] = at * enter * (one - value * value)
            gate[2 * COLUMNS + q] = at * was[q] * forget * (one - forget)
            gate[3 * COLUMNS + q] = at_out[q] * tanh * leave * (one - leave)
            at_state[q] = at * forget


@compiled
def _votes(pose: Any, children: Any, weight: Any, each: Any, votes: Any) -> None:
    """Votes [tiles, 16 * COLUMNS] of a position. `each` [16, LANES] is scratch memory for one slot."""
    for slot in range(len(children)):
        vote(weight[slot], pose[children[slot]], each)
        tile, at = votes[slot // TOGETHER], slot % TOGETHER * LANES
        for d in range(POSE):
            for j in range(LANES):
                tile[d * COLUMNS + at + j] = each[d, j]


@compiled
def _weighed(coupling: Any, values: Any, rows: int, out: Any) -> None:
    """Add sum_i c_i x_i: coupling [n, LANES], values [tiles, rows * COLUMNS], out [rows, LANES]."""
    for tile in range(len(values)):
        c = coupling[tile * TOGETHER : (tile + 1) * TOGETHER].ravel()
        for row in range(rows):
            x, to = values[tile, row * COLUMNS : (row + 1) * COLUMNS], out[row]
            for j in range(LANES):
                to[j] += (
                    c[j] * x[j]
                    + c[LANES + j] * x[LANES + j]
                    + c[2 * LANES + j] * x[2 * LANES + j]
                    + c[3 * LANES + j] * x[3 * LANES + j]
                )


@compiled
def _softmax(logits: Any, slots: int, out: Any) -> None:
    """Softmax over the first `slots` rows of [n, LANES]. The other rows become zero."""
    real = logits.dtype.type
    for j in range(LANES):
        highest = logits[0, j]
        for slot in range(1, slots):
            highest = max(highest, logits[slot, j])
        total = real(0)
        for slot in range(slots):
            out[slot, j] = np.exp(logits[slot, j] - highest)
            total += out[slot, j]
        for slot in range(slots):
            out[slot, j] /= total
        for slot in range(slots, len(logits)):
            out[slot, j] = real(0)


@compiled
def _affine(out: Any, bias: Any, factor: Any, values: Any) -> None:
    for q in range(COLUMNS):
        out[q] = bias + factor * values[q]


@compiled
def _gather(out: Any, fixed: Any, shared: Any, factor: Any, coupling: Any) -> None:
    """Sum of all inputs of a gate's row [COLUMNS] except for the hidden state."""
    for slot in range(TOGETHER):
        at = slot * LANES
        for j in range(LANES):
            out[at + j] = fixed[at + j] + shared[j] + factor * coupling[at + j]


@compiled
def _route(
    votes: Any,
    activation: Any,
    children: Any,
    from_pose: Any,
    from_vote: Any,
    from_hidden: Any,
    vectors: Any,
    network: Any,
    biases: Any,
    widths: Any,
    slots: int,
    iterations: int,
    kept: int,
    fixed: Any,
    shared: Any,
    gates: Any,
    cells: Any,
    hiddens: Any,
    layers: Any,
    logits: Any,
    coupling: Any,
    means: Any,
) -> None:
    """All iterations of one position.

    votes [tiles, 16 * COLUMNS]; fixed [tiles, 4U * COLUMNS]; shared [4U, LANES]; logits [n, LANES]; coupling
    [T + 1, n, LANES], starting with uniform coupling; means [T + 1, 16, LANES]. With `kept` 1, the states of all
    iterations are kept: gates, layers, cells, hiddens [T, tiles, rows * COLUMNS]. With 0, there is room for one tile of
    gates and layers, and for one iteration of cells and hiddens.
    """
    real = votes.dtype.type
    tiles, units = len(votes), widths[0]
    rows, seen = 4 * units, np.empty(COLUMNS, votes.dtype)
    coupling[0] = real(0)
    coupling[0, :slots] = real(1) / real(slots)
    means[0] = real(0)
    _weighed(coupling[0], votes, POSE, means[0])
    for tile in range(tiles):
        for slot in range(TOGETHER):
            seen[slot * LANES : (slot + 1) * LANES] = activation[children[tile * TOGETHER + slot]]
        for row in range(rows):
            _affine(fixed[tile, row * COLUMNS : (row + 1) * COLUMNS], vectors[0, row], vectors[1, row], seen)
        _product(from_vote, 0, rows, POSE, votes[tile], fixed[tile])
    for t in range(iterations):
        now, last = t * kept, (t - 1) * kept
        for row in range(rows):
            for j in range(LANES):
                shared[row, j] = real(0)
            for d in range(POSE):
                for j in range(LANES):
                    shared[row, j] += from_pose[row * POSE + d] * means[t, d, j]
        for tile in range(tiles):
            gate, layer = gates[now, tile * kept], layers[now, tile * kept]
            cell, hidden = cells[now, tile], hiddens[now, tile]
            seen[:] = coupling[t, tile * TOGETHER : (tile + 1) * TOGETHER].ravel()
            for row in range(rows):
                at = slice(row * COLUMNS, (row + 1) * COLUMNS)
                _gather(gate[at], fixed[tile, at], shared[row], vectors[2, row], seen)
            if t:
                _product(from_hidden, 0, rows, units, hiddens[last, tile], gate)
                if kept:
                    cell[:] = cells[last, tile]
            else:
                cell[:] = real(0)
            _step(gate, units, cell, hidden)
            _network(hidden, network, biases, widths, layer, logits[tile * TOGETHER : (tile + 1) * TOGETHER].ravel())
        _softmax(logits, slots, coupling[t + 1])
        means[t + 1] = real(0)
        _weighed(coupling[t + 1], votes, POSE, means[t + 1])


@compiled
def _network(hidden: Any, network: Any, biases: Any, widths: Any, layer: Any, logits: Any) -> None:
    """The compatibility network on hidden states [U * COLUMNS]. `layer` stores the hidden layers one after another."""
    real = hidden.dtype.type
    read, weight, bias, start = hidden, 0, 0, 0
    for k in range(1, len(widths)):
        out = layer[start : start + widths[k] * COLUMNS]
        for row in range(widths[k]):
            for q in range(COLUMNS):
                out[row * COLUMNS + q] = biases[bias + row]
        _product(network, weight, widths[k], widths[k - 1], read, out)
        for q in range(len(out)):
            out[q] = max(out[q], real(0))
        weight, bias, start, read = weight + widths[k] * widths[k - 1], bias + widths[k], start + len(out), out
    for q in range(COLUMNS):
        logits[q] = biases[bias]
    _product(network, weight, 1, widths[-1], read, logits)


@compiled
def _network_adjoint(
    hidden: Any,
    network: Any,
    transposed: Any,
    widths: Any,
    layer: Any,
    at_logits: Any,
    at_layer: Any,
    at_hidden: Any,
    at_network: Any,
    at_biases: Any,
) -> None:
    """Set at_hidden [U * COLUMNS], and add the network's gradients. `transposed` holds the transposed matrices."""
    real = hidden.dtype.type
    last = len(widths) - 1
    weight, bias = 0, 0
    for k in range(1, len(widths)):
        weight, bias = weight + widths[k] * widths[k - 1], bias + widths[k]
    start = len(layer)
    read = hidden if last == 0 else layer[start - widths[last] * COLUMNS :]
    at_read = at_hidden if last == 0 else at_layer[start - widths[last] * COLUMNS :]
    for row in range(widths[last]):
        total = real(0)
        for q in range(COLUMNS):
            at_read[row * COLUMNS + q] = network[weight + row] * at_logits[q]
            total += read[row * COLUMNS + q] * at_logits[q]
        at_network[weight + row] += total
    for q in range(COLUMNS):
        at_biases[bias] += at_logits[q]
    for k in range(last, 0, -1):
        size = widths[k] * COLUMNS
        start, weight, bias = start - size, weight - widths[k] * widths[k - 1], bias - widths[k]
        out, at_out = layer[start : start + size], at_layer[start : start + size]
        for q in range(size):
            if out[q] <= real(0):
                at_out[q] = real(0)
        before = widths[k - 1] * COLUMNS
        read = hidden if k == 1 else layer[start - before : start]
        at_read = at_hidden if k == 1 else at_layer[start - before : start]
        _outer(at_out, widths[k], read, widths[k - 1], at_network, weight)
        for row in range(widths[k]):
            for q in range(COLUMNS):
                at_biases[bias + row] += at_out[row * COLUMNS + q]
        at_read[:] = real(0)
        _product(transposed, weight, widths[k - 1], widths[k], at_out, at_read)


@kernel
def _forward(
    part: int,
    parts: int,
    poses: Any,
    activations: Any,
    children: Any,
    weight: Any,
    from_pose: Any,
    from_vote: Any,
    from_hidden: Any,
    vectors: Any,
    network: Any,
    biases: Any,
    widths: Any,
    slots: int,
    mean: Any,
    combined: Any,
    coupling: Any,
    iterations: int,
) -> None:
    """Poses [B, P, 16, LANES], means of cell states [B, P, U, LANES] and the last coupling [B, P, n, LANES]."""
    batch, kind = len(poses), poses.dtype
    positions, padded = children.shape
    tiles, units = padded // TOGETHER, widths[0]
    pose_, vote_, hidden_ = from_pose.ravel(), from_vote.ravel(), from_hidden.ravel()
    each = np.empty((POSE, LANES), kind)
    votes, fixed = np.empty((tiles, POSE * COLUMNS), kind), np.empty((tiles, 4 * units * COLUMNS), kind)
    shared, gates = np.empty((4 * units, LANES), kind), np.empty((1, 1, 4 * units * COLUMNS), kind)
    cells, hiddens = np.empty((1, tiles, units * COLUMNS), kind), np.empty((1, tiles, units * COLUMNS), kind)
    layers = np.empty((1, 1, (widths.sum() - units) * COLUMNS), kind)
    logits, shares = np.empty((padded, LANES), kind), np.empty((iterations + 1, padded, LANES), kind)
    means = np.empty((iterations + 1, POSE, LANES), kind)
    for b in range(part * batch // parts, (part + 1) * batch // parts):
        for p in range(positions):
            _votes(poses[b], children[p], weight, each, votes)
            _route(
                votes, activations[b], children[p], pose_, vote_, hidden_, vectors, network, biases, widths,
                slots, iterations, 0, fixed, shared, gates, cells, hiddens, layers, logits, shares, means,
            )  # fmt: skip
            mean[b, p] = means[iterations]
            coupling[b, p] = shares[iterations]
            combined[b, p] = 0
            _weighed(shares[iterations], cells[0], units, combined[b, p])


@kernel
def _backward(
    part: int,
    parts: int,
    poses: Any,
    activations: Any,
    children: Any,
    weight: Any,
    from_pose: Any,
    from_vote: Any,
    from_hidden: Any,
    vectors: Any,
    network: Any,
    biases: Any,
    widths: Any,
    slots: int,
    at_mean: Any,
    at_combined: Any,
    at_poses: Any,
    at_activations: Any,
    at_weight: Any,
    at_from_pose: Any,
    at_from_vote: Any,
    at_from_hidden: Any,
    at_vectors: Any,
    at_network: Any,
    at_biases: Any,
    iterations: int,
) -> None:
    """Add to the gradients. Each part has its own gradients of parameters."""
    batch, kind = len(poses), poses.dtype
    positions, padded = children.shape
    tiles, units = padded // TOGETHER, widths[0]
    rows, deep = 4 * units, widths.sum() - units
    pose_, vote_, hidden_ = from_pose.ravel(), from_vote.ravel(), from_hidden.ravel()
    vote_back, hidden_back = from_vote.T.copy().ravel(), from_hidden.T.copy().ravel()
    network_back = _transposed(network, widths)
    real = poses.dtype.type
    each = np.empty((POSE, LANES), kind)
    votes, fixed = np.empty((tiles, POSE * COLUMNS), kind), np.empty((tiles, rows * COLUMNS), kind)
    shared, gates = np.empty((rows, LANES), kind), np.empty((iterations, tiles, rows * COLUMNS), kind)
    cells = np.empty((iterations, tiles, units * COLUMNS), kind)
    hiddens, none = np.empty_like(cells), np.zeros(units * COLUMNS, kind)
    layers, at_layer = np.empty((iterations, tiles, deep * COLUMNS), kind), np.empty(deep * COLUMNS, kind)
    logits, shares = np.empty((padded, LANES), kind), np.empty((iterations + 1, padded, LANES), kind)
    means = np.empty((iterations + 1, POSE, LANES), kind)
    at_votes, at_cell = np.empty_like(votes), np.empty((tiles, units * COLUMNS), kind)
    at_next, at_hidden = np.empty((tiles, units * COLUMNS), kind), np.empty(units * COLUMNS, kind)
    at_shares, at_next_shares = np.empty((padded, LANES), kind), np.empty((padded, LANES), kind)
    at_logits, at_mu = np.empty((padded, LANES), kind), np.empty((POSE, LANES), kind)
    to_pose, to_vote = at_from_pose[part].ravel(), at_from_vote[part].ravel()
    to_hidden, to_vectors = at_from_hidden[part].ravel(), at_vectors[part]
    to_network, to_biases = at_network[part], at_biases[part]
    for b in range(part * batch // parts, (part + 1) * batch // parts):
        for p in range(positions):
            _votes(poses[b], children[p], weight, each, votes)
            _route(
                votes, activations[b], children[p], pose_, vote_, hidden_, vectors, network, biases, widths,
                slots, iterations, 1, fixed, shared, gates, cells, hiddens, layers, logits, shares, means,
            )  # fmt: skip
            at_votes[:] = real(0)
            at_cell[:] = real(0)
            at_next[:] = real(0)
            at_next_shares[:] = real(0)
            fixed[:] = real(0)  # from here on, the gradient of `fixed`
            at_mu[:] = at_mean[b, p]
            for t in range(iterations - 1, -1, -1):
                share = shares[t + 1]
                _weighed_adjoint(share, votes, POSE, at_mu, at_next_shares, at_votes)
                if t == iterations - 1:
                    _weighed_adjoint(share, cells[t], units, at_combined[b, p], at_next_shares, at_cell)
                _softmax_adjoint(share, at_next_shares, at_logits)
                at_shares[:] = real(0)
                shared[:] = real(0)
                for tile in range(tiles):
                    own = slice(tile * TOGETHER, (tile + 1) * TOGETHER)
                    _network_adjoint(
                        hiddens[t, tile], network, network_back, widths, layers[t, tile], at_logits[own].ravel(),
                        at_layer, at_hidden, to_network, to_biases,
                    )  # fmt: skip
                    for q in range(units * COLUMNS):
                        at_hidden[q] += at_next[tile, q]
                    before = cells[t - 1, tile] if t else none
                    gate = gates[t, tile]
                    _step_adjoint(gate, units, before, cells[t, tile], at_hidden, at_cell[tile])
                    at_next[tile] = real(0)
                    if t:
                        _outer(gate, rows, hiddens[t - 1, tile], units, to_hidden, 0)
                        _product(hidden_back, 0, units, rows, gate, at_next[tile])
                    _gates_adjoint(gate, vectors[2], shares[t, own], fixed[tile], shared, at_shares[own], to_vectors[2])
                _shared_adjoint(shared, pose_, means[t], at_mu, to_pose)
                at_next_shares[:] = at_shares
            # at_mu is now the gradient of the unweighted mean of the votes. The first coupling is a constant.
            _weighed_adjoint(shares[0], votes, POSE, at_mu, at_next_shares, at_votes)
            for tile in range(tiles):
                own = children[p, tile * TOGETHER : (tile + 1) * TOGETHER]
                _outer(fixed[tile], rows, votes[tile], POSE, to_vote, 0)
                _product(vote_back, 0, POSE, rows, fixed[tile], at_votes[tile])
                _fixed_adjoint(fixed[tile], activations[b], own, vectors[1], at_activations[b], to_vectors)
            for slot in range(slots):
                tile, at = at_votes[slot // TOGETHER], slot % TOGETHER * LANES
                for d in range(POSE):
                    for j in range(LANES):
                        each[d, j] = tile[d * COLUMNS + at + j]
                child = children[p, slot]
                vote_adjoint(weight[slot], poses[b, child], each, at_weight[part, slot], at_poses[b, child])


@compiled
def _transposed(network: Any, widths: Any) -> Any:
    """Transpose each matrix of the network in its place."""
    out, start = np.empty_like(network), 0
    for k in range(1, len(widths)):
        rows, depth = widths[k], widths[k - 1]
        for row in range(rows):
            for column in range(depth):
                out[start + column * rows + row] = network[start + row * depth + column]
        start += rows * depth
    return out


@compiled
def _weighed_adjoint(coupling: Any, values: Any, rows: int, at_out: Any, at_coupling: Any, at_values: Any) -> None:
    """Add the gradients of `_weighed`."""
    repeated = np.empty(COLUMNS, coupling.dtype)
    for row in range(rows):
        for slot in range(TOGETHER):
            repeated[slot * LANES : (slot + 1) * LANES] = at_out[row]
        for tile in range(len(values)):
            own, part = slice(tile * TOGETHER, (tile + 1) * TOGETHER), slice(row * COLUMNS, (row + 1) * COLUMNS)
            c, at_c = coupling[own].ravel(), at_coupling[own].ravel()
            x, at_x = values[tile, part], at_values[tile, part]
            for q in range(COLUMNS):
                at_c[q] += repeated[q] * x[q]
                at_x[q] += repeated[q] * c[q]


@compiled
def _softmax_adjoint(coupling: Any, at_coupling: Any, at_logits: Any) -> None:
    mean = np.zeros(LANES, coupling.dtype)
    for slot in range(len(coupling)):
        for j in range(LANES):
            mean[j] += coupling[slot, j] * at_coupling[slot, j]
    for slot in range(len(coupling)):
        for j in range(LANES):
            at_logits[slot, j] = coupling[slot, j] * (at_coupling[slot, j] - mean[j])


@compiled
def _gates_adjoint(
    at_gates: Any, by_coupling: Any, coupling: Any, at_fixed: Any, at_shared: Any, at_coupling: Any, to_vector: Any
) -> None:
    """Gradients of all inputs of the gates [4U * COLUMNS] except for the hidden state."""
    real = at_gates.dtype.type
    for row in range(len(at_shared)):
        total = real(0)
        for slot in range(TOGETHER):
            at = row * COLUMNS + slot * LANES
            for j in range(LANES):
                d = at_gates[at + j]
                at_fixed[at + j] += d
                at_shared[row, j] += d
                at_coupling[slot, j] += by_coupling[row] * d
                total += d * coupling[slot, j]
        to_vector[row] += total


@compiled
def _shared_adjoint(at_shared: Any, from_pose: Any, mean: Any, at_mean: Any, to_pose: Any) -> None:
    """Set at_mean [16, LANES] and add the gradient of from_pose [4U * 16]."""
    real = mean.dtype.type
    at_mean[:] = real(0)
    for row in range(len(at_shared)):
        for d in range(POSE):
            total, w = real(0), from_pose[row * POSE + d]
            for j in range(LANES):
                at_mean[d, j] += w * at_shared[row, j]
                total += at_shared[row, j] * mean[d, j]
            to_pose[row * POSE + d] += total


@compiled
def _fixed_adjoint(
    at_fixed: Any, activation: Any, children: Any, by_activation: Any, at_activation: Any, to_vectors: Any
) -> None:
    """Add the gradients of the activations, their weights and the bias."""
    real = at_fixed.dtype.type
    for row in range(len(by_activation)):
        for slot in range(TOGETHER):
            total = real(0)
            for j in range(LANES):
                total += at_fixed[row * COLUMNS + slot * LANES + j]
            to_vectors[0, row] += total
            to_vectors[1, row] += total * activation[children[slot]]
            at_activation[children[slot]] += total * by_activation[row]
