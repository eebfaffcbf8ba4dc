"""The papers. Every folder here with a `paper.yaml` is a paper."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def names(folder: Path = FOLDER) -> list[str]:
    """Return the names of all papers, in alphabetical order."""
    return sorted(file.parent.name for file in folder.glob("*/paper.yaml"))


def of(name: str) -> str:
    """Return the paper that a paper or a study, `<paper>.<study>`, belongs to."""
    return name.partition(".")[0]
