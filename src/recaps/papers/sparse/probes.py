"""Probes of the paper `sparse`: arrays that only a trained model can give, for its figures."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def single_capsules(model: Any, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    made: dict[str, Tensor] = model.probes()["single-capsules"](images, labels)
    return made


def traversals(model: Any, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    made: dict[str, Tensor] = model.probes()["traversals"](images, labels)
    return made
