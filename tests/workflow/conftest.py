"""The smoke configuration, and copies of this repository: one without results, and one with the finished workflow."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from clones import PARTS, SMOKE, Clone, copy
from filelock import FileLock

from recaps.config.load import Project, load


@pytest.fixture(scope="session")
def project(root: Path) -> Project:
    """The configuration at the scale `smoke`."""
    return load({"scale": "smoke"}, root / "config")


@pytest.fixture(scope="session")
def clone(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A copy without results, for dry runs."""
    return copy(root, tmp_path_factory.mktemp("clone"))


@pytest.fixture(scope="module")
def finished(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A copy for a file of tests, with the finished smoke workflow.

    One testing process makes for all what `make demo` has not made in the checkout, or with other code.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent / "finished" if "PYTEST_XDIST_WORKER" in os.environ else base / "finished"
    with FileLock(shared.with_suffix(".lock")):
        if not shared.exists():
            clone = copy(root, tmp_path_factory.mktemp("finishing"), (*PARTS, "results/smoke"))
            done = clone.snakemake(*SMOKE)
            assert done.status == 0, done.output[-6000:]
            clone.folder.rename(shared)
    return Clone(shutil.copytree(shared, tmp_path_factory.mktemp("clone") / "finished", symlinks=True))
