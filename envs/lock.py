"""Derive the pinned environments from the installed packages that `pyproject.toml` requires, as ranges.

python envs/lock.py          report differences between the files; exit 1 if there are any
python envs/lock.py --fix    write requirements.lock (from the installed packages) and recaps.yaml (from the lock)

To change a version: `pip install NAME==VERSION`, or edit pyproject.toml; then `make lock`.
"""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = ROOT / "pyproject.toml"
LOCK = ROOT / "envs" / "requirements.lock"
CONDA = ROOT / "envs" / "recaps.yaml"

RUN = "# to run the workflow"
DEVELOP = "# to test and change it"
HEADER = """\
# Generated from pyproject.toml by `python envs/lock.py --fix`; do not edit.
# Pinned versions of all packages, for Linux and macOS. PyTorch itself pins the packages of its CUDA builds.
"""

#: Requirements of PyTorch's CUDA builds, which pin their versions.
CUDA_ONLY = re.compile(r"^(nvidia-|cuda-|triton$)")


def main(arguments: list[str]) -> int:
    if arguments == ["--fix"]:
        LOCK.write_text(render_lock(), encoding="utf-8")
        CONDA.write_text(render_conda(LOCK.read_text(encoding="utf-8")), encoding="utf-8")
    problems = check(PROJECT.read_text(encoding="utf-8"), LOCK.read_text(encoding="utf-8"), CONDA.read_text("utf-8"))
    print("\n".join(problems) or "pyproject.toml, requirements.lock and recaps.yaml agree")
    return 1 if problems else 0


def check(project: str, lock: str, conda: str) -> list[str]:
    """Return the differences between the three files, one line each."""
    locked = pins(lock)
    problems = []
    for requirement in (*direct(project)[0], *direct(project)[1]):
        needed = Requirement(requirement)
        version = locked.get(canonicalize_name(needed.name), "none")
        if version == "none" or version not in needed.specifier:
            problems.append(f"{needed.name}: pyproject.toml has {needed.specifier}, requirements.lock {version}")
    if conda != render_conda(lock):
        problems.append("recaps.yaml differs from requirements.lock")
    return [f"{problem}; run `python envs/lock.py --fix`" for problem in problems]


def direct(project: str) -> tuple[list[str], list[str]]:
    """Return the direct requirements: to run the workflow, and to develop it."""
    table = tomllib.loads(project)["project"]
    extras = table["optional-dependencies"]
    run = [*table["dependencies"], *extras["fast"], *extras["workflow"]]
    return [text for text in run if text != "recaps[fast]"], [*extras["tensorboard"], *extras["dev"]]


def exact(requirement: str) -> tuple[str, str]:
    """Split `name==version`."""
    name, version = requirement.split("==")
    return canonicalize_name(name), version


def pins(lock: str) -> dict[str, str]:
    return dict(exact(line) for line in lock.splitlines() if "==" in line and not line.startswith("#"))


def closure(requirements: list[str]) -> dict[str, str]:
    """Return the installed versions of the requirements and all their dependencies, without suffixes such as `+cpu`."""
    found: dict[str, str] = {}
    waiting = [Requirement(text) for text in requirements]
    seen = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if CUDA_ONLY.match(name) or (key := (name, frozenset(requirement.extras))) in seen:
            continue
        seen.add(key)
        installed = distribution(name)
        found[name] = installed.version.split("+")[0]
        for text in installed.requires or []:
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in (*requirement.extras, "")):
                waiting.append(needed)
    return found


def render_lock() -> str:
    run, develop = direct(PROJECT.read_text(encoding="utf-8"))
    to_run = closure(run)
    to_develop = {name: version for name, version in closure(develop).items() if name not in to_run}
    sections = [HEADER]
    for title, versions in ((RUN, to_run), (DEVELOP, to_develop)):
        sections.append("\n".join([title, *(f"{name}=={versions[name]}" for name in sorted(versions))]) + "\n")
    return "\n".join(sections)


def render_conda(lock: str) -> str:
    """Return the conda file: Python from conda, and the packages that run the workflow from the lock."""
    to_run = pins(lock.split(DEVELOP)[0])
    lines = [
        "# Generated from requirements.lock by `python envs/lock.py --fix`; do not edit.",
        "# The environment of jobs with `snakemake --sdm conda`. Without it, jobs run in the environment of Snakemake.",
        "channels:",
        "  - conda-forge",
        "  - nodefaults",
        "dependencies:",
        "  - python=3.11",
        "  - pip",
        "  - pip:",
        *(f"      - {name}=={version}" for name, version in to_run.items()),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
