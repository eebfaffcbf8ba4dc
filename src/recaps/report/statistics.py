"""Means over seeds, their uncertainty, and differences between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal

from scipy import stats

from recaps.npz import Array

#: The source of an uncertainty. `seeds`: the spread over several runs. `test images`: the finite test set, or another
#: model's spread, for a single run or for runs with equal values. `none`: unknown.
Basis = Literal["seeds", "test images", "none"]

LEVEL = 0.95

#: More seeds than this count as no feasible number.
MOST_SEEDS = 100


@dataclass(frozen=True)
class Estimate:
    """A value with its standard error.

    Attributes:
        value: the estimate.
        error: its standard error; None if unknown.
        freedom: degrees of freedom of the error (infinite: a normal distribution).
        basis: the source of the error.
        samples: the standard deviation over seeds and the number of seeds of each model, where they are known.
        runs: the number of runs, where it matters: a single one has no spread of its own.
    """

    value: float
    error: float | None
    freedom: float
    basis: Basis
    samples: tuple[tuple[float, int], ...] = ()
    runs: int | None = None

    def interval(self, level: float = LEVEL) -> tuple[float, float] | None:
        """Two-sided interval, or None without a standard error."""
        if self.error is None:
            return None
        half = float(stats.t.ppf(0.5 + level / 2, self.freedom)) * self.error
        return self.value - half, self.value + half

    def p_value(self, value: float = 0.0) -> float | None:
        """Two-sided p-value of the hypothesis that the true value is `value`, or None without a standard error."""
        if self.error is None:
            return None
        if self.error == 0:
            return float(self.value == value)
        return float(2 * stats.t.sf(abs(self.value - value) / self.error, self.freedom))

    def separated(self, value: float = 0.0) -> bool:
        """Whether the estimate differs from `value` at the 5 % level."""
        p = self.p_value(value)
        return p is not None and p < 1 - LEVEL


def over_seeds(values: Sequence[float], test_error: float | None = None) -> Estimate:
    """The mean over seeds.

    A single seed has no spread, and equal values do not show that there is none. Their error is `test_error`, that of
    the finite test set, or of the parts that all seeds have.
    """
    if not values:
        raise ValueError("no values")
    mean = math.fsum(values) / len(values)
    if len(values) > 1 and (spread := sd(values)) > 0:
        return Estimate(mean, spread / math.sqrt(len(values)), len(values) - 1, "seeds", ((spread, len(values)),))
    return Estimate(mean, test_error, math.inf, "none" if test_error is None else "test images", runs=len(values))


def published(mean: float, sd: float | None, seeds: int | None) -> Estimate:
    """A printed value. It counts as exact unless the paper gives the spread of its runs."""
    if sd is None or seeds is None:
        return Estimate(mean, 0.0, math.inf, "seeds")
    return Estimate(mean, sd / math.sqrt(seeds), seeds - 1, "seeds")


def difference(a: Estimate, b: Estimate) -> Estimate:
    """`a - b` of independent estimates, with Welch's variance and degrees of freedom.

    If `b` is exact, this is the one-sample t-test of `a`. A single run beside several counts with their spread, if that
    is larger than the error of its test set: the t-test of one value against a sample. The basis is the weaker of the
    two.
    """
    value = a.value - b.value
    for single, several in ((a, b), (b, a)):
        spread = several.samples[0][0] if len(several.samples) == 1 else 0.0
        if single.runs == 1 and (single.error or 0.0) < spread:
            return Estimate(value, math.hypot(spread, several.error or 0.0), several.freedom, "test images")
    if a.error is None or b.error is None:
        return Estimate(value, None, math.inf, "none")
    variance = a.error**2 + b.error**2
    spread = a.error**4 / a.freedom + b.error**4 / b.freedom
    basis: Basis = "seeds" if a.basis == b.basis == "seeds" else "test images"
    freedom = variance**2 / spread if spread else math.inf
    return Estimate(value, math.sqrt(variance), freedom, basis, a.samples + b.samples)


def seeds_to_separate(estimate: Estimate, distance: float) -> int | None:
    """The number of seeds with which `estimate` would be separated from a value at this distance.

    It holds if neither the means nor the spreads of the models change. Models with more seeds keep theirs. None: more
    than `MOST_SEEDS`, or no error over seeds.
    """
    if estimate.basis != "seeds" or not estimate.samples:
        return None
    for n in range(2, MOST_SEEDS + 1):
        more = [(spread, max(n, seeds)) for spread, seeds in estimate.samples]
        errors = [Estimate(0.0, spread / math.sqrt(seeds), seeds - 1, "seeds") for spread, seeds in more]
        if replace(reduce(difference, errors), value=distance).separated():
            return n
    return None


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Correct p-values for their number by Holm's method; None stays None.

    The k-th smallest of n p-values is multiplied by n - k + 1; none is smaller than the one before, or above 1.
    """
    known = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, place) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - rank)))
        corrected[place] = largest
    return corrected


def sd(values: Sequence[float] | Array) -> float:
    """Sample standard deviation (n - 1), e.g. over seeds: exactly 0 if all values are equal, nan for fewer than two."""
    if len(values) < 2:
        return math.nan
    if len(set(values)) == 1:
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def proportion_error(fraction: float, n: float) -> float:
    """Standard error of a fraction of `n` test images, after Agresti and Coull: above 0 even at 0 and 1."""
    adjusted = (fraction * n + 2) / (n + 4)
    return math.sqrt(adjusted * (1 - adjusted) / (n + 4))
