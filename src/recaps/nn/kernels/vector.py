"""Vectors of `LANES` float32 values for compiled functions.

There are `load`, `store`, `splat`, `first`, `total`, `largest`, `sqrt` and `exp`. Vectors also have `+`, `-`, `*` and
`/`, with one another and with float32 numbers. A vector stays in registers; with registers of 256 bits, in two. Loops
over arrays of `LANES` values are half as fast: the compiler does not know that the arrays do not overlap, and prepares
each loop for any length.
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
        loaded = builder.load(_place(context, builder, signature, values))
        loaded.align = 4
        return loaded

    return VECTOR(array, types.intp), write


@intrinsic
def store(context: Any, array: Any, start: Any, vector: Any) -> Any:
    """Write a vector to a contiguous float32 array, from index `start` of the flat array."""

    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        builder.store(values[2], _place(context, builder, signature, values)).align = 4
        return context.get_dummy_value()

    return types.void(array, types.intp, VECTOR), write


def _place(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    kind = signature.args[0]
    assert (kind.dtype, kind.layout) == (types.float32, "C"), f"{kind} is not a contiguous float32 array"
    array = context.make_array(kind)(context, builder, values[0])
    return builder.bitcast(builder.gep(array.data, [values[1]]), _REALS.as_pointer())


@intrinsic
def splat(context: Any, value: Any) -> Any:
    """Return a vector of equal values."""

    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        undefined = ir.Constant(_REALS, ir.Undefined)
        first = builder.insert_element(undefined, values[0], ir.Constant(_INTEGER, 0))
        return builder.shuffle_vector(first, undefined, ir.Constant(_INTEGERS, [0] * LANES))

    return VECTOR(types.float32), write


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
def largest(context: Any, vector: Any) -> Any:
    """Return the largest value of all lanes, in all lanes; any of the values if one is NaN."""
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


@intrinsic
def _above(context: Any, vector: Any, bound: Any) -> Any:
    """Replace values below a bound by the bound; NaN stays."""

    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", *values), values[1], values[0])

    return VECTOR(VECTOR, VECTOR), write


@intrinsic
def _nearest(context: Any, vector: Any) -> Any:
    """Round to the nearest integers."""
    return VECTOR(VECTOR), _called("rint")


@intrinsic
def _power_of_two(context: Any, vector: Any) -> Any:
    """Return 2^n for integers n from -126 to 127, and 1 for NaN."""

    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        is_number = builder.fcmp_ordered("ord", values[0], values[0])
        known = builder.select(is_number, values[0], ir.Constant(_REALS, [0.0] * LANES))
        exponent = builder.add(builder.fptosi(known, _INTEGERS), _integers(127))
        return builder.bitcast(builder.shl(exponent, _integers(23)), _REALS)

    return VECTOR(VECTOR), write


def _integers(value: int) -> ir.Constant:
    return ir.Constant(_INTEGERS, [value] * LANES)


_ONE, _LOWEST = np.float32(1), np.float32(-87)
_PER_LOG_2, _LOG_2 = np.float32(1 / math.log(2)), np.float32(math.log(2))
_C2, _C3, _C4, _C5, _C6 = (np.float32(1 / math.factorial(n)) for n in range(2, 7))


@compiled
def exp(x: Any) -> Any:
    """exp(x) for x from -87 to 88, with a relative error below 5e-7; for smaller x exp(-87).

    With x = n log 2 + rest and |rest| <= log(2) / 2, this is 2^n times a Taylor series of the rest.
    """
    x = _above(x, splat(_LOWEST))
    n = _nearest(x * _PER_LOG_2)
    rest = x - n * _LOG_2
    series = _C5 + rest * _C6
    series = _C3 + rest * (_C4 + rest * series)
    series = _ONE + rest * (_ONE + rest * (_C2 + rest * series))
    return _power_of_two(n) * series
