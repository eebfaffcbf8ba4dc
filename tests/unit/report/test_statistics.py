"""Intervals and p-values against SciPy's own."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from recaps.report.statistics import (
    Estimate,
    difference,
    holm,
    over_seeds,
    proportion_error,
    published,
    sd,
    seeds_to_separate,
)

pytestmark = pytest.mark.unit

A = (90.1, 89.4, 90.8, 88.9, 90.0)
B = (88.2, 89.0, 87.5)


def test_the_interval_is_scipys() -> None:
    result = stats.ttest_1samp(A, 0).confidence_interval(0.95)
    assert over_seeds(A).interval() == pytest.approx((result.low, result.high))


def test_a_single_published_value_gives_the_one_sample_test() -> None:
    gap = difference(over_seeds(A), published(90.12, None, None))
    assert gap.value == pytest.approx(np.mean(A) - 90.12)
    assert gap.p_value() == pytest.approx(stats.ttest_1samp(A, 90.12).pvalue)
    assert gap.basis == "seeds"


def test_several_published_runs_give_welchs_test() -> None:
    gap = difference(over_seeds(A), published(89.0, 0.7, 4))
    expected = stats.ttest_ind_from_stats(np.mean(A), np.std(A, ddof=1), 5, 89.0, 0.7, 4, equal_var=False)
    assert gap.p_value() == pytest.approx(expected.pvalue)


def test_two_samples_give_welchs_test_and_interval() -> None:
    gap = difference(over_seeds(A), over_seeds(B))
    expected = stats.ttest_ind(A, B, equal_var=False)
    assert gap.p_value() == pytest.approx(expected.pvalue)
    interval = expected.confidence_interval(0.95)
    assert gap.interval() == pytest.approx((interval.low, interval.high))


def test_p_values_of_other_hypotheses() -> None:
    assert over_seeds(A).p_value(89.0) == pytest.approx(stats.ttest_1samp(A, 89.0).pvalue)


def test_separated_is_the_interval_excluding_the_value() -> None:
    estimate = over_seeds(A)
    interval = estimate.interval()
    assert interval is not None
    for bound, inside in ((interval[0], 1e-6), (interval[1], -1e-6)):
        assert not estimate.separated(bound + inside)
        assert estimate.separated(bound - inside)


def test_one_seed_has_no_interval_of_its_own() -> None:
    alone = over_seeds((90.0,))
    assert alone == Estimate(90.0, None, math.inf, "none", runs=1)
    assert alone.interval() is None
    assert alone.p_value(80) is None
    assert not alone.separated(80)
    assert difference(alone, over_seeds((91.0,))) == Estimate(-1.0, None, math.inf, "none")


def test_one_seed_against_another_counts_the_test_set() -> None:
    error = 100 * proportion_error(0.9, 10_000)
    gap = difference(over_seeds((90.0,), error), over_seeds((88.0,), 100 * proportion_error(0.88, 10_000)))
    assert gap.basis == "test images"
    z = 2 / (100 * math.sqrt(0.9 * 0.1 / 1e4 + 0.88 * 0.12 / 1e4))
    assert gap.p_value() == pytest.approx(2 * stats.norm.sf(z), rel=0.02)


def test_one_seed_against_several_counts_both() -> None:
    gap = difference(over_seeds(A), over_seeds((88.0,), 1.5))
    assert gap.basis == "test images"
    assert gap.error == pytest.approx(math.hypot(np.std(A, ddof=1) / math.sqrt(5), 1.5))


def test_equal_seeds_are_as_uncertain_as_one() -> None:
    assert over_seeds((3.0, 3.0, 3.0)) == Estimate(3.0, None, math.inf, "none", runs=3)
    equal = over_seeds((90.0, 90.0), 0.3)
    assert equal == Estimate(90.0, 0.3, math.inf, "test images", runs=2)
    gap = difference(over_seeds(A), equal)
    assert gap.error == pytest.approx(math.hypot(np.std(A, ddof=1) / math.sqrt(5), 0.3)), "not one run beside several"


def test_one_seed_counts_with_the_spread_of_the_others_if_that_is_larger() -> None:
    """As if the single run were one of a sample with the same variance: Student's t-test with one value in `B`."""
    spread = np.std(A, ddof=1)
    several, one, unknown = over_seeds(A), over_seeds((88.0,), 0.3), over_seeds((88.0,))
    for gap in (difference(one, several), difference(several, one), difference(unknown, several)):
        assert gap.basis == "test images"
        assert gap.error == pytest.approx(spread * math.sqrt(1 + 1 / 5))
        assert gap.p_value() == pytest.approx(stats.ttest_ind([88.0], A).pvalue)


