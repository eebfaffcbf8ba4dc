"""Vectors of `LANES` float32 values for compiled functions.

The functions are `load`, `load_one`, `store`, `add_to`, `splat`, `first`, `total`, `totals`, `transpose`, `largest`,
`at_least`, `at_most`, `sqrt`, `exp`, `expm1` and `log`. Vectors also have `+`, `-`, `*` and `/`, with one another and
with float32 numbers. The compiler may fuse a product and a sum, and ignores the sign of zero.

A vector stays in registers; with registers of 256 bits, in two. Loops over arrays of `LANES` values are half as fast:
the compiler does not know that the arrays do not overlap, and prepares each loop for any length.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic as _intrinsic
from numba.extending import models, overload, register_model

from recaps.nn.kernels import LANES
from recaps.nn.kernels.compiled import FAST, compiled

_REAL, _INTEGER = ir.FloatType(), ir.IntType(32)
_BITS = LANES.bit_length() - 1
_REALS, _INTEGERS = ir.VectorType(_REAL, LANES), ir.VectorType(_INTEGER, LANES)
_FLAGS = tuple(sorted(FAST))


def intrinsic(function: Callable[..., Any]) -> Any:
    """Let compiled functions call `function`, which gets a context and the types of the other arguments.

    It returns its signature and the function that writes its instructions.
    """
    return _intrinsic(function)


class _Vector(types.Type):
    """The type of vectors in Numba."""

    def __init__(self) -> None:
        super().__init__("Vector")


VECTOR = _Vector()


@register_model(_Vector)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _REALS)


@intrinsic
def load(context: Any, array: Any, start: Any) -> Any:
    """Return `LANES` values of a contiguous float32 array from index `start` of the flat array."""

    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        pointer = builder.bitcast(_place(context, builder, signature, values), _REALS.as_pointer())
        loaded = builder.load(pointer)
        loaded.align = 4
        return loaded

    return VECTOR(array, types.intp), write


@intrinsic
def store(context: Any, array: Any, start: Any, vector: Any) -> Any:
    """Write a vector to a contiguous float32 array, from index `start` of the flat array."""

    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        pointer = builder.bitcast(_place(context, builder, signature, values), _REALS.as_pointer())
        builder.store(values[2], pointer).align = 4
        return context.get_dummy_value()

    return types.void(array, types.intp, VECTOR), write


@compiled
def add_to(array: Any, start: Any, vector: Any) -> None:
    """Add a vector to `LANES` values of an array, from index `start` of the flat array."""
    store(array, start, load(array, start) + vector)


def _place(context: Any, builder: Any, signature: Any, values: Any, argument: int = 0) -> Any:
    """Address of element `values[argument + 1]` of the flat array `values[argument]`."""
    kind = signature.args[argument]
    assert (kind.dtype, kind.layout) == (types.float32, "C"), f"{kind} is not a contiguous float32 array"
    array = context.make_array(kind)(context, builder, values[argument])
    return builder.gep(array.data, [values[argument + 1]])


@intrinsic
def splat(context: Any, value: Any) -> Any:
    """Return a vector of equal values."""

    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _repeated(builder, values[0])

    return VECTOR(types.float32), write


@intrinsic
def load_one(context: Any, array: Any, place: Any) -> Any:
    """Return a vector whose lanes all equal `array.flat[place]`; `place` is not negative."""

    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _repeated(builder, builder.load(_place(context, builder, signature, values)))

    return VECTOR(array, types.intp), write


def _repeated(builder: Any, value: Any) -> Any:
    undefined = ir.Constant(_REALS, ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(_INTEGER, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(_INTEGERS, [0] * LANES))


def _with_operator(function: Callable[..., Any], instruction: str) -> None:
    @intrinsic
    def of_vectors(context: Any, a: Any, b: Any) -> Any:
        def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return getattr(builder, instruction)(*values, flags=_FLAGS)

        return VECTOR(VECTOR, VECTOR), write

    @overload(function, strict=False)
    def of_operands(a: Any, b: Any) -> Any:
        if a is VECTOR and b is VECTOR:
            return lambda a, b: of_vectors(a, b)
        if a is VECTOR and b is types.float32:
            return lambda a, b: of_vectors(a, splat(b))
        if a is types.float32 and b is VECTOR:
            return lambda a, b: of_vectors(splat(a), b)
        return None


for _operator, _instruction in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _with_operator(_operator, _instruction)


def _called(name: str) -> Callable[..., Any]:
    """Return what writes a call of LLVM's function `name` of one vector."""
    full = f"llvm.{name}.v{LANES}f32"

    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        known = builder.module.globals.get(full)
        function = known or ir.Function(builder.module, ir.FunctionType(_REALS, [_REALS]), full)
        return builder.call(function, values, fastmath=_FLAGS)

    return write


