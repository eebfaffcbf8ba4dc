"""The unsupervised networks of *Sparse Unsupervised Capsules Generalize Better*.

Both are the network of SUPCAPS, trained without labels to reconstruct the image:

- `dense` uses all latent capsules (section 2.1);
- `sparse`, SPARSECAPS, uses the few capsules with the largest routing coefficients (section 2.2), and boosts capsules
  that it rarely uses (section 2.3).
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor, nn

from recaps.models.model import Batch
from recaps.models.network import CapsuleNetwork, ranks, support
from recaps.nn.layers import votes
from recaps.nn.losses.squares import summed_squared_error
from recaps.nn.routing.dynamic import dynamic_routing
from recaps.nn.routing.interface import Routed
from recaps.papers.sparse.options import SparseCapsOptions


class SparseCaps(CapsuleNetwork):
    """Latent capsules that reconstruct the image, with or without the sparse mask. Shapes are as in the base class."""

    options: SparseCapsOptions
    settled = False  # whether boosts no longer change in this training step

    def __init__(self, options: SparseCapsOptions, image_shape: tuple[int, int, int]) -> None:
        super().__init__(options, image_shape)
        self.boosting = Boosting(options) if options.learning == "sparse" else None

    def forward(self, images: Tensor) -> Routed:
        if self.boosting is None or self.options.boosts == "mask":
            return super().forward(images)
        how, capsules = self.options.routing, self.primary_capsules(images)
        # A factor of the coupling is a term of the softmax's logits.
        prior = self.boosting.boost.log()
        each = votes(capsules, self.votes.weight)
        return Routed(*dynamic_routing(each, self.bias, how.iterations, how.gradient, how.leaky, prior))

    def mask(self, supports: Tensor) -> Tensor:
        """The mask m [B, L] of the decoder's input m * v (eq. 4): ones if dense, else by boosted rank (eqs. 1-3)."""
        return torch.ones_like(supports) if self.boosting is None else self.boosting.mask(supports)

    def support(self, coupling: Tensor) -> Tensor:
        """Routing support psi of each latent capsule: [B, I, L] to [B, L]."""
        return support(coupling, self.options.primary_types, self.options.mask_grouping)

    def ranks(self, supports: Tensor) -> Tensor:
        """Rank of each capsule in its image, 0 for the largest support, boosted if sparse: [B, L] to int64 [B, L]."""
        return ranks(supports) if self.boosting is None else self.boosting.ranks(supports)

    def schedule(self, step: int) -> Hashable:
        super().schedule(step)
        self.settled = self.training_options.steps - (step + 1) < self.options.settle_steps
        return self.settled

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return `loss`, the squared error of the reconstruction, summed over pixels, as a mean over the images."""
        images = batch["images"]
        routed = self(images)
        supports = self.support(routed.coupling)
        reconstructions = self.decode(routed.capsules, self.mask(supports))
        if self.boosting is not None and self.training:
            self.boosting.observe(supports, update=not self.settled)
        return {"loss": summed_squared_error(reconstructions, images).mean()}

    def reconstruct(self, images: Tensor) -> Tensor:
        """Decode all capsules if dense, else those of the mask."""
        routed = self(images)
        return self.decode(routed.capsules, self.mask(self.support(routed.coupling)))

    def latents(self, images: Tensor) -> dict[str, Tensor]:
        """Return `capsules` [B, L, D]; routing `support`, `ranks` (0 for the largest, boosted if sparse) and `mask`
        [B, L]; and `reconstruction_error` [B], squared and summed over pixels."""
        routed = self(images)
        supports = self.support(routed.coupling)
        mask = self.mask(supports)
        return {
            "capsules": routed.capsules,
            "support": supports,
            "ranks": self.ranks(supports),
            "mask": mask,
            "reconstruction_error": summed_squared_error(self.decode(routed.capsules, mask), images),
        }


class Boosting(nn.Module):
    """The sparse mask of section 2.2 and the lifetime sparsity of section 2.3.

    The state of each latent capsule is a moving average of its rank-0 frequency mu, and the boost g of its support.
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
        """Rank of the boosted support z = psi * g in its image, 0 for the largest (eqs. 1, 2): [B, L] to [B, L]."""
        return ranks(support * self.boost if self.options.boosts == "mask" else support)

    def mask(self, support: Tensor) -> Tensor:
        """m = exp(-gamma r / (L - 1)), zero where small (eq. 3): [B, L] to [B, L]."""
        relative = self.ranks(support) / (support.shape[1] - 1)
        mask = torch.exp(-self.options.mask_decay * relative)
        return mask * (mask >= self.options.mask_floor)

    @torch.no_grad()
    def observe(self, support: Tensor, update: bool = True) -> None:
        """Update the state after a training batch: mu by eqs. 5-7, g by algorithm 1. The latter only with `update`."""
        frequency = (self.ranks(support) == 0).float().mean(0)
        decay = self.options.frequency_decay
        # As in the released code, the average starts at the first batch, not at zero.
        averaged = decay * self.frequency + (1 - decay) * frequency
        self.frequency.copy_(torch.where(self.steps == 0, frequency, averaged))
        self.steps += 1
        low, high = self.options.frequency_range
        change = (self.frequency < low).float() - (self.frequency > high).float()
        boosted = self.boost + self.options.boost_step * change
        due = (self.steps % self.options.boost_every == 0) & update
        self.boost.copy_(torch.where(due, boosted.clamp_min(1), self.boost))


def build(options: SparseCapsOptions, image_shape: tuple[int, int, int], classes: int) -> SparseCaps:
    from recaps.papers.sparse.deeper import DeeperSparseCaps

    return (SparseCaps if options.layers == 1 else DeeperSparseCaps)(options, image_shape)
