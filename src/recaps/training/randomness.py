"""All randomness is a function of (seed, purpose, counter), so a resumed run draws the same numbers."""

from __future__ import annotations

import functools
import hashlib

import torch
from torch import Tensor


def generator(seed: int, purpose: str, counter: int = 0) -> torch.Generator:
    """A CPU generator of its own for each seed, purpose and counter."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{counter}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def batch_indices(n: int, batch_size: int, seed: int, step: int, versions: int = 1) -> Tensor:
    """Indices [batch_size] of the images of batch `step`, from one random order after another of all n images.

    Where there are several versions of each image, index i + n * v being the v-th of image i, every pass over the
    images takes the next version.
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
