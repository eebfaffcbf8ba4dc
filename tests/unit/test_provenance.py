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


def commit(folder: Path) -> str:
    """Make the folder a git repository with one commit of all its files; return the commit."""
    user = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    for command in (["init", "--quiet"], ["add", "."], [*user, "commit", "--quiet", "--message", "first"]):
        subprocess.run(["git", "-C", str(folder), *command], check=True)
    head = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return head.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("src/code.py", "config/config.yaml", "results/published/desk/table.csv"):
        file = tmp_path / "project" / name
        file.parent.mkdir(parents=True)
        file.write_text("1\n")
    return tmp_path / "project"


def test_a_clean_checkout_has_its_commit(checkout: Path) -> None:
    own = commit(checkout)
    assert provenance.git(checkout) == {"commit": own, "dirty": False}


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
    commit(checkout)
    (checkout / file).write_text("2\n")
    assert provenance.git(checkout)["dirty"] is dirty


def test_no_checkout_has_no_commit(tmp_path: Path) -> None:
    assert provenance.git(tmp_path) == {"commit": None, "dirty": None}
    assert provenance.git(None) == {"commit": None, "dirty": None}


def test_a_project_inside_another_repository_does_not_have_its_commit(checkout: Path) -> None:
    commit(checkout.parent)
    assert provenance.git(checkout) == {"commit": None, "dirty": None}


def test_variables_that_name_another_repository_change_nothing(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = commit(checkout)
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("another repository\n")
    assert commit(other) != own
    for name, value in (("GIT_DIR", ".git"), ("GIT_WORK_TREE", ""), ("GIT_INDEX_FILE", ".git/index")):
        monkeypatch.setenv(name, str(other / value))
    monkeypatch.setenv("GIT_LITERAL_PATHSPECS", "1")  # then `:(exclude)` is the name of a file
    (checkout / "results/published/desk/table.csv").write_text("2\n")
    assert provenance.git(checkout) == {"commit": own, "dirty": False}
    assert provenance.git(tmp_path) == {"commit": None, "dirty": None}


def test_a_symbolic_link_to_a_checkout_has_its_commit(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(checkout)
    own = commit(checkout)
    assert provenance.git(tmp_path / "link") == {"commit": own, "dirty": False}
    (checkout / "src/code.py").write_text("2\n")
    assert provenance.git(tmp_path / "link") == {"commit": own, "dirty": True}
