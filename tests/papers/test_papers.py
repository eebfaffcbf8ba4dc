"""What holds for every paper."""

from __future__ import annotations

import subprocess
import sys

import pytest

from recaps.papers import FOLDER, names


@pytest.mark.parametrize("paper", names())
def test_drawing_imports_no_torch(paper: str) -> None:
    """Importing it takes seconds, and drawing must not train."""
    files = [name for name in ("metrics", "judge", "tables", "figures") if (FOLDER / paper / f"{name}.py").exists()]
    modules = ", ".join(f"recaps.papers.{paper}.{name}" for name in files)
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
