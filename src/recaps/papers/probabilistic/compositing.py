"""Layers drawn over each other, with a hand-written gradient: the operation `over` of the paper on a black canvas."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def over(layers: Tensor, presence: Tensor) -> tuple[Tensor, Tensor]:
    """Draw each layer over the previous ones. A layer's presence multiplies its alpha.

    Args:
        layers: values and, as the last channel, alphas, [B, n, C + 1, H, W].
        presence: t_j, [B, n].

    Returns:
        The picture [B, C, H, W], and the visible share of each layer, t_j alpha_j prod_{k > j} (1 - t_k alpha_k),
        [B, n, H, W]. The shares carry no gradient.
    """
    picture, shares = _Over.apply(layers, presence)
    return picture, shares


class _Over(torch.autograd.Function):
    """Goes through the layers one by one, so that the values of a layer stay in the cache."""

    @staticmethod
    def forward(ctx: Any, layers: Tensor, presence: Tensor) -> tuple[Tensor, Tensor]:
        shares = presence[..., None, None] * layers[:, :, -1]
        picture, clear = torch.zeros_like(layers[:, 0, :-1]), torch.ones_like(shares[:, 0])
        for j in reversed(range(layers.shape[1])):
            shares[:, j] *= clear
            clear -= shares[:, j]  # clear (1 - t alpha)
            picture.addcmul_(layers[:, j, :-1], shares[:, j].unsqueeze(1))
        ctx.save_for_backward(layers, presence, shares)
        ctx.mark_non_differentiable(shares)
        return picture, shares

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_picture: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        """With g_j the gradient times the values of layer j, and t_j alpha_j = a_j, the gradient of a_j is
        (g_j - r_j) prod_{k > j} (1 - a_k), where r_j = a_{j-1} g_{j-1} + (1 - a_{j-1}) r_{j-1} is g as drawn below."""
        layers, presence, shares = ctx.saved_tensors
        grad_layers, grad_presence = torch.empty_like(layers), torch.empty_like(presence)
        alphas, grad_alphas, t = layers[:, :, -1], grad_layers[:, :, -1], presence[..., None, None]
        below, clear = torch.zeros_like(shares[:, 0]), torch.ones_like(shares[:, 0])
        for j in range(layers.shape[1]):
            torch.mul(grad_picture, shares[:, j].unsqueeze(1), out=grad_layers[:, j, :-1])
            torch.sub((grad_picture * layers[:, j, :-1]).sum(1), below, out=grad_alphas[:, j])
            below += t[:, j] * alphas[:, j] * grad_alphas[:, j]
        for j in reversed(range(layers.shape[1])):
            grad_alphas[:, j] *= clear
            grad_presence[:, j] = (grad_alphas[:, j] * alphas[:, j]).sum((1, 2))
            grad_alphas[:, j] *= t[:, j]
            clear -= shares[:, j]
        return grad_layers, grad_presence
