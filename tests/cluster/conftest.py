"""A running Slurm for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from private_slurm import Slurm, private_slurm, why_not


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    """Two nodes, up. One for each file: it starts within a second or two, and the faults of a file end with it."""
    if reason := why_not():
        pytest.skip(reason)
    with private_slurm() as slurm:
        yield slurm
