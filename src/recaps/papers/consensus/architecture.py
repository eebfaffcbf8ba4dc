"""Shapes and numbers of weights of the network of table 1, measured on networks before training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recaps.papers.consensus.matrixcaps import MatrixCaps


def network(config: Mapping[str, Any]) -> MatrixCaps:
    """An untrained network, from the `model`, `image_shape` and `classes` of a run's settings."""
    from recaps.papers.consensus.matrixcaps import MatrixCaps
    from recaps.papers.consensus.options import MatrixCapsOptions

    options = MatrixCapsOptions.model_validate(config["model"])
    return MatrixCaps(options, tuple(config["image_shape"]), config["classes"])


def paper_config(routing: str) -> dict[str, Any]:
    """The setting in which the paper counts its weights: the family's defaults, one channel of 32x32, five classes."""
    return {"model": {"routing": {"name": routing}}, "image_shape": (1, 32, 32), "classes": 5}


def output_shapes(model: MatrixCaps, image_shape: Sequence[int]) -> list[str]:
    """Output shapes for one image, of the input, convolution, batch normalisation, primary capsules and capsule layers.

    A shape is height x width x channels, or types of capsules, e.g. 6x6x16.
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
    """Kernel, stride and channels of the layers of `output_shapes`, as table 1 writes them."""
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
    """Numbers of weights of the layers of `output_shapes`, without those of the routing."""
    parts = [model.conv, model.norm, model.primary, *(layer.transform for layer in list[Any](model.layers))]
    return [None, *(sum(each.numel() for each in part.parameters()) for part in parts)]


def weights_without_routing(model: MatrixCaps) -> int:
    """Number of weights without those of batch normalisation and of the routings."""
    kept = [each for name, each in model.named_parameters() if "norm." not in name and ".routing." not in name]
    return sum(each.numel() for each in kept)


def routing_parameters(model: MatrixCaps) -> list[int]:
    """Numbers of parameters of the routing of each capsule layer."""
    return [sum(each.numel() for each in layer.routing.parameters()) for layer in list[Any](model.layers)]


def network_parameters(model: MatrixCaps, place: int) -> dict[str, int]:
    """Numbers of parameters of connectionist routing: of its `cell`, `compatibility` and `activation` network."""
    routing: Any = list[Any](model.layers)[place].routing
    counts = {"cell": 0, "compatibility": 0, "activation": 0}
    for name, parameter in routing.named_parameters():
        part = name.split(".")[0]
        counts[part if part in counts else "cell"] += parameter.numel()
    return counts
