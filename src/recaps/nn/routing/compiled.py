"""What compiled routings of matrix capsules share.

Votes are two hundred megabytes per batch and layer, and written as tensor operations every iteration reads them a
dozen times. Compiled, one output position is done at a time, and its votes never leave the cache: to make them again
costs less than to fetch them. The types of output capsules are the lanes of the vector unit: the innermost loop of
everything is over them, and nothing is summed across lanes but gradients of poses and activations. Numbers keep the
arrays' precision, which is why constants are written as `real(2)`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

import numba
import numpy as np
import torch
from torch import Tensor

from recaps.nn.routing.matrix import LANES

#: Numbers of a pose.
POSE = 16

Function = TypeVar("Function", bound=Callable[..., Any])


def count_threads() -> int:
    """In how many parts a batch is done: as many as PyTorch has threads."""
    threads = torch.get_num_threads()
    _launch()
    torch.set_num_threads(threads)
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    return threads


@cache
def _launch() -> None:
    """Start Numba's threads, which sets OpenMP's number, and PyTorch's with it, to that of all cores."""
    numba.np.ufunc.parallel._launch_threads()


def compiled(function: Function) -> Function:
    """Compile a function when it is first called; the result is kept on disk."""
    return cast(Function, numba.njit(fastmath=True, error_model="numpy", cache=True)(function))


def parallel(function: Function) -> Function:
    """As `compiled`, with `numba.prange` over threads."""
    return cast(Function, numba.njit(parallel=True, fastmath=True, error_model="numpy", cache=True)(function))


def array(tensor: Tensor) -> Any:
    return np.ascontiguousarray(tensor.detach().numpy())


def lanes(tensor: Tensor) -> Any:
    """[..., J] as an array [..., LANES], zeros beyond J."""
    padded = np.zeros((*tensor.shape[:-1], LANES), tensor.detach().numpy().dtype)
    padded[..., : tensor.shape[-1]] = tensor.detach().numpy()
    return padded


@compiled
def vote(weight: Any, pose: Any, votes: Any) -> None:
    """V = W M: weight and votes [16, LANES], pose [16], matrices row by row."""
    for a in range(4):
        for b in range(4):
            for j in range(LANES):
                votes[4 * a + b, j] = (
                    weight[4 * a, j] * pose[b]
                    + weight[4 * a + 1, j] * pose[4 + b]
                    + weight[4 * a + 2, j] * pose[8 + b]
                    + weight[4 * a + 3, j] * pose[12 + b]
                )


@compiled
def vote_adjoint(weight: Any, pose: Any, at_votes: Any, at_weight: Any, at_pose: Any) -> None:
    """Add the gradients of `vote` to at_weight [16, LANES] and at_pose [16]."""
    for a in range(4):
        for c in range(4):
            for j in range(LANES):
                at_weight[4 * a + c, j] += (
                    at_votes[4 * a, j] * pose[4 * c]
                    + at_votes[4 * a + 1, j] * pose[4 * c + 1]
                    + at_votes[4 * a + 2, j] * pose[4 * c + 2]
                    + at_votes[4 * a + 3, j] * pose[4 * c + 3]
                )
    for c in range(4):
        for b in range(4):
            added = at_pose[4 * c + b]
            for j in range(LANES):
                added += (
                    weight[c, j] * at_votes[b, j]
                    + weight[4 + c, j] * at_votes[4 + b, j]
                    + weight[8 + c, j] * at_votes[8 + b, j]
                    + weight[12 + c, j] * at_votes[12 + b, j]
                )
            at_pose[4 * c + b] = added
