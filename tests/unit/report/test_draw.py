"""The numbers behind the sparse paper's figures, and how tables and figures become files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from recaps.report import draw
from recaps.papers.sparse import metrics as sparse
from recaps.report.parts import mosaic

pytestmark = pytest.mark.unit


def test_relative_support_is_sorted_within_each_image() -> None:
    support = np.array([[1.0, 4.0, 2.0], [10.0, 5.0, 5.0]])
    np.testing.assert_allclose(sparse.relative_support(support), [[1, 0.5, 0.25], [1, 0.5, 0.5]])


def test_rank_frequencies_count_each_capsules_ranks() -> None:
    ranks = np.array([[0, 1, 2], [0, 2, 1], [1, 0, 2], [0, 1, 2]])
    expected = [[0.75, 0.25, 0], [0.25, 0.5, 0.25], [0, 0.25, 0.75]]
    np.testing.assert_allclose(sparse.rank_frequencies(ranks), expected)


def test_leave_one_out_change_takes_the_capsule_that_matters_most() -> None:
    full = np.full((1, 1, 2, 2), 0.5)
    without = np.stack([full, np.zeros_like(full)], axis=1)
    probe = {"full": full, "without": without}
    assert sparse.leave_one_out_change(probe) == pytest.approx([1.0])


def test_markdown_rounds_numbers_and_leaves_gaps_empty() -> None:
    table = draw.markdown(pd.DataFrame({"name": ["x", "y"], "value": [1.234, None]}))
    assert table.splitlines() == ["| name | value |", "| --- | --- |", "| x | 1.23 |", "| y |  |"]


def test_counts_have_no_decimals() -> None:
    table = pd.DataFrame({"value": [6928.0, 0.5, None], "unit": ["count", "fraction", "count"], "seeds": [1, 1, 1]})
    assert draw.markdown(table).splitlines()[2:] == [
        "| 6,928 | count | 1 |",
        "| 0.50 | fraction | 1 |",
        "|  | count | 1 |",
    ]
    assert r"6,928 & count & 1 \\" in draw._latex(table, "")


@pytest.mark.parametrize("place", ["outside upper left", "outside lower center"])
def test_stand_ins_are_named_above_all_that_is_drawn(place: str, tmp_path: Path) -> None:
    import matplotlib.pyplot as plt

    with plt.style.context(Path(draw.__file__).with_name("recaps.mplstyle")):
        figure, axis = plt.subplots(figsize=(3, 2))
        axis.set_title("title")
        axis.plot([0, 1], label="line")
        legend = figure.legend(loc=place)
        draw._warn(figure)
        (line,) = figure.texts
        boxes = []
        # While it is saved: what is placed by the figure's edge moves then.
        figure.canvas.mpl_connect(
            "draw_event", lambda _: boxes.append([each.get_tightbbox() for each in (line, legend, axis)])
        )
        draw._save(figure, tmp_path / "x.png")
    above, *others = boxes[-1]
    assert not others[0].overlaps(others[1])
    assert line.get_text() == "Stand-in data: not a result"
    assert all(above.y0 > other.y1 for other in others)
    plt.close(figure)


def test_latex_escapes_what_latex_would_read() -> None:
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


def test_the_style_sheet_tells_lines_apart_without_colour() -> None:
    import matplotlib.pyplot as plt

    with plt.style.context(Path(draw.__file__).with_name("recaps.mplstyle")):
        cycle = plt.rcParams["axes.prop_cycle"].by_key()
    assert len({*zip(cycle["linestyle"], cycle["marker"], strict=True)}) == len(cycle["color"])
