"""The picture of the scorecard."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from recaps.report import overview
from recaps.report.verdicts import NOT_REPRODUCED, NOT_RUN, REPRODUCED, STAND_IN

pytestmark = pytest.mark.unit


def card(*rows: dict[str, Any]) -> pd.DataFrame:
    base = {
        "paper": "toy",
        "kind": "number",
        "unit": "percent",
        "published": "90 ± 1",
        "ours": "88",
        "tolerance": 2.5,
        "interval_low": math.nan,
        "interval_high": math.nan,
        "verdict": REPRODUCED,
        "role": "claim",
    }
    return pd.DataFrame([base | row for row in rows])


def test_measured_numbers_in_percent_are_shown() -> None:
    found = overview.shown(
        card(
            {},
            {"ours": "", "verdict": NOT_RUN},
            {"kind": "ordering", "ours": "90 > 80", "published": "90 > 80"},
            {"unit": "squared error"},
            {"role": "check"},
        )
    )
    assert found[["published", "ours"]].to_numpy().tolist() == [[90, 88]]


def test_a_panel_for_each_paper() -> None:
    rows = [
        {},
        {"ours": "50", "verdict": NOT_REPRODUCED, "interval_low": 40.0, "interval_high": 60.0},
        {"paper": "other", "published": "1", "ours": "2", "verdict": NOT_REPRODUCED, "tolerance": 0.5},
    ]
    drawing = overview.overview(card(*rows))
    first, second = drawing.axes
    assert [first.get_title(), second.get_title()] == ["toy\n1 of 2 reproduced", "other\n0 of 1 reproduced"]
    assert first.get_ylim()[0] < 40, "intervals are whole"
    points = {line.get_label(): line.get_xydata().tolist() for line in first.get_lines() if line.get_marker() != ""}
    assert points == {REPRODUCED: [[90, 88]], NOT_REPRODUCED: [[90, 50]]}
    tolerances, intervals = (
        [each.tolist() for each in lines.get_segments() if len(each)] for lines in first.collections
    )
    assert tolerances == [[[87.5, 88], [92.5, 88]], [[87.5, 50], [92.5, 50]]]
    assert intervals == [[[90, 40], [90, 60]]]
    assert [text.get_text() for text in drawing.legends[0].get_texts()] == [REPRODUCED, NOT_REPRODUCED]
    plt.close(drawing)


def test_many_papers_take_several_rows() -> None:
    drawing = overview.overview(card(*({"paper": f"paper {k}"} for k in range(overview.COLUMNS + 1))))
    assert len(drawing.axes) == overview.COLUMNS + 1
    assert drawing.axes[0].get_position().y0 > drawing.axes[-1].get_position().y1
    plt.close(drawing)


def test_a_number_without_a_place_counts() -> None:
    rows = [{}, {"ours": "-58.3", "published": "0.5", "verdict": NOT_REPRODUCED}]
    drawing = overview.overview(card(*rows))
    (axis,) = drawing.axes
    assert axis.get_title() == "toy\n1 of 2 reproduced (1 outside)"
    assert 0 <= axis.get_ylim()[0] < 88 < axis.get_ylim()[1] <= 100
    plt.close(drawing)
    drawing = overview.overview(card(rows[1]))
    assert drawing.axes[0].get_title() == "toy\n0 of 1 reproduced (1 outside)"
    plt.close(drawing)


def test_stand_ins_have_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_ins = card({"verdict": STAND_IN})
    drawing = overview.overview(stand_ins)
    assert drawing.axes[0].get_title() == "toy\nstand-in data"
    plt.close(drawing)
    notes: list[str] = []
    monkeypatch.setattr(overview, "warn", lambda drawing, note: notes.append(note))
    overview.draw(stand_ins, tmp_path / "a.png")
    overview.draw(card({}), tmp_path / "b.png")
    assert notes == ["stand-in data: not a result"]
    assert (tmp_path / "a.png").read_bytes()[:4] == (tmp_path / "b.png").read_bytes()[:4] == b"\x89PNG"


def test_without_numbers_there_is_no_panel() -> None:
    drawing = overview.overview(card({"kind": "bound", "ours": "1"}))
    assert not drawing.axes
    plt.close(drawing)
