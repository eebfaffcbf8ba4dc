"""The convolutional baseline in the released code of SUPCAPS."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from recaps.errors import UserError
from recaps.models.model import Batch, Model
from recaps.models.options import ConvNetOptions
from recaps.nn.convolution import Convolution
from recaps.nn.precision import float32


class ConvNet(Model):
    """Convolutions with ReLU and, if wanted, 2x2 max pooling; a hidden layer with ReLU; and a linear layer.

    Maps images [B, C, H, W] to class scores (logits) [B, classes].
    """

    def __init__(self, options: ConvNetOptions, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, height, width = image_shape
        layers: list[nn.Module] = []
        for wide in options.channels:
            layers += [Convolution(channels, wide, options.kernel), nn.ReLU()]
            channels, height, width = wide, height - options.kernel + 1, width - options.kernel + 1
            if options.pooling:
                layers.append(nn.MaxPool2d(2))
                height, width = height // 2, width // 2
            if min(height, width) < 1:
                raise UserError(
                    f"model: images of {image_shape[1]}x{image_shape[2]} are too small for its convolutions"
                )
        layers += [nn.Flatten(), nn.Linear(channels * height * width, options.hidden), nn.ReLU()]
        self.features = nn.Sequential(*layers)
        self.scores = nn.Linear(options.hidden, options.classes)

    def forward(self, images: Tensor) -> Tensor:
        features = self.features(images)
        with float32(images):  # bfloat16 scores would tie
            return self.scores(features.float())

    def losses(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """The cross-entropy of the labels as `loss`, and the `accuracy`."""
        scores = self(batch["images"])
        accuracy = (scores.argmax(1) == batch["labels"]).float().mean()
        return {"loss": cross_entropy(scores, batch["labels"]), "accuracy": accuracy}

    def class_scores(self, images: Tensor) -> Tensor:
        scores: Tensor = self(images)
        return scores

    def latents(self, images: Tensor) -> dict[str, Tensor]:
        """The class `scores` [B, classes], and the values of the `hidden` units [B, hidden]."""
        hidden = self.features(images)
        return {"scores": self.scores(hidden), "hidden": hidden}


def build(options: ConvNetOptions, image_shape: tuple[int, int, int], classes: int) -> ConvNet:
    options.check_classes(classes)
    return ConvNet(options, image_shape)
