"""Connectionist routing, compiled, with a gradient written by hand.

`recaps.nn.routing.connectionist.lstm_routing` is the plain version. Pairs of an input and an output capsule are the
columns of matrices. A kernel processes `TOGETHER` slots of a field at a time, each with all types of output capsules,
so that the states of these pairs stay in the cache. The states of a batch would take gigabytes, so only the inputs are
saved, and the backward pass first computes each position again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from recaps.nn.fields import Fields
from recaps.nn.kernels import LANES
from recaps.nn.kernels.compiled import POSE, array, compiled, in_parts, kernel, lanes
from recaps.nn.kernels.poses import vote, vote_adjoint
from recaps.nn.kernels.vector import (
    add_to,
    at_least,
    at_most,
    exp,
    expm1,
    first,
    load,
    load_one,
    splat,
    store,
    total,
    transpose,
)

#: Slots that are processed at a time, and the columns that they occupy. The functions below write this number out, and
#: `ROWS`, because each vector of a block needs a name to stay in a register.
TOGETHER = 4
COLUMNS = TOGETHER * LANES
#: Rows of a matrix that are multiplied by all columns at a time. Their sums, 16 vectors, stay in registers.
ROWS = 4
#: Rows of an outer product that are summed at a time, one vector for each.
SUMMED = 8
ZERO, ONE, TWO, MINUS, MINUS_TWO = (np.float32(number) for number in (0, 1, 2, -1, -2))
#: Bound of exponents: the product of two powers is below the largest number.
HIGHEST = np.float32(40)


class Inputs(NamedTuple):
    """Of a batch: poses [B, N, 4, 4], activations [B, N], and the input capsule of each slot of a position [P, n].

    `weight` [n, 16, LANES] holds the matrices of the votes. The last slots may be spare: only the first `slots` count.
    """

    poses: Any
    activations: Any
    children: Any
    weight: Any
    slots: int


class Parameters(NamedTuple):
    """Of the cell and of the compatibility network, or their gradients, in which the lanes may be a further axis.

    Matrices of a pose, a vote and a hidden state [4U, ...]; `vectors` [3, 4U]: the bias, and the weights of activation
    and coupling; the network's matrices one after another, the last with one row; and its biases.
    """

    from_pose: Any
    from_vote: Any
    from_hidden: Any
    vectors: Any
    network: Any
    biases: Any


class States(NamedTuple):
    """Of one position, for n slots in tiles of `TOGETHER`, 4U rows of gates and T iterations.

    fixed [tiles, 4U * COLUMNS]; shared [4U * LANES]; logits [n, LANES]; shares [T + 1, n, LANES]: the coupling,
    starting with uniform coupling; means [T + 1, 16, LANES]. If the states of all iterations are kept: gates, cells,
    hiddens, layers [T, tiles, rows * COLUMNS]. Else there is room for one tile of gates and layers, and for one
    iteration of cells and hiddens.
    """

    fixed: Any
    shared: Any
    gates: Any
    cells: Any
    hiddens: Any
    layers: Any
    logits: Any
    shares: Any
    means: Any


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
    """Round up to a multiple of `LANES`: of the numbers of units and neurons."""
    return -(-number // LANES) * LANES


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
        (positions, slots), outputs = fields.children.shape, weight.shape[1]
        spare = -slots % TOGETHER  # extra slots hold the field's first capsule with zero weights, and get no coupling
        parameters = Parameters(*(array(each.float()) for each in tensors[3:]))
        inputs = Inputs(
            array(poses.float()),
            array(activations.float()),
            array(torch.cat([fields.children, fields.children[:, :1].expand(-1, spare)], 1).int()),
            lanes(pad(weight.float().flatten(2).transpose(1, 2), (0, 0, 0, 0, 0, spare))),
            slots,
        )
        batch, real = len(poses), np.float32
        mean = np.empty((batch, positions, POSE, LANES), real)
        combined = np.empty((batch, positions, widths[0], LANES), real)
        coupling = np.empty((batch, positions, slots + spare, LANES), real)
        arguments = inputs, parameters, np.array(widths), iterations
        in_parts(_forward, *arguments, mean, combined, coupling)
        ctx.save_for_backward(*tensors)
        ctx.arguments, ctx.outputs = arguments, outputs
        ctx.dtypes = [tensor.dtype for tensor in tensors]
        shares = torch.from_numpy(coupling[:, :, :slots, :outputs].copy())
        ctx.mark_non_differentiable(shares)
        made = [torch.from_numpy(each[..., :outputs]).transpose(2, 3).contiguous() for each in (mean, combined)]
        return made[0], made[1], shares

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_mean: Tensor, grad_combined: Tensor, _: Tensor) -> tuple[Any, ...]:
        _ = ctx.saved_tensors  # raises an error if one was changed in place
        inputs, parameters, widths, _ = ctx.arguments
        parts, last = torch.get_num_threads(), widths[-1]
        # Each part has its own gradients of weights. Those of vectors and biases have another axis, the lanes.
        shapes = [(parts, *each.shape) for each in parameters]
        for k in (3, 5):
            shapes[k] = (*shapes[k], LANES)
        by_parameter = Parameters(*(np.zeros(shape, np.float32) for shape in shapes))
        by_last, by_weight = (np.zeros((parts, *shape), np.float32) for shape in ((last, LANES), inputs.weight.shape))
        by_input = inputs._replace(
            poses=np.zeros_like(inputs.poses), activations=np.zeros_like(inputs.activations), weight=by_weight
        )
        at = [lanes(each.transpose(2, 3).float()) for each in (grad_mean, grad_combined)]
        in_parts(_backward, *ctx.arguments, *at, by_input, by_parameter, by_last)
        by_pose, by_activation = torch.from_numpy(by_input.poses), torch.from_numpy(by_input.activations)
        *by_matrix, by_vector, by_network, by_bias = (torch.from_numpy(each).sum(0) for each in by_parameter)
        by_network[-last:] = torch.from_numpy(by_last).sum(0).sum(-1)
        of_weight = torch.from_numpy(by_weight).sum(0)[: inputs.slots, :, : ctx.outputs]
        to_weight = of_weight.transpose(1, 2).unflatten(2, (4, 4))
        made = (by_pose, by_activation, to_weight, *by_matrix, by_vector.sum(-1), by_network, by_bias.sum(-1))
        return *(tensor.to(kind) for tensor, kind in zip(made, ctx.dtypes, strict=True)), None, None, None


@compiled
def _rows(array: Any, start: Any, stride: Any) -> Any:
    """Load a vector from each of 8 rows."""
    return (
        load(array, start),
        load(array, start + stride),
        load(array, start + 2 * stride),
        load(array, start + 3 * stride),
        load(array, start + 4 * stride),
        load(array, start + 5 * stride),
        load(array, start + 6 * stride),
        load(array, start + 7 * stride),
    )


@compiled
def _store_rows(array: Any, start: Any, stride: Any, values: Any) -> None:
    a, b, c, d, e, f, g, h = values
    store(array, start, a)
    store(array, start + stride, b)
    store(array, start + 2 * stride, c)
    store(array, start + 3 * stride, d)
    store(array, start + 4 * stride, e)
    store(array, start + 5 * stride, f)
    store(array, start + 6 * stride, g)
    store(array, start + 7 * stride, h)


@compiled
def _add_rows(x: Any, y: Any) -> Any:
    a, b, c, d, e, f, g, h = x
    return a + y[0], b + y[1], c + y[2], d + y[3], e + y[4], f + y[5], g + y[6], h + y[7]


@compiled
def _add_scaled(values: Any, factors: Any, start: Any, stride: Any, x: Any) -> Any:
    """Add to each of 8 vectors the vector x times a factor of its own."""
    a, b, c, d, e, f, g, h = values
    return (
        a + load_one(factors, start) * x,
        b + load_one(factors, start + stride) * x,
        c + load_one(factors, start + 2 * stride) * x,
        d + load_one(factors, start + 3 * stride) * x,
        e + load_one(factors, start + 4 * stride) * x,
        f + load_one(factors, start + 5 * stride) * x,
        g + load_one(factors, start + 6 * stride) * x,
        h + load_one(factors, start + 7 * stride) * x,
    )


@compiled
def _row(array: Any, start: Any) -> Any:
    """Load four vectors, one after another: all columns of a row."""
    return (
        load(array, start),
        load(array, start + LANES),
        load(array, start + 2 * LANES),
        load(array, start + 3 * LANES),
    )


@compiled
def _plus(values: Any, x: Any) -> Any:
    """Add one vector to all columns of a row."""
    return values[0] + x, values[1] + x, values[2] + x, values[3] + x


@compiled
def _plus_scaled(values: Any, factor: Any, x: Any) -> Any:
    """Add a row x, times one vector."""
    return values[0] + factor * x[0], values[1] + factor * x[1], values[2] + factor * x[2], values[3] + factor * x[3]


@compiled
def _block(array: Any, start: Any) -> Any:
    """Load all columns of `ROWS` rows."""
    return (
        _row(array, start),
        _row(array, start + COLUMNS),
        _row(array, start + 2 * COLUMNS),
        _row(array, start + 3 * COLUMNS),
    )


@compiled
def _store_row(array: Any, start: Any, values: Any) -> None:
    """Store four vectors, one after another."""
    a, b, c, d = values
    store(array, start, a)
    store(array, start + LANES, b)
    store(array, start + 2 * LANES, c)
    store(array, start + 3 * LANES, d)


@compiled
def _store_block(array: Any, start: Any, block: Any) -> None:
    for values in block:
        _store_row(array, start, values)
        start += COLUMNS


@compiled
def _block_of(values: Any, start: Any) -> Any:
    """Return a block whose rows are equal in all columns: `ROWS` values from index `start`."""
    z = splat(ZERO)
    a, b = load_one(values, start), load_one(values, start + 1)
    c, d = load_one(values, start + 2), load_one(values, start + 3)
    return _plus((z, z, z, z), a), _plus((z, z, z, z), b), _plus((z, z, z, z), c), _plus((z, z, z, z), d)


@compiled
def _block_plus(block: Any, array: Any, start: Any) -> Any:
    """Add to each row of a block one of `ROWS` vectors from index `start`."""
    (a, b, c, d), x = block, _row(array, start)
    return _plus(a, x[0]), _plus(b, x[1]), _plus(c, x[2]), _plus(d, x[3])


@compiled
def _block_plus_scaled(block: Any, factors: Any, start: Any, x: Any) -> Any:
    """Add to each row of a block the row x, times one of `ROWS` factors from index `start`."""
    a, b, c, d = block
    return (
        _plus_scaled(a, load_one(factors, start), x),
        _plus_scaled(b, load_one(factors, start + 1), x),
        _plus_scaled(c, load_one(factors, start + 2), x),
        _plus_scaled(d, load_one(factors, start + 3), x),
    )


@compiled
def _add_products(block: Any, packed: Any, at: Any, depth: Any, columns: Any) -> Any:
    """Add the products of `ROWS` rows of a packed matrix, from index `at`, and [depth, COLUMNS]."""
    for k in range(depth):
        block = _block_plus_scaled(block, packed, at + k * ROWS, _row(columns, k * COLUMNS))
    return block


@compiled
def _pack(matrix: Any, start: Any, rows: Any, depth: Any, packed: Any) -> None:
    """Store a matrix [rows, depth] as [rows / ROWS, depth, ROWS], with both from index `start`."""
    for row in range(rows):
        for k in range(depth):
            packed[start + (row // ROWS * depth + k) * ROWS + row % ROWS] = matrix[start + row * depth + k]


@compiled
def _pack_transposed(matrix: Any, start: Any, rows: Any, depth: Any, packed: Any) -> None:
    """Store the transpose of a matrix [rows, depth] as [depth / ROWS, rows, ROWS], with both from index `start`."""
    for row in range(rows):
        for k in range(depth):
            packed[start + (k // ROWS * rows + row) * ROWS + k % ROWS] = matrix[start + row * depth + k]


@compiled
def _both_packed(matrix: Any) -> Any:
    """Return a matrix and its transpose, packed."""
    packed, transposed = np.empty(matrix.size, np.float32), np.empty(matrix.size, np.float32)
    rows, depth = matrix.shape
    _pack(matrix.ravel(), 0, rows, depth, packed)
    _pack_transposed(matrix.ravel(), 0, rows, depth, transposed)
    return packed, transposed


@compiled
def _both_packed_parameters(parameters: Any, widths: Any) -> Any:
    """Return the parameters with their matrices packed, except for the network's last one, which has one row.

    The second ones have the transposed matrices.
    """
    pose, pose_back = _both_packed(parameters.from_pose)
    vote, vote_back = _both_packed(parameters.from_vote)
    hidden, hidden_back = _both_packed(parameters.from_hidden)
    network, vectors, biases = parameters.network, parameters.vectors, parameters.biases
    packed, transposed, start = network.copy(), network.copy(), 0
    for k in range(1, len(widths)):
        rows, depth = widths[k], widths[k - 1]
        _pack(network, start, rows, depth, packed)
        _pack_transposed(network, start, rows, depth, transposed)
        start += rows * depth
    return (
        Parameters(pose, vote, hidden, vectors, packed, biases),
        Parameters(pose_back, vote_back, hidden_back, vectors, transposed, biases),
    )


@compiled
def _room(padded: Any, widths: Any, iterations: Any, kept: Any) -> Any:
    """Return memory for votes [tiles, 16 * COLUMNS] and for the states of a position."""
    tiles, units, kind = padded // TOGETHER, widths[0], np.float32
    rows, deep = 4 * units, widths.sum() - units
    times, each = (iterations, tiles) if kept else (1, 1)
    return np.empty((tiles, POSE * COLUMNS), kind), States(
        fixed=np.empty((tiles, rows * COLUMNS), kind),
        shared=np.empty(rows * LANES, kind),
        gates=np.empty((times, each, rows * COLUMNS), kind),
        cells=np.empty((times, tiles, units * COLUMNS), kind),
        hiddens=np.empty((times, tiles, units * COLUMNS), kind),
        layers=np.empty((times, each, deep * COLUMNS), kind),
        logits=np.empty((padded, LANES), kind),
        shares=np.empty((iterations + 1, padded, LANES), kind),
        means=np.empty((iterations + 1, POSE, LANES), kind),
    )


@compiled
def _zeros() -> Any:
    z = splat(ZERO)
    return z, z, z, z, z, z, z, z


@compiled
def _product(packed: Any, at: Any, rows: Any, depth: Any, columns: Any, out: Any, add: Any) -> None:
    """Set `out` [rows, COLUMNS] to a packed matrix, from index `at`, times [depth, COLUMNS]. With `add`, add it.

    Numbers of rows are multiples of `ROWS`.
    """
    z = splat(ZERO)
    zeros = ((z, z, z, z), (z, z, z, z), (z, z, z, z), (z, z, z, z))
    for row in range(0, rows, ROWS):
        block = _block(out, row * COLUMNS) if add else zeros
        _store_block(out, row * COLUMNS, _add_products(block, packed, at + row * depth, depth, columns))


@compiled
def _single_product(packed: Any, rows: Any, depth: Any, columns: Any, out: Any) -> None:
    """Set `out` [rows, LANES] to a packed matrix times [depth, LANES]."""
    for row in range(0, rows, ROWS):
        a = b = c = d = splat(ZERO)
        for k in range(depth):
            x, at = load(columns, k * LANES), row * depth + k * ROWS
            a, b = a + load_one(packed, at) * x, b + load_one(packed, at + 1) * x
            c, d = c + load_one(packed, at + 2) * x, d + load_one(packed, at + 3) * x
        _store_row(out, row * LANES, (a, b, c, d))


@compiled
def _outer(left: Any, rows: Any, right: Any, depth: Any, width: Any, out: Any, start: Any, turned: Any) -> None:
    """Add left [rows, width] times the transpose of right [depth, width] to `out` from `start`.

    `turned` is scratch memory for the transpose, whose columns are then the lanes.
    """
    for q in range(0, width, LANES):
        for k in range(0, depth, LANES):
            transpose(right, k * width + q, width, turned, q * depth + k, depth)
    for k in range(0, depth, LANES):
        for row in range(0, rows, SUMMED):
            sums = _zeros()
            for q in range(width):
                sums = _add_scaled(sums, left, row * width + q, width, load(turned, q * depth + k))
            # Added once: `out` sums over a batch, and each addition to a large sum is rounded.
            to = start + row * depth + k
            _store_rows(out, to, depth, _add_rows(_rows(out, to, depth), sums))


@compiled
def _step(gates: Any, units: Any, cell: Any, hidden: Any) -> None:
    """One step of the cell, in place: gates [4 * units * COLUMNS] and states [units * COLUMNS]."""
    highest = splat(HIGHEST)
    for unit in range(units):
        for q in range(0, COLUMNS, LANES):
            at, own = 4 * unit * COLUMNS + q, unit * COLUMNS + q
            # sigmoid(x) = 1 / (2 + expm1(-x)), tanh(x) = -expm1(-2x) / (2 + expm1(-2x)); two share a division.
            i = expm1(at_most(MINUS * load(gates, at), highest))
            g = expm1(at_most(MINUS_TWO * load(gates, at + COLUMNS), highest))
            f = expm1(at_most(MINUS * load(gates, at + 2 * COLUMNS) - ONE, highest))
            o = expm1(at_most(MINUS * load(gates, at + 3 * COLUMNS), highest))
            once, twice = ONE / ((TWO + i) * (TWO + g)), ONE / ((TWO + f) * (TWO + o))
            enter, value = once * (TWO + g), MINUS * g * once * (TWO + i)
            forget, leave = twice * (TWO + o), twice * (TWO + f)
            store(gates, at, enter)
            store(gates, at + COLUMNS, value)
            store(gates, at + 2 * COLUMNS, forget)
            store(gates, at + 3 * COLUMNS, leave)
            store(cell, own, enter * value + forget * load(cell, own))
    # In a loop of its own, so that fewer instructions depend on each other.
    for unit in range(units):
        for q in range(0, COLUMNS, LANES):
            own = unit * COLUMNS + q
            t = expm1(at_most(MINUS_TWO * load(cell, own), highest))
            leave = load(gates, (4 * unit + 3) * COLUMNS + q)
            store(hidden, own, MINUS * leave * t / (TWO + t))


@compiled
def _step_adjoint(gates: Any, units: Any, before: Any, hidden: Any, grad_hidden: Any, grad_cell: Any) -> None:
    """Replace the gates' values by the gradients of their inputs, and grad_cell by the gradient of `before`."""
    for unit in range(units):
        for q in range(0, COLUMNS, LANES):
            at, own = 4 * unit * COLUMNS + q, unit * COLUMNS + q
            enter, value = load(gates, at), load(gates, at + COLUMNS)
            forget, leave = load(gates, at + 2 * COLUMNS), load(gates, at + 3 * COLUMNS)
            out, grad_out = load(hidden, own), load(grad_hidden, own)
            # The hidden state is leave * tanh(state).
            grad_state = load(grad_cell, own) + grad_out * (leave - out * out / leave)
            store(gates, at, grad_state * value * enter * (ONE - enter))
            store(gates, at + COLUMNS, grad_state * enter * (ONE - value * value))
            store(gates, at + 2 * COLUMNS, grad_state * load(before, own) * forget * (ONE - forget))
            store(gates, at + 3 * COLUMNS, grad_out * out * (ONE - leave))
            store(grad_cell, own, grad_state * forget)


