"""The tables, figures and runs that the report shows, read from the files of one scale."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from PIL import Image

from recaps.config.load import Project
from recaps.config.variant import Output, Paper
from recaps.errors import UserError
from recaps.io import read_json
from recaps.layout import Layout
from recaps.report import charts
from recaps.report.measured import Record, head_results

#: Bytes: the page links a larger data file instead of embedding it.
MOST_EMBEDDED = 200_000


@dataclass(frozen=True)
class Run:
    """One run, as the page shows it."""

    record: Record
    folder: str
    evaluations: Sequence[Mapping[str, Any]]
    history: charts.Curve


def read_table(files: Layout, paper: str, name: str, output: Output, linked: bool = False) -> dict[str, Any] | None:
    """Return a table, rounded as in its Markdown file, or None if it was not made. `linked`: link to its data."""
    data, text, _ = files.table(paper, name)
    if not data.exists():
        return None
    lines = text.read_text(encoding="utf-8").splitlines()
    columns, _, *rows = (line[2:-2].split(" | ") for line in lines if line.startswith("| "))
    return {
        "name": name,
        "output": output,
        "columns": columns,
        "rows": rows,
        "numeric": [_is_numeric([row[place] for row in rows]) for place in range(len(columns))],
        "data": _source(data, files, "text/csv", linked),
    }


def _is_numeric(column: Sequence[str]) -> bool:
    """Whether every non-empty cell starts with a number, as in `90.12`, `99 %`, `97.2 ± 0.1`."""
    filled = [cell for cell in column if cell.strip()]
    return bool(filled) and all(cell.lstrip("<>≥≤±-+ ")[:1].isdigit() for cell in filled)


def read_figure(files: Layout, paper: str, name: str, output: Output, linked: bool = False) -> dict[str, Any] | None:
    """Return a figure with its data, or None if it was not made. `linked`: link to picture and data."""
    _, image, data = files.figure(paper, name)
    if not image.exists():
        return None
    shown, picture = files.shown(paper), read_picture(image, files, linked)
    return picture | {
        "name": name,
        "output": output,
        "shown": read_json(shown).get(name, "") if shown.exists() else "",
        "data": _source(data, files, "text/csv", linked) if data.exists() else "",
        # Whether it needs the whole width of the page.
        "broad": picture["width"] >= 1000 and picture["width"] > 1.7 * picture["height"],
    }


def read_picture(file: Path, files: Layout, linked: bool = False) -> dict[str, Any]:
    """Return the address of a picture as `image`, and its `width` and `height` in pixels."""
    try:
        with Image.open(file, formats=["PNG"]) as picture:
            width, height = picture.size
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: not a PNG image; delete it and draw it again") from error
    return {"image": _source(file, files, "image/png", linked), "width": width, "height": height}


def _source(file: Path, files: Layout, kind: str, linked: bool) -> str:
    """Return the address of a file: its content or, if `linked` or if it is large data, its path."""
    if linked or (kind == "text/csv" and file.stat().st_size > MOST_EMBEDDED):
        return file.relative_to(files.folder).as_posix()
    return f"data:{kind};base64,{base64.b64encode(file.read_bytes()).decode('ascii')}"


def read_runs(project: Project, paper: str, variant: str, files: Layout, points: int) -> list[Run]:
    """Return the finished runs of a variant, with `points` points of each training curve."""
    settings = project.every[paper]
    titles = {name: protocol.title for name, protocol in settings.protocols.items()}
    runs = [files.run(paper, variant, seed) for seed in project.seeds_of(settings.variants[variant])]
    found = []
    for run in (each for each in runs if (each / "record.json").exists()):
        results = head_results(run)
        heads = [{**each, "head": head, "title": titles.get(protocol, protocol)} for head, protocol, each in results]
        folder = run.relative_to(files.folder).as_posix()
        found.append(Run(read_json(run / "record.json"), folder, heads, _history(run / "history.csv", points)))
    return found


def read_timings(files: Layout, name: str, paper: Paper) -> dict[str, Mapping[str, Any]]:
    """Return the finished timings of a paper, by name."""
    made = {timing: files.timing(name, timing) for timing in paper.timings}
    return {timing: read_json(file) for timing, file in made.items() if file.exists()}


def _history(file: Path, points: int) -> list[tuple[float, float]]:
    if not file.exists():
        return []
    frame = pd.read_csv(file)
    if not {"step", "loss"} <= set(frame.columns):
        raise UserError(f"{file}: no columns 'step' and 'loss'; delete the run's folder and run again")
    kept = frame.iloc[charts.thin(range(len(frame)), points)]
    return list(zip(kept["step"].astype(float), kept["loss"].astype(float), strict=True))
