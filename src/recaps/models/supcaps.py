"""SUPCAPS (*Dynamic Routing Between Capsules*), the network that the papers extend and compare with."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from recaps.models.model import Batch
from recaps.models.network import CapsuleNetwork, ranks, support
from recaps.models.options import SupCapsOptions, Supervised
from recaps.nn.losses.classes import correct
from recaps.nn.losses.margin import margin_loss
from recaps.nn.losses.squares import summed_squared_error


class SupCaps(CapsuleNetwork):
    """A network with one capsule per class; the capsule's length is the class score.

    Labels are [B], or [B, n] if an image shows n objects. The decoder then reconstructs each object alone, from its
    own capsule.
    """

    options: Supervised

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """The `loss` with its terms `margin` and `reconstruction_error`, and the `accuracy`; see `losses_of`."""
        return self.losses_of(self(batch["images"]).capsules, batch)

    def losses_of(self, capsules: Tensor, batch: Batch) -> dict[str, Tensor]:
        """loss = margin + reconstruction_weight * reconstruction_error, from capsules [B, L, D].

        `margin` is the margin loss (eq. 4). `reconstruction_error` is the mean over images of the squared error, summed
        over pixels, of the images decoded from the labels' capsules (section 4.1); without a decoder the term is left
        out.
        """
        labels = batch["labels"]
        lengths = capsules.norm(dim=2)
        margin = margin_loss(lengths, labels)
        margin = 0.5 * margin.mean() if self.options.loss_scale == "released" else margin.sum(1).mean()
        losses = {"loss": margin, "margin": margin}
        if self.decoder is not None:
            error = self._reconstruction_error(capsules, batch).mean()
            losses["loss"] = margin + self.options.reconstruction_weight * error
            losses["reconstruction_error"] = error
        return losses | {"accuracy": correct(lengths, labels).float().mean()}

    def _reconstruction_error(self, capsules: Tensor, batch: Batch) -> Tensor:
        """Squared error [B], summed over pixels and over the objects in an image."""
        labels = batch["labels"].reshape(len(capsules), -1)
        parts = batch.get("parts", batch["images"].unsqueeze(1))
        masks = one_hot(labels, capsules.shape[1]).to(capsules.dtype)
        errors = [
            summed_squared_error(self.decode(capsules, mask), part)
            for mask, part in zip(masks.unbind(1), parts.unbind(1), strict=True)
        ]
        return torch.stack(errors).sum(0)

    def longest(self, capsules: Tensor) -> Tensor:
        """Mask [B, L] of the longest capsule, which is decoded if there is no label."""
        return one_hot(capsules.norm(dim=2).argmax(1), capsules.shape[1]).to(capsules.dtype)

    def class_scores(self, images: Tensor) -> Tensor:
        lengths: Tensor = self(images).capsules.norm(dim=2)
        return lengths

    def reconstruct(self, images: Tensor) -> Tensor:
        """Decode the longest capsule."""
        capsules = self(images).capsules
        return self.decode(capsules, self.longest(capsules))

    def latents(self, images: Tensor) -> dict[str, Tensor]:
        """`capsules` [B, L, D]; their lengths, `scores` [B, L]; routing `support` [B, L] and its `ranks` [B, L], 0 for
        the largest; the `mask` [B, L] of the longest capsule; with a decoder, the `reconstruction_error` [B]."""
        routed = self(images)
        supports = support(routed.coupling, self.options.primary_types)
        return {**self.latents_of(routed.capsules, images), "support": supports, "ranks": ranks(supports)}

    def latents_of(self, capsules: Tensor, images: Tensor) -> dict[str, Tensor]:
        """The latents of every supervised network: `capsules`, `scores`, `mask` and `reconstruction_error`."""
        latents = {"capsules": capsules, "scores": capsules.norm(dim=2), "mask": self.longest(capsules)}
        if self.decoder is not None:
            decoded = self.decode(capsules, latents["mask"])
            latents["reconstruction_error"] = summed_squared_error(decoded, images)
        return latents


def build(options: SupCapsOptions, image_shape: tuple[int, int, int], classes: int) -> SupCaps:
    options.check_classes(classes)
    return SupCaps(options, image_shape)
