"""The report: one HTML page, made from the files of one scale and the papers' READMEs.

The page holds all pictures and records, or (`linked`) links to the files beside it.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from jinja2 import Environment, FileSystemLoader
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape

from recaps.config.load import Project
from recaps.io import write_text
from recaps.layout import Layout
from recaps.papers import of
from recaps.report import charts, findings, overview, scorecard, verdicts
from recaps.report.contents import Run, read_figure, read_picture, read_runs, read_table, read_timings
from recaps.report.measured import Record, dirty, duration, stand_in

TEMPLATE = "report.html.j2"
#: Points of a training curve on the page, and on a page of links.
MOST_POINTS, FEW_POINTS = 200, 10
#: Most commits that the top of the page lists.
NAMED_COMMITS = 3
#: The `origin` in the record of a run that was made before its record had an identity.
BEFORE_IDENTITY = "before identity"
#: A folder of published records, which their pages' links to READMEs start from.
PUBLISHED = findings.ROOT / "results/published/scale"
#: The part of a paper's README that the page shows.
READINGS = "How it is read here"
#: Symbol and CSS class of a verdict. The page shows the words too, so nothing depends on colour alone.
BADGES = {
    verdicts.REPRODUCED: ("✓", "good"),
    verdicts.DIRECTION: ("↗", "fair"),
    verdicts.NOT_REPRODUCED: ("✗", "bad"),
    verdicts.NOT_RUN: ("–", "none"),
    verdicts.STAND_IN: ("○", "none"),
    verdicts.PASSED: ("✓", "none"),
    verdicts.FAILED: ("✗", "bad"),
    verdicts.SUPPORTED: ("✓", "good"),
    verdicts.NOT_DECIDED: ("?", "fair"),
    verdicts.NOT_SUPPORTED: ("✗", "bad"),
}


def build(
    project: Project,
    root: Path,
    out: Path,
    *,
    readmes: Mapping[str, Path] = {},
    linked: bool = False,
    found: Mapping[str, Sequence[str]] = {},
    other_settings: Sequence[str] = (),
) -> None:
    """Write the page `out`.

    Args:
        project: the papers, variants, seeds, tables and figures to show, with titles and captions.
        root: the folder `results/<scale>`; the page lists the tables and figures that are missing there.
        readmes: the README of each paper, by name; the page shows its section "How it is read here".
        linked: link to pictures, data and records by their paths below `root`, which is then the folder of `out`, and
            to the READMEs.
        found: the findings of each paper by name, and the conclusions by the empty name, in Markdown.
        other_settings: the runs that were made with other settings than those of `project`.

    Raises:
        UserError: the scorecard is missing.
    """
    files = Layout(root)
    table, *_, picture = files.scorecard()
    card = scorecard.load(table)
    sections = [
        _section(project, name, files, card, readmes.get(name), linked, found.get(name, ()))
        for name in project.reported
    ]
    papers = sorted(sections, key=lambda each: not each["judged"])
    records = [run.record for paper in papers for run in paper["runs"]]
    sets = {name for paper in project.papers.values() for name in paper.used_sets}
    stand_ins = any(map(project.stand_in, sets)) or stand_in(records)
    page = {
        "scale": project.config.scale,
        "description": project.scale.description,
        "stand_in": stand_ins,
        "own": ", ".join(sorted({name for paper in project.papers for name in project.own_data(paper)})),
        "facts": _facts(project, records),
        "conclusions": [_conclusion(text) for text in found.get("", ())],
        "counts": _counts(card),
        "overview": read_picture(picture, files, linked) if picture.exists() and len(overview.shown(card)) else None,
        "total": int((card["role"] == "claim").sum()),
        "conjectures": [each for paper in papers for each in paper["claims"] if each["role"] == "conjecture"],
        "papers": papers,
        "limitations": _limitations(project, card, records, other_settings, stand_ins),
        "command": _command(project),
        "linked": linked,
    }
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(duration=duration, count=count, yaml=as_yaml, code=code)
    text = environment.get_template(TEMPLATE).render(page)
    write_text(out, re.sub(r"\n\s+(?=<)", "\n", text) if linked else text)


def _command(project: Project) -> str:
    """The command that makes the page, with the data sets that it replaces or leaves out."""
    profile = "smoke" if project.scale.stand_in else "local"
    command = f"snakemake --profile profiles/{profile} --config scale={project.config.scale}"
    replaced = [] if project.own else [f"{name}: {other}" for name, other in project.config.datasets.items()]
    lost = dict.fromkeys(name for each in project.left_out.values() for name in (*each.sets, *each.named))
    command += f" 'datasets={{{', '.join(replaced)}}}'" if replaced else ""
    return command + (f" 'without=[{', '.join(lost)}]'" if lost else "")


def _section(
    project: Project,
    name: str,
    files: Layout,
    card: pd.DataFrame,
    readme: Path | None,
    linked: bool,
    found: Sequence[str],
) -> dict[str, Any]:
    """A paper or study, for the template."""
    paper, card = project.every[name], card[card["paper"] == name]
    tables = [table for key, output in paper.tables.items() if (table := read_table(files, name, key, output, linked))]
    figures = [made for key, output in paper.figures.items() if (made := read_figure(files, name, key, output, linked))]
    drawn = {each["name"] for each in (*tables, *figures)}
    points = FEW_POINTS if linked else MOST_POINTS
    runs = {variant: read_runs(project, name, variant, files, points) for variant in paper.variants}
    with_curves = {} if linked and name != of(name) else runs  # studies have many rows
    page = f"src/recaps/papers/{of(name)}/README.md"
    readings = _readme_section(readme.read_text(encoding="utf-8"), READINGS) if readme else Markup("")
    claims, own = [_claim(row) for _, row in card.iterrows()], project.own_data(name)
    numbers = overview.shown(card)
    return {
        "name": name,
        "readme": os.path.relpath(findings.ROOT / page, PUBLISHED) if linked else page,
        "paper": paper,
        "claims": claims,
        "judged": bool(claims or own),
        "tables": tables,
        "figures": figures,
        "missing": [output.title for key, output in paper.outputs.items() if key not in drawn],
        "left_out": str(project.left_out.get(name, "")),
        "not_judged": scorecard.not_judged(own) if own else "",
        "runs": [run for of_variant in runs.values() for run in of_variant],
        "variants": [_variant(variant, of_variant) for variant, of_variant in runs.items() if of_variant],
        "curves": [(variant, svg) for variant, each in with_curves.items() if (svg := _curves(variant, each))],
        "timings": read_timings(files, name, paper),
        "readings": _links_to_readings(findings.ROOT / page) if linked and name == of(name) else readings,
        "findings": [_markdown(text) for text in found],
        "picture": charts.scatter(numbers, [BADGES[verdict] for verdict in numbers["verdict"]]),
        "counts": _counts(card),
    }


def _counts(card: pd.DataFrame) -> list[tuple[str, int, str, str]]:
    """The number of claims with each verdict, and the symbol and the style of the verdict."""
    return [(verdict, number, *BADGES[verdict]) for verdict, number in scorecard.counts(card).items()]


def _conclusion(text: str) -> tuple[Markup, str, str]:
    """A conclusion, the path of its picture and the picture's caption."""
    picture = findings.PICTURE.search(text) or {"file": "", "alt": ""}
    return _markdown(findings.PICTURE.sub("", text)), picture["file"], picture["alt"]


