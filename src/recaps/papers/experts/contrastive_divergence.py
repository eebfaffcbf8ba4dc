"""Products of expert capsules: their energy, and how the weights of a capsule layer descend contrastive divergence.

*Training products of expert capsules with mixing by dynamic routing*, sections 3 and 4.1. Everywhere I input capsules x
of d dimensions meet J output capsules of D through a matrix for each pair, `weight` [I, d, J, D] as in
`recaps.nn.votes`, under the coupling c [B, I, J] of cosine routing. Nothing is sampled: a capsule's probability of
being on is the length that squash gives it, and capsules are mixed as they are.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from recaps.nn.squash import squash


def energy(sums: Tensor, firing: Tensor) -> Tensor:
    """Eq. 7, -sum_j log(|z_j|^2) |x_j|: one value per image.

    Args:
        sums: z, [B, J, D].
        firing: which output capsules are on, [B, J], 0 or 1.
    """
    return -torch.xlogy(firing, sums.square().sum(2)).sum(1)


def log_marginal(sums: Tensor) -> Tensor:
    """sum_j log(1 + |z_j|^2), the logarithm of eq. 10 up to log Z: [B, J, D] to [B]."""
    return sums.square().sum(2).log1p().sum(1)


def firing_probability(sums: Tensor) -> Tensor:
    """|z_j|^2 / (1 + |z_j|^2), the length of squash(z_j) (eqs. 5 and 12): [B, J, D] to [B, J]."""
    squared = sums.square().sum(2)
    return squared / (1 + squared)


class EncoderUpdate(NamedTuple):
    """What an image's capsules tell the weights to do, and what was made on the way (algorithm 1)."""

    change: Tensor
    """Delta W, [I, d, J, D]: a mean over the images."""
    sums: Tensor
    """z_j = sum_i c_ij W_ij x_i of the data, [B, J, D]."""
    inputs: Tensor
    """Reconstructed input capsules, x~_i = squash(sum_j c_ij W_ij^T squash(z_j)), [B, I, d]."""
    sums_again: Tensor
    """z~_j = sum_i c_ij W_ij x~_i, [B, J, D]."""


def encoder_update(capsules: Tensor, coupling: Tensor, weight: Tensor) -> EncoderUpdate:
    """Algorithm 1: mix once under one and the same coupling, then eq. 18 with the mixed capsules as the model's.

    Args:
        capsules: x_i, squashed, [B, I, d].
        coupling: [B, I, J]; a constant, also where it was computed from these weights.
        weight: W, [I, d, J, D].
    """
    sums = mixed(capsules, coupling, weight)
    inputs = squash(mixed_back(squash(sums), coupling, weight))
    sums_again = mixed(inputs, coupling, weight)
    data = correlation(capsules, coupling, shrunk(sums))
    model = correlation(inputs, coupling, shrunk(sums_again))
    return EncoderUpdate(2 / len(capsules) * (data - model), sums, inputs, sums_again)


class DecoderUpdate(NamedTuple):
    """What images tell the decoder's weights to do, and what was made on the way (section 4.1)."""

    change: Tensor
    """Delta U, [J, D, I, d]: a mean over the images."""
    sums: Tensor
    """z~_i = sum_j e_ji U_ji x_j, [B, I, d]."""
    capsules: Tensor
    """x~_j = squash(sum_i e_ji U_ji^T z~_i), [B, J, D]."""


def decoder_update(capsules: Tensor, coupling: Tensor, weight: Tensor, targets: Tensor) -> DecoderUpdate:
    """Section 4.1: the rule of eq. 18 between what the encoder was shown and what the decoder makes of its capsules.

    Args:
        capsules: x_j of the encoder, squashed, [B, J, D].
        coupling: e, [B, J, I]; a constant.
        weight: U, [J, D, I, d].
        targets: z_i, the encoder's inputs before they were squashed, [B, I, d].
    """
    sums = mixed(capsules, coupling, weight)
    again = squash(mixed_back(sums, coupling, weight))
    data = correlation(capsules, coupling, shrunk(targets))
    model = correlation(again, coupling, shrunk(sums))
    return DecoderUpdate(2 / len(capsules) * (data - model), sums, again)


def shrunk(sums: Tensor) -> Tensor:
    """z / (1 + |z|^2): [..., D] to [..., D]."""
    return sums / (1 + sums.square().sum(-1, keepdim=True))


# Below, whatever there is for each pair of capsules lies pair by pair of the side with fewer, longer capsules and of
# the image, so that each use of the weights is one matrix product per such capsule.


def mixed(capsules: Tensor, coupling: Tensor, weight: Tensor) -> Tensor:
    """z_j = sum_i c_ij W_ij x_i (eq. 3).

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
    """z_i = sum_j c_ij W_ij^T x_j: [B, J, D], [B, I, J] and [I, d, J, D] to [B, I, d]."""
    return mixed(capsules, coupling.transpose(1, 2), weight.permute(2, 3, 0, 1))


def correlation(capsules: Tensor, coupling: Tensor, directions: Tensor) -> Tensor:
    """sum over images of c_ij x_i g_j^T.

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
    """[B, I, J] to [I, B, J], in that order in memory."""
    return coupling.transpose(0, 1).contiguous()
