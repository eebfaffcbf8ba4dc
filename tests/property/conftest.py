"""Other tests may leave this process without subnormal numbers, which Hypothesis generates."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def subnormal_numbers() -> None:
    torch.set_flush_denormal(False)