def _markdown(text: str) -> Markup:
    """A finding in HTML, with links that work on the published page."""
    return Markup(MarkdownIt("commonmark", {"html": False}).renderInline(findings.linked(text, PUBLISHED)))


def _links_to_readings(readme: Path) -> Markup:
    """A link to each reading in a README."""
    parsed = _below(MarkdownIt("commonmark").parse(readme.read_text(encoding="utf-8")), READINGS)
    titles = [parsed[i + 1].content for i, each in enumerate(parsed) if (each.type, each.tag) == ("heading_open", "h3")]
    path = readme.relative_to(findings.ROOT).as_posix()
    anchors = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
    links = (f"[{title}]({path}#{anchor})" for title, anchor in zip(titles, anchors, strict=True))
    return Markup(f"<p>{' · '.join(map(_markdown, links))}</p>" if titles else "")


def _variant(name: str, runs: Sequence[Run]) -> dict[str, Any]:
    """The row of a variant in the table of runs: its seeds, and the range of each number over them."""
    records = [run.record for run in runs]
    sets = (f"{data['name']}/{data['split']}" for data in (record.get("dataset") for record in records) if data)
    return {
        "name": name,
        "seeds": [(run.record["seed"], run.folder) for run in runs],
        "sets": _several(sets),
        "steps": _range(records, "steps", count),
        "time": _range(records, "wall_seconds", duration),
        "speed": _range(records, "images_per_second", count),
        "memory": _range(records, "peak_memory_bytes", size),
        "device": _several(str(record["device"]) for record in records if record.get("device")),
    }


