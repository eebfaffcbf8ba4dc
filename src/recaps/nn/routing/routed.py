"""What a routing returns."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Routed(NamedTuple):
    """Output capsules and how they came about."""

    capsules: Tensor
    """Output capsules, [B, J, D]."""
    coupling: Tensor
    """Coupling coefficients of the last iteration, [B, I, J]; carries no gradient."""
