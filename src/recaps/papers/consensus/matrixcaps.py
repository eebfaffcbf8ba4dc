"""The network of *Learning to compute inner consensus*, table 1, with a routing of your choice.

The network is a convolution with ReLU and batch normalisation, primary capsules, two convolutional capsule layers, and
a layer of class capsules. A class capsule has a matrix of its own for every capsule of the layer below.

The setting `routing` selects one of the modules in `recaps.nn.routing`, among them EM (*Matrix Capsules with EM
Routing*), similarity routing (section 4.1, eqs. 2-13 and 15) and connectionist routing (section 4.2, eq. 14).
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from recaps.models.model import Batch, Model
from recaps.nn import kernels
from recaps.nn.fields import Fields, convolutional, everything
from recaps.nn.losses.spread import spread_loss
from recaps.nn.matrix_capsules import PrimaryMatrixCapsules, Transformations, coordinates
from recaps.nn.routing import registry
from recaps.nn.routing.interface import Consensus
from recaps.papers.consensus.options import MatrixCapsOptions


class MatrixCaps(Model):
    """A network of matrix capsules: images [B, C, H, W] to poses [B, classes, 16] and activations [B, classes]."""

    adam_epsilon = 1e-9
    margin: Tensor

    def __init__(self, options: MatrixCapsOptions, image_shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.options = options
        self.register_buffer("margin", torch.tensor(0.2), persistent=False)  # of the spread loss, at this step
        channels, height, width = image_shape
        height, width = (height - 5) // 2 + 1, (width - 5) // 2 + 1
        primary, first, second = options.types
        self.conv = nn.Conv2d(channels, options.conv_channels, 5, stride=2)
        self.norm = nn.BatchNorm2d(options.conv_channels)
        self.primary = PrimaryMatrixCapsules(options.conv_channels, primary)
        fields = [convolutional(height, width, primary, kernel=3, stride=2)]
        fields.append(convolutional(fields[0].height, fields[0].width, first, kernel=3, stride=1))
        sides = [(height, width), *((each.height, each.width) for each in fields)]
        fields.append(everything(sides[2][0] * sides[2][1] * second))
        self.layers = nn.ModuleList(
            CapsuleLayer(options, place, each, side, inputs, outputs)
            for place, (each, side, inputs, outputs) in enumerate(
                zip(fields, sides, options.types, (first, second, classes), strict=True)
            )
        )

    def forward(self, images: Tensor) -> Consensus:
        """Return the class capsules, at a single position: poses [B, 1, classes, 16], activations [B, 1, classes]."""
        return self.routed(images)[-1]

    def routed(self, images: Tensor) -> list[Consensus]:
        """Return the output capsules of every capsule layer."""
        poses, activations = self.primary(self.norm(self.conv(images).relu()))
        found: list[Consensus] = []
        with nullcontext() if self.options.compiled else kernels.off():
            for layer in self.layers:
                found.append(layer(poses, activations))
                poses, activations = found[-1].poses.flatten(1, 2), found[-1].activations.flatten(1)
        return found

    def class_scores(self, images: Tensor) -> Tensor:
        return self(images).activations.squeeze(1)

    def schedule(self, step: int) -> Hashable:
        self.margin.fill_(spread_margin(step, self.training_options.steps))
        return super().schedule(step)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return `loss`: spread loss, a sum over the images, or cross-entropy, a mean; and the `accuracy`."""
        scores, labels = self.class_scores(batch["images"]), batch["labels"]
        if self.options.loss == "spread":
            loss = spread_loss(scores, labels, self.margin).sum()
        else:
            loss = cross_entropy(scores, labels)
        return {"loss": loss, "accuracy": (scores.argmax(1) == labels).float().mean()}

    def latents(self, images: Tensor) -> dict[str, Tensor]:
        """Return `capsules`, the class poses [B, classes, 16], and `scores`, their activations [B, classes]."""
        consensus = self(images)
        return {"capsules": consensus.poses.squeeze(1), "scores": consensus.activations.squeeze(1)}


def spread_margin(step: int, steps: int) -> float:
    """The margin of the spread loss. It grows from 0.2 to 0.99 during training, as in the author's code."""
    grown = torch.sigmoid(torch.tensor(min(10.0, step / (steps / 10) - 4)))
    return 0.2 + 0.79 * float(grown)


class CapsuleLayer(nn.Module):
    """Computes the votes of the input capsules in the field of each position (eq. 1) and routes them (algorithm 1)."""

    seen: Tensor
    parents: Tensor

    def __init__(
        self, options: MatrixCapsOptions, place: int, fields: Fields, side: tuple[int, int], inputs: int, outputs: int
    ) -> None:
        super().__init__()
        self.height, self.width, self.inputs = fields.height, fields.width, fields.inputs
        self.register_buffer("seen", fields.children, persistent=False)
        self.register_buffer("parents", fields.parents, persistent=False)
        self.transform = Transformations(fields, outputs, coordinates(*side, inputs) if options.coordinates else None)
        logits = place == 2 and options.loss == "cross_entropy"
        self.routing = registry.build(options.routing, outputs, place, logits)

    @property
    def fields(self) -> Fields:
        return Fields(self.seen, self.parents, self.height, self.width)

    def forward(self, poses: Tensor, activations: Tensor) -> Consensus:
        if poses.shape[1] != self.inputs:  # a compiled routing would read outside the array
            raise ValueError(f"{poses.shape[1]} input capsules, but the layer was built for {self.inputs}")
        consensus: Consensus = self.routing.routed(
            self.transform.with_coordinates(poses), activations, self.transform.normalised(), self.fields
        )
        return consensus


def build(options: MatrixCapsOptions, image_shape: tuple[int, int, int], classes: int) -> MatrixCaps:
    return MatrixCaps(options, image_shape, classes)
