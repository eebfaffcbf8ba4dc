"""The unsupervised capsules of *Sparse Unsupervised Capsules Generalize Better*.

SUPCAPS's network without a label, trained by reconstruction alone:

- `dense`: from all latent capsules (the paper's section 2.1);
- `sparse`, SPARSECAPS: under a mask that leaves each image a few capsules, those with the largest routing coefficients
  (section 2.2), with boosting so that every capsule has its share of images (section 2.3).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from recaps.models.model import Batch
from recaps.models.network import CapsuleNetwork, ranks, support
from recaps.nn.losses import summed_squared_error
from recaps.papers.sparse.options import SparseCapsOptions


class SparseCaps(CapsuleNetwork):
    """Latent capsules that reconstruct the image, all of them or under the sparse mask. Shapes as in the base class."""

    options: SparseCapsOptions

    def __init__(self, options: SparseCapsOptions, image_shape: tuple[int, int, int]) -> None:
        super().__init__(options, image_shape)
        self.boosting = Boosting(options) if options.learning == "sparse" else None

    def mask(self, coupling: Tensor) -> Tensor:
        """The mask [B, L] under which the decoder sees the capsules: all, or by boosted rank (eqs. 1-3)."""
        if self.boosting is None:
            return coupling.new_ones(len(coupling), coupling.shape[2])
        return self.boosting.mask(self.support(coupling))

    def support(self, coupling: Tensor) -> Tensor:
        """Routing support psi of each latent capsule: [B, I, L] to [B, L]."""
        return support(coupling, self.options.primary_types, self.options.mask_grouping)

    def ranks(self, supports: Tensor) -> Tensor:
        """Rank of each capsule in its image, 0 for the largest support (boosted if sparse): [B, L] to int64 [B, L]."""
        return ranks(supports) if self.boosting is None else self.boosting.ranks(supports)

    def losses(self, batch: Batch, step: int) -> dict[str, Tensor]:
        images = batch["images"]
        routed = self(images)
        reconstructions = self.reconstruct(routed.capsules, self.mask(routed.coupling))
        if self.boosting is not None and self.training:
            self.boosting.observe(self.support(routed.coupling))
        return {"loss": summed_squared_error(reconstructions, images).mean()}

    def latents(self, images: Tensor) -> dict[str, Tensor]:
        """`capsules` [B, L, D]; `support`, its `ranks` (0 the largest, boosted if sparse) and `mask` [B, L]; summed
        squared `reconstruction_error` [B]."""
        routed = self(images)
        supports, mask = self.support(routed.coupling), self.mask(routed.coupling)
        return {
            "capsules": routed.capsules,
            "support": supports,
            "ranks": self.ranks(supports),
            "mask": mask,
            "reconstruction_error": summed_squared_error(self.reconstruct(routed.capsules, mask), images),
        }

    def probes(self) -> dict[str, Any]:
        return {"single-capsules": self.single_capsules, "traversals": self.traversals}

    def single_capsules(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """What each capsule adds to the picture (figure 2).

        Returns:
            `images` and `full` [B, C, H, W]; `single` and `without` [B, L, C, H, W]: decoded from capsule l alone, and
            from all but l.
        """
        routed = self(images)
        mask = self.mask(routed.coupling)
        each = torch.eye(mask.shape[1], device=mask.device)
        single = [self.reconstruct(routed.capsules, mask * only) for only in each]
        without = [self.reconstruct(routed.capsules, mask * (1 - only)) for only in each]
        return {
            "images": images,
            "full": self.reconstruct(routed.capsules, mask),
            "single": torch.stack(single, 1),
            "without": torch.stack(without, 1),
            "mask": mask,
        }

    def traversals(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Pictures decoded while each dimension of the capsule of rank 0 is set to -1 to 1 in steps of 0.2 (figure 5).

        Returns:
            `images` [B, C, H, W]; `decoded` [B, D, 11, C, H, W]; `values` [11]; `capsule` [B]: which one was moved.
        """
        routed = self(images)
        active = self.ranks(self.support(routed.coupling)).argmin(1)
        values = torch.linspace(-1, 1, 11, device=images.device)
        decoded = self.traverse(routed.capsules, self.mask(routed.coupling), active, values, relative=False)
        return {"images": images, "decoded": decoded, "values": values, "capsule": active}


class Boosting(nn.Module):
    """The sparse mask of section 2.2 and the lifetime sparsity of section 2.3.

    Keeps two statistics per latent capsule: a moving average of how often it has rank 0, and the boost on its support.
    """

    frequency: Tensor
    boost: Tensor
    steps: Tensor

    def __init__(self, options: SparseCapsOptions) -> None:
        super().__init__()
        self.options = options
        self.register_buffer("frequency", torch.zeros(options.capsules))
        self.register_buffer("boost", torch.ones(options.capsules))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def ranks(self, support: Tensor) -> Tensor:
        """Rank of each capsule's boosted support in its image, 0 the largest (eqs. 1, 2): [B, L] to [B, L]."""
        return ranks(support * self.boost)

    def mask(self, support: Tensor) -> Tensor:
        """exp(-gamma r / (L - 1)), zero where small (eq. 3): [B, L] to [B, L]."""
        relative = self.ranks(support) / (support.shape[1] - 1)
        mask = torch.exp(-self.options.mask_decay * relative)
        return mask * (mask >= self.options.mask_floor)

    @torch.no_grad()
    def observe(self, support: Tensor) -> None:
        """Update the statistics after a training batch (eqs. 5-7, algorithm 1)."""
        frequency = (self.ranks(support) == 0).float().mean(0)
        decay = self.options.frequency_decay
        # The first average starts from the first batch, not from zero, as in the released code.
        averaged = decay * self.frequency + (1 - decay) * frequency
        self.frequency.copy_(torch.where(self.steps == 0, frequency, averaged))
        self.steps += 1
        low, high = self.options.frequency_range
        change = (self.frequency < low).float() - (self.frequency > high).float()
        boosted = self.boost + self.options.boost_step * change
        due = self.steps % self.options.boost_every == 0
        self.boost.copy_(torch.where(due, boosted.clamp_min(1), self.boost))


def build(options: SparseCapsOptions, image_shape: tuple[int, int, int], classes: int) -> SparseCaps:
    return SparseCaps(options, image_shape)
