"""Provenance of results: code, packages and machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from recaps import io

#: In a tree without git that `recaps.burst` has sent: what `git` returned there, and a list of finished runs.
SHIPPED = "shipped.json"
PACKAGES = ("recaps", "torch", "numpy", "scikit-learn", "pandas", "matplotlib", "snakemake", "pydantic", "safetensors")


def describe(project: Path | None) -> dict[str, Any]:
    """Return the git commit of the folder `project`, package versions, and a description of the machine."""
    return {
        "git": git(project),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "host_cores": os.cpu_count(),
        "job": os.environ.get("SLURM_JOB_ID"),
    }


def git(project: Path | None) -> dict[str, Any]:
    """Return `commit`, and `dirty`: whether code or tracked files differ from it.

    Both are None if the folder is not the top of a git checkout: the commit of a repository around it says nothing.
    Published results do not count, as no run reads them. A tree that `recaps.burst` has sent tells these of its origin.
    """
    top = _git(project, "rev-parse", "--show-toplevel") if project else None
    if project is None or top is None or Path(top).resolve() != project.resolve():
        shipped = project / SHIPPED if project else None
        return io.read_json(shipped)["git"] if shipped and shipped.is_file() else {"commit": None, "dirty": None}
    commit = _git(project, "rev-parse", "HEAD")
    changed = _git(project, "status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)results/published")
    added = _git(project, "ls-files", "--others", "--exclude-standard", "--", "src", "config", "rules", "workflow")
    unknown = None in (commit, changed, added)
    return {"commit": commit, "dirty": None if unknown else bool(changed or added)}


def now() -> str:
    """Return the current time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _git(project: Path, *arguments: str) -> str | None:
    # In a hook, for example, variables such as GIT_DIR name another repository or another index.
    kept = (name for name in os.environ if name.startswith("GIT_CONFIG") or not name.startswith("GIT_"))
    environment = {name: os.environ[name] for name in kept}
    command = ["git", "-C", str(project), *arguments]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, errors="surrogateescape", timeout=20, env=environment
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
