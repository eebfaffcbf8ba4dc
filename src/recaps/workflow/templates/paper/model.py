"""The model of the paper `example`."""

from __future__ import annotations

from torch import Tensor

from recaps.models.model import Batch
from recaps.models.network import CapsuleNetwork
from recaps.nn.losses.classes import correct
from recaps.nn.losses.margin import margin_loss
from recaps.workflow.templates.paper.options import ExampleOptions


class Example(CapsuleNetwork):
    """A capsule per class; its length is the score of the class."""

    options: ExampleOptions

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the `loss` to be minimised, and other scalars for the history."""
        scores, labels = self.class_scores(batch["images"]), batch["labels"]
        loss = margin_loss(scores, labels, weight=self.options.absent).sum(1).mean()
        return {"loss": loss, "accuracy": correct(scores, labels).float().mean()}

    def class_scores(self, images: Tensor) -> Tensor:
        """Return the lengths of the class capsules, [B, C, H, W] to [B, classes]."""
        lengths: Tensor = self(images).capsules.norm(dim=2)
        return lengths

    def latents(self, images: Tensor) -> dict[str, Tensor]:
        """Return `capsules` [B, classes, D] and `scores` [B, classes]."""
        capsules = self(images).capsules
        return {"capsules": capsules, "scores": capsules.norm(dim=2)}


def build(options: ExampleOptions, image_shape: tuple[int, int, int], classes: int) -> Example:
    options.check_classes(classes)
    return Example(options, image_shape)