def _range(records: Sequence[Record], key: str, text: Callable[[float], str]) -> str:
    """The smallest and the largest value, as `3 min to 5 min`; one of them if both read the same."""
    values = [record[key] for record in records if isinstance(record.get(key), int | float)]
    return " to ".join(dict.fromkeys(map(text, (min(values), max(values))))) if values else ""


def _claim(row: pd.Series) -> dict[str, Any]:
    """A scorecard row with its symbol, its drawing and its numbers as text, for the template."""
    interval = None if math.isnan(row["interval_low"]) else (row["interval_low"], row["interval_high"])
    symbol, style = BADGES[row["verdict"]]
    drawing = Markup("")
    if row["kind"] == "number" and row["ours"]:
        published = float(row["published"].split()[0])
        drawing = charts.strip(published, row["tolerance"], float(row["ours"]), interval)
    elif row["role"] == "conjecture" and row["ours"]:
        drawing = charts.certainty(row["difference"], row["p_value"])
    return {
        **{str(key): value for key, value in row.items()},
        "symbol": symbol,
        "style": style,
        "drawing": drawing,
        "sd_text": "" if math.isnan(row["sd"]) else verdicts.format_value(row["sd"], row["unit"]),
        "interval_text": scorecard.interval_text(row),
        "published_text": verdicts.readable(row["published"], row["unit"]),
        "ours_text": verdicts.readable(row["ours"], row["unit"]),
        "difference_text": _signed(row),
        "p_text": p_text(row["p_value"]),
        "tolerance_text": "" if math.isnan(row["tolerance"]) else f"{row['tolerance']:g}",
    }


def _signed(row: pd.Series) -> str:
    if math.isnan(row["difference"]):
        return ""
    text = verdicts.format_value(abs(row["difference"]), row["unit"])
    meaning = {"number": "ours minus published", "ordering": "least certain gap", "bound": "inside the limit"}
    return f"{'-' if row['difference'] < 0 else '+'}{text} ({meaning[row['kind']]})"


def _curves(variant: str, runs: Sequence[Run]) -> Markup:
    histories = [run.history for run in runs if len(run.history) > 1]
    of_seeds = "1 seed" if len(histories) == 1 else f"{len(histories)} seeds"
    return charts.curves(histories, f"training loss of {variant}, {of_seeds}")


def _facts(project: Project, records: Sequence[Record]) -> list[tuple[str, str]]:
    """The facts at the top of the page, all from the configuration and the run records."""
    of_runs = {str(run.get("git", {}).get("commit") or "unknown")[:12]: None for run in records}
    commits = _several(of_runs) if len(of_runs) <= NAMED_COMMITS else f"{len(of_runs)}; each run's record names its own"
    if dirty(records):
        commits += " with uncommitted changes"
    finished = [str(run["finished"])[:10] for run in records if run.get("finished")]
    days = _several((min(finished), max(finished))) if finished else ""
    # Several rows of a study can have one trained model.
    trained = {(run.get("trained") or f"{run['paper']}/{run['variant']}", run["seed"]): run for run in records}
    seconds = sum(float(run.get("wall_seconds") or 0) for run in trained.values())
    facts = [
        ("Data sets left out", _several(name for lost in project.left_out.values() for name in lost.sets)),
        ("Seeds", ", ".join(map(str, sorted({run["seed"] for run in records}) or project.seeds))),
        ("Training runs", f"{len(trained)}, {duration(seconds)} in all"),
        ("Commit" if len(of_runs) == 1 else "Commits", commits),
        ("Date", days.replace(", ", " to ")),
        ("Device", _several(str(run["device"]) for run in records if run.get("device"))),
    ]
    return [(name, value) for name, value in facts if value]


