"""Every test is marked by its folder; those that need a cluster or a GPU are skipped without one, with the reason."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).resolve().parents[1]
#: Tests of papers are unit tests.
KINDS = {
    "unit": "unit",
    "papers": "unit",
    "property": "property",
    "workflow": "workflow",
    "dvc": "dvc",
    "cluster": "cluster",
}
NO_SLURM = "needs Slurm: no sbatch on the path; `make test-cluster` installs it where it may"


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout that is tested."""
    return ROOT


@pytest.fixture(autouse=True)
def no_figure_stays_open() -> Iterator[None]:
    """Drawings that a test leaves open would fill the memory."""
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    no_cluster = None if shutil.which("sbatch") else pytest.mark.skip(reason=NO_SLURM)
    no_gpu = _no_gpu() if any(item.get_closest_marker("gpu") for item in items) else None
    for item in items:
        kind = item.path.relative_to(ROOT / "tests").parts[0]
        if kind in KINDS:
            item.add_marker(KINDS[kind])
        for marker, missing in (("cluster", no_cluster), ("gpu", no_gpu)):
            if missing and item.get_closest_marker(marker):
                item.add_marker(missing)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Side by side go files, but not two on a Slurm, nor two that share a project with DVC."""

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            together = ("tests/cluster", "tests/dvc")
            return next((folder for folder in together if nodeid.startswith(folder)), nodeid.partition("::")[0])

    return ByFile(config, log)


def _no_gpu() -> pytest.MarkDecorator | None:
    import torch

    return None if torch.cuda.is_available() else pytest.mark.skip(reason="needs a GPU: PyTorch sees none")
