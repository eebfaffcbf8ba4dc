"""A small project with DVC: two papers without some of their sets, on artificial files of MNIST."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from clones import PARTS, copy
from dataset_writers import idx
from repository import TARGETS, Repository

from recaps.datasets import standin
from recaps.io import digest_of

SETTINGS = {"papers": "[sparse, experts]", "without": "[mnist-40, fashion-mnist]"}


@pytest.fixture(scope="session")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files in the format of MNIST."""
    folder = tmp_path_factory.mktemp("mirror")
    (folder / "mnist").mkdir()
    for split, name in (("train", "train"), ("test", "t10k")):
        images, labels = standin.mnist(split)
        idx(folder / "mnist" / f"{name}-images-idx3-ubyte.gz", images)
        idx(folder / "mnist" / f"{name}-labels-idx1-ubyte.gz", labels.astype(np.uint8))
    return folder


@pytest.fixture(scope="session")
def new(root: Path, mirror: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Repository]:
    """Return a function that makes a checkout without results. All checkouts share the default remote."""
    store = tmp_path_factory.mktemp("store")

    def make(name: str) -> Repository:
        repository = Repository(tmp_path_factory.mktemp(name))
        parts = (*PARTS, "dvc.yaml", ".gitignore", ".dvcignore", ".dvc/config", ".dvc/.gitignore")
        copy(root, repository.folder, parts)
        _edit(repository.folder / "config/config.yaml", {rf"^{key}: .*": f"{key}: {SETTINGS[key]}" for key in SETTINGS})
        _edit(repository.folder / "config/config.yaml", {"^mirror: .*": f"mirror: {mirror}"})
        _edit(repository.folder / "config/scales/smoke.yaml", {"^stand_in: true": "stand_in: false"})
        datasets = repository.folder / "src/recaps/datasets"
        sources = {
            rf'\("{file.name}", \d+, "\w+"\)': f'("{file.name}", {file.stat().st_size}, "{digest_of(file)}")'
            for file in (mirror / "mnist").iterdir()
        }
        _edit(datasets / "sources.py", sources, count=1)
        sizes = {split: len(standin.mnist(split)[1]) for split in ("train", "test")}
        _edit(datasets / "catalogue.py", {"^_SIXTY = .*": f"_SIXTY = {sizes}"})
        repository.run("git", "init", "--quiet")
        repository.dvc("remote", "modify", "local", "url", str(store))
        # The version of the data, as someone who has them would write it; here they are still to be fetched.
        shutil.copytree(mirror, repository.folder / "data")
        (repository.folder / "data.dvc").write_text("outs:\n- path: data/mnist\n")
        repository.dvc("commit", "--force", "data.dvc")
        shutil.rmtree(repository.folder / "data")
        shutil.rmtree(repository.folder / ".dvc" / "cache")
        repository.commit("a new project")
        return repository

    return make


def _edit(file: Path, changes: Mapping[str, str], count: int = 0) -> None:
    text = file.read_text()
    for pattern, new in changes.items():
        text, n = re.subn(pattern, new, text, count=count, flags=re.MULTILINE)
        assert n, f"{file}: no {pattern}"
    file.write_text(text)


@pytest.fixture(scope="session")
def made(new: Callable[[str], Repository]) -> Repository:
    """A checkout in which `dvc repro` has made everything; its results are committed."""
    repository = new("made")
    stages, output = repository.repro()
    assert stages == list(TARGETS), output
    repository.commit("everything made")
    return repository