def test_the_number_of_seeds_that_separates_a_mean() -> None:
    """With n seeds of these, the one-sample t-test is just below 0.05, and with n - 1 it is not."""
    three = over_seeds([0.2, 1.0, 2.1])
    n = seeds_to_separate(three, three.value)
    assert n is not None
    p_values = [2 * stats.t.sf(three.value / (three.samples[0][0] / math.sqrt(k)), k - 1) for k in (n - 1, n)]
    assert p_values[0] > 0.05 > p_values[1]
    assert seeds_to_separate(three, 0.01) is None
    assert seeds_to_separate(over_seeds([0.2], test_error=0.1), 0.2) is None


def test_the_number_of_seeds_that_separates_a_model_with_few_seeds_from_one_with_many() -> None:
    """The many stay: their spread counts as it is. Welch's test with n seeds of the few is just below 0.05."""
    few, many = [1.0, 2.0, 1.6], [2.0, 2.2, 1.9, 2.4, 2.1, 2.3, 2.0, 1.8, 2.2, 2.1]
    gap = difference(over_seeds(many), over_seeds(few))
    n = seeds_to_separate(gap, gap.value)
    assert n is not None
    assert len(few) < n < len(many)
    sample = (np.mean(many), np.std(many, ddof=1), len(many), np.mean(few), np.std(few, ddof=1))
    p_values = [stats.ttest_ind_from_stats(*sample, k, equal_var=False).pvalue for k in (n - 1, n)]
    assert p_values[0] > 0.05 > p_values[1]


def test_standard_deviation() -> None:
    assert sd(A) == pytest.approx(np.std(A, ddof=1))
    assert sd((0.1, 0.1, 0.1)) == 0.0
    assert math.isnan(sd((1.0,)))


def test_no_values_are_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        over_seeds(())


@pytest.mark.parametrize("fraction", [0.0, 1.0])
def test_a_perfect_score_is_uncertain_too(fraction: float) -> None:
    assert 0 < proportion_error(fraction, 100) < 0.03


def test_proportion_error_is_the_binomials_for_many_images() -> None:
    assert proportion_error(0.9, 10_000) == pytest.approx(math.sqrt(0.9 * 0.1 / 10_000), rel=0.01)


def _rejected(p_values: list[float], level: float) -> list[bool]:
    """Holm's procedure: from the smallest p-value up, reject until one exceeds level / (number of those left)."""
    rejected = [False] * len(p_values)
    left = list(range(len(p_values)))
    while left:
        smallest = min(left, key=lambda place: p_values[place])
        if p_values[smallest] > level / len(left):
            break
        rejected[smallest] = True
        left.remove(smallest)
    return rejected


def test_holms_p_values_reject_what_the_procedure_rejects() -> None:
    draw = np.random.default_rng(0)
    for n in (1, 2, 5, 12):
        p_values = (draw.random(n) ** 3).tolist()
        for level in (0.001, 0.01, 0.05, 0.2, 0.5):
            assert [p <= level for p in holm(p_values) if p is not None] == _rejected(p_values, level)


def test_holms_method_counts_only_known_p_values() -> None:
    assert holm([0.01, None, 0.03]) == [0.02, None, 0.03]
    assert holm([0.02, 0.02, 0.9]) == pytest.approx([0.06, 0.06, 0.9])
    assert holm([0.6, 0.7]) == [1, 1]
    assert holm([None]) == [None]
