"""Products of expert capsules: their energy, and the contrastive-divergence updates of a capsule layer.

*Training products of expert capsules with mixing by dynamic routing*, sections 3 and 4.1. I input capsules x of d
dimensions and J output capsules of D dimensions have a matrix for each pair, `weight` [I, d, J, D] as in
`recaps.nn.layers.Votes`, and the coupling c [B, I, J] of cosine routing. The probability that a capsule is on is its
length after the squash. By default nothing is sampled, and capsules are mixed as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from recaps.nn.squash import squash


def sphere(sums: Tensor) -> Tensor:
    """The point that z_j stands for where all directions are possible: z_j itself."""
    return sums


def energy(sums: Tensor, firing: Tensor) -> Tensor:
    """Return the energy -sum_j log(|z_j|^2) |x_j| (eq. 7), one value per image.

    Args:
        sums: z, [B, J, D].
        firing: 1 where an output capsule is on, else 0; [B, J].
    """
    return -torch.xlogy(firing, sums.square().sum(2)).sum(1)


def log_marginal(sums: Tensor) -> Tensor:
    """Return sum_j log(1 + |z_j|^2), the logarithm of eq. 10 up to log Z: [B, J, D] to [B]."""
    return sums.square().sum(2).log1p().sum(1)


class EncoderUpdate(NamedTuple):
    """The update of W and its intermediate results (algorithm 1)."""

    change: Tensor
    """Delta W, [I, d, J, D], a mean over the images."""
    sums: Tensor
    """What an output capsule can be that is nearest to z_j = sum_i c_ij W_ij x_i of the data, [B, J, D]."""
    inputs: Tensor
    """Reconstructed input capsules, x~_i = squash(sum_j c_ij W_ij^T squash(z_j)), [B, I, d]; with capsules that are on
    or off, z_j / |z_j| or 0 takes the place of squash(z_j)."""
    sums_again: Tensor
    """The same for z~_j = sum_i c_ij W_ij x~_i, [B, J, D]."""


def encoder_update(
    capsules: Tensor,
    coupling: Tensor,
    weight: Tensor,
    uniform: Tensor | None = None,
    nearest: Callable[[Tensor], Tensor] = sphere,
) -> EncoderUpdate:
    """Compute the update of algorithm 1: mix once under a fixed coupling, then apply eq. 18 to data and mixed capsules.

    Args:
        capsules: x_i, squashed, [B, I, d].
        coupling: [B, I, J], taken as a constant.
        weight: W, [I, d, J, D].
        uniform: [B, J], between 0 and 1. An output capsule that mixes is on, with length 1, where this is below its
            length. None: capsules are mixed as they are.
        nearest: what an output capsule can be, as a map of z_j [B, J, D].
    """
    sums = nearest(mixed(capsules, coupling, weight))
    outputs = squash(sums)
    if uniform is not None:
        on = uniform < outputs.norm(dim=2)
        outputs = on.unsqueeze(2) * normalize(sums, dim=2)
    inputs = squash(mixed_back(outputs, coupling, weight))
    sums_again = nearest(mixed(inputs, coupling, weight))
    data = correlation(capsules, coupling, shrunk(sums))
    model = correlation(inputs, coupling, shrunk(sums_again))
    return EncoderUpdate(2 / len(capsules) * (data - model), sums, inputs, sums_again)


class DecoderUpdate(NamedTuple):
    """The update of U and its intermediate results (section 4.1)."""

    change: Tensor
    """Delta U, [J, D, I, d], a mean over the images."""
    sums: Tensor
    """z~_i = sum_j e_ji U_ji x_j, [B, I, d]."""
    capsules: Tensor
    """x~_j = squash(nearest(sum_i e_ji U_ji^T z~_i)), [B, J, D]."""


def decoder_update(
    capsules: Tensor, coupling: Tensor, weight: Tensor, targets: Tensor, nearest: Callable[[Tensor], Tensor] = sphere
) -> DecoderUpdate:
    """Compute the update of section 4.1: eq. 18 with the encoder's inputs as data and the decoder's outputs as model.

    Args:
        capsules: x_j of the encoder, squashed, [B, J, D].
        coupling: e, [B, J, I], taken as a constant.
        weight: U, [J, D, I, d].
        targets: z_i, the encoder's inputs before the squash, [B, I, d].
        nearest: what an output capsule can be, as a map of its sum before the squash, [B, J, D].
    """
    sums = mixed(capsules, coupling, weight)
    again = squash(nearest(mixed_back(sums, coupling, weight)))
    data = correlation(capsules, coupling, shrunk(targets))
    model = correlation(again, coupling, shrunk(sums))
    return DecoderUpdate(2 / len(capsules) * (data - model), sums, again)


def shrunk(sums: Tensor) -> Tensor:
    """Return z / (1 + |z|^2): [..., D] to [..., D]."""
    return sums / (1 + sums.square().sum(-1, keepdim=True))


# The functions below order arrays by the side with fewer, longer capsules first, then by image. Each use of the weights
# is then one matrix product per such capsule.


def mixed(capsules: Tensor, coupling: Tensor, weight: Tensor) -> Tensor:
    """Return z_j = sum_i c_ij W_ij x_i (eq. 3).

    Args:
        capsules: [B, I, d].
        coupling: [B, I, J].
        weight: [I, d, J, D].

    Returns:
        [B, J, D].
    """
    if capsules.shape[2] > weight.shape[3]:
        votes = torch.bmm(capsules.transpose(0, 1), weight.flatten(2)).unflatten(2, weight.shape[2:])  # [I, B, J, D]
        return (_by_input(coupling).unsqueeze(3) * votes).sum(0)
    weighed = _by_input(coupling.transpose(1, 2)).unsqueeze(3) * capsules  # [J, B, I, d]
    return torch.bmm(weighed.flatten(2), weight.flatten(0, 1).transpose(0, 1)).transpose(0, 1)


def mixed_back(capsules: Tensor, coupling: Tensor, weight: Tensor) -> Tensor:
    """Return z_i = sum_j c_ij W_ij^T x_j: [B, J, D], [B, I, J] and [I, d, J, D] to [B, I, d]."""
    return mixed(capsules, coupling.transpose(1, 2), weight.permute(2, 3, 0, 1))


def correlation(capsules: Tensor, coupling: Tensor, directions: Tensor) -> Tensor:
    """Return the sum over images of c_ij x_i g_j^T.

    Args:
        capsules: x, [B, I, d].
        coupling: [B, I, J].
        directions: g, [B, J, D].

    Returns:
        [I, d, J, D].
    """
    if capsules.shape[2] > directions.shape[2]:
        return correlation(directions, coupling.transpose(1, 2), capsules).permute(2, 3, 0, 1)
    weighed = _by_input(coupling.transpose(1, 2)).unsqueeze(3) * capsules  # [J, B, I, d]
    sums = torch.bmm(weighed.flatten(2).transpose(1, 2), directions.transpose(0, 1))  # [J, I*d, D]
    return sums.unflatten(1, capsules.shape[1:]).permute(1, 2, 0, 3)


def _by_input(coupling: Tensor) -> Tensor:
    """Reorder [B, I, J] to [I, B, J], contiguous in memory."""
    return coupling.transpose(0, 1).contiguous()
