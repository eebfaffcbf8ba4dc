"""The convolutional baseline in the released code of SUPCAPS."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from recaps.errors import UserError
from recaps.models.model import Batch, Model
from recaps.models.options import ConvNetOptions
from recaps.nn.convolution import Convolution
from recaps.nn.initial import initialise
from recaps.nn.losses.margin import margin_loss
from recaps.nn.noise import Noise
from recaps.nn.precision import float32


class ConvNet(Model):
    """Convolutions with ReLU and, if wanted, 2x2 max pooling; hidden layers with ReLU; and a linear layer.

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
        layers.append(nn.Flatten())
        size = channels * height * width
        for hidden in (options.hidden,) if isinstance(options.hidden, int) else options.hidden:
            layers += [nn.Linear(size, hidden), nn.ReLU()]
            size = hidden
        self.features = nn.Sequential(*layers)
        self.scores = nn.Linear(size, options.classes)
        self.loss, self.dropout = options.loss, options.dropout
        if options.dropout:
            self.noise = Noise()
        for layer in self.modules() if options.initial == "released" else ():
            if isinstance(layer, nn.Linear):
                initialise(layer, std=0.1)
            elif isinstance(layer, Convolution):
                initialise(layer, std=0.05)

    def forward(self, images: Tensor) -> Tensor:
        return self._scored(self.features(images))

    def _scored(self, hidden: Tensor) -> Tensor:
        with float32(hidden):  # bfloat16 scores would tie
            return self.scores(hidden.float())

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """The cross-entropy of the labels, or their margin loss, as `loss`; and the `accuracy`."""
        hidden, labels = self.features(batch["images"]), batch["labels"]
        if self.dropout:
            hidden = self.noise.dropout(hidden, self.dropout, "hidden")
        scores = self._scored(hidden)
        accuracy = (scores.argmax(1) == labels).float().mean()
        loss = margin_loss(scores, labels).mean() / 2 if self.loss == "margin" else cross_entropy(scores, labels)
        return {"loss": loss, "accuracy": accuracy}

    def class_scores(self, images: Tensor) -> Tensor:
        scores: Tensor = self(images)
        return scores

    def latents(self, images: Tensor) -> dict[str, Tensor]:
        """The class `scores` [B, classes], and the values of the last `hidden` units [B, hidden]."""
        hidden = self.features(images)
        return {"scores": self.scores(hidden), "hidden": hidden}


def build(options: ConvNetOptions, image_shape: tuple[int, int, int], classes: int) -> ConvNet:
    options.check_classes(classes)
    return ConvNet(options, image_shape)
