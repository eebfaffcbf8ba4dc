"""The claims of the papers: typed rows of each paper's `claims.yaml`."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, FiniteFloat, model_validator

from recaps.config.base import Name, Section
from recaps.config.reading import check, read_yaml
from recaps.config.variant import Paper
from recaps.errors import UserError, nearest

Unit = Literal["percent", "fraction", "squared error", "squared distance", "ratio", "nats", "loss", "count", "hours"]
Id = Annotated[str, Field(pattern=r"^[a-z0-9-]+/[a-z0-9-]+/[a-z0-9-]+$")]


class Measure(Section):
    """The metric that measures a claim: rows of `metrics.csv`, one per seed. In YAML, also `<variant>/<metric>`."""

    variant: Name
    """A variant of the claim's paper, or a row of its study."""
    metric: Name
    """A metric of that variant, e.g. `svm-affnist-b`."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if "/" not in value:
            raise ValueError("write <variant>/<metric>")
        return dict(zip(("variant", "metric"), value.split("/", 1), strict=True))

    def __str__(self) -> str:
        return f"{self.variant}/{self.metric}"


class _Claim(Section):
    """The keys of every kind of claim."""

    id: Id
    """`<paper>/<table, figure or section>/<name>`."""
    where: str
    """Where the paper states it, e.g. `Table 1`."""
    statement: str
    """The claim in one sentence."""
    unit: Unit = "percent"
    """Unit of the measured values."""
    reason: str
    """The reason for the tolerance, the limits or the comparison: test-set size, seeds, rounding."""
    note: str = ""
    """The reading, where the paper is ambiguous."""
    role: Literal["claim", "check", "conjecture"] = "claim"
    """`check`: no outcome of training could fail it. `conjecture`: the authors believe it and did not test it. Both are
    shown apart and do not count as claims."""
    decides: str = ""
    """The runs that would decide the claim where ours do not, and their cost; from the list `deciding`."""
    study: Name | None = None
    """The study of the paper that measures it: `variant` is then a row of its table."""
    quoted: bool = False
    """Whether the paper quotes the value from other authors. Our pipeline measures it all the same."""

    @property
    def paper(self) -> str:
        return self.id.split("/", 1)[0]

    @property
    def measured_in(self) -> str:
        """The paper, or the study, whose runs measure it."""
        return f"{self.paper}.{self.study}" if self.study else self.paper


class Printed(NamedTuple):
    """A value that a paper prints. Tables and figures may depend on these parts of a claim and on no others."""

    variant: str
    """The variant that measures it."""
    metric: str
    """The metric of that variant."""
    value: float
    """The printed value."""
    label: str
    """The name of its row in a table, if the paper has several rows for one variant."""
    seeds: int | None
    """Number of the authors' runs, if the paper reports it."""
    sd: float | None
    """Standard deviation over these runs."""


class Number(_Claim):
    """A value that the paper prints."""

    kind: Literal["number"]
    measure: Measure
    published: FiniteFloat
    """The printed value."""
    tolerance: FiniteFloat = Field(gt=0)
    """The largest distance of our mean that counts as the same value."""
    n: int | None = Field(None, ge=1)
    """Size of their test set."""
    seeds: int | None = Field(None, ge=2)
    """Number of their runs, if they report more than one."""
    sd: FiniteFloat | None = Field(None, ge=0)
    """Standard deviation over their runs, if they report it."""
    label: str = ""
    """The name of its row in a table, if the paper has several rows for one variant."""
    beside: Id | None = None
    """The counterpart: another number of the same paper. The direction holds if our value lies on the same side of our
    counterpart as in the paper, and the difference is separated from 0."""

    @property
    def measures(self) -> tuple[Measure, ...]:
        return (self.measure,)

    @model_validator(mode="after")
    def _both_or_neither(self) -> Number:
        if (self.seeds is None) != (self.sd is None):
            raise ValueError("seeds and sd: give both or neither")
        return self


class Ordering(_Claim):
    """Values in a strict order."""

    kind: Literal["ordering"]
    order: Literal["descending", "ascending"] = "descending"
    """The order of `measures`, from first to last."""
    measures: tuple[Measure, ...] = Field(min_length=2)
    published: tuple[FiniteFloat, ...] = ()
    """The values in the same order, if the paper prints them."""

    @property
    def mark(self) -> str:
        """What stands between two values in this order."""
        return " > " if self.order == "descending" else " < "

    @model_validator(mode="after")
    def _published_fits(self) -> Ordering:
        if not self.published:
            return self
        if len(self.published) != len(self.measures):
            raise ValueError("published: give one value per measure, or none")
        if list(self.published) != sorted(set(self.published), reverse=self.order == "descending"):
            raise ValueError(f"published: the values are not strictly {self.order}")
        return self


class Bound(_Claim):
    """A value, or the difference of two values, within limits."""

    kind: Literal["bound"]
    measure: Measure
    minus: Measure | None = None
    """Subtracted from `measure`; the limits then apply to the difference."""
    at_least: FiniteFloat | None = None
    at_most: FiniteFloat | None = None
    published: FiniteFloat | None = None
    """The value itself, if the paper prints it."""

    @property
    def measures(self) -> tuple[Measure, ...]:
        return (self.measure,) if self.minus is None else (self.measure, self.minus)

    @model_validator(mode="after")
    def _has_a_limit(self) -> Bound:
        if self.at_least is None and self.at_most is None:
            raise ValueError("at_least, at_most: give at least one")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError("at_least is above at_most")
        return self


