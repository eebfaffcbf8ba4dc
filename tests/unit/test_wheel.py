"""The wheel, in a clean environment without the extras: with today's packages, and with the oldest that it allows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import venv
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PROGRAM = """
import pickle
import sys

import numpy as np
from recaps import CapsuleClassifier, CapsuleEncoder, list_models, load

lacking = ("numba", "snakemake", "dvc", "matplotlib", "pandas")
random = np.random.default_rng(0)
images, labels = random.random((24, 24, 24)), np.arange(24) % 3
small = {"conv_channels": 8, "primary_types": 2, "decoder": [16]}
for options in (
    {"options": small},
    {"model": "discriminative", "options": small},
    *({"routing": name} for name in ("em", "similarity", "connectionist")),
    {"model": "convnet"},
):
    model = CapsuleClassifier(**options, steps=2, batch_size=4, random_state=0, device="cpu").fit(images, labels)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict_proba(images[:4]), model.predict_proba(images[:4])), options
for name in ("sparsecaps", "scae"):
    encoder = CapsuleEncoder(name, steps=2, batch_size=4, random_state=0, device="cpu").fit(images)
    assert np.isfinite(encoder.transform(images)).all()
for name in list_models():
    load(name, device="cpu")
assert list_models()
print("trained, saved and loaded", *(name for name in lacking if name in sys.modules))
"""


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, folder)
    shutil.copytree(root / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder]
    subprocess.run([*command, folder], check=True, capture_output=True)
    (found,) = folder.glob("recaps-*.whl")
    return found


def test_it_needs_nothing_but_its_dependencies(root: Path, wheel: Path, tmp_path: Path) -> None:
    python, packages = _environment(tmp_path)
    _link(packages, _dependencies(root))
    _run(tmp_path, *_install(python), "--no-index", "--no-deps", wheel)
    _try(tmp_path, python)


@pytest.mark.long
def test_the_oldest_versions_work(root: Path, wheel: Path, tmp_path: Path) -> None:
    """Of all but PyTorch, whose builds for GPUs are large."""
    python, packages = _environment(tmp_path)
    _link(packages, ["torch"])
    oldest = [each.replace(">=", "==") for each in _dependencies(root) if not each.startswith("torch")]
    done = _run(tmp_path, *_install(python), wheel, *oldest)
    if "NewConnectionError" in done.stderr or "NameResolutionError" in done.stderr:
        pytest.skip("needs a network, to install the oldest versions")
    assert done.returncode == 0, done.stderr
    _try(tmp_path, python)


def _environment(folder: Path) -> tuple[Path, Path]:
    """Make an empty environment and return its Python and its folder of packages."""
    venv.create(folder / "venv", with_pip=False)
    (packages,) = (folder / "venv/lib").glob("python*/site-packages")
    return folder / "venv/bin/python", packages


def _link(packages: Path, requirements: list[str]) -> None:
    """Link the packages of this environment that fulfil requirements, and those that they need in turn."""
    waiting, seen = [Requirement(each) for each in requirements], set[str]()
    while waiting:
        needed = waiting.pop()
        if needed.name in seen or (needed.marker and not needed.marker.evaluate({"extra": ""})):
            continue
        seen.add(needed.name)
        found = distribution(needed.name)
        waiting += map(Requirement, found.requires or [])
        for name in {file.parts[0] for file in found.files or []} - {"..", "__pycache__"}:
            if not (packages / name).exists():
                (packages / name).symlink_to(str(found.locate_file(name)))


def _dependencies(root: Path) -> list[str]:
    project: list[str] = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    return project


def _install(python: Path) -> list[str | Path]:
    return [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check"]


def _try(folder: Path, python: Path) -> None:
    done = _run(folder, python, "-c", PROGRAM)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained, saved and loaded\n"
    assert [line for line in done.stderr.splitlines() if line.startswith("recaps:")] == [
        "recaps: Numba is missing, so plain PyTorch runs, slower on a CPU; pip install numba"
    ]


def _run(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
