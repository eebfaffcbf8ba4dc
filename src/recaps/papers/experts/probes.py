"""Probes of the paper `experts`: arrays that only a trained model can give, for its figures."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def samples(model: Any, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    made: dict[str, Tensor] = model.probes()["samples"](images, labels)
    return made


def chain(model: Any, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    made: dict[str, Tensor] = model.probes()["chain"](images, labels)
    return made
