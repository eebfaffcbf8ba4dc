"""Probes of the paper `consensus`: arrays that only a trained model can give, for its figures."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def routing(model: Any, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    made: dict[str, Tensor] = model.probes()["routing"](images, labels)
    return made
