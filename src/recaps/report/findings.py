"""Findings: sentences whose numbers come from a published record.

`findings.md.j2` in a paper's folder lists at most ten of them; the first one is the paper's sentence. The file in the
folder of all papers lists the conclusions, each with a picture, and says what the scale is. `make publish` renders
them into the published page and, between `<!-- findings desk -->` and `<!-- /findings -->`, into the READMEs.
"""

from __future__ import annotations

import math
import os
import re
import textwrap
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from recaps.config.load import load
from recaps.config.reading import read_yaml
from recaps.config.variant import Paper
from recaps.io import read_json, write_text
from recaps.layout import Layout
from recaps.papers import FOLDER, names
from recaps.report import claims, scorecard
from recaps.report.measured import read_metrics
from recaps.report.verdicts import DIRECTION, NOT_REPRODUCED, NOT_RUN, REPRODUCED

FILE = "findings.md.j2"
#: The folder of the project, which links in findings start from.
ROOT = FOLDER.parents[2]
#: A picture in a finding; its path starts from the record.
PICTURE = re.compile(r"\s*!\[(?P<alt>[^]]*)\]\((?P<file>[^)]*)\)")
_MARKED = re.compile(r"(<!-- findings (\w+) -->\n).*?(<!-- /findings -->)", re.DOTALL)
_COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


class Numbers:
    """What the findings of a paper may name. A number that the record lacks is nan."""

    def __init__(self, record: Path, paper: str) -> None:
        self.paper, self.folder, self.files = paper, FOLDER / paper, Layout(record)
        self.metrics = read_metrics(filter(Path.exists, [self.files.metrics(paper)]))
        self.card = scorecard.load(self.files.scorecard()[0]).set_index("id")
        values = claims.printed(claims.read(self.folder / "claims.yaml")).values()
        self.values = {(each.variant, each.metric): each.value for each in values}

    def _rows(self, variant: str, metric: str) -> pd.Series:
        return self.metrics.loc[(self.metrics["variant"] == variant) & (self.metrics["metric"] == metric), "value"]

    def ours(self, variant: str, metric: str) -> float:
        """Our mean over seeds."""
        return float(self._rows(variant, metric).mean())

    def printed(self, variant: str, metric: str) -> float:
        """The value that the paper prints."""
        return self.values.get((variant, metric), math.nan)

    def seeds(self, variant: str, metric: str) -> str:
        """The number of seeds, e.g. `three seeds`."""
        count = len(self._rows(variant, metric))
        return f"{_COUNTS[count] if count < len(_COUNTS) else count} seed{'s' if count > 1 else ''}"

    def verdict(self, claim: str) -> str:
        return str(self.card["verdict"].get(claim, ""))

    def p(self, claim: str) -> float:
        """The p-value of a claim."""
        return float(self.card["p_value"].get(claim, math.nan))

    def study(self, name: str, column: str, **where: object) -> float:
        """The mean of a column of a study's published table, or of a table in the paper's folder, e.g. `svm.csv`.

        It is over the rows with the values `where`; "": those that have none.
        """
        published = self.files.paper(f"{self.paper}.{name}") / "table.csv"
        file = self.folder / name if name.endswith(".csv") else published
        rows = pd.read_csv(file, dtype=str, keep_default_na=False) if file.exists() else pd.DataFrame()
        if not {column, *where} <= {*rows.columns}:  # none of the rows that have it has run
            return math.nan
        for option, value in where.items():
            rows = rows[rows[option] == str(value)]
        return float(pd.to_numeric(rows[column], errors="coerce").mean())


def read(record: Path, config: Path, paper: str = "") -> list[str]:
    """Return the findings of a paper, or the conclusions if none is named: Markdown, a line each.

    A finding that names a number which the record lacks, or that the record no longer shows (`given`), is left out.

    Args:
        record: the published record of a scale.
        config: the folder that holds `scales/`.
    """
    return [finding for finding in render(record, config, paper) if not re.search(r"\bnan\b", finding)]


