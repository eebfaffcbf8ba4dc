"""Options of the model family of *Sparse Unsupervised Capsules Generalize Better*. Imports no PyTorch."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from recaps.config.base import Positive, Shares
from recaps.models.options import RoutedNetwork


class SparseCapsOptions(RoutedNetwork):
    """A capsule network with latent capsules, trained without labels to reconstruct the image."""

    module: ClassVar[str] = "recaps.papers.sparse.sparsecaps"
    family: Literal["sparsecaps"] = "sparsecaps"
    learning: Literal["dense", "sparse"] = "sparse"
    """`sparse`: SPARSECAPS, which reconstructs under the sparse mask. `dense`: all latent capsules ("unmasked")."""
    capsules: int = Field(16, ge=2)
    """Number of latent capsules."""
    layers: int = Field(1, ge=1)
    """Layers of latent capsules, each with the same numbers of capsules and dimensions; the paper has one. The decoder
    reads the last one. If `sparse`, each layer has a mask and boosts of its own."""
    decoder: tuple[Positive, ...] = (512, 1024)
    """Widths of the decoder's hidden layers."""
    mask_grouping: Literal["location", "released"] = "location"
    """Reading. Groups of primary capsules whose largest couplings add up to the support. `location`: the capsules at a
    location, as the paper defines it. `released`: the groups in the released code, each of as many consecutive
    capsules in type-major order as there are types, so that most are of one type."""
    mask_decay: float = Field(12.0, ge=0)
    """Gamma of eq. 3: decay of the mask with rank."""
    mask_floor: float = Field(0.01, ge=0)
    """Mask values below this are set to zero."""
    frequency_range: Shares = (0.04, 0.10)
    """Reading. Range of rank-0 frequencies that boosting aims at. The default is the paper's; the released code has
    (0.03, 0.12)."""
    boosts: Literal["mask", "routing"] = "mask"
    """What boosts multiply: the supports that decide on the mask, or the coupling in each routing iteration ("it is
    possible that boosting capsule coefficients during the routing iterations would be beneficial", section 2.3)."""
    boost_step: float = Field(0.1, ge=0)
    """Change of a capsule's boost at each update (d of Algorithm 1)."""
    boost_every: int = Field(50, ge=1)
    """Steps between two updates of the boosts (N of Algorithm 1)."""
    settle_steps: int = Field(50, ge=0)
    """Reading. Number of steps at the end of training in which boosts do not change, so that the model is tested with a
    mask that it was trained with. In the paper, 30,000 steps end with an update."""
    frequency_decay: float = Field(0.99, ge=0, lt=1)
    """Alpha of eq. 6: decay of the moving average of rank-0 frequencies."""

    @model_validator(mode="after")
    def _boosts_reach_the_routing(self) -> Self:
        if self.boosts == "routing" and (self.learning == "dense" or self.layers > 1 or self.routing.name != "dynamic"):
            raise ValueError("boosts: routing needs learning: sparse, one layer and dynamic routing")
        return self
