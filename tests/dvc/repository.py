"""A checkout in which tests run git, DVC and Snakemake."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from clones import SMOKE, Clone, Done

#: The stages of dvc.yaml.
TARGETS = ("data", "papers", "report")
#: There is no such folder.
_NOWHERE = str(Path(__file__).with_name("no-settings"))
#: Git and DVC read no settings of the user or of the machine, and DVC posts nothing.
ALONE = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "DVC_GLOBAL_CONFIG_DIR": _NOWHERE,
    "DVC_SYSTEM_CONFIG_DIR": _NOWHERE,
    "DVC_NO_ANALYTICS": "1",
}


@dataclass(frozen=True)
class Repository(Clone):
    """A checkout with git and DVC."""

    def run(self, *command: str, status: int = 0) -> Done:
        """Run a command, and check that it ends with `status`."""
        if command[0] == "snakemake":
            return self.checked(self.snakemake(*command[1:]), status)
        ended = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return self.checked(Done(ended.returncode, ended.stdout), status)

    def checked(self, done: Done, status: int) -> Done:
        assert done.status == status, done.output[-6000:]
        return done

    def environment(self) -> dict[str, str]:
        bin = str(Path(sys.executable).parent)
        return {
            **os.environ,
            **ALONE,
            "PATH": f"{bin}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(self.folder / "src"),
            "COLUMNS": "200",
            "SNAKEMAKE_PROFILE": "profiles/smoke",
        }

    def dvc(self, *arguments: str, status: int = 0, environment: Mapping[str, str] | None = None) -> str:
        return self.checked(self.python("dvc", *arguments, environment=environment), status).output

    def git(self, *arguments: str) -> str:
        user = ("-c", "user.name=tests", "-c", "user.email=tests@localhost")
        return self.run("git", *user, *arguments).output

    def commit(self, message: str) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)

    def clone(self, folder: Path) -> Repository:
        self.run("git", "clone", "--quiet", str(self.folder), str(folder))
        return Repository(folder)

    def repro(self, *arguments: str, status: int = 0) -> tuple[list[str], str]:
        """Run `dvc repro`; return the stages that it ran, and its output."""
        output = self.dvc("repro", *arguments, status=status)
        return re.findall(r"^Running stage '(.+)':", output, re.MULTILINE), output

    def changed(self) -> set[str]:
        """Return the stages that `dvc status` names, and `data.dvc` if it does."""
        return set(re.findall(r"^(\S+):$", self.dvc("status"), re.MULTILINE))

    def planned(self) -> set[str]:
        """Return the stages of the jobs of a dry run, found by their messages."""
        output = self.run("snakemake", *SMOKE, "-n", "--", *TARGETS[:-1], "all").output
        return set(map(_stage, re.findall(r"^Job \d+: (?!Made)(.*)", output, re.MULTILINE)))


def _stage(message: str) -> str:
    first = {"Fetching": "data", "Preparing": "data", "Scorecard": "report", "Report": "report"}
    return first.get(message.split()[0], "papers")
