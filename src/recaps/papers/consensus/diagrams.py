"""Figures 1 and 3 of *Learning to compute inner consensus*: diagrams of the network as built."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from recaps.report.diagrams import arrow, box, canvas, circle, line

if TYPE_CHECKING:
    from recaps.papers.consensus.matrixcaps import MatrixCaps

#: Colours of the transformation matrices of figure 1, by place in the field.
MATRICES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")

#: Output positions that figure 1 shows.
SHOWN = 3


def fields_in_a_row(model: MatrixCaps) -> pd.DataFrame:
    """The receptive fields of the first output positions of the first capsule layer, along one row of the image.

    Returns:
        Columns `output` and `input`, positions in their rows; `matrix`, the place in the field, whose transformation
        matrices all output positions share; `types`, input capsules at a position; `outputs`, output capsules at a
        position.
    """
    layer: Any = model.layers[0]
    fields = layer.fields
    first, outputs = fields.children[: min(SHOWN, fields.width)], layer.transform.weight.shape[1]
    types = model.options.types[0]
    side = math.isqrt(first.shape[1] // types)
    # Slots are in the order row, column, type: the first row of the field.
    inputs = first[:, : side * types : types].numpy() // types
    output, matrix = (each.ravel() for each in np.indices(inputs.shape))
    columns = {"output": output, "input": inputs.ravel(), "matrix": matrix, "types": types, "outputs": outputs}
    return pd.DataFrame(columns)


def draw_fields(axis: Axes, fields: pd.DataFrame) -> None:
    """Draw input positions below, output positions above, and a line for each set of matrices, by colour."""
    types, outputs = int(fields["types"].iloc[0]), int(fields["outputs"].iloc[0])
    inputs = int(fields["input"].max()) + 1
    middle = fields.groupby("output")["input"].mean()
    canvas(axis, (-0.5, inputs + 3.6), (-1.15, 3.6))
    for output, start, matrix in fields[["output", "input", "matrix"]].to_numpy():
        colour = MATRICES[matrix % len(MATRICES)]
        line(axis, (start, 0.42), (middle[output], 1.5), color=colour, linewidth=1.6)
    for position in range(inputs):
        _capsules(axis, position, 0.0)
    for place, x in enumerate(middle, 1):
        box(axis, (x, 1.75), (0.84, 0.5), "routing", fc="0.9")
        arrow(axis, (x, 2.0), (x, 2.5))
        _capsules(axis, x, 2.9)
        axis.text(x, 3.4, f"position {place}", ha="center", va="bottom", fontsize=7)
    size = int(fields["matrix"].max()) + 1
    for y, text in (
        (2.9, f"{outputs} output capsules at each position"),
        (1.75, f"{size} x {types} = {size * types} votes for each output capsule"),
        (1.0, f"a colour stands for {types} x {outputs} matrices,\nshared by all positions"),
        (0.0, f"{types} input capsules at each position"),
    ):
        axis.text(inputs - 0.3, y, text, ha="left", va="center", fontsize=8)
    axis.text((inputs - 1) / 2, -0.6, "positions along a row of the image", ha="center", va="top", fontsize=8)


def _capsules(axis: Axes, x: float, y: float) -> None:
    """A column of capsules."""
    for offset in (-0.24, 0.0, 0.24):
        circle(axis, (x, y + offset), 0.11)


def cell_parts(model: MatrixCaps) -> pd.DataFrame:
    """The sizes of what connectionist routing computes for a pair of capsules, measured on a layer with hidden layers.

    Returns:
        Columns `part`, `size` (numbers) and `hidden` (widths of the hidden layers of each capsule layer).
    """
    options: Any = model.options.routing
    layer: Any = model.layers[-1]
    routing = layer.routing
    sizes = {
        "pose of the output": routing.from_pose.in_features,
        "vote": routing.from_vote.in_features,
        "activation of the input": routing.from_input.in_features,
        "compatibility": routing.from_compatibility.in_features,
        "hidden state": routing.from_hidden.in_features,
        "cell state": routing.units,
    }
    rows = [(part, size, "") for part, size in sizes.items()]
    for part, widths in (("compatibility", options.compatibility_layers), ("activation", options.activation_layers)):
        network = getattr(routing, part)
        hidden = "; ".join(", ".join(map(str, each)) or "none" for each in widths)
        rows.append((f"{part} network", network[-1].out_features, hidden))
    return pd.DataFrame(rows, columns=["part", "size", "hidden"])


def draw_cell(axis: Axes, parts: pd.DataFrame) -> None:
    """Draw the LSTM cell, its inputs on the left, and the two networks that read it on the right."""
    size, hidden = (parts.set_index("part")[column] for column in ("size", "hidden"))
    units = size["cell state"]
    canvas(axis, (-0.35, 11.4), (-0.75, 4.6))

    # The gates see the inputs of this pair and the hidden state.
    names = ("pose of the output", "vote", "activation of the input", "compatibility", "hidden state")
    heights = (2.4, 1.8, 1.2, 0.6, 0.0)
    for y, name in zip(heights, names, strict=True):
        box(axis, (0.95, y), (1.9, 0.44), f"{name}: {size[name]}")
        line(axis, (1.9, y), (2.25, y))
    line(axis, (2.25, heights[-1]), (2.25, heights[0]))
    axis.text(2.25, 2.75, f"{sum(size[name] for name in names)} numbers", ha="center", fontsize=7.5)
    box(axis, (5.0, 2.275), (4.5, 3.95), "", fc="0.95", ec="0.4")
    axis.text(2.9, 4.1, f"LSTM cell, {units} units", ha="left", va="top", fontsize=8.5)
    line(axis, (2.25, 0.75), (6.4, 0.75))
    for name, text, x in (
        ("f", "forget\ngate, σ", 3.3),
        ("i", "input\ngate, σ", 4.3),
        ("j", "candidate,\ntanh", 5.3),
        ("o", "output\ngate, σ", 6.4),
    ):
        arrow(axis, (x, 0.75), (x, 1.1))
        box(axis, (x, 1.4), (0.85, 0.6), text)
        side = "left" if name == "j" else "right"
        axis.text(x + (0.1 if side == "left" else -0.1), 1.78, name, fontsize=8, style="italic", ha=side)

    # c' = f c + i j, h' = o tanh(c')
    row, product = 3.5, 2.55
    box(axis, (0.95, row), (1.9, 0.44), f"cell state: {units}")
    arrow(axis, (1.9, row), (8.4, row))
    for (x, y), sign in (((3.3, row), "×"), ((4.8, product), "×"), ((4.8, row), "+"), ((6.4, product), "×")):
        circle(axis, (x, y), 0.16, sign)
    arrow(axis, (3.3, 1.7), (3.3, row - 0.16))
    arrow(axis, (4.3, 1.7), (4.7, product - 0.13))
    arrow(axis, (5.3, 1.7), (4.9, product - 0.13))
    arrow(axis, (4.8, product + 0.16), (4.8, row - 0.16))
    arrow(axis, (6.4, 1.7), (6.4, product - 0.16))
    arrow(axis, (6.4, row), (6.4, product + 0.16))
    axis.text(6.48, 3.05, "tanh", fontsize=7.5)
    line(axis, (6.56, product), (7.7, product))
    axis.text(7.78, 2.0, "hidden state", fontsize=7.5, va="center")
    line(axis, (7.7, product), (7.7, 1.4))
    arrow(axis, (7.7, 1.4), (8.1, 1.4))

    # What reads the states.
    after = f"mean over inputs\nactivation network\nhidden layers: {hidden['activation network']}"
    each = f"compatibility network\nhidden layers: {hidden['compatibility network']}\nsoftmax over inputs"
    box(axis, (9.8, row), (2.8, 0.95), after)
    box(axis, (9.6, 1.4), (3.0, 0.95), each)
    axis.text(9.8, row + 0.55, "after the last iteration", ha="center", va="bottom", fontsize=7.5)
    arrow(axis, (9.8, 1.88), (9.8, row - 0.48))
    axis.text(9.9, 2.45, "weights of\nthe mean", fontsize=7.5, va="center")
    line(axis, (9.6, 0.92), (9.6, -0.5))
    line(axis, (9.6, -0.5), (-0.3, -0.5))
    line(axis, (-0.3, -0.5), (-0.3, heights[0]))
    arrow(axis, (-0.3, heights[3]), (0.0, heights[3]))
    arrow(axis, (-0.3, heights[0]), (0.0, heights[0]))
    text = "after each iteration: compatibilities, and the mean of the votes as the pose of the output"
    axis.text(4.9, -0.44, text, ha="center", va="bottom", fontsize=7.5)
