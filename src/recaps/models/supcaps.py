"""SUPCAPS: *Dynamic Routing Between Capsules*, the network that the papers build on and compare with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from recaps.errors import UserError
from recaps.models.model import Batch
from recaps.models.network import CapsuleNetwork, ranks, support
from recaps.models.options import SupCapsOptions, Supervised
from recaps.nn.losses import margin_loss, right, summed_squared_error


class SupCaps(CapsuleNetwork):
    """A capsule per class whose length says whether the class is there; shapes as in the base class.

    Labels are [B], or [B, n] where an image shows n classes at once. Each is then reconstructed by itself, from its own
    capsule, by one and the same decoder.
    """

    options: Supervised

    def losses(self, batch: Batch, step: int) -> dict[str, Tensor]:
        return self.losses_of(self(batch["images"]).capsules, batch)

    def losses_of(self, capsules: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Margin loss and, with a decoder, the error of what it makes of each label's capsule."""
        labels = batch["labels"]
        lengths = capsules.norm(dim=2)
        margin = margin_loss(lengths, labels)
        margin = 0.5 * margin.mean() if self.options.loss_scale == "released" else margin.sum(1).mean()
        losses = {"loss": margin, "margin": margin}
        if self.decoder is not None:
            error = self._reconstruction_error(capsules, batch).mean()
            losses["loss"] = margin + self.options.reconstruction_weight * error
            losses["reconstruction_error"] = error
        return losses | {"accuracy": right(lengths, labels).float().mean()}

    def _reconstruction_error(self, capsules: Tensor, batch: Batch) -> Tensor:
        """Squared error [B], summed over pixels and over the classes of an image, each under its own mask."""
        labels = batch["labels"].reshape(len(capsules), -1)
        parts = batch.get("parts", batch["images"].unsqueeze(1))
        masks = one_hot(labels, capsules.shape[1]).to(capsules.dtype)
        errors = [
            summed_squared_error(self.reconstruct(capsules, mask), part)
            for mask, part in zip(masks.unbind(1), parts.unbind(1), strict=True)
        ]
        return torch.stack(errors).sum(0)

    def longest(self, capsules: Tensor) -> Tensor:
        """Mask [B, L] of the longest capsule: what is decoded where no label is given."""
        return one_hot(capsules.norm(dim=2).argmax(1), capsules.shape[1]).to(capsules.dtype)

    def class_scores(self, images: Tensor) -> Tensor:
        lengths: Tensor = self(images).capsules.norm(dim=2)
        return lengths

    def latents(self, images: Tensor) -> dict[str, Tensor]:
        """`capsules` [B, L, D] and their lengths, `scores` [B, L]; routing `support` and its `ranks` (0 the largest)
        [B, L]; the `mask` [B, L] of the longest; with a decoder, its summed squared `reconstruction_error` [B]."""
        routed = self(images)
        supports = support(routed.coupling, self.options.primary_types)
        return {**self.latents_of(routed.capsules, images), "support": supports, "ranks": ranks(supports)}

    def latents_of(self, capsules: Tensor, images: Tensor) -> dict[str, Tensor]:
        """What all supervised networks have."""
        latents = {"capsules": capsules, "scores": capsules.norm(dim=2), "mask": self.longest(capsules)}
        if self.decoder is not None:
            decoded = self.reconstruct(capsules, latents["mask"])
            latents["reconstruction_error"] = summed_squared_error(decoded, images)
        return latents

    def probes(self) -> dict[str, Any]:
        return {"traversals": self.traversals} if self.decoder is not None else {}

    def traversals(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Pictures decoded while each dimension of the label's capsule moves by -0.25 to 0.25 in steps of 0.05.

        Of several labels the first.

        Returns:
            `images` [B, C, H, W]; `decoded` [B, D, 11, C, H, W]; `values` [11]; `capsule` [B]: which one was moved.
        """
        capsules = self(images).capsules
        labels = labels.reshape(len(labels), -1)[:, 0]
        values = torch.linspace(-0.25, 0.25, 11, device=images.device)
        mask = one_hot(labels, capsules.shape[1]).to(capsules.dtype)
        decoded = self.traverse(capsules, mask, labels, values, relative=True)
        return {"images": images, "decoded": decoded, "values": values, "capsule": labels}


def check_classes(capsules: int, classes: int) -> None:
    """Refuse a supervised network without a capsule for each class."""
    if capsules != classes:
        raise UserError(f"model.capsules: {capsules}, but the data has {classes} classes; SUPCAPS needs one for each")


def build(options: SupCapsOptions, image_shape: tuple[int, int, int], classes: int) -> SupCaps:
    check_classes(options.capsules, classes)
    return SupCaps(options, image_shape)
