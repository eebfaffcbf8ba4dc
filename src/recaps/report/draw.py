"""Write a paper's tables (CSV, Markdown, LaTeX) and its figures (PDF, PNG, and their data as CSV)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from PIL import Image

from recaps import io
from recaps.config.studies import Studied
from recaps.layout import FIGURE_FORMATS
from recaps.papers import of
from recaps.report import studies
from recaps.report.results import Results

#: Formats of a figure, besides its data.
*PICTURES, _ = FIGURE_FORMATS
STYLE = Path(__file__).with_name("recaps.mplstyle")


def table(name: str, results: Results, folder: Path) -> None:
    """Write a paper's table to `folder`: CSV with all digits, Markdown and LaTeX rounded and with a heading."""
    values: pd.DataFrame = _function(results, "tables", name)(results)
    if results.own:
        values = values.drop(columns=[column for column in values if "published" in str(column)])
    output = results.paper.tables[name]
    title = f"{output.title} [{results.note}]" if results.note else output.title
    io.write_text(folder / f"{name}.csv", values.to_csv(index=False, float_format="%.6g"))
    io.write_text(folder / f"{name}.md", f"**{title}**\n\n{output.caption}\n\n{markdown(values)}")
    io.write_text(folder / f"{name}.tex", _latex(values, f"{title}. {output.caption}"))


def figures(results: Results) -> None:
    """Write a paper's figures, and `shown.json`, which names the runs that they show, for their captions."""
    shown = {name: figure(name, results, results.folder) for name in results.paper.figures}
    io.write_json(results.files.shown(results.name), {name: text for name, text in shown.items() if text})


def figure(name: str, results: Results, folder: Path, pictures: Sequence[str] = ()) -> str:
    """Write a paper's figure to `folder`: pictures in some formats, by default PDF and PNG, and its data as CSV.

    Returns:
        A sentence that names the runs whose arrays it shows; empty if it shows none.
    """
    results.shown.clear()
    with plt.style.context(STYLE):
        drawing, data = _function(results, "figures", name)(results)
        if results.note:
            warn(drawing, results.note)
        for ending in pictures or PICTURES:
            save(drawing, folder / f"{name}.{ending}")
        plt.close(drawing)
    io.write_text(folder / f"{name}.csv", data.to_csv(index=False, float_format="%.6g"))
    return _shown(results)


def _shown(results: Results) -> str:
    """E.g. `Shown: seed 0; SPARSECAPS seed 1.`: the seeds of most variants, then those of the others."""
    seeds: dict[str, list[str]] = {}
    for variant, seed in sorted(results.shown):
        seeds.setdefault(variant, []).append(str(seed))
    texts = {name: f"seed{'s' * (len(each) > 1)} {', '.join(each)}" for name, each in seeds.items()}
    if not texts:
        return ""
    ((usual, _),) = Counter(texts.values()).most_common(1)
    variants = results.paper.variants.items()
    others = [f"{settings.title} {texts[name]}" for name, settings in variants if texts.get(name, usual) != usual]
    return f"Shown: {'; '.join([usual, *others])}."


def markdown(values: pd.DataFrame) -> str:
    """A Markdown table. Numbers have two decimals, or more in columns of small values (`_decimals`), and none in rows
    of unit `count`. Missing values are empty cells."""
    shown = _rounded(values)
    rows = [list(shown.columns), ["---"] * shown.shape[1], *shown.to_numpy().tolist()]
    return "".join(f"| {' | '.join(str(cell) for cell in row)} |\n" for row in rows)


def _latex(values: pd.DataFrame, caption: str) -> str:
    shown = _rounded(values)
    head, *rows = (" & ".join(map(_escape, row)) + r" \\" for row in [list(shown.columns), *shown.to_numpy().tolist()])
    body = "\n".join([r"\hline", head, r"\hline", *rows, r"\hline"])
    return rf"""\begin{{table}}
\caption{{{_escape(caption)}}}
\begin{{tabular}}{{l{"r" * (shown.shape[1] - 1)}}}
{body}
\end{{tabular}}
\end{{table}}
"""


def _escape(text: Any) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(special.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in str(text)).replace("->", r"$\to$")


def _rounded(values: pd.DataFrame) -> pd.DataFrame:
    """Round each column to two decimals, or to more if all of its values are small; counts have none.

    A standard deviation has as many decimals as the column before it.
    """
    shown, counts = values.copy(), values.get("unit", pd.Series("", values.index)) == "count"
    decimals = 2
    for place, name in enumerate(values):
        column = values.iloc[:, place]
        decimals = decimals if str(name).endswith("sd") else _decimals(column[~counts])
        cells = [_cell(each, ",.0f" if n else f".{decimals}f") for each, n in zip(column, counts, strict=True)]
        shown.isetitem(place, cells)
    return shown


def _decimals(column: pd.Series) -> int:
    """Two, or as many as give the largest of small values three digits."""
    largest = column.abs().max() if pd.api.types.is_float_dtype(column) else 1.0
    return min(2 - math.floor(math.log10(largest)), 6) if 0 < largest < 0.1 else 2


def _cell(value: Any, form: str) -> str:
    if pd.isna(value):
        return ""
    return f"{value:{form}}" if isinstance(value, float) else str(value)


def warn(drawing: Figure, note: str) -> None:
    """Print a note on the data above the figure."""
    drawing.draw_without_rendering()
    # Freeze the layout: a legend outside the axes would move to the edge of the larger picture, beside the warning.
    drawing.set_layout_engine("none")
    for legend in drawing.legends:
        legend.set_bbox_to_anchor((0, 0, 1, 1), drawing.transFigure)
    box = drawing.get_tightbbox()
    x, y = box.x0 / drawing.get_figwidth(), (box.y1 + 0.08) / drawing.get_figheight()
    drawing.text(x, y, note[0].upper() + note[1:], fontsize=10, weight="bold", color="#c00000", va="bottom")


def save(drawing: Figure, file: Path) -> None:
    """Write a drawing in the format of the file's ending."""
    # Without a date in the file, the same data give the same bytes.
    metadata = {"CreationDate": None} if file.suffix == ".pdf" else {"Software": None}
    with io.atomic(file) as temporary:
        drawing.savefig(temporary, format=file.suffix[1:], metadata=metadata)
        if file.suffix == ".png":  # without transparency, which no drawing has and an eighth of the file is for
            with Image.open(temporary) as picture:
                opaque = picture.convert("RGB")
            opaque.save(temporary, format="png", compress_level=9)


def _function(results: Results, kind: str, name: str) -> Callable[[Results], Any]:
    """The function that draws a table or figure: `table_1` in the paper's `tables` draws `table-1`."""
    module, function = kind, name.replace("-", "_")
    if isinstance(results.paper, Studied):
        drawn_by = results.paper.study.drawn_by
        if kind == "tables" or not drawn_by:
            return studies.table if kind == "tables" else studies.figure
        module, function = drawn_by.split(":")
    made: Callable[[Results], Any] = getattr(import_module(f"recaps.papers.{of(results.name)}.{module}"), function)
    return made
