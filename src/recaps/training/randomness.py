"""Random numbers as a function of (seed, purpose, counter), so that a resumed run draws the same numbers."""

from __future__ import annotations

import functools
import hashlib

import torch
from torch import Tensor


def generator(seed: int, purpose: str, counter: int = 0) -> torch.Generator:
    """Return the CPU generator of a seed, purpose and counter."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{counter}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def batch_indices(n: int, batch_size: int, seed: int, step: int, versions: int = 1) -> Tensor:
    """Return the indices [batch_size] of the images in batch `step`.

    Batches run through all n images in a random order, then in another random order, and so on. If each image has
    several versions (index i + n * v is version v of image i), each pass takes the next version.
    """
    positions = torch.arange(step * batch_size, (step + 1) * batch_size)
    passes = positions // n
    indices = torch.empty(batch_size, dtype=torch.int64)
    for each in passes.unique().tolist():
        chosen = passes == each
        indices[chosen] = _order(n, seed, each)[positions[chosen] % n] + n * (each % versions)
    return indices


@functools.lru_cache(maxsize=2)
def _order(n: int, seed: int, each: int) -> Tensor:
    return torch.randperm(n, generator=generator(seed, "order", each))
