"""The tour runs from its first cell to its last, without a network, and shows what it stores."""

from __future__ import annotations

import socket

import pytest
import tour


def test_every_cell_shows_pictures_or_a_short_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: object) -> None:
        raise OSError("the tour needs no network")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    stored = [cell["outputs"] for cell in tour.cells() if cell["cell_type"] == "code"]
    for (text, pictures), outputs in zip(tour.results(), stored, strict=True):
        assert text or pictures
        assert len(text.splitlines()) <= 12
        kinds = ["stream"] * bool(text) + ["display_data"] * len(pictures)
        assert [each["output_type"] for each in outputs] == kinds, "run `python tests/tour.py`"


def test_pictures_of_the_readme_are_those_of_the_tour() -> None:
    named = {cell["metadata"]["picture"] for cell in tour.cells() if "picture" in cell["metadata"]}
    readme = (tour.NOTEBOOK.parents[1] / "README.md").read_text(encoding="utf-8")
    assert len(named) == 2
    assert all(f"docs/tour-{name}.png" in readme for name in named)
