"""Options of the family `capsnet`: SUPCAPS, dense unsupervised capsules and SPARSECAPS."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from recaps.config.base import Section


class Options(Section):
    """Convolution, primary capsules, latent capsules by dynamic routing, decoder."""

    family: Literal["capsnet"] = "capsnet"
    learning: Literal["supervised", "dense", "sparse"] = "supervised"
    """`supervised`: SUPCAPS, margin loss and reconstruction under the label's mask. `dense`: reconstruction from all
    latent capsules ("unmasked"). `sparse`: SPARSECAPS, reconstruction under the sparse mask."""
    conv_channels: int = Field(256, ge=1)
    """Channels of the first convolution."""
    primary_types: int = Field(32, ge=1)
    """Types of primary capsules at each location."""
    primary_dim: int = Field(8, ge=1)
    """Dimensions of a primary capsule."""
    capsules: int = Field(10, ge=2)
    """Latent capsules: one per class when supervised, 16 in the unsupervised models."""
    capsule_dim: int = Field(16, ge=1)
    """Dimensions of a latent capsule."""
    iterations: int = Field(3, ge=1)
    """Iterations of dynamic routing."""
    decoder: tuple[int, ...] = (512, 1024)
    """Widths of the decoder's hidden layers."""
    routing_gradient: Literal["all", "last"] = "all"
    """Reading. `all`: gradients flow through every routing iteration, as in the released code of SUPCAPS. `last`: the
    coupling coefficients are constants, as most PyTorch versions have it."""
    loss_scale: Literal["released", "paper"] = "released"
    """Reading (supervised). `released`: margin loss halved and averaged over the classes, as the released code does,
    so that reconstruction weighs 20 times more than in `paper`, the sum over classes that the paper prints."""
    reconstruction_weight: float = Field(0.0005, ge=0)
    """Weight of the summed squared pixel error (supervised; the unsupervised models have nothing else)."""
    mask_grouping: Literal["location", "released"] = "location"
    """Reading (sparse). `location`: support is the largest coupling over the types at each location, summed over
    locations, as the paper defines it. `released`: the groups that the released code really forms, 32 consecutive
    capsules of the type-major order, mostly one type's feature map."""
    mask_decay: float = Field(12.0, ge=0)
    """Gamma of eq. 3: how fast the mask falls with rank."""
    mask_floor: float = Field(0.01, ge=0)
    """Mask values below this are zero."""
    frequency_range: tuple[float, float] = (0.04, 0.10)
    """Reading (sparse). Range that boosting holds each capsule's rank-0 frequency in. Default from the paper; the
    released code has (0.03, 0.12)."""
    boost_step: float = Field(0.1, ge=0)
    """Change of a capsule's boost at each update (d of Algorithm 1)."""
    boost_every: int = Field(50, ge=1)
    """Steps between two boost updates (N of Algorithm 1)."""
    frequency_decay: float = Field(0.99, ge=0, lt=1)
    """Alpha of eq. 6: decay of the moving average of rank-0 frequencies."""
