"""Routing by a recurrent network: *Learning to compute inner consensus*, section 4.2."""

from __future__ import annotations

from torch import Tensor, nn

from recaps.nn.fields import Fields
from recaps.nn.routing.matrix import Consensus, matrix_votes


class ConnectionistRouting(nn.Module):
    """An LSTM cell per pair of input and output capsule decides how much of a vote counts (algorithm 2).

    One cell for all pairs of a layer reads the output pose, the input's activation, its vote and its compatibility (34
    numbers). A network turns its hidden state into the next compatibility, another one the mean of the cell states
    under the final compatibilities into the activation (eq. 14).

    Args:
        compatibility: widths of the first network's hidden layers (table 2).
        activation: widths of the second's.
        units: of the cell.
        iterations: at least 1.
        logits: activations before the sigmoid, for a softmax loss.
    """

    def __init__(
        self,
        compatibility: tuple[int, ...],
        activation: tuple[int, ...],
        units: int = 16,
        iterations: int = 3,
        logits: bool = False,
    ) -> None:
        super().__init__()
        self.iterations, self.units, self.logits = iterations, units, logits
        pose = 16
        # The cell's input and hidden state by kind, so that what does not change is multiplied once.
        self.from_pose = nn.Linear(pose, 4 * units)
        self.from_vote = nn.Linear(pose, 4 * units, bias=False)
        self.from_input = nn.Linear(1, 4 * units, bias=False)
        self.from_compatibility = nn.Linear(1, 4 * units, bias=False)
        self.from_hidden = nn.Linear(units, 4 * units, bias=False)
        self.compatibility = _network(units, compatibility)
        self.activation = _network(units, activation)
        self._initialise(2 * pose + 2 + units)

    def forward(self, poses: Tensor, activations: Tensor, weight: Tensor, fields: Fields) -> Consensus:
        """Arguments and result as of `recaps.nn.routing.similarity.similarity_routing`."""
        votes = matrix_votes(poses, weight, fields)
        seen = activations.to(votes.dtype)[:, fields.children].unsqueeze(3)  # [B, P, n, 1]
        fixed = self.from_vote(votes) + self.from_input(seen.unsqueeze(4))  # [B, P, n, J, 4 * units]
        coupling = votes.new_full((1, 1, votes.shape[2], 1), 1 / votes.shape[2])
        mean, hidden, cell = votes.mean(2), None, None
        for _ in range(self.iterations):
            gates = fixed + self.from_pose(mean).unsqueeze(2) + self.from_compatibility(coupling.unsqueeze(4))
            if hidden is not None:
                gates = gates + self.from_hidden(hidden)
            hidden, cell = lstm(gates, cell)
            coupling = self.compatibility(hidden).squeeze(4).softmax(2)
            mean = (coupling.unsqueeze(4) * votes).sum(2)
        assert cell is not None
        combined = (coupling.unsqueeze(4) * cell).sum(2)  # [B, P, J, units]
        out = self.activation(combined).squeeze(3)
        return Consensus(mean, out if self.logits else out.sigmoid(), coupling.detach())

    def _initialise(self, inputs: int) -> None:
        """Glorot's uniform range for the cell as one matrix, as TensorFlow draws it; biases zero."""
        bound = (6 / (inputs + 4 * self.units)) ** 0.5
        for name, parameter in self.named_parameters():
            if name.startswith("from_"):
                nn.init.zeros_(parameter) if parameter.ndim == 1 else nn.init.uniform_(parameter, -bound, bound)


def lstm(gates: Tensor, cell: Tensor | None) -> tuple[Tensor, Tensor]:
    """Hidden and cell state after a step: gates i, j, f, o [..., 4 * units], the forget gate with a bias of 1."""
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