def render(record: Path, config: Path, paper: str = "") -> list[str]:
    """As `read`, with the findings that it leaves out; they contain `nan`."""
    if not (FOLDER / paper / FILE).exists():
        return []
    environment = Environment(loader=FileSystemLoader(FOLDER / paper), undefined=StrictUndefined)
    environment.filters["number"] = lambda value, places=1: f"{value:,.{places}f}"
    context: dict[str, Any] = {
        "scale": record.name,
        "given": lambda shown: "" if shown else "nan",
        "of": partial(Numbers, record),
    }
    if paper:
        numbers = Numbers(record, paper)
        context |= {name: getattr(numbers, name) for name in ("ours", "printed", "seeds", "verdict", "p", "study")}
    else:
        context["share"] = partial(_share, record, load({"scale": "paper"}, config).papers)
    text = environment.get_template(FILE).render(context)
    return [" ".join(finding.split()) for finding in re.split(r"^- ", text, flags=re.MULTILINE)[1:]]


def _share(record: Path, papers: Mapping[str, Paper], section: str, *keys: str) -> str:
    """How much of the `papers` as printed the runs have, e.g. `1 to 50 % (median 12)`.

    It is the product of the options `keys` of a section.
    """
    shares = []
    for name, paper in papers.items():
        for variant, full in paper.variants.items() if claims.read(FOLDER / name / "claims.yaml") else ():
            planned = full.model_dump(mode="json")[section]
            for run in sorted(record.glob(str(Layout(Path()).run(name, variant, "*") / "config.json")))[:1]:
                made = read_json(run)[section]
                if all(key in made and planned.get(key) for key in keys):
                    shares.append(100 * math.prod(made[key] / planned[key] for key in keys))
    if not shares:
        return "nan"
    return f"{min(shares):.0f} to {max(shares):.0f} % (median {median(shares):.0f})"


def linked(text: str, place: Path) -> str:
    """A finding with links that work in the folder `place`."""
    return re.sub(r"(?<=\]\()(?!https?:|#)[^)#]+", lambda link: os.path.relpath(ROOT / link[0], place), text)


def pages(root: Path) -> dict[Path, str]:
    """The READMEs of the project in the folder `root`, with the findings that its published records give."""
    files = filter(Path.exists, [root / "README.md", *sorted(root.glob("src/recaps/papers/*/README.md"))])
    return {file: _MARKED.sub(partial(_filled, root, file), file.read_text(encoding="utf-8")) for file in files}


def write(root: Path) -> None:
    for file, text in pages(root).items():
        if text != file.read_text(encoding="utf-8"):
            write_text(file, text)


def _filled(root: Path, file: Path, found: re.Match[str]) -> str:
    record, config = root / "results/published" / found[2], root / "config"
    paper = "" if file.parent == root else file.parent.name
    here = ROOT / file.parent.relative_to(root)
    wrap = textwrap.TextWrapper(120, initial_indent="- ", subsequent_indent="  ", break_long_words=False)
    wrap.break_on_hyphens = False
    texts = [linked(PICTURE.sub("", each), here) for each in read(record, config, paper)]
    lines = [wrap.fill(text.replace(" %", "\0%")).replace("\0", " ") for text in texts]
    if not paper:
        lines += ["", *_table(record, config)]
    return "\n".join([found[1], *lines, "", found[3]])


def _table(record: Path, config: Path) -> list[str]:
    """A row for each paper: the number of claims with each verdict, and its sentence."""
    verdicts = (REPRODUCED, DIRECTION, NOT_REPRODUCED, NOT_RUN)
    lines = [f"| paper | {' | '.join(verdicts)} | what we found |", f"| --- |{' --: |' * len(verdicts)} --- |"]
    card = scorecard.load(Layout(record).scorecard()[0])
    for name in sorted(names(), key=lambda name: name not in set(card["paper"])):
        about, counts = read_yaml(FOLDER / name / "paper.yaml"), scorecard.counts(card[card["paper"] == name])
        title = re.sub(r"^arXiv:", "https://arxiv.org/abs/", about["reference"])
        title = f": [*{about['title'].partition(':')[0]}*]({title})" if counts else ""
        numbers = " | ".join(str(counts.get(verdict, 0)) if counts else "" for verdict in verdicts)
        sentence = linked(next(iter(read(record, config, name)), ""), ROOT)
        lines.append(f"| [`{name}`](src/recaps/papers/{name}/README.md){title} | {numbers} | {sentence} |")
    return lines
