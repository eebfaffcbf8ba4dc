"""What holds for every paper."""

from __future__ import annotations

import subprocess
import sys

import pytest
from places import CONFIG

from recaps.config.load import load
from recaps.papers import FOLDER, names


@pytest.mark.parametrize("paper", names())
def test_drawing_imports_no_torch(paper: str) -> None:
    """Importing it takes seconds, and drawing must not train."""
    files = [name for name in ("metrics", "judge", "tables", "figures") if (FOLDER / paper / f"{name}.py").exists()]
    modules = ", ".join(f"recaps.papers.{paper}.{name}" for name in files)
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_each_table_beside_a_readme_has_a_study_that_makes_it() -> None:
    desk = load({"scale": "desk"}, CONFIG)
    tables = {f"{file.parent.name}.{file.stem}" for file in FOLDER.glob("*/*.csv")}
    assert tables <= desk.studies.keys()
