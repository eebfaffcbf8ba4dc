"""The models without any fast path, to measure what the fast paths gain: convolutions, votes and routing as a reader of
the papers would write them in PyTorch, with loops over the iterations and automatic differentiation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from recaps.nn import convolution, kernels, layers
from recaps.nn.routing import dynamic, interface
from recaps.nn.routing.interface import Routed
from recaps.nn.squash import squash


@contextmanager
def plain() -> Iterator[None]:
    """Compute without the fast paths within this context. Matrix capsules have plain versions of their own."""
    products = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    with ExitStack() as stack:
        stack.enter_context(kernels.off())
        stack.callback(setattr, products, "fp32_precision", products.fp32_precision)
        products.fp32_precision = "ieee"  # PyTorch's default library
        for module, name, slow in (
            (convolution, "convolve", convolve),
            (layers, "convolve", convolve),
            (layers, "votes", votes),
            (interface, "votes", votes),
            (dynamic, "dynamic_routing", dynamic_routing),
        ):
            stack.enter_context(patch.object(module, name, slow))
        yield


def convolve(images: Tensor, weight: Tensor, stride: int) -> Tensor:
    """`recaps.nn.convolution.convolve`."""
    return conv2d(images, weight, stride=stride)


def votes(capsules: Tensor, weight: Tensor) -> Tensor:
    """`recaps.nn.layers.votes`: [B, I, d] and [I, d, J, D] to [B, I, J, D]."""
    return torch.einsum("bid,idjk->bijk", capsules, weight)


def dynamic_routing(
    votes: Tensor, bias: Tensor, iterations: int = 3, gradient: str = "all", leaky: bool = False
) -> Routed:
    """`recaps.nn.routing.dynamic.dynamic_routing`."""
    logits = votes.new_zeros(votes.shape[:3])
    for iteration in range(iterations):
        coupling = (pad(logits, (0, 1)) if leaky else logits).softmax(2)[:, :, : votes.shape[2]]
        weights = coupling.detach() if gradient == "last" else coupling
        capsules = squash((weights.unsqueeze(3) * votes).sum(1) + bias)
        if iteration < iterations - 1:
            logits = logits + (votes * capsules.unsqueeze(1)).sum(3)
    return Routed(capsules, coupling.detach())
