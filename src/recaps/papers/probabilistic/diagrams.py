"""Figures 1 and 2 of *Capsule Networks, a Probabilistic Perspective*: diagrams of the model as built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from recaps.identity import as_today
from recaps.report.diagrams import Point, arrow, box, canvas, circle, line

#: Arrows of figure 1: what each variable of the generative model depends on. The tests measure them.
GENERATIVE = {
    "s": ("t0", "rho"),
    "t1": ("s", "gamma"),
    "A1": ("s", "A0", "t1", "M", "c"),
    "X": ("t1", "A1", "T", "alpha"),
}

#: Arrows of figure 2. Left: the generative model, with the selections s summed out. Right: the approximate posterior.
DEPENDENCIES = {"p": {"t1, A1": ("t0, A0",), "X": ("t1, A1",)}, "q": {"t1, A1": ("X",), "t0, A0": ("t1, A1",)}}

#: Signs of figure 1.
SIGNS = {
    **{"t0": "$t^0_i$", "A0": "$A^0_i$", "s": "$s_j$", "t1": "$t^1_j$", "A1": "$A^1_j$", "X": "$X$"},
    **{"rho": r"$\rho_{ij}$", "gamma": r"$\gamma_{ij}$", "M": "$M_{ij}$", "c": "$c_{ij}$"},
    **{"T": "$T_j$", "alpha": r"$\alpha_j$"},
}

#: Places of variables and parameters in figure 1.
PLACES: dict[str, Point] = {
    **{"t0": (1.4, 3.6), "A0": (3.4, 3.6), "s": (1.4, 2.2), "t1": (2.2, 1.2), "A1": (3.4, 1.8), "X": (2.8, -0.3)},
    **{"rho": (0.0, 2.2), "gamma": (0.0, 1.2), "M": (4.9, 1.9), "c": (4.9, 1.3), "T": (4.9, 0.0), "alpha": (4.9, -0.6)},
}

RADIUS = 0.28


def sizes(config: Mapping[str, Any]) -> pd.DataFrame:
    """The arrays of the model as built and its networks, from a run's settings.

    Returns:
        Columns `part`, `of` (`generative model` or `posterior`), `shape` and `numbers`. "learned" numbers are those
        that training changes; the dummy's entries of rho, M and c are fixed.
    """
    from recaps.papers.probabilistic.capsules import build
    from recaps.papers.probabilistic.options import GenerativeOptions

    options = GenerativeOptions.model_validate(as_today(config)["model"])
    model = build(options, tuple(config["image_shape"]), config["classes"])
    arrays = model.generative
    learned = {
        **{"rho": arrays.affinities, "gamma": arrays.appearances, "M": arrays.relations, "c": arrays.widths},
        **{"T": arrays.colours, "alpha": arrays.alphas},
    }
    networks = {"convolutional network": model.part_encoder, "set transformer": model.object_encoder}
    rows: list[tuple[str, str, Sequence[int], int]] = [
        *((name, "generative model", each.shape, each.numel()) for name, each in learned.items()),
        *((name, "posterior", (), sum(part.numel() for part in each.parameters())) for name, each in networks.items()),
        ("objects", "capsules", (), options.objects),
        ("parts", "capsules", (), options.parts),
        ("image", "data", config["image_shape"], 0),
    ]
    frame = pd.DataFrame(rows, columns=["part", "of", "shape", "numbers"])
    return frame.assign(shape=["x".join(map(str, shape)) for _, _, shape, _ in rows])


def draw_connections(axis: Axes, sizes: pd.DataFrame) -> None:
    """Draw the variables of an object i, a part j and the image, and what they depend on; beside it the layers."""
    numbers = sizes.set_index("part")["numbers"]
    canvas(axis, (-0.4, 11.2), (-1.0, 4.3))
    for y, height, text in (
        (3.6, 1.1, f"objects i = 1 to {numbers['objects']},\nand a dummy"),
        (1.65, 1.9, f"parts j = 1 to {numbers['parts']}"),
    ):
        box(axis, (2.4, y), (3.0, height), "", fc="0.96", ec="0.6")
        axis.text(4.0, y + height / 2, text, ha="left", va="top", fontsize=7)
    for variable, parents in GENERATIVE.items():
        for parent in parents:
            arrow(axis, PLACES[parent], PLACES[variable], gap=13)
    for name, place in PLACES.items():
        given = name not in ("t0", "A0", *GENERATIVE)
        circle(axis, place, RADIUS, SIGNS[name], **({"ec": "none"} if given else {"fc": "0.85"} if name == "X" else {}))
    _draw_layers(axis, int(numbers["objects"]), int(numbers["parts"]))


def _draw_layers(axis: Axes, objects: int, parts: int) -> None:
    """Draw all objects, all parts and the image, and the connections between them."""
    left, right = 6.6, 11.0
    tops, lows = ([left + (right - left) * place / (n - 1) for place in range(n)] for n in (objects + 1, parts))
    for x in tops:
        for below in lows:
            line(axis, (x, 3.6), (below, 1.7), color="0.75", linewidth=0.3)
    for x in lows:
        line(axis, (x, 1.7), ((left + right) / 2, -0.1), color="0.75", linewidth=0.3)
    for place, x in enumerate(tops):
        circle(axis, (x, 3.6), 0.1, fc="0.6" if place == 0 else "white")
    for x in lows:
        circle(axis, (x, 1.7), 0.1)
    box(axis, ((left + right) / 2, -0.3), (1.2, 0.5), "image", zorder=3)
    axis.text(left, 3.85, "dummy", ha="center", va="bottom", fontsize=7)
    for y, text, side in ((3.85, f"{objects} objects", "bottom"), (1.5, f"{parts} parts", "top")):
        axis.text(right, y, text, ha="right", va=side, fontsize=7)


def draw_dependencies(axis: Axes, sizes: pd.DataFrame) -> None:
    """Draw the layers of the generative model, from top to bottom, and of the posterior, from bottom to top."""
    numbers = sizes.set_index("part")["numbers"]
    canvas(axis, (-0.7, 9.6), (-0.4, 4.2))
    heights = {"t0, A0": 3.2, "t1, A1": 1.6, "X": 0.0}
    labels = {"t0, A0": "$t^0, A^0$", "t1, A1": "$t^1, A^1$", "X": "$X$"}
    learned = sizes[sizes["of"] == "generative model"].set_index("part")["numbers"]
    relations, templates = sum(learned[name] for name in ("rho", "gamma", "M", "c")), learned["T"] + learned["alpha"]
    ways = {
        ("p", "t1, A1"): f"equations 3 to 6: {relations:,} numbers",
        ("p", "X"): f"templates, equation 7: {templates:,} numbers",
        ("q", "t1, A1"): f"convolutional network: {numbers['convolutional network']:,} weights",
        ("q", "t0, A0"): f"set transformer: {numbers['set transformer']:,} weights",
    }
    for x, side, title in ((0.0, "p", "generative model"), (6.0, "q", "approximate posterior")):
        axis.text(x - 0.6, 3.75, title, ha="left", va="bottom", fontsize=8.5)
        for name, y in heights.items():
            box(axis, (x, y), (1.2, 0.6), labels[name])
        for variable, parents in DEPENDENCIES[side].items():
            for parent in parents:
                start, end = heights[parent], heights[variable]
                off = 0.3 if start < end else -0.3
                arrow(axis, (x, start + off), (x, end - off))
                axis.text(x + 0.15, (start + end) / 2, ways[side, variable], ha="left", va="center", fontsize=7.5)
