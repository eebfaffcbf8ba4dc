"""The scorecard: every claim with its published value, our value and the verdict. `docs/claims.md` gives the rules."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import median

import pandas as pd

from recaps.config.without import LeftOut
from recaps.errors import UserError, nearest
from recaps.io import write_json, write_text
from recaps.layout import Layout
from recaps.report import overview, statistics
from recaps.report.claims import Claim, Measure, Number, Ordering, read
from recaps.report.measured import Measured, Record, collect, duration, read_metrics, read_records
from recaps.report.statistics import Estimate
from recaps.report.verdicts import (
    DIRECTION,
    FAILED,
    FEWEST_SEEDS,
    NOT_DECIDED,
    NOT_REPRODUCED,
    NOT_RUN,
    NOT_SUPPORTED,
    STAND_IN,
    VERDICTS,
    All,
    Finding,
    format_value,
    judge,
    readable,
)

#: Titles of the parts of a paper's scorecard.
TITLES = {
    "claim": "",
    "check": "Checks of the configuration",
    "conjecture": "Conjectures: the authors did not test them",
}

#: The columns that are as in `claims.yaml`.
OF_CLAIM = ("id", "paper", "where", "statement", "reason", "kind", "unit", "quoted", "role", "decides", "note")

#: The verdicts that other runs might still change.
OPEN = (DIRECTION, NOT_REPRODUCED, NOT_RUN, NOT_DECIDED)

MARKDOWN_HEAD = """\
| where | claim | unit | published | ours | seeds | 95 % interval | verdict |
|---|---|---|--:|--:|--:|--:|---|"""
MARKDOWN_NOTES = """\
*Ours* is the mean over seeds, ± the standard deviation over seeds. *Quoted*: the paper takes the number from other
authors. `scorecard.csv` adds for each row the tolerance with its reason, the p-value, and how the value was measured.
`docs/claims.md` gives the rules for verdicts."""


@dataclass(frozen=True)
class Row:
    """One claim and our measurement of it. Missing numbers are nan.

    Attributes:
        ours: the mean over seeds; for an ordering, the mean of each measure.
        sd: the standard deviation over seeds of our value.
        interval_low, interval_high: the 95 % interval of our value; for an ordering, of the least certain gap.
        difference: ours minus published; for an ordering, the least certain gap; for a bound, the distance inside the
            nearest limit.
        p_value: of the hypothesis that our value equals the published one, that the gap is 0, or that our value lies
            at the limit.
    """

    id: str
    paper: str
    where: str
    statement: str
    published: str
    ours: str = ""
    sd: float = math.nan
    seeds: int = 0
    interval_low: float = math.nan
    interval_high: float = math.nan
    difference: float = math.nan
    p_value: float = math.nan
    tolerance: float = math.nan
    reason: str = ""
    verdict: str = NOT_RUN
    how: str = ""
    kind: str = ""
    unit: str = ""
    quoted: bool = False
    role: str = "claim"
    decides: str = ""
    note: str = ""
    beside: str = ""


def scorecard(
    claims: Sequence[Claim],
    metrics: pd.DataFrame,
    runs: Sequence[Record] = (),
    left_out: Mapping[str, LeftOut] = {},
) -> pd.DataFrame:
    """Return one row per claim, in the order of `claims`, with the columns of `Row`.

    The column `how` needs the records of the runs, and the data sets and variants that papers left out, by paper.
    """
    measured = collect(metrics)
    numbers = {claim.id: claim for claim in claims if isinstance(claim, Number)}
    rows = [_row(claim, numbers, measured, runs, left_out.get(claim.paper)) for claim in claims]
    return pd.DataFrame(rows, columns=[field.name for field in fields(Row)])


def _row(
    claim: Claim, numbers: Mapping[str, Number], measured: All, runs: Sequence[Record], left_out: LeftOut | None
) -> Row:
    found = {measure: measured.get((claim.measured_in, measure.variant, measure.metric)) for measure in claim.measures}
    present = {measure: item for measure, item in found.items() if item is not None}
    base = Row(
        published=published_text(claim),
        tolerance=claim.tolerance if isinstance(claim, Number) else math.nan,
        beside=(claim.beside or "") if isinstance(claim, Number) else "",
        **{name: getattr(claim, name) for name in OF_CLAIM},
    )
    if len(present) < len(found):
        lacking = [measure for measure in found if measure not in present]
        return replace(
            base,
            decides=claim.decides or _first_runs(claim, lacking, measured),
            how=_why_not(claim.measured_in, lacking, measured, left_out),
        )
    for measure, item in present.items():
        if item.unit != claim.unit:
            raise UserError(
                f"claims: {claim.id}: unit: the claim is in '{claim.unit}', but {measure} is measured in '{item.unit}'"
            )
    finding = judge(claim, present, numbers, measured)
    low, high = (finding.estimate.interval() if finding.estimate.basis == "seeds" else None) or (math.nan, math.nan)
    made_of_stand_ins = any(item.stand_in for item in present.values())
    return replace(
        base,
        decides="" if made_of_stand_ins else _next_runs(claim, finding, present, runs),
        ours=finding.ours,
        sd=finding.sd,
        seeds=min(len(item.seeds) for item in present.values()),
        interval_low=low,
        interval_high=high,
        difference=finding.difference,
        p_value=math.nan if finding.p_value is None or made_of_stand_ins else finding.p_value,
        verdict=STAND_IN if made_of_stand_ins else finding.verdict,
        how=_how(claim, present, finding.estimate, runs),
    )


def _first_runs(claim: Claim, lacking: Sequence[Measure], measured: All) -> str:
    """The runs that a claim needs for a first value."""
    trained = {variant for paper, variant, _ in measured if paper == claim.measured_in}
    if claim.study and not trained:
        return f"The study `{claim.study}`, at a scale that has it."
    new = dict.fromkeys(measure.variant for measure in lacking if measure.variant not in trained)
    if not new:
        return "Other trainings: those that were made do not give the value."
    return f"Three seeds of {', '.join(new)}{f' (study `{claim.study}`)' if claim.study else ''}."


def _next_runs(claim: Claim, finding: Finding, present: Mapping[Measure, Measured], runs: Sequence[Record]) -> str:
    """The runs that would decide a claim, or test a cause; empty if ours settle it.

    For a claim with three seeds, the number of seeds is computed. An entry for a conjecture has its own.
    """
    listed = claim.decides if finding.verdict in OPEN else ""
    if finding.verdict not in (*OPEN, NOT_SUPPORTED) or (listed and claim.role == "conjecture"):
        return listed
    trained = {measure.variant: len(item.seeds) for measure, item in present.items()}
    fewest = min(trained.values())
    if fewest < FEWEST_SEEDS:
        return listed or f"Three seeds in all{_cost(claim, trained, FEWEST_SEEDS, runs)}."
    if isinstance(claim, Number) or finding.p_value is None or finding.p_value < 1 - statistics.LEVEL:
        return listed
    if finding.estimate.basis != "seeds":
        return "More seeds: those of one model have equal values."
    if wanted := statistics.seeds_to_separate(finding.estimate, abs(finding.difference)):
        return f"About {wanted} seeds in all, if means and spreads stay{_cost(claim, trained, wanted, runs)}."
    most = statistics.MOST_SEEDS
    return f"More than {most} seeds, if means and spreads stay{_cost(claim, trained, most, runs, f' up to {most}')}."


def _cost(claim: Claim, trained: Mapping[str, int], wanted: int, runs: Sequence[Record], of: str = "") -> str:
    """The time to train all wanted seeds of the variants, of which some are `trained`; empty if unknown.

    It is that of one device, the slowest of those that trained all variants.
    """
    times: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        if run["paper"] == claim.measured_in and run["variant"] in trained and run.get("wall_seconds"):
            of_device = times.setdefault(str(run.get("device", "a device without a name")), {})
            of_device.setdefault(run["variant"], []).append(run["wall_seconds"])
    costs = {
        device: sum(median(each[variant]) * max(wanted - seeds, 0) for variant, seeds in trained.items())
        for device, each in times.items()
        if each.keys() == trained.keys()
    }
    if not costs:
        return ""
    device = max(costs, key=lambda device: costs[device])
    return f"; the missing ones{of} take {duration(costs[device])} of training ({device})"


def _why_not(paper: str, lacking: Sequence[Measure], measured: All, left_out: LeftOut | None) -> str:
    """One line on what was not measured, with the reason if it is known."""
    reasons = dict.fromkeys(left_out.reason(measure.variant) for measure in lacking) if left_out else {}
    missing = ", ".join(f"{measure}{_misspelt(paper, measure, measured)}" for measure in lacking)
    return "; ".join([f"no value of {missing}", *filter(None, reasons)])


def _misspelt(paper: str, measure: Measure, measured: All) -> str:
    """The nearest metric of a variant that was measured, if the paper has no metric of this name at all."""
    metrics = {metric for name, variant, metric in measured if (name, variant) == (paper, measure.variant)}
    known = any((name, metric) == (paper, measure.metric) for name, _, metric in measured)
    return nearest(measure.metric, metrics) if metrics and not known else ""


def _how(claim: Claim, present: Mapping[Measure, Measured], estimate: Estimate, runs: Sequence[Record]) -> str:
    """One line with the sets, seeds, steps and device of a row."""
    parts = list(dict.fromkeys(_tested_on(item) for item in present.values() if item.n or item.measured_on))
    seeds = sorted({seed for item in present.values() for seed in item.seeds})
    fewest = min(len(item.seeds) for item in present.values())
    own = {measure.variant: ", ".join(map(str, item.seeds)) for measure, item in present.items()}
    if len(set(own.values())) == 1:
        parts.append(f"{fewest} seed{'s' if fewest > 1 else ''} ({', '.join(map(str, seeds))})")
    else:
        parts.append("seeds " + ", ".join(f"{listed} of {variant}" for variant, listed in own.items()))
    if estimate.basis != "seeds":
        parts.append(_no_interval(claim, estimate, fewest))
    models = [(claim.measured_in, measure.variant, seed) for measure in present for seed in seeds]
    known = {(run["paper"], run["variant"], int(run["seed"])): run for run in runs}
    used = [known[model] for model in models if model in known]
    trained: dict[str, dict[str, None]] = {}
    for run in used:
        trained.setdefault(_trained(run), {})[run["variant"]] = None
    parts += [f"{', '.join(variants)}: {training}" for training, variants in trained.items() if training]
    devices = dict.fromkeys(str(run["device"]) for run in used if run.get("device"))
    if devices:
        parts.append(f"on {', '.join(devices)}")
    return "; ".join(parts)


def _no_interval(claim: Claim, estimate: Estimate, fewest: int) -> str:
    why = "equal values give no interval" if fewest > 1 else "one seed gives no interval"
    if isinstance(claim, Number):
        return why
    if estimate.basis == "none":
        return f"{why}; the uncertainty is unknown"
    if fewest > 1:
        return f"{why}; they count with the error of the finite sample"
    if estimate.freedom < math.inf:
        return f"{why}; the p-value counts the finite sample or, if it is larger, the other model's spread over seeds"
    return f"{why}; the p-value counts the finite sample only"


def _tested_on(item: Measured) -> str:
    size = f"n = {item.n:,}" if item.n else ""
    return f"measured on {item.measured_on} ({size})" if item.measured_on and size else item.measured_on or size


def _trained(run: Record) -> str:
    """E.g. `2,000 steps of 128 images of mnist-40`."""
    if run.get("steps") is None:
        return ""
    size = run.get("config", {}).get("training", {}).get("batch_size")
    name = run.get("dataset", {}).get("name", "")
    images = f" of {size} images" if size else ""
    weights = f", {run['parameters'] / 1e6:.2f} M parameters" if run.get("parameters") else ""
    return f"{int(run['steps']):,} steps{images}{f' of {name}' if name else ''}{weights}"


def published_text(claim: Claim) -> str:
    """The published values in a few characters: `90.12`, `90.12 > 79 > 66`, `no numbers`, `3 (our limit: 2 to 4)`."""
    if isinstance(claim, Number):
        return f"{claim.published:g}" + (f" ± {claim.sd:g}" if claim.sd is not None else "")
    if isinstance(claim, Ordering):
        if claim.role == "conjecture":
            return claim.mark.join(("first", "second", "third")[: len(claim.measures)])
        return claim.mark.join(f"{value:g}" for value in claim.published) if claim.published else "no numbers"
    if claim.at_least is not None and claim.at_most is not None:
        limit = f"{claim.at_least:g} to {claim.at_most:g}"
    else:
        limit = f"at most {claim.at_most:g}" if claim.at_least is None else f"at least {claim.at_least:g}"
    return limit if claim.published is None else f"{claim.published:g} (our limit: {limit})"


def counts(card: pd.DataFrame) -> dict[str, int]:
    """Number of claims per verdict that occurs, in the order of `VERDICTS`. Checks and conjectures do not count."""
    found = Counter(card[card["role"] == "claim"]["verdict"])
    return {verdict: found[verdict] for verdict in VERDICTS if found[verdict]}


def values(card: pd.DataFrame) -> dict[str, float]:
    """Our value of each measured claim, by id; for an ordering, the least certain gap."""
    numbers = card["difference"].where(card["kind"] == "ordering", pd.to_numeric(card["ours"], errors="coerce"))
    return {str(claim): float(f"{number:.6g}") for claim, number in numbers.set_axis(card["id"]).dropna().items()}


def markdown(
    card: pd.DataFrame,
    scale: str,
    left_out: Mapping[str, LeftOut] = {},
    own: Mapping[str, Sequence[str]] = {},
) -> str:
    """A compact scorecard for readers: verdict counts, then one table per paper."""
    summary = ", ".join(f"{number} {verdict}" for verdict, number in counts(card).items()) or "no claims"
    checks = card[card["role"] == "check"]
    n = int((card["role"] == "claim").sum())
    parts = [f"# Scorecard, scale `{scale}`", f"{n} claim{'' if n == 1 else 's'}: {summary}."]
    if len(checks):
        failed = int((checks["verdict"] == FAILED).sum())
        parts.append(f"Checks of the configuration: {len(checks)}, of which {failed or 'none'} failed.")
    if len(conjectures := card.loc[card["role"] == "conjecture", "verdict"].value_counts(sort=False)):
        found = ", ".join(f"{number} {verdict}" for verdict, number in conjectures.items())
        parts.append(f"Conjectures, which the authors believe and did not test: {found}.")
    if changed := int((card["reason"] + card["note"]).str.contains("(?:Changed|Added) after").sum()):
        parts.append(
            f"Of all {len(card)} rules, {changed} were changed or added after results were known. The columns `reason` "
            "and `note` of `scorecard.csv` say why."
        )
    if STAND_IN in set(card["verdict"]):
        parts.append("**Stand-in data: no verdicts.** The numbers only show that the workflow runs.")
    if ((card["seeds"] == 1) & (card["verdict"] != STAND_IN)).any():
        parts.append("A value of one seed has no interval. Nor do several seeds with equal values.")
    for paper, rows in card.groupby("paper", sort=False):
        parts.append(f"## {paper}")
        parts += [f"Made {left_out[str(paper)]}."] if paper in left_out else []
        for role, title in TITLES.items():
            if len(part := rows[rows["role"] == role]):
                parts += [f"### {title}"] if title else []
                parts.append("\n".join([MARKDOWN_HEAD, *(_markdown_row(row) for _, row in part.iterrows())]))
        still_open = rows[rows["decides"] != ""].groupby("decides", sort=False)["id"]
        if lines := [f"| {runs} | {', '.join(f'`{claim}`' for claim in ids)} |" for runs, ids in still_open]:
            table = "\n".join(["| runs | claims |", "|---|---|", *lines])
            parts += ["### Runs that would decide, or test a cause", table]
    for name, sets in own.items():
        parts += [f"## {name}", not_judged(sets)]
    return "\n\n".join([*parts, MARKDOWN_NOTES]) + "\n"


def not_judged(own: Sequence[str]) -> str:
    """Why the claims of a paper that was run on the user's own data have no verdicts."""
    return f"Run on your own data ({', '.join(own)}). The paper's claims are about other data, so they are not judged."


