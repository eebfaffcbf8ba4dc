"""Options of the model families of the paper `sparse`; free of PyTorch, so that checking a configuration stays fast."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from recaps.models.options import RoutedNetwork


class SparseCapsOptions(RoutedNetwork):
    """Latent capsules without a label, by dynamic routing, trained by reconstruction."""

    module: ClassVar[str] = "recaps.papers.sparse.sparsecaps"
    family: Literal["sparsecaps"] = "sparsecaps"
    learning: Literal["dense", "sparse"] = "sparse"
    """`sparse`: SPARSECAPS, reconstruction under the sparse mask. `dense`: from all latent capsules ("unmasked")."""
    capsules: int = Field(16, ge=2)
    """Latent capsules."""
    decoder: tuple[int, ...] = (512, 1024)
    """Widths of the decoder's hidden layers."""
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
