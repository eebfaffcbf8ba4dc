"""Vectors of compiled functions against NumPy."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest

from recaps.nn.kernels import LANES
from recaps.nn.kernels.compiled import FAST
from recaps.nn.kernels.vector import (
    at_least,
    at_most,
    exp,
    expm1,
    first,
    largest,
    load,
    load_one,
    log,
    splat,
    sqrt,
    store,
    total,
    totals,
    transpose,
)

pytestmark = pytest.mark.unit

HALF = np.float32(0.5)
#: A `kernel` that is not cached: the digest of the cache leaves this file out, so an edit of it would go unnoticed.
uncached = numba.njit(fastmath=FAST, error_model="numpy", nogil=True)


@uncached
def _each(part: int, parts: int, x: Any, y: Any, made: Any) -> None:
    """Rows of `made`: one for each operation on vectors x and y."""
    a, b = load(x, 0), load(y, 0)
    store(made[0], 0, a + b)
    store(made[1], 0, HALF - a)
    store(made[2], 0, a * HALF)
    store(made[3], 0, a / b)
    store(made[4], 0, sqrt(b))
    store(made[5], 0, total(a))
    store(made[6], 0, largest(a))
    store(made, 7 * LANES, a - splat(first(b)))
    store(made[8], 0, at_least(a, b))
    store(made[9], 0, at_most(a, b))
    store(made[10], 0, a * load_one(y, 3))
    store(made[11], 0, totals(a, b, a * b, a, b, a, a, a, a, a, a, a, a, a, a, b - a))


@uncached
def _transpose(part: int, parts: int, x: Any, made: Any) -> None:
    transpose(x, 5, x.shape[1], made, made.shape[1] + 3, made.shape[1])


@uncached
def _functions(part: int, parts: int, x: Any, made: Any) -> None:
    for start in range(0, len(x), LANES):
        store(made[0], start, exp(load(x, start)))
        store(made[1], start, expm1(load(x, start)))
        store(made[2], start, log(load(x, start)))


def test_operations_match_numpy() -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=LANES).astype(np.float32), random.uniform(0.5, 2, LANES).astype(np.float32)
    made = np.empty((12, LANES), np.float32)
    _each(0, 1, x, y, made)
    one = np.ones(LANES, np.float32)
    expected = [x + y, HALF - x, x * HALF, x / y, np.sqrt(y), x.sum() * one, x.max() * one, x - y[0]]
    expected += [np.maximum(x, y), np.minimum(x, y), x * y[3]]
    each = {1: y, 2: x * y, 4: y, LANES - 1: y - x}
    expected.append(np.array([each.get(lane, x).sum() for lane in range(LANES)]))
    np.testing.assert_allclose(made, expected, rtol=1e-6, atol=1e-6)


def test_a_transposed_block() -> None:
    """The block may lie anywhere in both arrays, and nothing else is written."""
    x = np.random.default_rng(0).normal(size=(LANES, LANES + 9)).astype(np.float32)
    made = np.zeros((LANES + 2, LANES + 4), np.float32)
    _transpose(0, 1, x, made)
    expected = np.zeros_like(made)
    expected[1 : 1 + LANES, 3 : 3 + LANES] = x[:, 5 : 5 + LANES].T
    np.testing.assert_array_equal(made, expected)


def functions(x: np.ndarray) -> np.ndarray:
    """exp, expm1 and log of float32 numbers [n], as [3, n]."""
    made = np.empty((3, len(x)), np.float32)
    _functions(0, 1, x, made)
    return made


def test_exponentials_match_numpy() -> None:
    small = np.geomspace(1e-12, 1, 100 * LANES)
    x = np.concatenate([np.linspace(-87, 88, 1000 * LANES), small, -small]).astype(np.float32)
    exact = x.astype(np.float64)
    np.testing.assert_allclose(functions(x)[0], np.exp(exact), rtol=5e-7)
    np.testing.assert_allclose(functions(x)[1], np.expm1(exact), rtol=1e-6)


def test_logarithms_match_numpy() -> None:
    x = np.concatenate([np.geomspace(1.2e-38, 3e38, 1000 * LANES), np.linspace(0.5, 2, 100 * LANES)]).astype(np.float32)
    np.testing.assert_allclose(functions(x)[2], np.log(x.astype(np.float64)), rtol=2e-7, atol=1e-7)


@pytest.mark.parametrize(
    ("x", "expected"), [(0, (1, 0)), (-0.0, (1, 0)), (-np.inf, (0, -1)), (-1e30, (0, -1)), (np.nan, (np.nan, np.nan))]
)
def test_exponentials_of_special_values(x: float, expected: tuple[float, float]) -> None:
    found = functions(np.full(LANES, x, np.float32))
    np.testing.assert_allclose(found[:2, 0], expected, rtol=0, atol=1e-37)


def test_exponentials_of_large_values_are_finite() -> None:
    assert (functions(np.full(LANES, np.inf, np.float32))[:2] > 1e38).all()


@pytest.mark.parametrize("x", [np.inf, np.nan])
def test_logarithms_keep_nan_and_infinity(x: float) -> None:
    np.testing.assert_equal(functions(np.full(LANES, x, np.float32))[2], np.full(LANES, x, np.float32))