def _over_lanes(combine: Callable[..., Any]) -> Callable[..., Any]:
    """Return what combines all lanes of a vector, by halves. All lanes of the result are equal."""

    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        (vector,), by = values, LANES // 2
        while by:
            order = ir.Constant(_INTEGERS, [(lane + by) % LANES for lane in range(LANES)])
            vector = combine(builder, vector, builder.shuffle_vector(vector, ir.Constant(_REALS, ir.Undefined), order))
            by //= 2
        return vector

    return write


@intrinsic
def total(context: Any, vector: Any) -> Any:
    """Return the sum of all lanes, in all lanes."""
    return VECTOR(VECTOR), _over_lanes(lambda builder, a, b: builder.fadd(a, b, flags=_FLAGS))


@intrinsic
def totals(
    context: Any,
    a: Any,
    b: Any,
    c: Any,
    d: Any,
    e: Any,
    f: Any,
    g: Any,
    h: Any,
    i: Any,
    j: Any,
    k: Any,
    l: Any,  # noqa: E741
    m: Any,
    n: Any,
    o: Any,
    p: Any,
) -> Any:
    """Return a vector whose lanes are the sums of all lanes of 16 vectors, one of each.

    Each round adds halves of pairs of vectors, so that it has half as many vectors as the round before.
    """

    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        vectors, size = list(values), LANES  # `size` lanes of each sum
        while size > 1:
            half, groups = size // 2, LANES // size
            starts = [start for vector in (0, LANES) for start in range(vector, vector + groups * size, size)]
            parts = [[start + shift + lane for start in starts for lane in range(half)] for shift in (0, half)]
            low, high = (ir.Constant(_INTEGERS, part) for part in parts)
            pairs = zip(vectors[: len(vectors) // 2], vectors[len(vectors) // 2 :], strict=True)
            vectors = [
                builder.fadd(builder.shuffle_vector(x, y, low), builder.shuffle_vector(x, y, high), flags=_FLAGS)
                for x, y in pairs
            ]
            size = half
        order = [sum(((lane >> bit) & 1) << (_BITS - 1 - bit) for bit in range(_BITS)) for lane in range(LANES)]
        return builder.shuffle_vector(vectors[0], vectors[0], ir.Constant(_INTEGERS, order))

    return VECTOR(*[VECTOR] * LANES), write


@intrinsic
def transpose(context: Any, array: Any, start: Any, stride: Any, out: Any, to: Any, step: Any) -> Any:
    """Write the transpose of a block of `LANES` by `LANES` values.

    Rows of `array` begin at `start`, `start + stride` and so on, those of `out` at `to`, `to + step` and so on. Each
    round swaps two quarters in all blocks, which are half as large as in the round before.
    """

    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        def row_of(argument: int, row: int) -> Any:
            place, stride = _place(context, builder, signature, values, argument), values[argument + 2]
            start = builder.gep(place, [builder.mul(stride, ir.Constant(stride.type, row))])
            return builder.bitcast(start, _REALS.as_pointer())

        vectors, by = [], LANES // 2
        for row in range(LANES):
            vectors.append(builder.load(row_of(0, row)))
            vectors[-1].align = 4
        while by:
            low, high = (
                ir.Constant(
                    _INTEGERS, [lane + shift if lane & by == 0 else LANES + lane - by + shift for lane in range(LANES)]
                )
                for shift in (0, by)
            )
            for row in [row for row in range(LANES) if row & by == 0]:
                pair = vectors[row], vectors[row + by]
                vectors[row], vectors[row + by] = (builder.shuffle_vector(*pair, order) for order in (low, high))
            by //= 2
        for row, vector in enumerate(vectors):
            builder.store(vector, row_of(3, row)).align = 4
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, out, types.intp, types.intp), write


@intrinsic
def largest(context: Any, vector: Any) -> Any:
    """Return the largest value of all lanes, in all lanes. If one is NaN, lanes may differ."""
    return VECTOR(VECTOR), _over_lanes(lambda builder, a, b: builder.select(builder.fcmp_ordered(">", a, b), a, b))


@intrinsic
def first(context: Any, vector: Any) -> Any:
    """Return the value of the first lane."""

    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.extract_element(values[0], ir.Constant(_INTEGER, 0))

    return types.float32(VECTOR), write


@intrinsic
def sqrt(context: Any, vector: Any) -> Any:
    """Return the square roots of the values of a vector."""
    return VECTOR(VECTOR), _called("sqrt")


def _bounded(sign: str) -> Any:
    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.select(builder.fcmp_ordered(sign, *values), values[1], values[0])

    return VECTOR(VECTOR, VECTOR), write


@intrinsic
def at_least(context: Any, vector: Any, bound: Any) -> Any:
    """Replace values below those of another vector; NaN stays."""
    return _bounded("<")


@intrinsic
def at_most(context: Any, vector: Any, bound: Any) -> Any:
    """Replace values above those of another vector; NaN stays."""
    return _bounded(">")


@intrinsic
def _power_of_two(context: Any, vector: Any) -> Any:
    """Return 2^n for integers n from -126 to 127, given `_SHIFT` + n, whose last bits are those of n."""

    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        exponent = builder.shl(builder.bitcast(values[0], _INTEGERS), _integers(23))
        return builder.bitcast(builder.add(exponent, _integers(127 << 23)), _REALS)

    return VECTOR(VECTOR), write


def _integers(value: int) -> ir.Constant:
    return ir.Constant(_INTEGERS, [value] * LANES)


#: The bits of sqrt(1/2).
_HALF_ROOT = 0x3F3504F3
_HALF = np.float32(0.5)
_L1, _L2, _L3, _L4, _L5, _L6, _L7, _L8, _L9 = (
    np.float32(number)
    for number in (
        3.3333331174e-1,
        -2.4999993993e-1,
        2.0000714765e-1,
        -1.6668057665e-1,
        1.4249322787e-1,
        -1.2420140846e-1,
        1.1676998740e-1,
        -1.1514610310e-1,
        7.0376836292e-2,
    )
)
_ONE, _LOWEST, _HIGHEST = np.float32(1), np.float32(-87), np.float32(88)
_PER_LOG_2, _LOG_2 = np.float32(1 / math.log(2)), np.float32(math.log(2))
#: Between 2^23 and 2^24, a sum is rounded to an integer.
_SHIFT = np.float32(1.5 * 2**23)
_C2, _C3, _C4, _C5, _C6 = (np.float32(1 / math.factorial(n)) for n in range(2, 7))


@compiled
def _factors(x: Any) -> Any:
    """Return p and s with exp(x) = p (1 + s), where p is a power of two.

    With x = n log 2 + rest and |rest| <= log(2) / 2, p is 2^n, and s a Taylor series of the rest.
    """
    x = at_most(at_least(x, splat(_LOWEST)), splat(_HIGHEST))
    shifted = _SHIFT + x * _PER_LOG_2
    rest = x - (shifted - _SHIFT) * _LOG_2
    series = _C5 + rest * _C6
    series = _C3 + rest * (_C4 + rest * series)
    return _power_of_two(shifted), rest * (_ONE + rest * (_C2 + rest * series))


@compiled
def exp(x: Any) -> Any:
    """exp(x) for x clipped to -87..88. With fused multiply-add, the relative error is below 5e-7."""
    power, series = _factors(x)
    return power * (_ONE + series)


@intrinsic
def _exponent_and_rest(context: Any, vector: Any) -> Any:
    """Return n and f with x = 2^n (1 + f) and 1 + f from sqrt(1/2) to sqrt(2), for normal numbers x above zero."""

    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        bits = builder.sub(builder.bitcast(values[0], _INTEGERS), _integers(_HALF_ROOT))
        exponent = builder.sitofp(builder.ashr(bits, _integers(23)), _REALS)
        rest = builder.add(builder.and_(bits, _integers(0x7FFFFF)), _integers(_HALF_ROOT))
        one = ir.Constant(_REALS, [1.0] * LANES)
        pair = [exponent, builder.fsub(builder.bitcast(rest, _REALS), one, flags=_FLAGS)]
        return context.make_tuple(builder, signature.return_type, pair)

    return types.UniTuple(VECTOR, 2)(VECTOR), write


@intrinsic
def _unless_infinite(context: Any, value: Any, vector: Any) -> Any:
    """Return `value`, and where `vector` is NaN or infinite, `vector`."""

    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        infinite = ir.Constant(_REALS, [float("inf")] * LANES)
        return builder.select(builder.fcmp_ordered("<", values[1], infinite), *values)

    return VECTOR(VECTOR, VECTOR), write


@compiled
def log(x: Any) -> Any:
    """log(x) for normal numbers x above zero, with an error below 1e-7 or, relatively, 2e-7.

    This is Cephes' polynomial for logarithms from sqrt(1/2) to sqrt(2).
    """
    n, f = _exponent_and_rest(x)
    series = _L8 + f * _L9
    series = _L6 + f * (_L7 + f * series)
    series = _L4 + f * (_L5 + f * series)
    series = _L2 + f * (_L3 + f * series)
    series = f * f * (f * (_L1 + f * series) - _HALF)
    return _unless_infinite(n * _LOG_2 + (f + series), x)


@compiled
def expm1(x: Any) -> Any:
    """exp(x) - 1 for x clipped to -87..88. With fused multiply-add, the relative error is below 1e-6."""
    power, series = _factors(x)
    return power * series + (power - _ONE)
