"""The library that Python imports must be that of the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from recaps.checkout import require
from recaps.errors import UserError
from recaps.plan.plan import start


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another checkout."""
    (tmp_path / "src/recaps").mkdir(parents=True)
    (tmp_path / "src/recaps/__init__.py").touch()
    return tmp_path


def test_the_own_checkout_also_through_a_link(root: Path, tmp_path: Path) -> None:
    require(root, "snakemake")
    (tmp_path / "link").symlink_to(root)
    require(tmp_path / "link", "snakemake")


def test_a_start_in_another_checkout_ends_in_one_line(root: Path, other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with pytest.raises(SystemExit) as raised:
        start({}, [], other)
    assert raised.value.code == (
        f"recaps: {other}/src/recaps: this code would not run, as Python imports recaps from {root}/src/recaps; run "
        f"`make environment` in {other} (delete a `.venv` that was copied there first) and use its .venv/bin/snakemake"
    )
    assert "PYTHONPATH" not in os.environ, "no job imports this library"


def test_pythonpath_that_names_another_checkout(root: Path, other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{other}{os.pathsep}{root / 'src'}")
    with pytest.raises(UserError, match=r"PYTHONPATH names that folder; unset it$"):
        require(other, "snakemake")


@pytest.mark.parametrize("module", ["recaps", "recaps.estimate"])
def test_commands_in_another_checkout_end_in_one_line(root: Path, other: Path, module: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(root / "src")}
    done = subprocess.run(
        [sys.executable, "-m", module], cwd=other, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"recaps: {other}/src/recaps: this code would not run")
    assert done.stderr.count("\n") == 1
