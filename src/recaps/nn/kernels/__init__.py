"""Compiled code for CPUs, behind one seam: `fits` says whether a kernel takes some arrays.

Kernels import nothing of the layers that call them. They are loaded when one is called, not before: the compiler takes
half a second.
"""

from __future__ import annotations

from torch import Tensor

#: Added by EM routing, compiled or not, to variances, and to the assignment that they are divided by.
VARIANCE, SHARE = 1e-6, 1e-8

#: Most types of output capsules that compiled routings take: the lanes they are padded to.
LANES = 16


def fits(poses: Tensor, weight: Tensor) -> bool:
    """Whether a compiled routing takes poses [B, C, 16] and transformations [n, J, 4, 4]."""
    return poses.device.type == "cpu" and weight.shape[1] <= LANES
