"""Routing by a recurrent network: *Learning to compute inner consensus*, section 4.2."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from recaps.nn.fields import Fields
from recaps.nn.kernels import fits
from recaps.nn.precision import float32
from recaps.nn.routing.interface import Consensus, PoseRouting, matrix_votes
from recaps.nn.routing.options import ConnectionistOptions


class ConnectionistRouting(PoseRouting):
    """Connectionist routing (*Learning to compute inner consensus*, section 4.2).

    An LSTM cell computes the compatibility of each pair of input and output capsule.

    All pairs of a layer share one cell. Its input are 34 numbers: the pose of the output, and the activation, the vote
    and the compatibility of the input (algorithm 2). The compatibility network maps the hidden state to the next
    compatibility. The activation network maps the mean of the cell states, weighted by the final compatibilities, to
    the activation (eq. 14).
    """

    Options = ConnectionistOptions

    def __init__(self, outputs: int, layer: int, logits: bool, options: ConnectionistOptions) -> None:
        super().__init__(outputs, layer, logits, options)
        self.iterations, self.units, self.logits = options.iterations, options.lstm_units, logits
        units = options.lstm_units
        compatibility, activation = options.compatibility_layers[layer], options.activation_layers[layer]
        pose = 16
        self.from_pose = nn.Linear(pose, 4 * units)
        self.from_vote = nn.Linear(pose, 4 * units, bias=False)
        self.from_input = nn.Linear(1, 4 * units, bias=False)
        self.from_compatibility = nn.Linear(1, 4 * units, bias=False)
        self.from_hidden = nn.Linear(units, 4 * units, bias=False)
        self.compatibility = _network(units, compatibility)
        self.activation = _network(units, activation)
        self._initialise(2 * pose + 2 + units)

    def forward(self, poses: Tensor, activations: Tensor, weight: Tensor, fields: Fields) -> Consensus:
        """Route pose matrices; see `PoseRouting.forward`."""
        with float32(poses):
            poses = poses.float() if poses.element_size() < 4 else poses
            vectors = (self.from_pose.bias, self.from_input.weight[:, 0], self.from_compatibility.weight[:, 0])
            cell = (self.from_pose.weight, self.from_vote.weight, self.from_hidden.weight, torch.stack(vectors))
            network = [(layer.weight, layer.bias) for layer in self.compatibility if isinstance(layer, nn.Linear)]
            route = lstm_routing
            if fits(poses, weight):
                from recaps.nn.kernels.connectionist import fused_lstm_routing as route
            mean, combined, coupling = route(
                poses, activations.to(poses.dtype), weight, fields, cell, network, self.iterations
            )
            out = self.activation(combined).squeeze(3)
            return Consensus(mean, out if self.logits else out.sigmoid(), coupling.detach())

    def _initialise(self, inputs: int) -> None:
        """Draw the cell's weights from Glorot's uniform range for one matrix, as TensorFlow does. Biases are zero."""
        bound = (6 / (inputs + 4 * self.units)) ** 0.5
        for name, parameter in self.named_parameters():
            if name.startswith("from_"):
                nn.init.zeros_(parameter) if parameter.ndim == 1 else nn.init.uniform_(parameter, -bound, bound)


def lstm_routing(
    poses: Tensor,
    activations: Tensor,
    weight: Tensor,
    fields: Fields,
    cell: tuple[Tensor, Tensor, Tensor, Tensor],
    network: Sequence[tuple[Tensor, Tensor]],
    iterations: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """All iterations of connectionist routing.

    Args:
        poses: [B, C, 16].
        activations: of the input capsules, [B, C].
        weight: transformations divided by their norms, [n, J, 4, 4].
        fields: the input capsules in the field of each position.
        cell: weights of the gates i, j, f, o for the pose of the output [4U, 16], the vote [4U, 16] and the hidden
            state [4U, U]; and [3, 4U], whose rows are the bias and the weights for the activation and the compatibility
            of the input.
        network: weight and bias of each layer of the compatibility network. ReLUs are between the layers.
        iterations: at least 1.

    Returns:
        Poses [B, P, J, 16]; means of the cell states, weighted by the compatibilities, [B, P, J, U]; compatibilities
        [B, P, n, J].
    """
    from_pose, from_vote, from_hidden, (bias, from_input, from_compatibility) = cell
    votes = matrix_votes(poses, weight, fields)
    seen = activations[:, fields.children].unsqueeze(3)  # [B, P, n, 1]
    # Separate products for each input of the cell: the iterations share the products of constant inputs.
    fixed = linear(votes, from_vote, bias) + seen.unsqueeze(4) * from_input  # [B, P, n, J, 4U]
    coupling = votes.new_full((1, 1, votes.shape[2], 1), 1 / votes.shape[2])
    mean, hidden, state = votes.mean(2), None, None
    for _ in range(iterations):
        gates = fixed + linear(mean, from_pose).unsqueeze(2) + coupling.unsqueeze(4) * from_compatibility
        if hidden is not None:
            gates = gates + linear(hidden, from_hidden)
        hidden, state = lstm(gates, state)
        coupling = _through(hidden, network).squeeze(4).softmax(2)
        mean = (coupling.unsqueeze(4) * votes).sum(2)
    assert state is not None
    return mean, (coupling.unsqueeze(4) * state).sum(2), coupling


def _through(values: Tensor, network: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    for weight, bias in network[:-1]:
        values = linear(values, weight, bias).relu()
    return linear(values, *network[-1])


def lstm(gates: Tensor, cell: Tensor | None) -> tuple[Tensor, Tensor]:
    """Hidden state and cell state after a step. Gates i, j, f, o [..., 4 * units]; the forget gate has a bias of 1."""
    enter, value, forget, leave = gates.chunk(4, -1)
    cell_after = enter.sigmoid() * value.tanh()
    if cell is not None:
        cell_after = cell_after + (forget + 1).sigmoid() * cell
    return leave.sigmoid() * cell_after.tanh(), cell_after


def _network(inputs: int, widths: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in widths:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, 1))
