"""Routing by a learned similarity: *Learning to compute inner consensus*, section 4.1."""

from __future__ import annotations

import torch
from torch import Tensor

from recaps.nn.fields import Fields
from recaps.nn.routing.matrix import Consensus, matrix_votes

SMALL = 1e-6


def similarity_routing(
    poses: Tensor,
    activations: Tensor,
    weight: Tensor,
    fields: Fields,
    *,
    penalties: tuple[Tensor, Tensor],
    kernel: tuple[Tensor, Tensor],
    activation: tuple[Tensor, Tensor, Tensor],
    iterations: int = 3,
    logits: bool = False,
) -> Consensus:
    """Cluster the votes for every output capsule by themselves, under a kernel that is learned.

    In turns: the compatibilities c minimise -sum_i c_i K(V_i, mu) + lambda_1 KL(c || uniform) + lambda_2 KL(c || a)
    (eqs. 2, 3), whose solution is eq. 11, and the pose is the mean of the votes under c (eq. 4).

    Args:
        poses: [B, C, 16].
        activations: of the input capsules, [B, C].
        weight: transformations divided by their norms, [n, J, 4, 4].
        fields: which input capsules each position sees.
        penalties: lambda_1 and lambda_2, at least 0, each [J].
        kernel: logits of the mixture's weights [Q], and widths l, [Q, J] (eq. 15).
        activation: theta_1, theta_2, theta_3, each [J] (eq. 13).
        iterations: at least 1.
        logits: return activations before the sigmoid and without theta_3, as the class layer does with a softmax loss.
    """
    with torch.autocast(poses.device.type, enabled=False):
        votes = matrix_votes(poses.float() if poses.element_size() < 4 else poses, weight, fields)
        seen = activations.to(votes.dtype)[:, fields.children].unsqueeze(3)  # [B, P, n, 1]
        mean = votes.mean(2)
        for _ in range(iterations):
            similarity = mixture_kernel(votes, mean, *kernel)
            compatibility = compatibilities(similarity, seen, *penalties)
            mean = (compatibility.unsqueeze(4) * votes).sum(2)
        agreement = (compatibility * similarity).sum(2)
        theta1, theta2, theta3 = activation
        out = theta1 * agreement + theta2
        if not logits:
            presence = (compatibility * (seen + SMALL).log()).sum(2)
            out = (out + theta3.abs() * presence).sigmoid()
        return Consensus(mean, out, compatibility.detach())


def mixture_kernel(votes: Tensor, mean: Tensor, mixture: Tensor, widths: Tensor) -> Tensor:
    """K(V, mu) = sum_q w_q exp(-|V - mu|^2 / (2 l_q^2)) (eq. 15): [B, P, n, J, 16], [B, P, J, 16] to [B, P, n, J]."""
    squared = (votes - mean.unsqueeze(2)).square().sum(4)
    gaussians = torch.exp(-squared.unsqueeze(-2) / (2 * widths.square() + SMALL))  # [B, P, n, Q, J]
    return (mixture.softmax(0)[:, None] * gaussians).sum(-2)


def compatibilities(similarity: Tensor, activations: Tensor, lambda1: Tensor, lambda2: Tensor) -> Tensor:
    """c_i in proportion to a_i^(lambda_2 / L) exp(k_i / L), L = lambda_1 + lambda_2 (eq. 11), over the inputs n.

    Args:
        similarity: k, [..., n, J].
        activations: a, [..., n, 1].
        lambda1: [J].
        lambda2: [J].
    """
    total = lambda1 + lambda2 + SMALL
    return ((similarity + lambda2 * (activations + SMALL).log()) / total).softmax(-2)
