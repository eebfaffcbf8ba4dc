"""SUPCAPS, and the unsupervised capsules of *Sparse Unsupervised Capsules Generalize Better*.

One network in three ways of learning:

- `supervised`, SUPCAPS (*Dynamic Routing Between Capsules*): a capsule per class, margin loss on their lengths, and a
  reconstruction from the capsule of the true class alone;
- `dense`: latent capsules without a label, trained by reconstruction from all of them (the paper's section 2.1);
- `sparse`, SPARSECAPS: the same under a mask that leaves each image a few capsules, those with the largest routing
  coefficients (section 2.2), with boosting so that every capsule has its share of images (section 2.3).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from recaps.config.models.capsnet import Options
from recaps.errors import UserError
from recaps.models.model import Batch, Model
from recaps.nn.capsules import Decoder, PrimaryCapsules
from recaps.nn.initial import initialise
from recaps.nn.losses import margin_loss, summed_squared_error
from recaps.nn.routing.dynamic import dynamic_routing
from recaps.nn.routing.routed import Routed
from recaps.nn.votes import Votes


class CapsNet(Model):
    """Convolution, primary capsules, latent capsules by dynamic routing, decoder.

    Shapes, with L latent capsules of D dimensions and I primary capsules: images [B, C, H, W], latent capsules [B, L,
    D], coupling [B, I, L], reconstructions [B, C, H, W].
    """

    def __init__(self, options: Options, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.options = options
        primary = options.primary_types * _primary_side(image_shape[1]) * _primary_side(image_shape[2])
        self.conv = initialise(nn.Conv2d(image_shape[0], options.conv_channels, kernel_size=9), std=0.05)
        self.primary = PrimaryCapsules(options.conv_channels, options.primary_types, options.primary_dim)
        self.votes = Votes(primary, options.primary_dim, options.capsules, options.capsule_dim)
        self.bias = nn.Parameter(torch.full((options.capsules, options.capsule_dim), 0.1))
        self.decoder = Decoder(options.capsules * options.capsule_dim, options.decoder, image_shape)
        self.boosting = Boosting(options) if options.learning == "sparse" else None

    def forward(self, images: Tensor) -> Routed:
        features = self.conv(images).relu()
        votes = self.votes(self.primary(features))
        return dynamic_routing(votes, self.bias, self.options.iterations, self.options.routing_gradient)

    def reconstruct(self, capsules: Tensor, mask: Tensor) -> Tensor:
        """Decode capsules [B, L, D], each multiplied by its mask value [B, L] (eq. 4)."""
        return self.decoder((capsules * mask.unsqueeze(2)).flatten(1))

    def mask(self, routed: Routed, labels: Tensor | None = None) -> Tensor:
        """The mask [B, L] under which the decoder sees the capsules.

        Supervised: the label's capsule, or without a label the longest. Dense: all. Sparse: by boosted rank (eqs. 1-3).
        """
        if self.options.learning == "dense":
            return torch.ones_like(routed.capsules[..., 0])
        if self.boosting is not None:
            return self.boosting.mask(self.support(routed.coupling))
        chosen = routed.capsules.norm(dim=2).argmax(1) if labels is None else labels
        return one_hot(chosen, routed.capsules.shape[1]).to(routed.capsules.dtype)

    def support(self, coupling: Tensor) -> Tensor:
        """Routing support psi [B, L]: the largest coupling of each group of primary capsules, summed over groups."""
        types = self.options.primary_types
        if self.options.mask_grouping == "location":
            largest = coupling.reshape(len(coupling), types, -1, coupling.shape[2]).amax(1)
        else:
            largest = coupling.reshape(len(coupling), -1, types, coupling.shape[2]).amax(2)
        return largest.sum(1, dtype=torch.float32)

    def ranks(self, support: Tensor) -> Tensor:
        """Rank of each capsule in its image, 0 for the largest support (boosted if sparse): [B, L] to int64 [B, L]."""
        return self.boosting.ranks(support) if self.boosting is not None else ranks(support)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        images, labels = batch["images"], batch["labels"]
        routed = self(images)
        mask = self.mask(routed, labels)
        error = summed_squared_error(self.reconstruct(routed.capsules, mask), images).mean()
        if self.options.learning != "supervised":
            if self.boosting is not None and self.training:
                self.boosting.observe(self.support(routed.coupling))
            return {"loss": error}
        lengths = routed.capsules.norm(dim=2)
        margin = margin_loss(lengths, labels)
        margin = 0.5 * margin.mean() if self.options.loss_scale == "released" else margin.sum(1).mean()
        accuracy = (lengths.argmax(1) == labels).float().mean()
        loss = margin + self.options.reconstruction_weight * error
        return {"loss": loss, "margin": margin, "reconstruction_error": error, "accuracy": accuracy}

    def latents(self, images: Tensor) -> dict[str, Tensor]:
        """`capsules` [B, L, D]; `support`, its `ranks` (0 the largest, boosted if sparse) and `mask` [B, L]; summed
        squared `reconstruction_error` [B]; supervised, `scores` [B, L]: the capsules' lengths."""
        routed = self(images)
        support, mask = self.support(routed.coupling), self.mask(routed)
        error = summed_squared_error(self.reconstruct(routed.capsules, mask), images)
        latents = {
            "capsules": routed.capsules,
            "support": support,
            "ranks": self.ranks(support),
            "mask": mask,
            "reconstruction_error": error,
        }
        return latents | ({"scores": routed.capsules.norm(dim=2)} if self.options.learning == "supervised" else {})

    def routing_operations(self, images: int) -> int:
        """Votes, T weighted sums and T - 1 dot products, and twice as much for their gradients."""
        inputs, input_dim, outputs, output_dim = self.votes.weight.shape
        per_value = 2 * input_dim + 2 * (2 * self.options.iterations - 1)
        return 3 * images * inputs * outputs * output_dim * per_value

    def probes(self) -> dict[str, Any]:
        return {"single-capsules": self.single_capsules, "traversals": self.traversals}

    def single_capsules(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """What each capsule adds to the picture (figure 2).

        Returns:
            `images` and `full` [B, C, H, W]; `single` and `without` [B, L, C, H, W]: decoded from capsule l alone, and
            from all but l.
        """
        routed = self(images)
        mask = self.mask(routed)
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
        """Pictures decoded while one dimension of the most active capsule moves (figures 1 and 5).

        Supervised: the label's capsule, by -0.25 to 0.25 around its value, in steps of 0.05, as SUPCAPS did.
        Unsupervised: the capsule of rank 0, set to -1 to 1 in steps of 0.2.

        Returns:
            `images` [B, C, H, W]; `decoded` [B, D, 11, C, H, W]; `values` [11]; `capsule` [B]: which one was moved.
        """
        routed = self(images)
        supervised = self.options.learning == "supervised"
        mask = self.mask(routed, labels if supervised else None)
        active = labels if supervised else self.ranks(self.support(routed.coupling)).argmin(1)
        moved = one_hot(active, mask.shape[1]).bool()
        values = torch.linspace(-1, 1, 11, device=images.device) * (0.25 if supervised else 1)
        rows = []
        for dimension in range(self.options.capsule_dim):
            for value in values:
                capsules = routed.capsules.clone()
                old = capsules[..., dimension]
                capsules[..., dimension] = torch.where(moved, old + value if supervised else value, old)
                rows.append(self.reconstruct(capsules, mask))
        decoded = torch.stack(rows, 1).unflatten(1, (self.options.capsule_dim, len(values)))
        return {"images": images, "decoded": decoded, "values": values, "capsule": active}


class Boosting(nn.Module):
    """The sparse mask of section 2.2 and the lifetime sparsity of section 2.3.

    Keeps two statistics per latent capsule: a moving average of how often it has rank 0, and the boost on its support.
    """

    frequency: Tensor
    boost: Tensor
    steps: Tensor

    def __init__(self, options: Options) -> None:
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


def ranks(values: Tensor) -> Tensor:
    """Rank of each value in its row, 0 the largest: [B, L] to int64 [B, L]."""
    return values.argsort(dim=1, descending=True, stable=True).argsort(dim=1)


def _primary_side(pixels: int) -> int:
    """Locations of primary capsules along an axis: a 9x9 convolution, then one of stride 2."""
    return (pixels - 8 - 9) // 2 + 1


def build(options: Options, image_shape: tuple[int, int, int], classes: int) -> CapsNet:
    if options.learning == "supervised" and options.capsules != classes:
        raise UserError(
            f"model.capsules: {options.capsules}, but the data has {classes} classes; SUPCAPS needs one for each"
        )
    if min(image_shape[1:]) < 17:
        raise UserError(
            f"model: images of {image_shape[1]}x{image_shape[2]} are too small for two 9x9 convolutions (17x17)"
        )
    return CapsNet(options, image_shape)
