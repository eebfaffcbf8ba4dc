"""Each branch of the verdict, on metrics of our choice."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from scipy import stats

from recaps.config.without import LeftOut
from recaps.errors import UserError
from recaps.papers import FOLDER
from recaps.report import scorecard
from recaps.report.claims import Bound, Claim, Measure, Number, Ordering
from recaps.report.measured import COLUMNS, collect, measured_seeds, read_metrics, read_records
from recaps.report.statistics import proportion_error
from recaps.report.verdicts import (
    DIRECTION,
    FAILED,
    NOT_DECIDED,
    NOT_REPRODUCED,
    NOT_RUN,
    NOT_SUPPORTED,
    PASSED,
    REPRODUCED,
    STAND_IN,
    SUPPORTED,
    VERDICTS,
    format_value,
    readable,
)

pytestmark = pytest.mark.unit


def rows(variant: str, values: Sequence[float], **changes: Any) -> list[dict[str, Any]]:
    """Metric `accuracy` of a variant, one row per seed."""
    base = {"paper": "toy", "variant": variant, "metric": "accuracy", "n": 10_000, "unit": "percent", "stand_in": False}
    return [{**base, "seed": seed, "value": value, **changes} for seed, value in enumerate(values)]


def measure(variant: str) -> Measure:
    return Measure(variant=variant, metric="accuracy")


def number(name: str = "a", **changes: Any) -> Number:
    values = {"id": f"toy/table-1/{name}", "kind": "number", "where": "Table 1", "statement": "It works."}
    values |= {"measure": measure(name), "published": 90.0, "tolerance": 1.0, "reason": "A reason."}
    return Number.model_validate({**values, **changes})


def ordering(*variants: str, **changes: Any) -> Ordering:
    values = {"id": "toy/table-1/order", "kind": "ordering", "where": "Table 1", "statement": "In order."}
    values |= {"measures": tuple(map(measure, variants)), "reason": "A reason."}
    return Ordering.model_validate({**values, **changes})


def bound(**changes: Any) -> Bound:
    values = {"id": "toy/figure-1/bound", "kind": "bound", "where": "Figure 1", "statement": "Within."}
    return Bound.model_validate({**values, "measure": measure("a"), "reason": "A reason.", **changes})


def judge(claim: Claim, *groups: list[dict[str, Any]], others: Sequence[Claim] = (), **options: Any) -> pd.Series:
    frame = pd.DataFrame([row for group in groups for row in group], columns=None if groups else list(COLUMNS))
    return scorecard.scorecard([claim, *others], frame, **options).iloc[0]


def test_a_number_within_tolerance() -> None:
    row = judge(number(), rows("a", [89.2, 89.6, 89.4]))
    assert row["verdict"] == REPRODUCED
    assert row["ours"] == "89.40"
    assert row["seeds"] == 3
    assert row["sd"] == pytest.approx(0.2)
    assert row["difference"] == pytest.approx(-0.6)
    assert row["p_value"] == pytest.approx(stats.ttest_1samp([89.2, 89.6, 89.4], 90).pvalue)
    interval = stats.ttest_1samp([89.2, 89.6, 89.4], 0).confidence_interval(0.95)
    assert (row["interval_low"], row["interval_high"]) == pytest.approx((interval.low, interval.high))


def test_a_number_inside_our_interval() -> None:
    row = judge(number(), rows("a", [86.0, 91.0, 89.0]))
    assert abs(row["difference"]) > row["tolerance"]
    assert row["interval_low"] < 90 < row["interval_high"]
    assert row["verdict"] == REPRODUCED


def test_the_interval_of_two_seeds_is_too_wide_to_count() -> None:
    row = judge(number(), rows("a", [86.0, 90.0]))
    assert abs(row["difference"]) > row["tolerance"]
    assert row["interval_low"] < 90 < row["interval_high"]
    assert row["verdict"] == NOT_REPRODUCED


def test_a_number_that_misses() -> None:
    assert judge(number(), rows("a", [85.0, 85.1, 85.2]))["verdict"] == NOT_REPRODUCED


def test_a_number_against_several_published_runs() -> None:
    ours = [89.2, 89.6, 89.4]
    row = judge(number(seeds=5, sd=0.5), rows("a", ours))
    expected = stats.ttest_ind_from_stats(89.4, pd.Series(ours).std(), 3, 90, 0.5, 5, equal_var=False)
    assert row["p_value"] == pytest.approx(expected.pvalue)
    assert row["published"] == "90 ± 0.5"


@pytest.mark.parametrize(
    ("ours", "beside", "verdict"),
    [
        ([80.0, 80.2, 79.9], [70.0, 70.1, 69.9], DIRECTION),  # above, as published
        ([80.0, 80.2, 79.9], [84.0, 84.1, 83.9], NOT_REPRODUCED),  # below
        ([80.0, 76.0, 84.0], [79.0, 75.0, 83.0], NOT_REPRODUCED),  # above, not separated
        ([80.0], [70.0], DIRECTION),  # separated on the test images
        ([80.0], [79.9], NOT_REPRODUCED),
        ([78.0, 78.1, 77.9], [70.0, 70.1, 69.9], DIRECTION),  # nearer to 95 than to 60
        ([77.0, 77.1, 76.9], [70.0, 70.1, 69.9], NOT_REPRODUCED),  # nearer to 60
    ],
)
def test_the_direction_of_a_number(ours: list[float], beside: list[float], verdict: str) -> None:
    other = number("b", published=60.0)
    claim = number("a", published=95.0, beside=other.id)
    assert judge(claim, rows("a", ours), rows("b", beside), others=[other])["verdict"] == verdict
    assert judge(claim, rows("a", ours), others=[other])["verdict"] == NOT_REPRODUCED


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [((90.0, 90.2, 90.1), (80.0, 80.3, 80.1), SUPPORTED), ((80.0, 90.0, 85.0), (79.0, 89.0, 83.0), NOT_DECIDED),
     ((80.0, 80.1, 80.2), (81.0, 81.1, 81.2), NOT_SUPPORTED), ((79.0, 89.0, 83.0), (80.0, 90.0, 85.0), NOT_DECIDED)],
)  # fmt: skip
def test_a_conjecture_is_measured_in_its_study_and_does_not_count_as_a_claim(
    a: tuple[float, ...], b: tuple[float, ...], verdict: str
) -> None:
    conjecture = ordering("a", "b", role="conjecture", study="attacks", decides="More seeds.")
    measured = [*rows("a", a, paper="toy.attacks"), *rows("b", b, paper="toy.attacks"), *rows("a", (0.0,))]
    card = scorecard.scorecard([conjecture], pd.DataFrame(measured))
    assert card["verdict"].tolist() == [verdict]
    assert card["published"].tolist() == ["first > second"]
    assert card["decides"].tolist() == ["More seeds." if verdict == NOT_DECIDED else ""]
    assert ("| More seeds. | `toy/table-1/" in scorecard.markdown(card, "desk")) == (verdict == NOT_DECIDED)
    assert scorecard.counts(card) == {}
    assert scorecard.TITLES["conjecture"] in scorecard.markdown(card, "desk")
    assert f"Conjectures, which the authors believe and did not test: 1 {verdict}." in scorecard.markdown(card, "desk")
    assert scorecard.scorecard([conjecture], pd.DataFrame(rows("a", a)))["verdict"].tolist() == [NOT_RUN]


def trained(variant: str, seeds: int, hours: float) -> list[dict[str, Any]]:
    run = {"paper": "toy", "variant": variant, "wall_seconds": 3600 * hours, "device": "a CPU", "steps": 1}
    return [run | {"seed": seed} for seed in range(seeds)]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([62.0], "Three seeds in all; the missing ones take 4 h 00 min of training (a CPU)."),
        ([63.0, 63.3, 62.9], ""),  # p < 0.05
        (
            [62.0, 63.0, 61.2],
            "About 4 seeds in all, if means and spreads stay; the missing ones take 2 h 00 min of training (a CPU).",
        ),
        (
            [59.9, 63.0, 57.3],
            "More than 100 seeds, if means and spreads stay; the missing ones up to 100 take 194 h 00 min of training "
            "(a CPU).",
        ),
    ],
)
def test_the_seeds_that_would_decide(values: list[float], text: str) -> None:
    on_a_gpu = [run | {"device": "a GPU", "wall_seconds": 60} for run in trained("a", 9, 2)]
    for runs in (trained("a", len(values), 2), on_a_gpu + trained("a", len(values), 2)):
        row = judge(bound(at_most=60), rows("a", values), runs=runs)
        assert row["verdict"] == NOT_REPRODUCED
        assert row["decides"] == text, "the cost is that of the slowest device"


def test_a_value_next_to_a_limit_has_the_digits_that_show_its_side() -> None:
    row = judge(bound(at_least=50), rows("a", [49.99994]))
    assert (row["verdict"], row["ours"]) == (NOT_REPRODUCED, "49.9999")
    assert judge(bound(at_least=50), rows("a", [50.0]))["ours"] == "50.00"
    assert judge(bound(at_least=1234567, unit="count"), rows("a", [1234566.6], unit="count"))["ours"] == "1234566.6"


def test_what_would_decide_a_claim_that_is_not_run() -> None:
    assert judge(bound(at_most=60))["decides"] == "Three seeds of a."
    of_study = ordering("a", "b", role="conjecture", study="attacks")
    one_row = scorecard.scorecard([of_study], pd.DataFrame(rows("a", (1.0,), paper="toy.attacks")))
    assert one_row["decides"].tolist() == ["Three seeds of b (study `attacks`)."]
    row = judge(bound(at_most=60, decides="One month."))
    assert row["decides"] == "One month."
    other = rows("a", [90.0], metric="loss")
    assert judge(bound(at_most=60), other)["decides"] == "Other trainings: those that were made do not give the value."
    assert judge(bound(at_most=60, study="attacks"))["decides"] == "The study `attacks`, at a scale that has it."


def test_the_computed_number_of_seeds_comes_before_the_listed_runs_of_a_claim() -> None:
    """Not with fewer than three seeds, and not for a conjecture."""
    claim = bound(at_most=60, decides="One month.")
    assert judge(claim, rows("a", [62.0, 63.0, 61.2]))["decides"] == "About 4 seeds in all, if means and spreads stay."
    assert judge(claim, rows("a", [62.0]))["decides"] == "One month."
    conjecture = claim.model_copy(update={"role": "conjecture"})
    assert judge(conjecture, rows("a", [62.0, 63.0, 61.2]))["decides"] == "One month."


def test_a_check_passes_or_fails_and_is_no_claim() -> None:
    claims = [number(note="Changed after results were known."), number("b", role="check"), number("c", role="check")]
    measured = pd.DataFrame([*rows("a", [89.5]), *rows("b", [90.5]), *rows("c", [80.0])])
    card = scorecard.scorecard(claims, measured)
    assert list(card["verdict"]) == [REPRODUCED, PASSED, FAILED]
    assert scorecard.counts(card) == {REPRODUCED: 1}
    text = scorecard.markdown(card, "desk")
    assert "1 claim: 1 reproduced." in text
    assert "Checks of the configuration: 2, of which 1 failed." in text
    assert "Of all 3 rules, 1 were changed or added after results were known." in text
    assert text.index("### Checks of the configuration") < text.index("check failed")


def test_counts_are_numbers_for_programs() -> None:
    steps = [rows(name, values, unit="count", n=0) for name, values in (("a", [600.0]), ("b", [1000.0]))]
    card = judge(number("b", published=86000, tolerance=90000, unit="count"), steps[1])
    assert (card["ours"], card["published"]) == ("1000", "86000")
    assert scorecard.values(pd.DataFrame([card])) == {"toy/table-1/b": 1000}
    assert judge(ordering("b", "a", unit="count"), *steps)["ours"] == "1000 > 600"
    assert judge(bound(at_most=29999, unit="count"), steps[0])["ours"] == "600"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (6928.0, "count", "6,928"),
        (633.3333, "count", "633"),
        (3.0, "count", "3"),
        (2.97, "count", "2.97"),
        (0.0514, "fraction", "0.051"),
        (1234.5, "squared error", "1234.50"),
    ],
)
def test_values_for_readers(value: float, unit: str, text: str) -> None:
    assert format_value(value, unit) == text


@pytest.mark.parametrize(
    ("text", "unit", "shown"),
    [
        ("at most 29999", "count", "at most 29,999"),
        ("600 < 1000", "count", "600 < 1,000"),
        ("30000 (our limit: 25000 to 35000.5)", "count", "30,000 (our limit: 25,000 to 35,000.5)"),
        ("at most 0.8", "ratio", "at most 0.8"),
        ("9.17, 14.17", "percent", "9.17, 14.17"),
        ("90 ± 0.5", "percent", "90 ± 0.5"),
    ],
)
def test_texts_for_readers(text: str, unit: str, shown: str) -> None:
    assert readable(text, unit) == shown


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"at_least": 2.5, "at_most": 3.5, "published": 3}, "3 (our limit: 2.5 to 3.5)"),
        ({"at_least": -0.2, "at_most": 0.2, "published": -0.02}, "-0.02 (our limit: -0.2 to 0.2)"),
        ({"at_least": 36.5, "published": 73.13}, "73.13 (our limit: at least 36.5)"),
        ({"at_least": 0.05, "at_most": 0.95}, "0.05 to 0.95"),
        ({"at_least": 0, "published": 0.5}, "0.5 (our limit: at least 0)"),
        ({"at_most": 0}, "at most 0"),
    ],
)
def test_our_limits_stand_apart_from_what_the_paper_states(limits: dict[str, float], text: str) -> None:
    assert scorecard.published_text(bound(**limits)) == text


def test_one_seed_gives_no_interval_and_says_so() -> None:
    row = judge(number(), rows("a", [89.5]))
    assert row["verdict"] == REPRODUCED
    assert all(math.isnan(row[name]) for name in ("sd", "interval_low", "interval_high", "p_value"))
    assert "1 seed (0)" in row["how"]
    assert "one seed gives no interval" in row["how"]


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        (([90.0, 90.2], [80.0, 80.2], [70.0, 70.1]), REPRODUCED),
        (([90.0, 90.2], [80.0, 80.2], [79.0, 80.9]), DIRECTION),
        (([90.0, 90.2], [80.0, 80.2], [81.0, 81.1]), NOT_REPRODUCED),
        (([90.0, 90.2], [90.0, 90.2], [80.0, 80.1]), NOT_REPRODUCED),
        (([90.0], [88.0], [80.0]), REPRODUCED),
        (([90.0], [89.9], [80.0]), DIRECTION),
        (([90.0], [91.0], [80.0]), NOT_REPRODUCED),
    ],
)
def test_orderings(values: tuple[list[float], ...], verdict: str) -> None:
    groups = [rows(name, of_one) for name, of_one in zip("abc", values, strict=True)]
    row = judge(ordering("a", "b", "c"), *groups)
    assert row["verdict"] == verdict
    assert (" > " in row["ours"]) == (verdict != NOT_REPRODUCED)
    upward = judge(ordering("c", "b", "a", order="ascending"), *groups)
    assert upward["verdict"] == verdict
    assert upward["difference"] == pytest.approx(row["difference"])


def test_an_ordering_reports_its_least_certain_gap() -> None:
    a, b, c = [90.0, 90.2, 90.1], [80.0, 80.2, 80.1], [78.0, 81.0, 78.5]
    row = judge(ordering("a", "b", "c"), rows("a", a), rows("b", b), rows("c", c))
    expected = stats.ttest_ind(b, c, equal_var=False)
    assert row["p_value"] == pytest.approx(expected.pvalue)
    interval = expected.confidence_interval(0.95)
    assert (row["interval_low"], row["interval_high"]) == pytest.approx((interval.low, interval.high))


def test_the_least_certain_gap_has_the_largest_p_value() -> None:
    """Not the smallest t: the gap with the larger t rests on three seeds, the other on many test images."""
    a, b, c = rows("a", [91.0, 90.0, 92.0]), rows("b", [84.0], n=1e6), rows("c", [83.8], n=1e6)
    row = judge(ordering("a", "b", "c"), a, b, c)
    first, second = judge(ordering("a", "b"), a, b), judge(ordering("b", "c"), b, c)
    assert row["p_value"] == first["p_value"] > second["p_value"]
    assert row["difference"] == first["difference"] == pytest.approx(7)


def test_a_one_seed_ordering_says_what_its_p_value_counts() -> None:
    row = judge(ordering("a", "b"), rows("a", [90.0]), rows("b", [88.0]))
    assert "counts the finite sample only" in row["how"]
    assert math.isnan(row["interval_low"])
    assert row["p_value"] < 0.001


def test_a_one_seed_ordering_without_any_error() -> None:
    ratio = {"unit": "ratio", "n": math.nan}
    claim = ordering("a", "b", unit="ratio", order="ascending")
    row = judge(claim, rows("a", [0.3], **ratio), rows("b", [0.9], **ratio))
    assert row["verdict"] == DIRECTION
    assert "the uncertainty is unknown" in row["how"]
    row = judge(claim, rows("a", [0.3], se=0.01, **ratio), rows("b", [0.9], se=0.01, **ratio))
    assert row["verdict"] == REPRODUCED


@pytest.mark.parametrize(
    ("values", "limits", "verdict"),
    [
        ([50.0, 50.1], {"at_least": 40}, REPRODUCED),
        ([50.0, 50.1], {"at_most": 40}, NOT_REPRODUCED),
        ([50.0, 50.1], {"at_least": 40, "at_most": 60}, REPRODUCED),
        ([50.0, 50.1], {"at_least": 40, "at_most": 45}, NOT_REPRODUCED),
        ([48.0, 52.0], {"at_least": 49.5}, DIRECTION),
        ([50.0], {"at_least": 48}, REPRODUCED),
        ([50.0], {"at_least": 49.9}, DIRECTION),
    ],
)
def test_bounds(values: list[float], limits: dict[str, float], verdict: str) -> None:
    assert judge(bound(**limits), rows("a", values))["verdict"] == verdict


@pytest.mark.parametrize(
    ("values", "unit", "at_most", "verdict"),
    [
        ([1.0, 1.0, 1.0], "count", 5, REPRODUCED),
        ([1.0, 1.0, 1.0], "count", 0, NOT_REPRODUCED),
        ([1.0, 1.0], "count", 5, DIRECTION),
        ([1.0], "count", 5, DIRECTION),
        ([1.0, 1.0, 1.0], "ratio", 5, DIRECTION),
    ],
)
def test_equal_counts_of_three_seeds_need_no_error(
    values: list[float], unit: str, at_most: float, verdict: str
) -> None:
    row = judge(bound(unit=unit, at_most=at_most), rows("a", values, unit=unit, n=0))
    assert row["verdict"] == verdict


def test_a_bound_on_a_difference() -> None:
    claim = bound(minus=measure("b"), at_least=20, published=30)
    row = judge(claim, rows("a", [80.0, 80.2]), rows("b", [50.0, 50.4]))
    assert (row["ours"], row["published"], row["verdict"]) == ("29.90", "30 (our limit: at least 20)", REPRODUCED)
    assert row["difference"] == pytest.approx(9.9)


def test_a_missing_metric() -> None:
    row = judge(ordering("a", "b"), rows("a", [90.0]))
    assert row["verdict"] == NOT_RUN
    assert row["ours"] == ""
    assert "no value of b/accuracy" in row["how"]
    assert judge(number())["verdict"] == NOT_RUN


def test_a_misspelt_metric() -> None:
    """The scorecard names the nearest metric, unless another variant has the one that the claim names."""
    claim = bound(measure={"variant": "a", "metric": "acuracy"}, at_least=80)
    assert judge(claim, rows("a", [90.0]))["how"] == "no value of a/acuracy (did you mean 'accuracy'?)"
    elsewhere = rows("b", [90.0], metric="acuracy")
    assert judge(claim, rows("a", [90.0]), elsewhere)["how"] == "no value of a/acuracy"


def test_a_variant_that_was_left_out() -> None:
    left_out = {"toy": LeftOut(sets=("norb", "cifar10"), variants={"b": ("norb",)})}
    row = judge(ordering("a", "b"), rows("a", [90.0]), left_out=left_out)
    assert row["verdict"] == NOT_RUN
    assert row["how"] == "no value of b/accuracy; b was left out: it needs norb (config: without)"
    other = judge(number("c"), rows("a", [90.0]), left_out=left_out)
    assert other["how"] == "no value of c/accuracy"
    assert judge(number(), rows("a", [90.0]), left_out=left_out)["verdict"] == REPRODUCED
    elsewhere = judge(number("b"), left_out={"other": left_out["toy"]})
    assert elsewhere["how"] == "no value of b/accuracy"


def test_a_counterpart_that_was_left_out() -> None:
    other = number("b", published=60.0)
    left_out = {"toy": LeftOut(sets=("norb",), variants={"b": ("norb",)})}
    claim = number("a", published=95.0, beside=other.id)
    row = judge(claim, rows("a", [80.0, 80.2]), others=[other], left_out=left_out)
    assert row["verdict"] == NOT_REPRODUCED


def test_markdown_tells_what_a_paper_goes_without() -> None:
    card = scorecard.scorecard([number(), number("b")], pd.DataFrame(rows("a", [89.5])))
    lost = LeftOut(sets=("norb",), variants={"b": ("norb",)}, outputs={"table-1": "Table I. Norb"})
    sentence = "Made without norb; left out: b; Table I. Norb."
    assert sentence in scorecard.markdown(card, "desk", {"toy": lost}).splitlines()
    assert "Made without" not in scorecard.markdown(card, "desk")


def test_stand_ins_get_no_verdict() -> None:
    row = judge(ordering("a", "b"), rows("a", [90.0, 90.1]), rows("b", [80.0, 80.1], stand_in=True))
    assert row["verdict"] == STAND_IN
    assert math.isnan(row["p_value"])
    assert row["ours"] == "90.05 > 80.05"


def test_a_unit_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UserError, match="in 'percent', but a/accuracy is measured in 'fraction'"):
        judge(number(), rows("a", [0.9], unit="fraction"))


def test_how_it_was_measured() -> None:
    run = {"paper": "toy", "variant": "a", "seed": 1, "steps": 2000, "device": "cpu", "dataset": {"name": "mnist-40"}}
    run["config"] = {"training": {"batch_size": 128}}
    other = {**run, "variant": "b", "steps": 7}
    row = judge(number(), rows("a", [89.5, 89.6], measured_on="affnist-generated/test"), runs=[run, other])
    assert row["how"] == (
        "measured on affnist-generated/test (n = 10,000); 2 seeds (0, 1); "
        "a: 2,000 steps of 128 images of mnist-40; on cpu"
    )
    both = [{**run, "seed": 0}, {**other, "seed": 0}]
    row = judge(ordering("a", "b"), rows("a", [89.5]), rows("b", [89.4]), runs=both)
    assert "; a: 2,000 steps of 128 images of mnist-40; b: 7 steps of" in row["how"]
    alike = [both[0], {**both[1], "steps": 2000}]
    row = judge(ordering("a", "b"), rows("a", [89.5]), rows("b", [89.4]), runs=alike)
    assert "; a, b: 2,000 steps of 128 images of mnist-40; on cpu" in row["how"]


def test_markdown_counts_verdicts_and_keeps_its_columns() -> None:
    claims = [number(statement="a | b."), ordering("a", "b")]
    card = scorecard.scorecard(claims, pd.DataFrame(rows("a", [89.5])))
    text = scorecard.markdown(card, "desk")
    assert "2 claims: 1 reproduced, 1 not run at this scale." in text
    assert "A value of one seed has no interval" in text
    assert r"a \| b." in text
    table = [line for line in text.partition("### Runs")[0].splitlines() if line.startswith("|")]
    assert {line.replace(r"\|", "").count("|") for line in table} == {9}


def test_files_round_trip(tree: Callable[..., Any]) -> None:
    results = tree()
    card = scorecard.load(results.root / "scorecard.csv")
    pd.testing.assert_frame_equal(card, results.score(), check_dtype=False, rtol=1e-5)
    assert (card["verdict"] == REPRODUCED).sum() > 5
    assert "affnist-generated/test" in card.set_index("id").loc["sparse/table-1/sparsecaps-affnist-a", "how"]
    assert (results.root / "scorecard.md").read_text().startswith("# Scorecard, scale `desk`")


def test_only_the_chosen_papers_are_judged(tmp_path: Path) -> None:
    claims = [FOLDER / paper / "claims.yaml" for paper in ("consensus", "sparse")]
    card = scorecard.make(claims, [], [], tmp_path, scale="desk", papers=["consensus"])
    assert not (card["paper"] == "sparse").any()
    card = scorecard.make(claims, [], [], tmp_path, scale="desk", papers=["sparse"])
    assert set(card["verdict"]) == {NOT_RUN}


def test_bad_metrics_files(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    with pytest.raises(UserError, match="no such file"):
        read_metrics([file])
    file.write_text("paper,variant\nsparse,dense\n")
    with pytest.raises(UserError, match="not a table of metrics"):
        read_metrics([file])
    pd.DataFrame(rows("a", [1.0])).drop(columns="unit").to_csv(file, index=False)
    with pytest.raises(UserError, match="no column 'unit'"):
        read_metrics([file])


def test_values_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    pd.DataFrame(rows("a", [1.0, math.nan, math.inf])).to_csv(file, index=False)
    assert list(read_metrics([file])["seed"]) == [0]


def test_a_table_of_metrics_without_rows(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    pd.DataFrame(rows("a", [])).reindex(columns=COLUMNS).to_csv(file, index=False)
    assert collect(read_metrics([file])) == {}
    assert measured_seeds(file) == {}


def test_bad_records(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    file.write_text('{"kind": "run"}')
    with pytest.raises(UserError, match="not the record of a run"):
        read_records([file])


def test_what_dvc_reads_says_what_the_scorecard_says(root: Path, tmp_path: Path) -> None:
    claims = [FOLDER / paper / "claims.yaml" for paper in ("experts", "sparse")]
    card = scorecard.make(claims, [], [], tmp_path, scale="desk", papers=["sparse", "experts"])
    for paper in ("sparse", "experts"):
        counted = json.loads((tmp_path / "verdicts" / f"{paper}.json").read_text())
        assert counted.keys() == set(VERDICTS)
        assert (
            counted[NOT_RUN]
            == sum(counted.values())
            == ((card["paper"] == paper) & (card["role"] == "claim")).sum()
            > 0
        )
    assert json.loads((tmp_path / "scorecard.json").read_text()) == {}
    published = scorecard.load(root / "results/published/desk/scorecard.csv")
    values = scorecard.values(published)
    assert values.keys() == set(published["id"][published["ours"] != ""])
    printed = published.set_index("id")["ours"]["sparse/table-1/sparsecaps-mnist"]
    assert values["sparse/table-1/sparsecaps-mnist"] == float(printed) > 90


def test_equal_values_count_with_the_test_set_or_with_what_is_new_in_each_seed() -> None:
    equal = rows("a", [100.0] * 4, n=9)
    (own,), (on_a_set,) = (
        collect(pd.DataFrame(each)).values() for each in (equal, [row | {"measured_on": "mnist/test"} for row in equal])
    )
    assert (own.n, on_a_set.n) == (36, 9)
    assert own.estimate.error == pytest.approx(100 * proportion_error(1, 36))
    assert on_a_set.estimate.error == pytest.approx(100 * proportion_error(1, 9))
