"""Probes of the paper `probabilistic`: arrays that only a trained model can give, for its figures."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def templates(model: Any, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    made: dict[str, Tensor] = model.probes()["templates"](images, labels)
    return made


def samples(model: Any, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    made: dict[str, Tensor] = model.probes()["samples"](images, labels)
    return made


def chain(model: Any, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    made: dict[str, Tensor] = model.probes()["chain"](images, labels)
    return made


def rotations(model: Any, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    made: dict[str, Tensor] = model.probes()["rotations"](images, labels)
    return made


def free_form(model: Any, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    made: dict[str, Tensor] = model.probes()["free-form"](images, labels)
    return made


def free_form_rotations(model: Any, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    made: dict[str, Tensor] = model.probes()["free-form-rotations"](images, labels)
    return made
