"""The papers. Each is a folder here with a `paper.yaml`; no list names them."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def names(folder: Path = FOLDER) -> list[str]:
    """The papers that there are, in alphabetical order."""
    return sorted(file.parent.name for file in folder.glob("*/paper.yaml"))
