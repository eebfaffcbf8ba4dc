"""Probes of *Learning to compute inner consensus*: arrays of trained models for its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

if TYPE_CHECKING:
    from recaps.papers.consensus.matrixcaps import CapsuleLayer, MatrixCaps


def routing(model: MatrixCaps, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Assignments of input capsules to output capsules in the last iteration (figure 6).

    Returns:
        `images` [B, C, H, W]; `coupling` [B, h, w, types, classes] of the class layer; `scores` [B, classes]; and for
        each capsule layer k `effective-k` [B, P, J], the share of its inputs that an output capsule uses: the
        exponential of the entropy of its assignment over the number of inputs. 1: it uses all inputs alike.
    """
    routed = model.routed(images)
    last = cast("CapsuleLayer", model.layers[-2])
    grid = (last.fields.height, last.fields.width, model.options.types[2])
    effective = {f"effective-{k}": effective_share(each.coupling) for k, each in enumerate(routed)}
    coupling = routed[-1].coupling.squeeze(1).unflatten(1, grid)
    return {"images": images, "coupling": coupling, "scores": routed[-1].activations.squeeze(1), **effective}


def effective_share(coupling: Tensor) -> Tensor:
    """exp(entropy) / n of an assignment [B, P, n, J], normalised over its inputs: [B, P, J]."""
    shares = coupling / coupling.sum(2, keepdim=True).clamp_min(1e-30)
    return torch.special.entr(shares).sum(2).exp() / coupling.shape[2]
