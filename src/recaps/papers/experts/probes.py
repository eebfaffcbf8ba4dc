"""Probes of the paper `experts`: what its models generate and reconstruct.

A model needs the methods `sample` and `reconstruct`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from recaps.models.vae import VAE
    from recaps.papers.experts.experts import Experts
    from recaps.papers.experts.rbm import RBM


def samples(model: Experts | RBM | VAE, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Pictures that the model generates.

    Returns:
        `samples` [n, C, H, W]; of expert capsules `complete`, `restricted` and `opposite`, each [n, J, C, H, W].
    """
    return model.sample()


def chain(model: Experts | RBM | VAE, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Images and their reconstructions.

    Returns:
        `images`, and the reconstructions `chain`; of expert capsules also those of the `autoencoder` alone; each
        [B, C, H, W].
    """
    without_capsules: Callable[[Tensor], Tensor] | None = getattr(model, "reconstruct_without_capsules", None)
    made = {"images": images} | ({"autoencoder": without_capsules(images)} if without_capsules else {})
    return made | {"chain": model.reconstruct(images)}