def _markdown_row(row: pd.Series) -> str:
    interval = interval_text(row)
    interval = f"gap {interval}" if interval and row["kind"] == "ordering" else interval
    published, ours = (readable(row[column], row["unit"]) for column in ("published", "ours"))
    ours += "" if math.isnan(row["sd"]) else f" ± {format_value(row['sd'], row['unit'])}"
    statement = row["statement"] + (" *Quoted.*" if row["quoted"] else "")
    cells = [row["where"], statement, row["unit"], published, ours, row["seeds"] or "", interval, row["verdict"]]
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def interval_text(row: pd.Series) -> str:
    """The interval of a row; empty if it has none."""
    if math.isnan(row["interval_low"]):
        return ""
    return f"{format_value(row['interval_low'], row['unit'])} to {format_value(row['interval_high'], row['unit'])}"


def load(file: Path) -> pd.DataFrame:
    """Return a scorecard written by `make`.

    Raises:
        UserError: the file is missing.
    """
    names = [field.name for field in fields(Row) if field.type == "str"]
    try:
        card = pd.read_csv(file, dtype=dict.fromkeys(names, str))
    except FileNotFoundError as error:
        raise UserError(f"{file}: no such file; first run the stage that writes it") from error
    card[names] = card[names].fillna("")
    return card


