"""Files that are made from others, so that they cannot say otherwise: write them, or show how they differ."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def main(module: str, arguments: Sequence[str], wanted: Mapping[Path, str]) -> int:
    """The command `python -m <module> [--fix]`; its exit status is 1 if a file differs from what is wanted."""
    if list(arguments) not in ([], ["--fix"]):
        print(f"usage: python -m {module} [--fix]", file=sys.stderr)
        return 2
    if arguments:
        for file, text in wanted.items():
            file.write_text(text, encoding="utf-8")
    difference = drift(wanted)
    print(difference or f"{', '.join(map(str, wanted))}: as generated", end="" if difference else "\n")
    return 1 if difference else 0


def drift(wanted: Mapping[Path, str]) -> str:
    """A unified diff from the files to what they should be; empty where they agree."""
    lines: list[str] = []
    for file, text in wanted.items():
        found = file.read_text(encoding="utf-8") if file.exists() else ""
        lines += difflib.unified_diff(
            found.splitlines(keepends=True), text.splitlines(keepends=True), str(file), f"{file} (generated)"
        )
    return "".join(lines)
