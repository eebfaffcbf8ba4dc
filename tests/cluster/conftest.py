"""A running Slurm for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from private_slurm import Slurm, private_slurm, why_not


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    """A Slurm with two nodes. Each file has its own, so that no fault outlives its file; it starts in seconds."""
    if reason := why_not():
        pytest.skip(reason)
    with private_slurm() as slurm:
        yield slurm
