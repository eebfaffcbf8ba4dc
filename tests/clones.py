"""A copy of this repository to run Snakemake in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import warm

#: Runs a module in a folder, as `python -m` does.
_SCRIPT = """
import os, runpy, sys
os.chdir({0!r})
os.environ.clear()
os.environ.update({1!r})
sys.path[:0] = [os.getcwd(), *os.environ["PYTHONPATH"].split(os.pathsep)]
terminal = os.open({2!r}, os.O_WRONLY | os.O_CREAT)
os.dup2(terminal, 1)
os.dup2(terminal, 2)
sys.argv = {3!r}
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
#: What a command imports; nothing of this repository.
_IMPORTS = {
    "snakemake": (
        "snakemake.cli",
        "snakemake.report.html_reporter",
        "snakemake.script",
        "snakemake_executor_plugin_slurm",
        "nbformat",
        "pydantic",
        "smart_open",
    ),
    "dvc": ("dvc.cli.parser", "dvc.repo", "dvc.utils.strictyaml", "scmrepo.git"),
    "recaps": ("matplotlib.pyplot", "numba", "pandas", "pydantic", "sklearn.linear_model", "torch._dynamo"),
}


@cache
def _server(command: str) -> warm.Server:
    return warm.Server(_IMPORTS[command])


PARTS = ("Snakefile", "rules", "workflow", "config", "profiles", "slurm", "envs", "src", "docs", "pyproject.toml")
SMOKE = ("--profile", "profiles/smoke")


@dataclass(frozen=True)
class Done:
    """The exit status and the output of a command."""

    status: int
    output: str

    def jobs(self) -> dict[str, int]:
        """Return the number of jobs of each rule from the table of jobs; empty if there is nothing to be done."""
        _, found, table = self.output.rpartition("Job stats:\n")
        lines = table.partition("\n\n")[0].splitlines()[2:] if found else []
        return {rule: int(count) for rule, count in map(str.split, lines)}


@dataclass(frozen=True)
class Clone:
    """A copy of the repository; its Snakemake runs its own library."""

    folder: Path

    def environment(self) -> dict[str, str]:
        own = {"PYTHONPATH": str(self.folder / "src"), "COLUMNS": "200"}
        return {name: value for name, value in os.environ.items() if name != "RECAPS_MIRROR"} | own

    def snakemake(self, *arguments: str) -> Done:
        """Run Snakemake in this copy, with its own library."""
        return self.python("snakemake", *arguments)

    def python(self, module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Done:
        """Run a module in this copy, with its own library.

        On Linux, it forks from a process that has imported what the module needs: this takes longer than most commands.
        """
        variables = self.environment() | dict(environment or {})
        if sys.platform == "linux":
            with tempfile.TemporaryDirectory() as temporary:
                script, output = Path(temporary, "script.py"), Path(temporary, "output")
                script.write_text(_SCRIPT.format(str(self.folder), variables, str(output), [module, *arguments]))
                status = _server(module.partition(".")[0]).run(str(script))
                return Done(status, output.read_text(encoding="utf-8", errors="replace"))
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=self.folder,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=3600,
            check=False,
        )
        return Done(done.returncode, done.stdout)

    def plan(self, *arguments: str) -> dict[str, int]:
        """Return the jobs that a dry run of the smoke workflow lists."""
        done = self.snakemake(*SMOKE, "-n", *arguments)
        assert done.status == 0, done.output
        return done.jobs()

    @contextmanager
    def edited(self, file: str, old: str, new: str) -> Iterator[None]:
        """Edit one file, and undo the edit afterwards. Both change the time stamp."""
        path, digests = self.folder / file, self.folder / "src/recaps/__pycache__/digests.json"
        text, known = path.read_text(encoding="utf-8"), digests.read_bytes() if digests.exists() else b""
        assert old in text, f"{file} has no {old!r}"
        path.write_text(text.replace(old, new, 1), encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(text, encoding="utf-8")
            if known:  # only those of one state of the code are kept, and they take seconds
                digests.write_bytes(known)


def copy(root: Path, folder: Path, parts: Iterable[str] = PARTS) -> Clone:
    """Copy the parts of the repository at `root` that a run needs to an empty folder, with Python's caches."""
    for name in parts:
        source, target = root / name, folder / name
        if source.is_symlink():
            target.symlink_to(source.readlink())
        elif source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.egg-info"))
        elif source.exists():
            target.parent.mkdir(exist_ok=True)
            shutil.copy2(source, target)
    return Clone(folder)