@compiled
def _votes(pose: Any, children: Any, weight: Any, votes: Any) -> None:
    """Votes of a position, [tiles, 16 * COLUMNS]."""
    for slot in range(len(children)):
        vote(weight, slot, pose[children[slot]], votes[slot // TOGETHER], slot % TOGETHER * LANES, COLUMNS)


@compiled
def _weighed(coupling: Any, values: Any, rows: Any, out: Any) -> None:
    """Set out to sum_i c_i x_i: coupling [n, LANES], values [tiles, rows * COLUMNS], out [rows, LANES]."""
    for row in range(rows):
        a = b = c = d = splat(ZERO)
        for tile in range(len(values)):
            share, x = _row(coupling, tile * COLUMNS), _row(values, (tile * rows + row) * COLUMNS)
            a, b, c, d = a + share[0] * x[0], b + share[1] * x[1], c + share[2] * x[2], d + share[3] * x[3]
        store(out, row * LANES, (a + b) + (c + d))


@compiled
def _weighed_adjoint(
    coupling: Any, values: Any, rows: Any, grad_out: Any, grad_coupling: Any, grad_values: Any
) -> None:
    """Add the gradients of `_weighed`."""
    for slot in range(len(coupling)):
        start, c = (slot // TOGETHER * rows) * COLUMNS + slot % TOGETHER * LANES, load(coupling, slot * LANES)
        found = load(grad_coupling, slot * LANES)
        for row in range(rows):
            x, at = start + row * COLUMNS, load(grad_out, row * LANES)
            found = found + at * load(values, x)
            add_to(grad_values, x, at * c)
        store(grad_coupling, slot * LANES, found)


@compiled
def _softmax(logits: Any, slots: Any, out: Any) -> None:
    """Softmax over the first `slots` rows of [n, LANES]. The other rows become zero."""
    highest, added = load(logits, 0), splat(ZERO)
    for slot in range(1, slots):
        highest = at_least(highest, load(logits, slot * LANES))
    for slot in range(slots):
        power = exp(load(logits, slot * LANES) - highest)
        added = added + power
        store(out, slot * LANES, power)
    inverse = ONE / added
    for slot in range(slots):
        store(out, slot * LANES, load(out, slot * LANES) * inverse)
    out[slots:] = ZERO


@compiled
def _softmax_adjoint(coupling: Any, grad_coupling: Any, grad_logits: Any) -> None:
    mean = splat(ZERO)
    for at in range(0, coupling.size, LANES):
        mean = mean + load(coupling, at) * load(grad_coupling, at)
    for at in range(0, coupling.size, LANES):
        store(grad_logits, at, load(coupling, at) * (load(grad_coupling, at) - mean))


@compiled
def _fixed_inputs(
    votes: Any, activation: Any, children: Any, tile: Any, from_vote: Any, vectors: Any, rows: Any, fixed: Any
) -> None:
    """Sum of all inputs of the gates that are equal in all iterations, [rows * COLUMNS]."""
    slot = tile * TOGETHER
    seen = (
        splat(activation[children[slot]]),
        splat(activation[children[slot + 1]]),
        splat(activation[children[slot + 2]]),
        splat(activation[children[slot + 3]]),
    )
    for row in range(0, rows, ROWS):
        block = _block_plus_scaled(_block_of(vectors[0], row), vectors[1], row, seen)
        _store_block(fixed, row * COLUMNS, _add_products(block, from_vote, row * POSE, POSE, votes))


@compiled
def _inputs(
    states: Any, packed: Any, coupling: Any, tile: Any, units: Any, hidden: Any, has_hidden: Any, gates: Any
) -> None:
    """Inputs of the gates of a tile [4 * units * COLUMNS]."""
    share, fixed, by_coupling = _row(coupling, tile * COLUMNS), states.fixed[tile], packed.vectors[2]
    for row in range(0, 4 * units, ROWS):
        block = _block_plus(_block(fixed, row * COLUMNS), states.shared, row * LANES)
        block = _block_plus_scaled(block, by_coupling, row, share)
        if has_hidden:
            block = _add_products(block, packed.from_hidden, row * units, units, hidden)
        _store_block(gates, row * COLUMNS, block)


@compiled
def _route(
    votes: Any,
    activation: Any,
    children: Any,
    packed: Any,
    widths: Any,
    slots: Any,
    iterations: Any,
    kept: Any,
    states: Any,
) -> None:
    """All iterations of one position. votes [tiles, 16 * COLUMNS]; with `kept` 1, all states are kept, with 0 none."""
    tiles, units, vectors, coupling = len(votes), widths[0], packed.vectors, states.shares
    rows = 4 * units
    coupling[0] = ZERO
    coupling[0, :slots] = ONE / np.float32(slots)
    _weighed(coupling[0], votes, POSE, states.means[0])
    for tile in range(tiles):
        _fixed_inputs(votes[tile], activation, children, tile, packed.from_vote, vectors, rows, states.fixed[tile])
    for t in range(iterations):
        now, last = t * kept, (t - 1) * kept
        _single_product(packed.from_pose, rows, POSE, states.means[t], states.shared)
        for tile in range(tiles):
            gate, layer = states.gates[now, tile * kept], states.layers[now, tile * kept]
            cell, hidden = states.cells[now, tile], states.hiddens[now, tile]
            if t == 0:
                cell[:] = ZERO
            elif kept:
                cell[:] = states.cells[last, tile]
            _inputs(states, packed, coupling[t], tile, units, states.hiddens[last, tile], t > 0, gate)
            _step(gate, units, cell, hidden)
            _network(hidden, packed.network, packed.biases, widths, layer, states.logits, tile)
        _softmax(states.logits, slots, coupling[t + 1])
        _weighed(coupling[t + 1], votes, POSE, states.means[t + 1])


@compiled
def _network(hidden: Any, network: Any, biases: Any, widths: Any, layer: Any, logits: Any, tile: Any) -> None:
    """The compatibility network on hidden states [U * COLUMNS]. `layer` stores the hidden layers one after another."""
    read, weight, bias, start = hidden, 0, 0, 0
    for k in range(1, len(widths)):
        out = layer[start : start + widths[k] * COLUMNS]
        for row in range(0, widths[k], ROWS):
            at = weight + row * widths[k - 1]
            block = _add_products(_block_of(biases, bias + row), network, at, widths[k - 1], read)
            a, b, c, d = block
            _store_block(out, row * COLUMNS, (_positive(a), _positive(b), _positive(c), _positive(d)))
        weight, bias, start, read = weight + widths[k] * widths[k - 1], bias + widths[k], start + len(out), out
    a = b = c = d = splat(biases[bias])
    for k in range(widths[-1]):
        w, at = network[weight + k], k * COLUMNS
        a, b = a + w * load(read, at), b + w * load(read, at + LANES)
        c, d = c + w * load(read, at + 2 * LANES), d + w * load(read, at + 3 * LANES)
    _store_row(logits, tile * COLUMNS, (a, b, c, d))


@compiled
def _positive(values: Any) -> Any:
    """Replace negative values of a row by zero."""
    zero = splat(ZERO)
    return at_least(values[0], zero), at_least(values[1], zero), at_least(values[2], zero), at_least(values[3], zero)


@compiled
def _sum_columns(values: Any, rows: Any, sums: Any, start: Any) -> None:
    """Add the vectors of each row of [rows, COLUMNS] to those of sums, from row `start`."""
    for row in range(rows):
        at, to = row * COLUMNS, (start + row) * LANES
        a, b = load(values, at) + load(values, at + LANES), load(values, at + 2 * LANES) + load(values, at + 3 * LANES)
        add_to(sums, to, (a + b))


@compiled
def _network_adjoint(
    hidden: Any,
    network: Any,
    transposed: Any,
    widths: Any,
    layer: Any,
    grad_logits: Any,
    tile: Any,
    grad_layer: Any,
    grad_hidden: Any,
    gradients: Any,
    turned: Any,
) -> None:
    """Add the gradients of hidden [U * COLUMNS] and of the network. `transposed` holds the transposed matrices.

    gradients: those of the matrices, of the last matrix and of the biases. The last two are vectors, still to be
    summed.
    """
    grad_network, grad_last, grad_biases = gradients
    last = len(widths) - 1
    weight, bias = 0, 0
    for k in range(1, len(widths)):
        weight, bias = weight + widths[k] * widths[k - 1], bias + widths[k]
    start = len(layer)
    read = hidden if last == 0 else layer[start - widths[last] * COLUMNS :]
    grad_read = grad_hidden if last == 0 else grad_layer[start - widths[last] * COLUMNS :]
    if last:
        grad_read[:] = ZERO
    for slot in range(TOGETHER):
        at = load(grad_logits, (tile * TOGETHER + slot) * LANES)
        add_to(grad_biases, bias * LANES, at)
        for row in range(widths[last]):
            own, to = row * COLUMNS + slot * LANES, row * LANES
            add_to(grad_read, own, network[weight + row] * at)
            add_to(grad_last, to, load(read, own) * at)
    for k in range(last, 0, -1):
        size = widths[k] * COLUMNS
        start, weight, bias = start - size, weight - widths[k] * widths[k - 1], bias - widths[k]
        out, grad_out = layer[start : start + size], grad_layer[start : start + size]
        for q in range(size):
            grad_out[q] = ZERO if out[q] <= ZERO else grad_out[q]
        before = widths[k - 1] * COLUMNS
        read = hidden if k == 1 else layer[start - before : start]
        grad_read = grad_hidden if k == 1 else grad_layer[start - before : start]
        _outer(grad_out, widths[k], read, widths[k - 1], COLUMNS, grad_network, weight, turned)
        _sum_columns(grad_out, widths[k], grad_biases, bias)
        _product(transposed, weight, widths[k - 1], widths[k], grad_out, grad_read, k == 1)


@kernel
def _forward(
    part: int,
    parts: int,
    inputs: Inputs,
    parameters: Parameters,
    widths: Any,
    iterations: int,
    mean: Any,
    combined: Any,
    coupling: Any,
) -> None:
    """Poses [B, P, 16, LANES], means of cell states [B, P, U, LANES] and the last coupling [B, P, n, LANES]."""
    poses, activations, children, weight, slots = inputs
    batch, (positions, padded) = len(poses), children.shape
    packed, _ = _both_packed_parameters(parameters, widths)
    votes, states = _room(padded, widths, iterations, False)
    for b in range(part * batch // parts, (part + 1) * batch // parts):
        for p in range(positions):
            _votes(poses[b], children[p], weight, votes)
            _route(votes, activations[b], children[p], packed, widths, slots, iterations, 0, states)
            mean[b, p] = states.means[iterations]
            coupling[b, p] = states.shares[iterations]
            _weighed(states.shares[iterations], states.cells[0], widths[0], combined[b, p])


@kernel
def _backward(
    part: int,
    parts: int,
    inputs: Inputs,
    parameters: Parameters,
    widths: Any,
    iterations: int,
    grad_mean: Any,
    grad_combined: Any,
    grad_inputs: Inputs,
    gradients: Parameters,
    grad_last: Any,
) -> None:
    """Add to the gradients of the inputs and parameters; `grad_last` is that of the network's last matrix."""
    poses, activations, children, weight, slots = inputs
    batch, (positions, padded), kind = len(poses), children.shape, np.float32
    tiles, units = padded // TOGETHER, widths[0]
    rows, deep = 4 * units, widths.sum() - units
    packed, back = _both_packed_parameters(parameters, widths)
    votes, states = _room(padded, widths, iterations, True)
    fixed, shared, gates, cells, hiddens, layers, _, shares, means = states
    none, grad_layer = np.zeros(units * COLUMNS, kind), np.empty(deep * COLUMNS, kind)
    turned = np.empty(max(widths.max(), POSE) * COLUMNS, kind)
    grad_votes, grad_cell = np.empty_like(votes), np.empty((tiles, units * COLUMNS), kind)
    grad_hidden = np.empty((tiles, units * COLUMNS), kind)
    grad_shares, grad_next_shares = np.empty((padded, LANES), kind), np.empty((padded, LANES), kind)
    grad_logits, grad_mu = np.empty((padded, LANES), kind), np.empty((POSE, LANES), kind)
    to_pose, to_vote = gradients.from_pose[part].ravel(), gradients.from_vote[part].ravel()
    to_hidden, to_vectors = gradients.from_hidden[part].ravel(), gradients.vectors[part]
    to_network = gradients.network[part], grad_last[part], gradients.biases[part]
    for b in range(part * batch // parts, (part + 1) * batch // parts):
        for p in range(positions):
            _votes(poses[b], children[p], weight, votes)
            _route(votes, activations[b], children[p], packed, widths, slots, iterations, 1, states)
            grad_votes[:] = ZERO
            grad_cell[:] = ZERO
            grad_hidden[:] = ZERO
            grad_next_shares[:] = ZERO
            fixed[:] = ZERO  # from here on, the gradient of `fixed`
            grad_mu[:] = grad_mean[b, p]
            for t in range(iterations - 1, -1, -1):
                share = shares[t + 1]
                _weighed_adjoint(share, votes, POSE, grad_mu, grad_next_shares, grad_votes)
                if t == iterations - 1:
                    _weighed_adjoint(share, cells[t], units, grad_combined[b, p], grad_next_shares, grad_cell)
                _softmax_adjoint(share, grad_next_shares, grad_logits)
                grad_shares[:] = ZERO
                shared[:] = ZERO
                for tile in range(tiles):
                    _network_adjoint(
                        hiddens[t, tile], parameters.network, back.network, widths, layers[t, tile], grad_logits, tile,
                        grad_layer, grad_hidden[tile], to_network, turned,
                    )  # fmt: skip
                    gate, before = gates[t, tile], cells[t - 1, tile] if t else none
                    _step_adjoint(gate, units, before, hiddens[t, tile], grad_hidden[tile], grad_cell[tile])
                    if t:
                        _outer(gate, rows, hiddens[t - 1, tile], units, COLUMNS, to_hidden, 0, turned)
                        _product(back.from_hidden, 0, units, rows, gate, grad_hidden[tile], False)
                    by = parameters.vectors[2]
                    _inputs_adjoint(gate, by, shares[t], tile, fixed[tile], shared, grad_shares, to_vectors[2])
                _outer(shared, rows, means[t].ravel(), POSE, LANES, to_pose, 0, turned)
                _single_product(back.from_pose, POSE, rows, shared, grad_mu)
                grad_next_shares[:] = grad_shares
            # grad_mu is now the gradient of the unweighted mean of the votes. The first coupling is a constant.
            _weighed_adjoint(shares[0], votes, POSE, grad_mu, grad_next_shares, grad_votes)
            for tile in range(tiles):
                _outer(fixed[tile], rows, votes[tile], POSE, COLUMNS, to_vote, 0, turned)
                _product(back.from_vote, 0, POSE, rows, fixed[tile], grad_votes[tile], True)
                by, to = parameters.vectors[1], grad_inputs.activations[b]
                _fixed_adjoint(fixed[tile], activations[b], children[p], tile, by, to, to_vectors)
            for slot in range(slots):
                child, tile, at = children[p, slot], grad_votes[slot // TOGETHER], slot % TOGETHER * LANES
                to_weight, to = grad_inputs.weight[part], grad_inputs.poses[b, child]
                vote_adjoint(weight, slot, poses[b, child], tile, at, COLUMNS, to_weight, to)


@compiled
def _inputs_adjoint(
    grad_gates: Any,
    by_coupling: Any,
    coupling: Any,
    tile: Any,
    grad_fixed: Any,
    grad_shared: Any,
    grad_coupling: Any,
    to_vector: Any,
) -> None:
    """Add the gradients of all inputs of the gates [4U * COLUMNS] except for the hidden state."""
    for slot in range(TOGETHER):
        own = (tile * TOGETHER + slot) * LANES
        share, found = load(coupling, own), splat(ZERO)
        for row in range(len(by_coupling)):
            at, to = row * COLUMNS + slot * LANES, row * LANES
            d = load(grad_gates, at)
            found = found + by_coupling[row] * d
            add_to(grad_fixed, at, d)
            add_to(grad_shared, to, d)
            add_to(to_vector, to, share * d)
        store(grad_coupling, own, found)


@compiled
def _fixed_adjoint(
    grad_fixed: Any,
    activation: Any,
    children: Any,
    tile: Any,
    by_activation: Any,
    grad_activation: Any,
    to_vectors: Any,
) -> None:
    """Add the gradients of the activations, their weights and the bias."""
    for slot in range(TOGETHER):
        child = children[tile * TOGETHER + slot]
        seen, found = splat(activation[child]), splat(ZERO)
        for row in range(len(by_activation)):
            d, to = load(grad_fixed, row * COLUMNS + slot * LANES), row * LANES
            found = found + by_activation[row] * d
            add_to(to_vectors[0], to, d)
            add_to(to_vectors[1], to, seen * d)
        grad_activation[child] += first(total(found))
