"""Compiled kernels for CPUs. `fits` decides between a kernel and the plain version; `off` disables all kernels.

`off` also disables the other fast paths of CPUs: those that ask `enabled`.

Kernels import nothing from the layers that call them. A caller imports a kernel when it calls it, because loading the
compiler takes half a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

#: EM routing adds these to variances, and to the sum of assignments before it divides by the sum.
VARIANCE, SHARE = 1e-6, 1e-8

#: Largest number of types of output capsules in a compiled routing. Arrays are padded to this many lanes.
LANES = 16

_enabled = True


def enabled() -> bool:
    """Return whether this is outside of `off`."""
    return _enabled


def fits(poses: Tensor, weight: Tensor) -> bool:
    """Return whether a compiled routing can take poses [B, C, 16] and transformations [n, J, 4, 4]."""
    return _enabled and poses.device.type == "cpu" and weight.shape[1] <= LANES


def fits_votes(votes: Tensor) -> bool:
    """Return whether a compiled routing can take votes of this precision and is faster than products of matrices."""
    fits = votes.device.type == "cpu" and votes.dtype in (torch.float32, torch.bfloat16)
    return _enabled and fits and not products_are_fast(votes.dtype)


def products_are_fast(dtype: torch.dtype) -> bool:
    """Return whether this processor has a unit for products of matrices in this precision (AMX)."""
    return dtype == torch.bfloat16 and bool(torch.cpu.get_capabilities().get("amx_bf16"))


@contextmanager
def off() -> Iterator[None]:
    """Use the plain versions within this context, for tests and benchmarks."""
    global _enabled
    before, _enabled = _enabled, False
    try:
        yield
    finally:
        _enabled = before
