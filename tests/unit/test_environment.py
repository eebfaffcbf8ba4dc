"""The pinned environment, and the imports of the library."""

from __future__ import annotations

import ast
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def lock(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("lock", root / "envs" / "lock.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_project_lock_and_conda_file_agree(lock: ModuleType) -> None:
    assert lock.check(lock.PROJECT.read_text(), lock.LOCK.read_text(), lock.CONDA.read_text()) == []


def test_disagreement_is_named(lock: ModuleType) -> None:
    project, locked, conda = lock.PROJECT.read_text(), lock.LOCK.read_text(), lock.CONDA.read_text()
    torch = lock.pins(locked)["torch"]
    (problem,) = lock.check(project.replace('"torch>=', '"torch>=9'), locked, conda)
    assert re.fullmatch(rf"torch: pyproject.toml has >=9\S+, requirements.lock {torch}; run .*lock.py --fix`", problem)
    (problem,) = lock.check(
        project, locked.replace(f"torch=={torch}\n", ""), conda.replace(f"      - torch=={torch}\n", "")
    )
    assert "requirements.lock none" in problem
    (problem,) = lock.check(project, locked, conda.replace("python=3.11", "python=3.9"))
    assert problem.startswith("recaps.yaml differs from requirements.lock")


def test_lock_serves_every_machine(lock: ModuleType) -> None:
    versions = lock.pins(lock.LOCK.read_text())
    assert not [name for name in versions if lock.CUDA_ONLY.match(name)]
    assert all(re.fullmatch(r"[0-9][0-9a-z.]*", version) for version in versions.values()), "no local suffix like +cpu"


def test_every_import_is_a_direct_requirement(lock: ModuleType, root: Path) -> None:
    project = lock.PROJECT.read_text()
    optional = tomllib.loads(project)["project"]["optional-dependencies"]["parquet"]
    required = {lock.canonicalize_name(lock.Requirement(text).name) for text in [*lock.direct(project)[0], *optional]}
    provides = packages_distributions()
    ours = {"recaps", *(file.stem for file in (root / "workflow").glob("*.py"))}
    missing = {}
    for file in [*(root / "src").rglob("*.py"), *(root / "workflow").rglob("*.py")]:
        for name in _imported(file) - sys.stdlib_module_names - ours:
            distributions = {lock.canonicalize_name(found) for found in provides.get(name, [name])}
            if not distributions & required:
                missing[name] = str(file.relative_to(root))
    assert not missing, "imported, but not pinned in pyproject.toml"


def test_the_library_knows_nothing_of_snakemake(root: Path) -> None:
    knowing = [
        file for file in (root / "src").rglob("*.py") for name in _imported(file) if name.startswith("snakemake")
    ]
    assert knowing == []


def _imported(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def test_find_python_passes_over_one_that_is_too_old(root: Path, tmp_path: Path) -> None:
    old = "import sys, ensurepip; sys.version_info = (3, 10, 9); exec(sys.argv[1])"
    for name, command in (("python3", f"-c '{old}' \"$2\""), ("python3.11", '"$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\nexec '{sys.executable}' {command}\n")
        (tmp_path / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    for arguments, found in (([], sys.executable), (["python3.11"], sys.executable), (["python3"], "")):
        command = [str(root / "envs" / "find-python"), *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert (done.stdout.strip(), done.returncode) == (found, int(not found))


def test_find_python_ends_in_one_line(root: Path) -> None:
    done = subprocess.run(
        [root / "envs" / "find-python", "no-such-python"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "Python 3.11 or newer" in done.stderr


def test_the_campaign_of_faults_starts(root: Path) -> None:
    """`make faults` runs it outside of pytest, without pytest's folders of modules."""
    command = [sys.executable, str(root / "tests/cluster/campaign.py"), "--help"]
    assert "--into" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_an_index_of_cpu_builds_satisfies_the_pin(root: Path, lock: ModuleType, tmp_path: Path) -> None:
    """As in the README: pip takes `2.13.0+cpu` of the extra index for `torch==2.13.0`."""
    version = lock.pins((root / "envs/requirements.lock").read_text())["torch"]
    for index, found in (("usual", version), ("cpu", f"{version}+cpu")):
        folder = tmp_path / index / "torch"
        folder.mkdir(parents=True)
        file = f"torch-{found}-py3-none-any.whl"
        with zipfile.ZipFile(folder / file, "w") as wheel:
            about = f"torch-{found}.dist-info"
            wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {found}\n")
            wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{about}/RECORD", "")
        (folder / "index.html").write_text(f'<a href="{file}">{file}</a>')
    (line,) = re.findall(r"PIP_EXTRA_INDEX_URL=\S+ make demo", (root / "README.md").read_text(encoding="utf-8"))
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environment = clean | {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": (tmp_path / "usual").as_uri(),
        line.partition("=")[0]: (tmp_path / "cpu").as_uri(),
    }
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(tmp_path / "made")]
    subprocess.run([*command, f"torch=={version}"], env=environment, check=True, capture_output=True)
    assert (tmp_path / "made" / f"torch-{version}+cpu.dist-info").is_dir()


@pytest.mark.parametrize("extra", ["https://example.org/whl/cpu", ""])
def test_the_size_of_the_install_is_told_before_it_starts(root: Path, tmp_path: Path, extra: str) -> None:
    with_cuda = not extra and (platform.system(), platform.machine()) == ("Linux", "x86_64")
    shutil.copy(root / "Makefile", tmp_path)
    for name in ("envs/find-python", "envs/requirements.lock", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(root / name, tmp_path / name)
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nexit 1\n")  # the install fails at once
    python.chmod(0o755)
    environment = os.environ | {"PIP_EXTRA_INDEX_URL": extra}
    command = ["make", "environment", f"PYTHON={sys.executable}"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    (size,) = re.findall(r"downloads about ([\d.]+) GB", done.stdout)
    assert size == ("3" if with_cuda else "0.5")
