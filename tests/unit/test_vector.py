"""Vectors of compiled functions against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from recaps.nn.kernels import LANES
from recaps.nn.kernels.compiled import kernel
from recaps.nn.kernels.vector import exp, first, largest, load, splat, sqrt, store, total

pytestmark = pytest.mark.unit

HALF = np.float32(0.5)


@kernel
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


@kernel
def _exp(part: int, parts: int, x: Any, made: Any) -> None:
    for start in range(0, len(x), LANES):
        store(made, start, exp(load(x, start)))


def test_operations_match_numpy() -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=LANES).astype(np.float32), random.uniform(0.5, 2, LANES).astype(np.float32)
    made = np.empty((8, LANES), np.float32)
    _each(0, 1, x, y, made)
    one = np.ones(LANES, np.float32)
    expected = [x + y, HALF - x, x * HALF, x / y, np.sqrt(y), x.sum() * one, x.max() * one, x - y[0]]
    np.testing.assert_allclose(made, expected, rtol=1e-6, atol=1e-6)


def test_exp_matches_numpy() -> None:
    x = np.linspace(-87, 88, 1000 * LANES).astype(np.float32)
    made = np.empty_like(x)
    _exp(0, 1, x, made)
    np.testing.assert_allclose(made, np.exp(x.astype(np.float64)), rtol=5e-7)


@pytest.mark.parametrize(("x", "expected"), [(0, 1), (-0.0, 1), (-np.inf, 0), (-1e30, 0), (np.nan, np.nan)])
def test_exp_of_special_values(x: float, expected: float) -> None:
    made = np.empty(LANES, np.float32)
    _exp(0, 1, np.full(LANES, x, np.float32), made)
    np.testing.assert_allclose(made, expected, rtol=0, atol=1e-37)
