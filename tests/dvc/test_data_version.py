"""`data.dvc`: one entry per data set; some sets may be missing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import data_version
import pytest
import yaml
from clones import Clone
from repository import ALONE


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two sets with versions in `data.dvc`; the second has not been fetched."""
    for name, value in ALONE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    for name in ("mnist", "smallnorb"):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "images").write_text(f"images of {name}")
    (tmp_path / "data.dvc").write_text("# The official files.\nouts:\n- path: data/mnist\n- path: data/smallnorb\n")
    subprocess.run(["git", "init", "--quiet"], check=True)
    dvc("init", "--quiet")
    dvc("commit", "--force", "data.dvc")
    for file in (tmp_path / "data" / "smallnorb", tmp_path / ".dvc" / "cache"):
        subprocess.run(["rm", "-r", str(file)], check=True)
    return tmp_path


def dvc(*arguments: str) -> str:
    done = Clone(Path.cwd()).python("dvc", *arguments)
    assert done.status == 0, done.output
    return done.output


def versions() -> dict[str, str | None]:
    return {out["path"]: out.get("md5") for out in yaml.safe_load(Path("data.dvc").read_text())["outs"]}


def test_fetched_data_are_kept(project: Path) -> None:
    before = Path("data.dvc").read_text()
    assert "data/mnist" in dvc("status")
    data_version.keep()
    assert "data/mnist" not in dvc("status")
    assert "not in cache:       data/smallnorb" in dvc("status")
    assert Path("data.dvc").read_text() == before


def test_other_bytes_are_not_kept(project: Path) -> None:
    before = Path("data.dvc").read_text()
    Path("data/mnist/images").write_text("something else")
    data_version.keep()
    assert "data/mnist" in dvc("status")
    assert Path("data.dvc").read_text() == before


def test_without_dvc_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data_version.keep()
    assert list(tmp_path.iterdir()) == []


def test_another_set_gets_its_version_while_one_is_missing(project: Path) -> None:
    before = versions()
    Path("data/cifar10").mkdir()
    Path("data/cifar10/archive").write_text("cifar")
    with Path("data.dvc").open("a") as file:
        file.write("- path: data/cifar10\n- path: data/affnist\n")
    data_version.keep()
    after = versions()
    assert {path: after[path] for path in before} == before
    assert after["data/cifar10"]
    assert after["data/affnist"] is None, "it has not been fetched"
    assert Path("data.dvc").read_text().startswith("# The official files.\n")
    assert "data/cifar10" not in dvc("status")
    Path("data/cifar10/archive").write_text("something else")
    data_version.keep()
    assert versions() == after, "a version stays"
