"""`data.dvc`: one entry per data set; some sets may be missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import data_version
import pytest
import yaml
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
    command = [sys.executable, "-m", "dvc", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def versions() -> dict[str, str]:
    return {out["path"]: out["md5"] for out in yaml.safe_load(Path("data.dvc").read_text())["outs"]}


def test_fetched_data_are_kept(project: Path) -> None:
    before = Path("data.dvc").read_text()
    assert "data/mnist" in dvc("status")
    data_version.keep()
    assert "data/mnist" not in dvc("status")
    assert "not in cache:       data/smallnorb" in dvc("status")
    assert Path("data.dvc").read_text() == before


def test_other_bytes_are_neither_kept_nor_named(project: Path) -> None:
    before = Path("data.dvc").read_text()
    Path("data/mnist/images").write_text("something else")
    data_version.keep()
    assert "data/mnist" in dvc("status")
    assert Path("data.dvc").read_text() == before


def test_without_dvc_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data_version.keep()
    assert list(tmp_path.iterdir()) == []


def test_another_set_is_named_while_one_is_missing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = versions()
    monkeypatch.setattr(data_version, "require", lambda source, folder: None)
    Path("data/cifar10").mkdir()
    Path("data/cifar10/archive").write_text("cifar")
    data_version.name(["cifar10"])
    after = versions()
    assert {path: after[path] for path in before} == before
    assert after.keys() - before.keys() == {"data/cifar10"}
    assert Path("data.dvc").read_text().startswith("# The official files.\n")
    assert "data/cifar10" not in dvc("status")
    Path("data/cifar10/archive").write_text("cifar, corrected")
    data_version.name(["cifar10"])
    assert versions()["data/cifar10"] != after["data/cifar10"]


def test_what_is_not_official_is_not_named(project: Path) -> None:
    before = Path("data.dvc").read_text()
    with pytest.raises(SystemExit, match="no source for the data set 'cifar'"):
        data_version.name(["cifar"])
    with pytest.raises(SystemExit, match=r"cifar-10-binary\.tar\.gz: no such file; run `snakemake data` first"):
        data_version.name(["cifar10"])
    Path("data/cifar10").mkdir()
    Path("data/cifar10/cifar-10-binary.tar.gz").write_text("cifar")
    with pytest.raises(SystemExit, match="expected 170052171 bytes, found 5"):
        data_version.name(["cifar10"])
    assert Path("data.dvc").read_text() == before
