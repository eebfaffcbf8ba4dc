"""The compiler of the routings, and how they run in parallel.

The votes of a layer of matrix capsules take two hundred megabytes per batch. In tensor operations, each iteration reads
them a dozen times. A kernel computes one output position at a time, and its votes stay in the cache: computing votes
again is faster than reading them from memory. The types of output capsules are the lanes of vectors
(`recaps.nn.kernels.vector`). All real numbers are float32, and constants are `np.float32(2)` to keep this precision.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import numba
import numpy as np
import torch
from torch import Tensor

from recaps.nn.kernels import LANES

#: Values in a pose.
POSE = 16
#: Transformations of arithmetic that the compiler may use. NaN and infinity must be preserved. Sums in another order
#: and divisions by way of a reciprocal made gradients of EM ten times less exact on some machines.
FAST = {"contract", "nsz"}

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile a function as part of each kernel that calls it."""
    return cast(Function, numba.njit(fastmath=FAST, error_model="numpy", forceinline=True)(function))


def kernel(function: Function) -> Function:
    """Compile a function `kernel(part, parts, ...)` at its first call.

    The machine code of the kernel is cached until the sources change; see `Locator`. It includes all functions that the
    kernel calls. A process that compiles a kernel and a process that loads it therefore run the same instructions, and
    a resumed run gives the same bits.
    """
    found = numba.njit(fastmath=FAST, error_model="numpy", nogil=True)(function)
    previous = numba.config.CACHE_LOCATOR_CLASSES  # type: ignore[attr-defined]
    numba.config.CACHE_LOCATOR_CLASSES = f"{__name__}.Locator"  # type: ignore[attr-defined]
    try:
        found.enable_caching()
    finally:
        numba.config.CACHE_LOCATOR_CLASSES = previous  # type: ignore[attr-defined]
    return cast(Function, found)


class Locator(numba.core.caching._CacheLocator):
    """Makes Numba cache a kernel in a folder whose name is a digest of the sources of all kernels.

    Numba's own locators depend on the kernel's own file and on the path of the checkout.
    """

    def __init__(self, function: Callable[..., Any], folder: Path) -> None:
        self.function, self.folder = function, folder

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> Self:
        sources = sorted(Path(__file__).parent.glob("*.py"))
        digest = hashlib.sha256(b"".join(each.read_bytes() for each in sources)).hexdigest()
        return cls(function, _folder() / digest[:16])

    def get_cache_path(self) -> str:
        return str(self.folder)

    def get_source_stamp(self) -> str:
        return self.folder.name

    def get_disambiguator(self) -> str:
        return self.function.__module__


@cache
def _folder() -> Path:
    """Return the user's cache folder, or a temporary folder of the process if the cache is not writable."""
    given = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    try:
        folder = (Path(given) if given else Path.home() / ".cache") / "recaps"
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home
        print(f"Compiled kernels are not cached: {error}; set NUMBA_CACHE_DIR to another folder", file=sys.stderr)
        folder = Path(tempfile.mkdtemp(prefix="recaps-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def in_parts(kernel: Callable[..., None], *arguments: Any) -> None:
    """Call `kernel(part, parts, *arguments)` for all parts in parallel; `parts` is PyTorch's number of threads."""
    parts = torch.get_num_threads()
    others = [_pool().submit(kernel, part, parts, *arguments) for part in range(1, parts)]
    try:
        kernel(0, parts, *arguments)
    finally:
        wait(others)
    for other in others:
        other.result()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="routing")


def array(tensor: Tensor) -> Any:
    return np.ascontiguousarray(tensor.detach().numpy())


def lanes(tensor: Tensor) -> Any:
    """Convert a tensor [..., J] to an array [..., LANES], padded with zeros."""
    padded = np.zeros((*tensor.shape[:-1], LANES), tensor.detach().numpy().dtype)
    padded[..., : tensor.shape[-1]] = tensor.detach().numpy()
    return padded
