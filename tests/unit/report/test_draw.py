"""Tables and figures as files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from recaps.io import read_json
from recaps.report import draw
from recaps.report.plots import mosaic
from recaps.report.results import STAND_IN, Results, of_project

pytestmark = pytest.mark.unit


def test_markdown_rounds_numbers_and_leaves_gaps_empty() -> None:
    table = draw.markdown(pd.DataFrame({"name": ["x", "y"], "value": [1.234, None]}))
    assert table.splitlines() == ["| name | value |", "| --- | --- |", "| x | 1.23 |", "| y |  |"]


def test_small_values_keep_three_digits_and_so_do_their_deviations() -> None:
    table = pd.DataFrame(
        {"loss": [-0.00547, 0.0012], "loss sd": [0.00016, None], "error": [1.5, 0.004], "sd": [0.01] * 2}
    )
    assert draw.markdown(table).splitlines()[2:] == [
        "| -0.00547 | 0.00016 | 1.50 | 0.01 |",
        "| 0.00120 |  | 0.00 | 0.01 |",
    ]
    mixed = pd.DataFrame({"value": [0.005, 6928.0], "unit": ["loss", "count"], "empty": [None, None]})
    assert draw.markdown(mixed).splitlines()[2:] == ["| 0.00500 | loss |  |", "| 6,928 | count |  |"]


def test_counts_have_no_decimals() -> None:
    table = pd.DataFrame({"value": [6928.0, 0.5, None], "unit": ["count", "fraction", "count"], "seeds": [1, 1, 1]})
    assert draw.markdown(table).splitlines()[2:] == [
        "| 6,928 | count | 1 |",
        "| 0.50 | fraction | 1 |",
        "|  | count | 1 |",
    ]
    assert r"6,928 & count & 1 \\" in draw._latex(table, "")


@pytest.mark.parametrize("place", ["outside upper left", "outside lower center"])
def test_a_drawing_of_stand_ins_says_so_at_the_top(place: str, tmp_path: Path) -> None:
    import matplotlib.pyplot as plt

    with plt.style.context(Path(draw.__file__).with_name("recaps.mplstyle")):
        figure, axis = plt.subplots(figsize=(3, 2))
        axis.set_title("title")
        axis.plot([0, 1], label="line")
        legend = figure.legend(loc=place)
        draw.warn(figure, STAND_IN)
        (line,) = figure.texts
        boxes = []
        # Saving moves what is placed relative to the edge of the figure.
        figure.canvas.mpl_connect(
            "draw_event", lambda _: boxes.append([each.get_tightbbox() for each in (line, legend, axis)])
        )
        draw.save(figure, tmp_path / "x.png")
    above, *others = boxes[-1]
    assert not others[0].overlaps(others[1])
    assert line.get_text() == "Stand-in data: not a result"
    assert all(above.y0 > other.y1 for other in others)
    plt.close(figure)


def test_figures_name_the_runs_that_they_show(tree: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib.pyplot as plt

    made = tree(seeds=(0, 1))
    results = of_project(made.project, "sparse", made.files, {})
    shown = {
        "figure-1": [("dense", 0), ("supcaps", 0), ("sparsecaps", 1)],
        "figure-2": [("supcaps", 1), ("supcaps", 0)],
        "figure-3": [("dense", None)],
    }

    def function(paper: str, kind: str, name: str) -> Callable[[Results], Any]:
        def figure(results: Results) -> Any:
            for variant, seed in shown.get(name, ()):
                results.arrays(variant, "values", seed)
            return plt.figure(figsize=(0.2, 0.2)), pd.DataFrame()

        return figure

    monkeypatch.setattr(draw, "_function", function)
    draw.figures(results)
    title = made.project.papers["sparse"].variants["sparsecaps"].title
    assert read_json(made.files.shown("sparse")) == {
        "figure-1": f"Shown: seed 0; {title} seed 1.",
        "figure-2": "Shown: seeds 0, 1.",
        "figure-3": "Shown: seed 0.",
    }
    assert f" Shown: seed 0; {title} seed 1.\n" in made.build()


def test_latex_escapes_special_characters() -> None:
    text = draw._latex(pd.DataFrame({"a_b": ["50 % & more"]}), "C_1")
    assert r"a\_b \\" in text
    assert r"50 \% \& more \\" in text
    assert r"\caption{C\_1}" in text


@pytest.mark.parametrize(
    ("pictures", "columns", "shape"), [(18, 6, (3 * 30 - 2, 6 * 30 - 2)), (16, 4, (4 * 30 - 2, 4 * 30 - 2))]
)
def test_mosaic_has_room_for_every_picture(pictures: int, columns: int, shape: tuple[int, int]) -> None:
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots()
    mosaic(axis, [np.full((28, 28), k) for k in range(pictures)], columns, "gray", 0, pictures)
    canvas = axis.images[0].get_array()
    assert canvas is not None
    assert canvas.shape == shape
    assert canvas[-1, (pictures - 1) % columns * 30] == pictures - 1
    plt.close(figure)


def test_mosaic_of_no_pictures_is_empty() -> None:
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots()
    mosaic(axis, [], 10, "gray", 0, 1)
    assert not axis.images
    plt.close(figure)


def test_lines_differ_without_colour() -> None:
    import matplotlib.pyplot as plt

    with plt.style.context(Path(draw.__file__).with_name("recaps.mplstyle")):
        cycle = plt.rcParams["axes.prop_cycle"].by_key()
    assert len({*zip(cycle["linestyle"], cycle["marker"], strict=True)}) == len(cycle["color"])