def make(
    claims: Iterable[Path],
    metrics: Iterable[Path],
    records: Iterable[Path],
    out: Path,
    *,
    scale: str,
    papers: Collection[str],
    left_out: Mapping[str, LeftOut] = {},
    own: Mapping[str, Sequence[str]] = {},
) -> pd.DataFrame:
    """Write the scorecard to the folder `out`, and return it.

    `scorecard.csv` and `scorecard.md` hold every row. For `dvc metrics`, `scorecard.json` holds our value of each claim
    (see `values`), and `verdicts/<paper>.json` the number of claims per verdict. `scorecard.png` shows the numbers
    in percent.

    Args:
        claims: the papers' `claims.yaml` files.
        metrics: the papers' `metrics.csv` files.
        records: the runs' `record.json` files.
        papers: the papers to judge.
        left_out: the data sets and variants that papers left out, by paper.
        own: the user's own data, by the papers that use them; the claims of these papers are about other data, and are
            not judged.
    """
    judged = set(papers) - set(own)
    wanted = [claim for file in claims for claim in read(Path(file)) if claim.paper in judged]
    card = scorecard(wanted, read_metrics(metrics), read_records(records), left_out)
    files = Layout(Path(out))
    table, text, numbers, picture = files.scorecard()
    write_text(table, card.to_csv(index=False, float_format="%.6g"))
    write_text(text, markdown(card, scale, left_out, own))
    write_json(numbers, values(card))
    overview.draw(card, picture)
    for paper in papers:
        verdicts = dict.fromkeys(VERDICTS, 0) | counts(card[card["paper"] == paper])
        write_json(files.verdicts(paper), verdicts)
    return card
