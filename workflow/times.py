"""Time stamps are no reason to run a job again: receipts decide.

Snakemake compares times whatever its `rerun-triggers` are, and a clone, a copy or `dvc checkout` changes them. Written
for its pinned version.
"""

from __future__ import annotations

from typing import Any

from snakemake.io import _IOFile


def ignore() -> None:
    """Let no input be newer than an output. Inputs that another job has just made still count."""
    _IOFile.is_newer = _never


async def _never(file: Any, time: float) -> bool:
    return False
