"""The smoke configuration, and copies of this repository: one without results, and one with the finished workflow."""

from __future__ import annotations

from pathlib import Path

import pytest
from clones import SMOKE, Clone, copy

from recaps.config.load import Project, load


@pytest.fixture(scope="session")
def project(root: Path) -> Project:
    """The configuration at the scale `smoke`."""
    return load({"scale": "smoke"}, root / "config")


@pytest.fixture(scope="session")
def clone(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A copy without results, for dry runs."""
    return copy(root, tmp_path_factory.mktemp("clone"))


@pytest.fixture(scope="session")
def finished(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A copy with the finished smoke workflow."""
    clone = copy(root, tmp_path_factory.mktemp("finished"))
    done = clone.snakemake(*SMOKE)
    assert done.status == 0, done.output[-6000:]
    return clone