class Deciding(Section):
    """Runs that would decide claims, where those of a scale do not."""

    runs: str
    """What to run, and its cost: device and time."""
    claims: tuple[str, ...]
    """The ids of the claims, or patterns of them."""


Claim = Number | Ordering | Bound
KINDS: dict[str, type[Claim]] = {"number": Number, "ordering": Ordering, "bound": Bound}


def read(file: Path) -> list[Claim]:
    """Return the claims of a YAML file, in its order.

    An entry `shared` holds keys that the claims after it have in common, until the next such entry. The
    words of a claim's key `with` fill the gaps in its texts: `{set: MNIST}` fills `$set`. `$name` is the last part of
    its id.

    Raises:
        UserError: one line naming the file, the claim, the key and the nearest valid one.
    """
    values = read_yaml(file)
    rows, deciding = values.pop("claims", None), values.pop("deciding", [])
    if values or not isinstance(rows, list) or not isinstance(deciding, list):
        raise UserError(f"{file}: expected a key 'claims' that holds a list, and no other but 'deciding', another list")
    claims: list[Claim] = []
    shared: dict[str, Any] = {}
    for place, row in enumerate(rows, start=1):
        if isinstance(row, Mapping) and isinstance(row.get("shared"), Mapping):
            shared = row["shared"]
        else:
            claims.append(_claim(shared | dict(row) if isinstance(row, Mapping) else row, f"{file}: entry {place}"))
    seen: set[str] = set()
    for claim in claims:
        if claim.id in seen:
            raise UserError(f"{file}: {claim.id}: this id occurs twice; rename one")
        seen.add(claim.id)
    numbers = {claim.id for claim in claims if isinstance(claim, Number)}
    for claim in claims:
        if isinstance(claim, Number) and claim.beside is not None and claim.beside not in numbers:
            raise UserError(f"{file}: {claim.id}: beside: no number '{claim.beside}'{nearest(claim.beside, numbers)}")
    for place, row in enumerate(deciding, start=1):
        claims = _decided(claims, row, f"{file}: deciding {place}")
    return claims


def printed(claims: Sequence[Claim]) -> dict[str, Printed]:
    """The printed values of claims, by claim id."""
    return {
        each.id: Printed(each.measure.variant, each.measure.metric, each.published, each.label, each.seeds, each.sd)
        for each in claims
        if isinstance(each, Number)
    }


def _claim(row: Any, where: str) -> Claim:
    if not isinstance(row, Mapping):
        raise UserError(f"{where}: expected a mapping of keys to values")
    where = f"{where} ({row['id']})" if "id" in row else where
    kind = str(row.get("kind", ""))
    if kind not in KINDS:
        raise UserError(f"{where}: kind: there is no kind '{kind}'{nearest(kind, KINDS)}")
    words = row.get("with", {})
    if not isinstance(words, Mapping) or not all(isinstance(word, str) for word in words):
        raise UserError(f"{where}: with: {words}: give a word for each gap in the texts, e.g. {{set: MNIST}}")
    others = {key: value for key, value in row.items() if key != "with"}
    filled = _filled(others, {"name": str(row.get("id")).rpartition("/")[2], **words}, where)
    return check(KINDS[kind], filled, where)


def _filled(value: Any, words: Mapping[str, Any], where: str) -> Any:
    """A claim's value with words for the gaps in its texts."""
    if isinstance(value, Mapping):
        return {key: _filled(each, words, where) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, words, where) for each in value]
    try:
        return re.sub(r"\$([a-z]\w*)", lambda gap: str(words[gap[1]]), value) if isinstance(value, str) else value
    except KeyError as error:
        raise UserError(f"{where}: with: no word '{error.args[0]}'{nearest(error.args[0], words)}") from error


def _decided(claims: list[Claim], row: Any, where: str) -> list[Claim]:
    """The claims, with what would decide those that an entry of `deciding` names."""
    deciding = check(Deciding, row, where)
    ids = [claim.id for claim in claims]
    named: set[str] = set()
    for pattern in deciding.claims:
        if not (found := fnmatch.filter(ids, pattern)):
            raise UserError(f"{where}: claims: no claim is named '{pattern}'{nearest(pattern, ids)}")
        named |= {*found}
    return [claim.model_copy(update={"decides": deciding.runs}) if claim.id in named else claim for claim in claims]


def check_variants(claims: Sequence[Claim], papers: Mapping[str, Paper], others: Collection[str] = ()) -> None:
    """Raise a UserError for the first claim whose paper, or study, lacks a variant that it names.

    `papers` also holds studies. `others` are variants that are left out, or that there are at other scales.
    """
    for claim in claims:
        if claim.measured_in not in papers:
            hint = nearest(claim.measured_in, papers)
            what = "study" if claim.study else "paper"
            raise UserError(f"claims: {claim.id}: there is no {what} '{claim.measured_in}'{hint}")
        variants = {*papers[claim.measured_in].variants, *(() if claim.study else others)}
        for measure in claim.measures:
            if measure.variant not in variants:
                hint = nearest(measure.variant, variants)
                raise UserError(f"claims: {claim.id}: there is no variant '{measure.variant}'{hint}")
