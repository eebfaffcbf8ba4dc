"""The claims files, and the messages for mistakes in them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from places import CONFIG

from recaps.config.load import Project, load
from recaps.errors import UserError
from recaps.papers import FOLDER, names
from recaps.report.claims import Bound, Number, Ordering, check_variants, read

pytestmark = pytest.mark.unit

CLAIMS = [claim for name in names() for claim in read(FOLDER / name / "claims.yaml")]
NUMBER: dict[str, Any] = {
    "id": "sparse/table-1/one",
    "kind": "number",
    "where": "Table 1",
    "statement": "It works.",
    "measure": {"variant": "sparsecaps", "metric": "svm-mnist"},
    "published": 99,
    "tolerance": 0.5,
    "reason": "Rounding.",
}


@pytest.fixture(scope="module")
def project() -> Project:
    return load({"scale": "paper", "papers": names()}, CONFIG)


def write(folder: Path, *rows: Any, **more: Any) -> Path:
    file = folder / "claims.yaml"
    file.write_text(yaml.safe_dump({"claims": list(rows), **more}))
    return file


def test_the_claims_fit_the_papers(project: Project) -> None:
    """That each has its metrics is checked by the tests of each paper (`made_results.verdicts`)."""
    check_variants(CLAIMS, {**project.papers, **load({"scale": "desk"}, CONFIG).studies})


def test_sparse_has_every_printed_number() -> None:
    claims = [claim for claim in CLAIMS if claim.paper == "sparse"]
    printed = {claim.published for claim in claims if isinstance(claim, Number)}
    assert printed == {99, 90.12, 16.99, 97.37, 60.63, 15.7, 99.22, 66, 99.23, 79, 7.75, 18.49}
    assert {type(claim) for claim in claims} == {Number, Ordering, Bound}
    quoted = {claim.published for claim in claims if claim.quoted and isinstance(claim, Number)}
    assert quoted == {99.22, 66, 99.23, 79}


def test_tolerances_cover_the_finite_test_sets() -> None:
    """Ours has 10,000 images or, if theirs has more, as many."""
    for claim in CLAIMS:
        if isinstance(claim, Number) and claim.unit == "percent":
            p, n = claim.published / 100, claim.n or 10_000
            images = 1 / n + 1 / max(n, 10_000)
            assert claim.tolerance >= 100 * 1.96 * math.sqrt(p * (1 - p) * images), claim.id


def test_every_claim_gives_its_reason() -> None:
    for claim in CLAIMS:
        assert len(claim.reason) > 20, claim.id
        assert claim.statement.endswith("."), claim.id
        assert "$" not in repr(claim), f"{claim.id}: fill the gap by `with`"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tolerence": 1}, "unknown key 'tolerence' (did you mean 'tolerance'?)"),
        ({"kind": "nummber"}, "there is no kind 'nummber' (did you mean 'number'?)"),
        ({"measure": {"variant": "a", "metric": "b", "metrik": "b"}}, "'measure.metrik' (did you mean 'metric'?)"),
        ({"measure": "sparsecaps"}, "write <variant>/<metric>"),
        ({"measure": "sparsecaps/svm/mnist"}, "'svm/mnist' is not a name"),
        ({"statement": "Accuracy on $set."}, "with: no word 'set'"),
        ({"statement": "Accuracy on $set.", "with": {"sett": "MNIST"}}, "no word 'set' (did you mean 'sett'?)"),
        ({"with": {True: "MNIST"}}, "with: {True: 'MNIST'}: give a word for each gap"),
        ({"with": "MNIST"}, "with: MNIST: give a word for each gap"),
        ({"published": "high"}, "published: "),
        ({"published": math.nan}, "published: "),
        ({"tolerance": 0}, "tolerance: "),
        ({"id": "one"}, "id: "),
        ({"seeds": 3}, "seeds and sd: give both or neither"),
        ({"beside": "sparse/table-1/onne"}, "no number 'sparse/table-1/onne'"),
    ],
)
def test_a_mistake_is_told_in_one_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        read(write(tmp_path, {**NUMBER, **change}))
    assert message in str(error.value)
    assert "claims.yaml" in str(error.value)
    assert "\n" not in str(error.value)


def test_an_id_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="occurs twice"):
        read(write(tmp_path, NUMBER, NUMBER))


def test_a_file_without_a_list_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "claims.yaml"
    file.write_text("claims: 3\n")
    with pytest.raises(UserError, match="that holds a list"):
        read(file)
    with pytest.raises(UserError, match="expected a mapping of keys"):
        read(write(tmp_path, "a sentence"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"measures": [{"variant": "a", "metric": "b"}]}, "measures: "),
        ({"published": [1, 2]}, "not strictly descending"),
        ({"published": [2]}, "one value per measure"),
    ],
)
def test_orderings_are_checked(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    row = {key: NUMBER[key] for key in ("id", "where", "statement", "reason")}
    measures = [{"variant": "a", "metric": "b"}, {"variant": "c", "metric": "b"}]
    with pytest.raises(UserError, match=message):
        read(write(tmp_path, {**row, "kind": "ordering", "measures": measures, **change}))


@pytest.mark.parametrize(
    ("limits", "message"), [({}, "give at least one"), ({"at_least": 2, "at_most": 1}, "at_least is above at_most")]
)
def test_bounds_are_checked(tmp_path: Path, limits: dict[str, float], message: str) -> None:
    row = {key: NUMBER[key] for key in ("id", "where", "statement", "reason", "measure")}
    with pytest.raises(UserError, match=message):
        read(write(tmp_path, {**row, "kind": "bound", **limits}))


def test_an_unknown_variant_gives_the_nearest(tmp_path: Path, project: Project) -> None:
    wrong = {**NUMBER, "measure": {"variant": "sparsecap", "metric": "svm-mnist"}}
    with pytest.raises(UserError, match=r"no variant 'sparsecap' \(did you mean 'sparsecaps'\?\)"):
        check_variants(read(write(tmp_path, wrong)), project.papers)
    with pytest.raises(UserError, match=r"no paper 'sparce' \(did you mean 'sparse'\?\)"):
        check_variants(read(write(tmp_path, {**NUMBER, "id": "sparce/table-1/one"})), project.papers)


def test_what_would_decide_claims(tmp_path: Path) -> None:
    rows = [NUMBER | {"id": f"sparse/{place}"} for place in ("table-1/a", "table-1/b", "figure-1/c", "figure-1/d")]
    deciding = [{"runs": "More steps.", "claims": ["sparse/table-1/*"]}, {"runs": "Seeds.", "claims": ["sparse/*/c"]}]
    claims = read(write(tmp_path, *rows, deciding=deciding))
    assert [claim.decides for claim in claims] == ["More steps.", "More steps.", "Seeds.", ""]


@pytest.mark.parametrize(
    ("deciding", "message"),
    [
        ([{"runs": "x", "claims": ["sparse/table-1/onne"]}], "no claim is named .*did you mean 'sparse/table-1/one'"),
        ([{"runs": "x", "claim": ["sparse/table-1/one"]}], "deciding 1: unknown key 'claim'.*'claims'"),
        ("x", "no other but 'deciding', another list"),
    ],
)
def test_mistakes_in_what_would_decide(tmp_path: Path, deciding: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(write(tmp_path, NUMBER, deciding=deciding))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.yaml: no such file"):
        read(tmp_path / "none.yaml")


def test_claims_fill_the_gaps_of_what_they_share(tmp_path: Path) -> None:
    shared = {"measure": "$name/error", "statement": "The error of $model, $$5."}
    words = {name: {"id": f"sparse/table-1/{name}", "with": {"model": name.upper()}} for name in ("l1", "l2")}
    first, second = read(write(tmp_path, *(NUMBER | shared | each for each in words.values())))
    assert (first.statement, str(first.measures[0])) == ("The error of L1, $$5.", "l1/error")
    assert (second.statement, str(second.measures[0])) == ("The error of L2, $$5.", "l2/error")
    with pytest.raises(UserError, match=r"with: no word 'model' \(did you mean 'modell'\?\)"):
        read(write(tmp_path, NUMBER | shared | {"with": {"modell": "L1"}}))


def test_claims_share_keys_until_the_next_entry_that_shares(tmp_path: Path) -> None:
    measure = "measure: {variant: a, metric: b}, published: 1, tolerance: 1, statement: s, reason: r"
    file = tmp_path / "claims.yaml"
    file.write_text(
        f"""claims:
  - shared: {{kind: number, where: Table 1, n: 10}}
  - {{id: sparse/table-1/x, {measure}}}
  - {{id: sparse/table-1/y, n: 20, {measure}}}
  - shared: {{kind: number, where: Table 2}}
  - {{id: sparse/table-2/z, {measure}}}
"""
    )
    found = [(each.where, each.n) for each in read(file) if isinstance(each, Number)]
    assert found == [("Table 1", 10), ("Table 1", 20), ("Table 2", None)]
