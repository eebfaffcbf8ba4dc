"""Matrix capsules whose consensus is computed by one of three routings: *Learning to compute inner consensus*.

Table 1: convolution with ReLU and batch normalisation, primary capsules, two convolutional capsule layers, class
capsules that see every capsule of the last layer, each through a matrix of its own. Three routings are interchangeable:
EM (*Matrix Capsules with EM Routing*), similarity learning (section 4.1) and the connectionist one (section 4.2).
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from recaps.models.model import Batch, Model
from recaps.nn.fields import Fields, convolutional, everything
from recaps.nn.losses import spread_loss
from recaps.nn.matrix_capsules import PrimaryMatrixCapsules, Transformations, places
from recaps.nn.routing import registry
from recaps.nn.routing.interface import Consensus
from recaps.papers.consensus.options import MatrixCapsOptions


class MatrixCaps(Model):
    """Images [B, C, H, W] to class capsules: poses [B, classes, 16] and activations [B, classes]."""

    adam_epsilon = 1e-9

    def __init__(self, options: MatrixCapsOptions, image_shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.options = options
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
        """The class capsules, with a single position: poses [B, 1, classes, 16], activations [B, 1, classes]."""
        return self.routed(images)[-1]

    def routed(self, images: Tensor) -> list[Consensus]:
        """The output capsules of each capsule layer."""
        poses, activations = self.primary(self.norm(self.conv(images).relu()))
        found: list[Consensus] = []
        for layer in self.layers:
            found.append(layer(poses, activations))
            poses, activations = found[-1].poses.flatten(1, 2), found[-1].activations.flatten(1)
        return found

    def class_scores(self, images: Tensor) -> Tensor:
        return self(images).activations.squeeze(1)

    def losses(self, batch: Batch, step: int) -> dict[str, Tensor]:
        scores, labels = self.class_scores(batch["images"]), batch["labels"]
        if self.options.loss == "spread":
            loss = spread_loss(scores, labels, spread_margin(step, self.training_options.steps)).sum()
        else:
            loss = cross_entropy(scores, labels)
        return {"loss": loss, "accuracy": (scores.argmax(1) == labels).float().mean()}

    def latents(self, images: Tensor) -> dict[str, Tensor]:
        """`capsules`: class poses [B, classes, 16]; `scores` [B, classes]."""
        consensus = self(images)
        return {"capsules": consensus.poses.squeeze(1), "scores": consensus.activations.squeeze(1)}

    def probes(self) -> dict[str, Any]:
        return {"routing": self.routing_weights}

    def routing_weights(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """How input capsules are assigned to output capsules in the last iteration.

        Returns:
            `coupling` [B, h, w, types, classes]: the class layer's; `scores` [B, classes]; and for capsule layer k
            `effective-k` [B, P, J]: the number of inputs that an output capsule listens to, as the exponential of the
            entropy of its assignment, divided by how many there are. 1: all alike.
        """
        routed = self.routed(images)
        last = cast(CapsuleLayer, self.layers[-2])
        grid = (last.fields.height, last.fields.width, self.options.types[2])
        effective = {f"effective-{k}": effective_share(each.coupling) for k, each in enumerate(routed)}
        coupling = routed[-1].coupling.squeeze(1).unflatten(1, grid)
        return {"images": images, "coupling": coupling, "scores": routed[-1].activations.squeeze(1), **effective}


def spread_margin(step: int, steps: int) -> float:
    """The margin of the spread loss, from 0.2 to 0.99 along training, as in the author's code."""
    grown = torch.sigmoid(torch.tensor(min(10.0, step / (steps / 10) - 4)))
    return 0.2 + 0.79 * float(grown)


def effective_share(coupling: Tensor) -> Tensor:
    """exp(entropy) / n of an assignment [B, P, n, J], normalised over its inputs: [B, P, J]."""
    shares = coupling / coupling.sum(2, keepdim=True).clamp_min(1e-30)
    return torch.special.entr(shares).sum(2).exp() / coupling.shape[2]


class CapsuleLayer(nn.Module):
    """Votes of all input capsules in the field of each position, and the routing that makes output capsules of them."""

    seen: Tensor

    def __init__(
        self, options: MatrixCapsOptions, place: int, fields: Fields, side: tuple[int, int], inputs: int, outputs: int
    ) -> None:
        super().__init__()
        self.height, self.width, self.inputs = fields.height, fields.width, fields.inputs
        self.register_buffer("seen", fields.children, persistent=False)
        self.transform = Transformations(fields, outputs, places(*side, inputs) if options.coordinates else None)
        logits = place == 2 and options.loss == "cross_entropy"
        self.routing = registry.build(options.routing, outputs, place, logits)

    @property
    def fields(self) -> Fields:
        return Fields(self.seen, self.inputs, self.height, self.width)

    def forward(self, poses: Tensor, activations: Tensor) -> Consensus:
        if poses.shape[1] != self.inputs:  # compiled routings would read outside the array
            raise ValueError(f"{poses.shape[1]} input capsules, but the layer was built for {self.inputs}")
        consensus: Consensus = self.routing(
            self.transform.placed(poses), activations, self.transform.normalised(), self.fields
        )
        return consensus


def build(options: MatrixCapsOptions, image_shape: tuple[int, int, int], classes: int) -> MatrixCaps:
    return MatrixCaps(options, image_shape, classes)
