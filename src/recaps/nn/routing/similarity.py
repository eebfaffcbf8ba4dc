"""Routing by a learned similarity: *Learning to compute inner consensus*, section 4.1."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recaps.nn.fields import Fields
from recaps.nn.initial import truncated_normal
from recaps.nn.kernels import fits
from recaps.nn.precision import float32
from recaps.nn.routing.interface import Consensus, PoseRouting, matrix_votes
from recaps.nn.routing.options import SimilarityOptions

SMALL = 1e-6


class SimilarityRouting(PoseRouting):
    """Similarity routing (*Learning to compute inner consensus*, section 4.1).

    Each type of output capsule has its own parameters, except for the weights of the mixture, and the widths without
    `channel_widths`.
    """

    Options = SimilarityOptions

    def __init__(self, outputs: int, layer: int, logits: bool, options: SimilarityOptions) -> None:
        super().__init__(outputs, layer, logits, options)
        self.iterations, self.logits = options.iterations, logits
        gaussians, width, penalties = options.kernels[layer], options.kernel_width, options.lambda_init
        scale = options.class_scale if layer == 2 else 0.0
        self.mixture = nn.Parameter(torch.ones(gaussians))
        kernels = outputs if options.channel_widths else 1
        self.widths = nn.Parameter(width * (1 + truncated_normal(gaussians, kernels, std=0.1)))
        self.lambda1 = nn.Parameter(torch.full((outputs,), penalties[0]))
        self.lambda2 = nn.Parameter(torch.full((outputs,), penalties[1]))
        self.theta1 = nn.Parameter(scale + truncated_normal(outputs, std=0.1))
        self.theta2 = nn.Parameter(torch.ones(outputs))
        self.theta3 = nn.Parameter(truncated_normal(outputs, std=0.1))

    def forward(self, poses: Tensor, activations: Tensor, weight: Tensor, fields: Fields) -> Consensus:
        return similarity_routing(
            poses,
            activations,
            weight,
            fields,
            penalties=(self.lambda1.abs(), self.lambda2.abs()),
            kernel=(self.mixture, self.widths.expand(-1, len(self.theta1))),
            activation=(self.theta1, self.theta2, self.theta3),
            iterations=self.iterations,
            logits=self.logits,
        )


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
    """Cluster the votes of each output capsule separately, under a learned kernel.

    Alternate two steps. The compatibilities c minimise -sum_i c_i K(V_i, mu) + lambda_1 KL(c || uniform) + lambda_2
    KL(c || a) (eqs. 2, 3); eq. 11 is the solution. The pose mu is the mean of the votes weighted by c (eq. 4).

    Args:
        poses: [B, C, 16].
        activations: activations of the input capsules, [B, C].
        weight: transformations divided by their norms, [n, J, 4, 4].
        fields: the input capsules in the field of each position.
        penalties: lambda_1 and lambda_2, at least 0, each [J].
        kernel: logits of the weights of the mixture [Q], and widths l [Q, J] (eq. 15).
        activation: theta_1, theta_2, theta_3, each [J] (eq. 13).
        iterations: at least 1.
        logits: return activations before the sigmoid and without theta_3, for the class layer with a softmax loss.
    """
    with float32(poses):
        poses = poses.float() if poses.element_size() < 4 else poses
        log_activations = (activations.to(poses.dtype) + SMALL).log()
        mixture, precisions = kernel[0].softmax(0), 1 / (2 * kernel[1].square() + SMALL)
        lambda2, total = penalties[1], penalties[0] + penalties[1] + SMALL
        cluster = clusters
        if fits(poses, weight):
            from recaps.nn.kernels.similarity import fused_clusters as cluster
        mean, agreement, presence, compatibility = cluster(
            poses, log_activations, weight, fields, mixture, precisions, lambda2, total, iterations
        )
        theta1, theta2, theta3 = activation
        out = theta1 * agreement + theta2
        if not logits:
            out = (out + theta3.abs() * presence).sigmoid()
        return Consensus(mean, out, compatibility.detach())


def clusters(
    poses: Tensor,
    log_activations: Tensor,
    weight: Tensor,
    fields: Fields,
    mixture: Tensor,
    precisions: Tensor,
    lambda2: Tensor,
    total: Tensor,
    iterations: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The plain version of `recaps.nn.kernels.similarity.fused_clusters`."""
    votes = matrix_votes(poses, weight, fields)
    seen = log_activations[:, fields.children].unsqueeze(3)  # [B, P, n, 1]
    mean = votes.mean(2)
    for _ in range(iterations):
        similarity = mixture_kernel(votes, mean, mixture, precisions)
        compatibility = compatibilities(similarity, seen, lambda2, total)
        mean = (compatibility.unsqueeze(4) * votes).sum(2)
    return mean, (compatibility * similarity).sum(2), (compatibility * seen).sum(2), compatibility


def mixture_kernel(votes: Tensor, mean: Tensor, mixture: Tensor, precisions: Tensor) -> Tensor:
    """K(V, mu) = sum_q w_q exp(-p_q |V - mu|^2), p = 1 / (2 l^2) (eq. 15): [B, P, n, J].

    Args:
        votes: [B, P, n, J, 16].
        mean: [B, P, J, 16].
        mixture: [Q].
        precisions: [Q, J].
    """
    squared = (votes - mean.unsqueeze(2)).square().sum(4)
    gaussians = torch.exp(-squared.unsqueeze(-2) * precisions)  # [B, P, n, Q, J]
    return (mixture[:, None] * gaussians).sum(-2)


def compatibilities(similarity: Tensor, log_activations: Tensor, lambda2: Tensor, total: Tensor) -> Tensor:
    """c_i proportional to a_i^(lambda_2 / L) exp(k_i / L) with L = lambda_1 + lambda_2 (eq. 11), normalised over n.

    Args:
        similarity: k, [..., n, J].
        log_activations: log a, [..., n, 1].
        lambda2: [J].
        total: L, [J].
    """
    return ((similarity + lambda2 * log_activations) / total).softmax(-2)
