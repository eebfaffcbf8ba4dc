"""The two interfaces of routing: `VoteRouting` for votes, `PoseRouting` for pose matrices."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from recaps.errors import UserError
from recaps.nn.fields import Fields
from recaps.nn.layers import votes
from recaps.nn.routing.options import PoseOptions, VoteOptions


class Routed(NamedTuple):
    """Output capsules with vectors as poses, and their coupling."""

    capsules: Tensor
    """Output capsules, [B, J, D]."""
    coupling: Tensor
    """Coupling coefficients of the last iteration, [B, I, J]; carries no gradient."""


class VoteRouting(nn.Module):
    """Routing of votes, as in *Dynamic Routing Between Capsules*.

    Args:
        inputs: number of input capsules, I.
        outputs: number of output capsules, J.
        dim: dimensions of an output capsule, D.
        options: options of the algorithm.
    """

    Options: type[VoteOptions] = VoteOptions
    """The section of the configuration that has the options."""

    def __init__(self, inputs: int, outputs: int, dim: int, options: VoteOptions) -> None:
        super().__init__()
        self.options: Any = options

    def forward(self, votes: Tensor, bias: Tensor) -> Routed:
        """Route votes.

        Args:
            votes: [B, I, J, D], in the precision of the products.
            bias: bias of the weighted sums of votes, [J, D]. Capsules are returned in its precision.
        """
        raise NotImplementedError

    def route(self, capsules: Tensor, weight: Tensor, bias: Tensor) -> Routed:
        """Route the votes of capsules. A routing that does not need all votes at a time may override this.

        Args:
            capsules: input capsules, [B, I, d].
            weight: [I, d, J, D], with the votes u_hat_ij = W_ij u_i.
            bias: as in `forward`.
        """
        routed: Routed = self(votes(capsules, weight), bias)
        return routed

    def routed(self, capsules: Tensor, weight: Tensor, bias: Tensor) -> Routed:
        """Like `route`, and check the shapes of the result: a wrong one could train without a word.

        Raises:
            UserError: capsules or coupling have another shape.
        """
        routed = self.route(capsules, weight, bias)
        batch, inputs = capsules.shape[:2]
        _check_shape(self, "capsules", routed.capsules, (batch, *bias.shape))
        _check_shape(self, "coupling", routed.coupling, (batch, inputs, len(bias)))
        return routed

    def operations(self, values: int) -> int:
        """Floating-point operations of the forward pass; 0 if they are not counted, as by default.

        Args:
            values: number of values in the votes, B * I * J * D.
        """
        return 0


class Consensus(NamedTuple):
    """Output capsules with 4x4 matrices as poses, and their coupling."""

    poses: Tensor
    """[B, P, J, 16]."""
    activations: Tensor
    """[B, P, J]; probabilities, or logits if the layer returns logits."""
    coupling: Tensor
    """Assignment of the last iteration, [B, P, n, J]; carries no gradient."""


class PoseRouting(nn.Module):
    """Routing of pose matrices, as in *Matrix Capsules with EM Routing*.

    Args:
        outputs: types of output capsules, J.
        layer: 0 for the first convolutional capsule layer, 1 for the second, 2 for the class layer.
        logits: return activations before the sigmoid, for a softmax loss.
        options: options of the algorithm.
    """

    Options: type[PoseOptions] = PoseOptions
    """The section of the configuration that has the options."""

    def __init__(self, outputs: int, layer: int, logits: bool, options: PoseOptions) -> None:
        super().__init__()
        self.options: Any = options

    def routed(self, poses: Tensor, activations: Tensor, weight: Tensor, fields: Fields) -> Consensus:
        """Like `forward`, and check the shapes of the result.

        Raises:
            UserError: poses, activations or coupling have another shape.
        """
        consensus: Consensus = self(poses, activations, weight, fields)
        positions, slots = fields.children.shape
        batch, outputs = len(poses), weight.shape[1]
        _check_shape(self, "poses", consensus.poses, (batch, positions, outputs, poses.shape[2]))
        _check_shape(self, "activations", consensus.activations, (batch, positions, outputs))
        _check_shape(self, "coupling", consensus.coupling, (batch, positions, slots, outputs))
        return consensus

    def forward(self, poses: Tensor, activations: Tensor, weight: Tensor, fields: Fields) -> Consensus:
        """Route the capsules in the field of each position.

        Args:
            poses: of the input capsules, [B, C, 16].
            activations: of the input capsules, [B, C].
            weight: transformations W / |W|, [n, J, 4, 4].
            fields: the n of C input capsules in the field of each of P positions.
        """
        raise NotImplementedError


def matrix_votes(poses: Tensor, weight: Tensor, fields: Fields) -> Tensor:
    """V_ij = W_ij M_i (*Learning to compute inner consensus*, eq. 1).

    Args:
        poses: 4x4 matrices row by row, [B, C, 16].
        weight: transformations divided by their norms, [n, J, 4, 4].
        fields: the n of C input capsules in the field of each of P positions.

    Returns:
        [B, P, n, J, 16].
    """
    seen = poses.unflatten(2, (4, 4))[:, fields.children]
    return torch.einsum("njac,bpncd->bpnjad", weight, seen).flatten(4)


def _check_shape(routing: nn.Module, name: str, values: Tensor, expected: tuple[int, ...]) -> None:
    if values.shape != expected:
        kind = type(routing)
        raise UserError(
            f"{kind.__module__}: {kind.__name__} returns {name} of shape {list(values.shape)} instead of"
            f" {list(expected)}; recaps.nn.routing.interface describes them"
        )
