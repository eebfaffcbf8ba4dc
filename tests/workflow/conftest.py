"""The smoke configuration, and copies of this repository: one without results, and one with the finished workflow."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from clones import SMOKE, Clone, copy
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
def finished(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clone]:
    """A copy for a file of tests, with the finished smoke workflow.

    It starts from what `make demo` has made in the checkout; one testing process makes the rest for all. A change of
    the rules alone makes nothing again: `make clean-smoke` removes what is there. A copy is 2 GB: none stays.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent / "finished" if "PYTEST_XDIST_WORKER" in os.environ else base / "finished"
    with FileLock(shared.with_suffix(".lock")):
        if not shared.exists():
            clone, made = copy(root, tmp_path_factory.mktemp("finishing")), root / "results" / "smoke"
            if made.exists():
                unfinished = shutil.ignore_patterns("lease.json", "*.part")
                shutil.copytree(made, clone.folder / "results" / "smoke", ignore=unfinished)
            done = clone.snakemake(*SMOKE)
            assert done.status == 0, f"{done.output[-6000:]}\nIt started from {made}; `make clean-smoke` removes that."
            clone.folder.rename(shared)
    clone = Clone(shutil.copytree(shared, tmp_path_factory.mktemp("clone") / "finished", symlinks=True))
    yield clone
    shutil.rmtree(clone.folder)
