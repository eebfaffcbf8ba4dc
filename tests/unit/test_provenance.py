"""Whether a record says that code differed from its commit."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from recaps import provenance


@pytest.fixture(autouse=True)
def _git_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Git without the settings of this machine, and without a checkout that the temporary folder is in."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):  # Git sets them in hooks
        monkeypatch.delenv(name, raising=False)
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("src/code.py", "config/config.yaml", "results/published/desk/table.csv"):
        file = tmp_path / name
        file.parent.mkdir(parents=True)
        file.write_text("1\n")
    user = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    for command in (["init", "--quiet"], ["add", "."], [*user, "commit", "--quiet", "--message", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    return tmp_path


def test_a_clean_checkout_has_its_commit(checkout: Path) -> None:
    head = subprocess.run(["git", "-C", str(checkout), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    assert provenance.git(checkout) == {"commit": head.stdout.strip(), "dirty": False}


@pytest.mark.parametrize(
    ("file", "dirty"),
    [
        ("src/code.py", True),
        ("src/new.py", True),
        ("config/config.yaml", True),
        ("notes.txt", False),
        ("results/published/desk/table.csv", False),
        ("results/published/desk/new.csv", False),
    ],
)
def test_changed_code_and_settings_are_dirty_and_published_results_are_not(
    checkout: Path, file: str, dirty: bool
) -> None:
    (checkout / file).write_text("2\n")
    assert provenance.git(checkout)["dirty"] is dirty


def test_no_checkout_has_no_commit(tmp_path: Path) -> None:
    assert provenance.git(tmp_path) == {"commit": None, "dirty": None}
    assert provenance.git(None) == {"commit": None, "dirty": None}