def _limitations(
    project: Project, card: pd.DataFrame, records: Sequence[Record], other_settings: Sequence[str], stand_ins: bool
) -> list[str]:
    """Reasons for caution that can be computed from the files."""
    found = []
    if stand_ins:
        found.append("Made from stand-in data: the numbers only show that the workflow runs.")
    elif project.scale.stand_in:
        found.append("Trained for a few steps: the numbers only show that the workflow runs on these data.")
    used = {name.split("/")[0] for paper in project.papers.values() for name in paper.used_sets}
    for name in sorted(used):
        other = project.dataset(name)
        if other != name and project.origin(other)[1] is None:
            found.append(f"The set {name} was replaced by {other}, which the papers did not use.")
    found += [f"{name} was made {lost}." for name, lost in project.left_out.items()]
    seeds = Counter((run["paper"], run["variant"]) for run in records)
    if single := sum(number == 1 for number in seeds.values()):
        who = "One seed per variant" if single == len(seeds) else f"{single} variants have one seed"
        found.append(
            f"{who}: they have no intervals, and their spread over seeds is unknown. Tests of orderings count the test "
            "images or the other model's spread over seeds; another seed may give another order."
        )
    trainings = [(run, project.every[run["paper"]].variants[run["variant"]].training) for run in records]
    if shorter := sorted({run["variant"] for run, planned in trainings if int(run.get("steps") or 0) < planned.steps}):
        found.append(f"Stopped before the planned number of steps: {', '.join(shorter)}.")
    claims = card[card["role"] == "claim"]
    if not_run := int((claims["verdict"] == verdicts.NOT_RUN).sum()):
        found.append(f"{not_run} of {len(claims)} claims have no measured value at this scale.")
    if dirty(records):
        found.append("Some runs were made with uncommitted changes, so their commit does not identify their code.")
    if len({run.get("git", {}).get("commit") for run in records}) > 1:
        found.append("The runs come from several commits; each run's record names its commit.")
    if other_settings:
        found.append(f"Trained or measured with other settings than today: {', '.join(other_settings)}.")
    if before := sum(run.get("origin") == BEFORE_IDENTITY for run in records):
        found.append(f"{before} of {len(records)} runs were made before identities were recorded.")
    return found


def _several(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))


def _readme_section(text: str, heading: str) -> Markup:
    """The section of a Markdown file below a heading, without raw HTML, images and links to other files."""
    renderer = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    renderer.add_render_rule("code_inline", _breakable)
    tokens = _below(renderer.parse(text), heading)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + 1)}"
        _hide_links_to_files(token.children or [])
    html = renderer.renderer.render(tokens, renderer.options, {})
    html = html.replace("<table>", '<div class="wide" tabindex="0"><table>')
    return Markup(html.replace("</table>", "</table></div>"))


def _below(tokens: Sequence[Token], heading: str) -> list[Token]:
    """The tokens between a heading and the next one of the same or a higher level; none if there is no such heading."""
    starts = [place for place, token in enumerate(tokens) if token.type == "heading_open"]
    for place in starts:
        if tokens[place + 1].content == heading:
            later = (other for other in starts if other > place and tokens[other].tag <= tokens[place].tag)
            return list(tokens[place + 3 : next(later, len(tokens))])
    return []


def _hide_links_to_files(tokens: Sequence[Token]) -> None:
    """Of links that do not lead to the web, show the text alone."""
    to_file = False
    for token in tokens:
        if token.type == "link_open":
            to_file = not str(token.attrs["href"]).startswith(("https://", "http://"))
        token.hidden = to_file and token.type in ("link_open", "link_close")


def _breakable(_: object, tokens: Sequence[Token], place: int, *others: object) -> str:
    """Inline code with line breaks allowed after dots and underscores."""
    text = re.sub(r"([._]+)", r"\1<wbr>", str(escape(tokens[place].content)))
    return f"<code>{text}</code>"


def code(text: str) -> Markup:
    """Escaped text, with what is between backticks as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def size(number: float) -> str:
    """Bytes, as `812 MB` or `1.4 GB`."""
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:.0f} MB"


def count(number: float) -> str:
    return f"{number:,.0f}"


def as_yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100).rstrip()


def p_text(p: float) -> str:
    if math.isnan(p):
        return ""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
