"""The network of SUPCAPS (*Dynamic Routing Between Capsules*), on which several families build."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, one_hot

from recaps.errors import UserError
from recaps.models.model import Model
from recaps.models.options import Network, RoutedNetwork
from recaps.nn.convolution import padded, size_after
from recaps.nn.initial import initialise
from recaps.nn.layers import Decoder, PrimaryCapsules, Votes
from recaps.nn.routing import registry
from recaps.nn.routing.interface import Routed, VoteRouting

KERNEL = 9
STRIDE = 2


class CapsuleNetwork(Model):
    """A convolution, primary capsules, routed capsules and a decoder.

    Maps images [B, C, H, W] to L capsules [B, L, D] and the coupling [B, I, L] of the I primary capsules.
    """

    options: Network
    routing: VoteRouting

    def __init__(self, options: Network, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.options = options
        self.same = options.padding == "same"
        height, width = (self._locations(pixels, image_shape) for pixels in image_shape[1:])
        inputs = options.primary_types * height * width
        if isinstance(options, RoutedNetwork):
            self.routing = registry.build(options.routing, inputs, options.capsules, options.capsule_dim)
        self.conv = initialise(nn.Conv2d(image_shape[0], options.conv_channels, KERNEL), std=0.05)
        self.primary = PrimaryCapsules(
            options.conv_channels, options.primary_types, options.primary_dim, self.same, _leaky(options)
        )
        self.votes = Votes(inputs, options.primary_dim, options.capsules, options.capsule_dim)
        self.bias = nn.Parameter(torch.full((options.capsules, options.capsule_dim), 0.1))
        self.decoder = (
            None
            if options.decoder is None
            else Decoder(options.capsules * options.capsule_dim, options.decoder, image_shape)
        )

    def forward(self, images: Tensor) -> Routed:
        return self.routing.routed(self.primary_capsules(images), self.votes.weight, self.bias)

    def primary_capsules(self, images: Tensor) -> Tensor:
        """Images [B, C, H, W] to primary capsules [B, I, d]."""
        features = self.conv(padded(images, KERNEL, 1) if self.same else images)
        if self.options.activation == "leaky_relu":
            return self.primary(leaky_relu(features, self.options.leaky_slope))
        return self.primary(features.relu())

    def decode(self, capsules: Tensor, mask: Tensor) -> Tensor:
        """Decode capsules [B, L, D], each multiplied by its mask value [B, L], to images [B, C, H, W]."""
        assert self.decoder is not None
        return self.decoder((capsules * mask.unsqueeze(2)).flatten(1))

    def traverse(self, capsules: Tensor, mask: Tensor, active: Tensor, values: Tensor, *, relative: bool) -> Tensor:
        """Decode capsules while each dimension of one capsule per image varies.

        Args:
            capsules: [B, L, D].
            mask: [B, L].
            active: the capsule that varies in each image, [B].
            values: values of the dimension, [n].
            relative: add `values` to the dimension instead of setting it to them.

        Returns:
            Images [B, D, n, C, H, W].
        """
        chosen = one_hot(active, mask.shape[1]).bool()
        pictures = []
        for dimension in range(capsules.shape[2]):
            for value in values:
                moved = capsules.clone()
                old = moved[..., dimension]
                moved[..., dimension] = torch.where(chosen, old + value if relative else value, old)
                pictures.append(self.decode(moved, mask))
        return torch.stack(pictures, 1).unflatten(1, (capsules.shape[2], len(values)))

    def own_operations(self, images: int) -> int:
        """Operations of votes and routing; gradients count twice the forward pass."""
        inputs, input_dim, outputs, output_dim = self.votes.weight.shape
        values = images * inputs * outputs * output_dim
        return 3 * (2 * input_dim * values + self.routing.operations(values))

    def _locations(self, pixels: int, image_shape: tuple[int, int, int]) -> int:
        """Number of locations of primary capsules along an axis, after a 9x9 convolution and one of stride 2."""
        if not self.same and min(image_shape[1:]) < 2 * KERNEL - 1:
            raise UserError(
                f"model: images of {image_shape[1]}x{image_shape[2]} are too small for two 9x9 convolutions, which need"
                " 17x17; set model.padding: same"
            )
        return size_after(size_after(pixels, KERNEL, 1, self.same), KERNEL, STRIDE, self.same)


def _leaky(options: Network) -> bool:
    """Whether routing shares the coupling with one more output, which is discarded."""
    routing = getattr(options, "routing", None)
    return bool(getattr(routing, "leaky", False) or getattr(options, "leaky_routing", False))


def support(coupling: Tensor, types: int, grouping: str = "location") -> Tensor:
    """Routing support psi [B, L] of *Sparse Unsupervised Capsules*, section 2.2, from the coupling [B, I, L].

    It is the largest coupling in each group of primary capsules, summed over groups. A group is all `types` at a
    location (`location`), or as many consecutive capsules (`released`).
    """
    if grouping == "location":
        largest = coupling.reshape(len(coupling), types, -1, coupling.shape[2]).amax(1)
    else:
        largest = coupling.reshape(len(coupling), -1, types, coupling.shape[2]).amax(2)
    return largest.sum(1, dtype=torch.float32)


def ranks(values: Tensor) -> Tensor:
    """Rank of each value in its row, int64 [B, L]; the largest value has rank 0."""
    return values.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
