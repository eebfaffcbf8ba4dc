"""The files for GitHub and for Snakemake's workflow catalogue fit their schemas and this repository."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

#: What the catalogue reads: section, keys.
CATALOGUE = {
    "mandatory-flags": {"desc", "flags"},
    "software-stack-deployment": {"conda", "singularity", "apptainer", "singularity+conda", "apptainer+conda"},
}


def read(file: Path) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def test_workflow_files_fit_the_schema_of_github(root: Path) -> None:
    pytest.importorskip("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    done = subprocess.run(
        [*command, *(root / ".github/workflows").glob("*.yml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_the_tests_run_on_the_pythons_of_the_package(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    jobs = read(root / ".github/workflows/tests.yml")["jobs"]
    for job in ("tests", "wheel"):
        pythons = jobs[job]["strategy"]["matrix"]["python"]
        assert project["requires-python"] == f">={pythons[0]}"
        assert len(pythons) == 3
    made = [step["run"] for step in jobs["tests"]["steps"] if step.get("run", "").startswith("make")]
    targets = re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {line.split()[1] for line in made} <= set(targets)


def test_the_published_page_is_the_page_of_the_repository(root: Path) -> None:
    steps = read(root / ".github/workflows/pages.yml")["jobs"]["publish"]["steps"]
    (folder,) = (step["with"]["path"] for step in steps if "path" in step.get("with", {}))
    assert (root / folder / "index.html").is_file()


def test_the_catalogue_finds_the_workflow(root: Path) -> None:
    usage = read(root / ".snakemake-workflow-catalog.yml")["usage"]
    assert set(usage) == {*CATALOGUE, "report"}
    assert all(set(usage[section]) <= keys for section, keys in CATALOGUE.items())
    (profile,) = re.fullmatch(r"--profile (\S+)", usage["mandatory-flags"]["flags"]).groups()  # type: ignore[union-attr]
    assert (root / profile / "config.yaml").is_file()
    assert (root / "Snakefile").is_file()
    assert list((root / "rules").glob("*.smk"))
    assert (root / "config/README.md").is_file()
    text = (root / "README.md").read_text(encoding="utf-8").lower()
    assert "snakemake" in text
    assert "workflow" in text
