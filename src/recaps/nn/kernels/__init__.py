"""Fast forms of layers and routings. `off` disables them all, and what a reader of the papers would write runs.

`fits` and `fits_votes` tell whether a kernel that is compiled for CPUs can be used, `enabled` whether others can.

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

#: `recaps.nn.squash` adds this to squared lengths.
SQUASH = 1e-8

#: Largest number of types of output capsules in a compiled routing. Arrays are padded to this many lanes.
LANES = 16

_enabled = True


def enabled() -> bool:
    """Return whether this is outside of `off`."""
    return _enabled


def fits(poses: Tensor, weight: Tensor) -> bool:
    """Return whether a compiled routing, in float32, can take poses [B, C, 16] and transformations [n, J, 4, 4]."""
    known = poses.device.type == "cpu" and poses.dtype != torch.float64
    return _enabled and known and weight.shape[1] <= LANES


def fits_votes(capsules: Tensor, weight: Tensor, more: int = 0) -> bool:
    """Return whether a compiled routing can take the votes of capsules [B, I, d] with weights [I, d, J, D].

    `more`: outputs of the routing besides the J.
    """
    known = capsules.device.type == "cpu" and capsules.dtype == weight.dtype == torch.float32
    return _enabled and known and weight.shape[2] + more <= LANES


def disable() -> None:
    """Use the plain versions from now on, as where there is no compiler."""
    global _enabled
    _enabled = False


@contextmanager
def off() -> Iterator[None]:
    """Use the plain versions within this context, for tests and benchmarks."""
    global _enabled
    before = _enabled
    disable()
    try:
        yield
    finally:
        _enabled = before


@contextmanager
def plain() -> Iterator[None]:
    """Like `off`, and multiply matrices by PyTorch's default library, to measure what all of this gains."""
    products = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = products.fp32_precision
    products.fp32_precision = "ieee"
    try:
        with off():
            yield
    finally:
        products.fp32_precision = before
