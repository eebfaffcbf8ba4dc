"""Random numbers as a function of (seed, purpose, counter), so that a resumed run draws the same numbers."""

from __future__ import annotations

import functools
import hashlib
from array import array

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


class ShufflingQueue:
    """The records 0, 1, 2, ... in the order in which they leave a shuffling queue, such as that of TensorFlow 1.

    The queue holds `capacity` records. Each draw takes a random one of them, and the next record takes its place.
    """

    _CHUNK = 1 << 16

    def __init__(self, capacity: int, seed: int) -> None:
        self.seed = seed
        self.held = list(range(capacity))
        self.drawn = array("q")

    def __call__(self, first: int, last: int) -> Tensor:
        """Return the records of draws `first` to `last - 1`, int64."""
        while len(self.drawn) < last:
            random = generator(self.seed, "queue", len(self.drawn))
            places = torch.randint(len(self.held), (self._CHUNK,), generator=random).tolist()
            for record, place in enumerate(places, len(self.drawn) + len(self.held)):
                self.drawn.append(self.held[place])
                self.held[place] = record
        return torch.tensor(self.drawn[first:last].tolist())
