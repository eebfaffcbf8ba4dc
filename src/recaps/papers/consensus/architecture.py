"""What the code of matrix capsules gives without results of a training: shapes, counts, clusterings, kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from recaps.npz import Array

if TYPE_CHECKING:
    from recaps.papers.consensus.matrixcaps import MatrixCaps


def build(config: Mapping[str, Any]) -> MatrixCaps:
    """A model as that of a run was before training, of its `model`, `image_shape` and `classes`."""
    from recaps.papers.consensus.matrixcaps import MatrixCaps
    from recaps.papers.consensus.options import MatrixCapsOptions

    return MatrixCaps(
        MatrixCapsOptions.model_validate(config["model"]), tuple(config["image_shape"]), config["classes"]
    )


def output_shapes(model: MatrixCaps, image_shape: Sequence[int]) -> list[str]:
    """What input, convolution, batch normalisation, primary capsules and capsule layers give for one image.

    Each is height x width x channels or types of capsules, e.g. 6x6x16.
    """
    import torch

    seen: dict[Any, Any] = {}
    layers: list[Any] = [model.conv, model.norm, model.primary, *model.layers]
    hooks = [layer.register_forward_hook(lambda each, _, output: seen.update({each: output})) for layer in layers]
    with torch.inference_mode():
        model.eval()(torch.zeros(1, *image_shape))
    for hook in hooks:
        hook.remove()
    shapes = [(*image_shape[1:], image_shape[0])]
    for layer in (model.conv, model.norm):
        _, channels, height, width = seen[layer].shape
        shapes.append((height, width, channels))
    shapes.append((height, width, seen[model.primary][0].shape[1] // (height * width)))
    for layer in layers[3:]:
        _, positions, types, _ = seen[layer].poses.shape
        assert positions == layer.fields.height * layer.fields.width
        shapes.append((layer.fields.height, layer.fields.width, types))
    return ["x".join(map(str, shape)) for shape in shapes]


def layer_details(model: MatrixCaps) -> list[str]:
    """Kernel, stride and channels, in table 1's words, of the layers of `output_shapes`."""
    primary = _convolution(model.primary.pose, model.primary.activation.out_channels)
    details = ["", _convolution(model.conv, model.conv.out_channels), "", primary]
    for types, layer in zip(model.options.types, list[Any](model.layers), strict=True):
        (positions, slots), outputs = layer.fields.children.shape, layer.transform.weight.shape[1]
        if positions == 1 and slots == layer.fields.inputs:
            details.append(f"flatten, O={outputs}")
        else:
            stride = int(layer.fields.children[1, 0] - layer.fields.children[0, 0]) // types
            details.append(f"K={math.isqrt(slots // types)}, S={stride}, Ch={outputs}")
    return details


def _convolution(layer: Any, channels: int) -> str:
    return f"K={layer.kernel_size[0]}, S={layer.stride[0]}, Ch={channels}"


def layer_weights(model: MatrixCaps) -> list[int | None]:
    """Numbers of weights of the layers of `output_shapes`, without routing's."""
    parts = [model.conv, model.norm, model.primary, *(layer.transform for layer in list[Any](model.layers))]
    return [None, *(sum(each.numel() for each in part.parameters()) for part in parts)]


def weights_without_routing(model: MatrixCaps) -> int:
    """Number of all weights but those of batch normalisation and of the routings."""
    kept = [each for name, each in model.named_parameters() if "norm." not in name and ".routing." not in name]
    return sum(each.numel() for each in kept)


def routing_parameters(model: MatrixCaps) -> list[int]:
    """Numbers of parameters of the three routings themselves."""
    return [sum(each.numel() for each in layer.routing.parameters()) for layer in list[Any](model.layers)]


def network_parameters(model: MatrixCaps, place: int) -> dict[str, int]:
    """Parameters of a connectionist routing: of its `cell`, and of its networks `compatibility` and `activation`."""
    routing: Any = list[Any](model.layers)[place].routing
    counts = {"cell": 0, "compatibility": 0, "activation": 0}
    for name, parameter in routing.named_parameters():
        part = name.split(".")[0]
        counts[part if part in counts else "cell"] += parameter.numel()
    return counts


def toy_votes() -> tuple[Array, Array]:
    """Votes in the plane [60, 2] and their activations [60]: a cluster of 30, an active one of 20, and 10 outliers."""
    draw = np.random.default_rng(0)
    clusters = [draw.normal(centre, 0.3, (n, 2)) for centre, n in (((-1.2, 0.3), 30), ((1.2, -0.3), 20))]
    votes = np.concatenate([*clusters, draw.uniform((-2.4, -1.8), (2.4, 1.8), (10, 2))])
    ranges = ((0.1, 0.4, 30), (0.7, 1.0, 20), (0.1, 1.0, 10))
    return votes, np.concatenate([draw.uniform(low, high, n) for low, high, n in ranges])


def cluster(
    votes: Array, activations: Array, penalties: Sequence[tuple[float, float]], width: float, rounds: int = 500
) -> tuple[Array, Array]:
    """Similarity clustering under one Gaussian, as the layers do it: eq. 11 and the weighted mean in turns.

    Args:
        votes: [n, D].
        activations: [n].
        penalties: J pairs of lambda_1 and lambda_2.
        width: of the kernel.
        rounds: iterations; the default is enough for figure 2's to stand still.

    Returns:
        compatibilities [J, n] and poses [J, D].
    """
    import torch

    from recaps.nn.routing.similarity import SMALL, compatibilities, mixture_kernel

    lambda1, lambda2 = torch.tensor(penalties, dtype=torch.float64).T
    spread = torch.tensor(votes)[None, None, :, None].expand(-1, -1, -1, len(penalties), -1)
    seen = (torch.tensor(activations) + SMALL).log()[None, None, :, None]
    mixture, precisions = torch.ones(1).double(), torch.full((1, 1), 1 / (2 * width**2)).double()
    pose = spread.mean(2)
    for _ in range(rounds):
        similarity = mixture_kernel(spread, pose, mixture, precisions)
        shares = compatibilities(similarity, seen, lambda2, lambda1 + lambda2 + SMALL)
        pose = (shares.unsqueeze(4) * spread).sum(2)
    return shares[0, 0].T.numpy(), pose[0, 0].numpy()


def kernel(distances: Array, mixture: Array, widths: Array) -> Array:
    """K of eq. 15 at some distances [n], of logits of the mixture's weights [Q] and widths [Q, J]: [n, J]."""
    import torch

    from recaps.nn.routing.similarity import SMALL, mixture_kernel

    weights, width = torch.tensor(mixture).double().softmax(0), torch.tensor(widths).double()
    votes = torch.tensor(distances).double()[None, None, :, None, None].expand(-1, -1, -1, widths.shape[1], 1)
    return mixture_kernel(votes, 0 * votes[:, :, 0], weights, 1 / (2 * width.square() + SMALL))[0, 0].numpy()
