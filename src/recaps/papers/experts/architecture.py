"""Figure 1 of *Training products of expert capsules*: the stages of the network as built."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from recaps.report.diagrams import arrow, box, canvas

#: Centres of the columns and of the two rows, width and height of the boxes, in inches.
COLUMNS, ROWS, WIDE, HIGH = (0.6, 2.5, 4.4, 6.3, 8.35), (2.3, 0.8), 1.0, 0.62


def stages(config: Mapping[str, Any]) -> list[dict[str, object]]:
    """The stages from an image to the output capsules and back, from a run's settings.

    Returns:
        For each stage its name, its shape for one image (height x width x channels, or number and dimensions of
        capsules), the operation before it, kernel and stride, the number of weights of this operation (without those of
        earlier stages), the phase in which they learn, and the steps of this phase.
    """
    import torch
    from torch.nn.functional import conv_transpose2d

    from recaps.papers.experts.experts import build
    from recaps.papers.experts.options import ExpertsOptions

    model = build(ExpertsOptions.model_validate(config["model"]), tuple(config["image_shape"]), config["classes"])
    coder = model.autoencoder
    with torch.inference_mode():
        image = torch.zeros(1, *config["image_shape"])
        maps, code, inputs = coder.first(image), coder.encode(image), model.input_capsules(image)
        outputs = model.encode(inputs)
        decoded = model.decode(outputs)
        back = coder.as_maps(decoded)
        maps_back = conv_transpose2d(
            back, coder.second.weight, stride=coder.second.stride, output_padding=coder.left_over
        )
        picture = model.pictures(decoded)
    learning = (coder.first, coder.second, model.encoder, model.decoder)
    first, second, w, u = (sum(each.numel() for each in part.parameters()) for part in learning)
    biases = [None if each is None else each.numel() for each in (coder.bias_between, coder.bias_images)]
    kernels = [("x".join(map(str, each.kernel_size)), each.stride[0]) for each in (coder.first, coder.second)]
    none = ("", None)
    back_by = "transposed convolution, same filters"
    rows: list[tuple[str, Any, str, tuple[str, int | None], int | None, str]] = [
        ("image", image, "", none, None, ""),
        ("feature maps", maps, "convolution, leaky ReLU", kernels[0], first, "autoencoder"),
        ("code", code, "convolution, leaky ReLU", kernels[1], second, "autoencoder"),
        ("input capsules", inputs, "reshape, squash", none, None, ""),
        ("output capsules", outputs, "routing with W, squash", none, w, "encoder"),
        ("input capsules", decoded, "routing with U", none, u, "decoder"),
        ("code", back, "unsquash, reshape", none, None, ""),
        ("feature maps", maps_back, f"{back_by}, leaky ReLU", kernels[1], biases[0], "autoencoder"),
        ("picture", picture, f"{back_by}, sigmoid", kernels[0], biases[1], "autoencoder"),
    ]
    steps = {phase: f"{start + 1:,} to {end:,}" for phase, (start, end) in phase_steps(config).items()}
    columns = ("stage", "shape", "operation", "kernel", "stride", "weights", "learns", "steps")
    return [
        dict(zip(columns, (stage, _shape(made), operation, *kernel, weights, phase, steps.get(phase, "")), strict=True))
        for stage, made, operation, kernel, weights, phase in rows
    ]


def phase_steps(config: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """The number of steps before the start and before the end of each phase of a run."""
    from recaps.config.training import Training
    from recaps.papers.experts.experts import PHASES, phase_ends
    from recaps.papers.experts.options import ExpertsOptions

    ends = phase_ends(ExpertsOptions.model_validate(config["model"]), Training.model_validate(config["training"]))
    return dict(zip(PHASES, zip((0, *ends), ends, strict=False), strict=True))


def _shape(values: Any) -> str:
    if values.ndim == 3:
        return f"{values.shape[1]} capsules of {values.shape[2]}"
    return "x".join(str(values.shape[axis]) for axis in (2, 3, 1))


def draw(axis: Axes, stages: Sequence[Mapping[str, Any]]) -> None:
    """Draw the stages up to the output capsules in the upper row, the others in the lower row."""
    canvas(axis, (0, 9), (-0.15, 3.25))
    outputs, (top, bottom) = len(COLUMNS) - 1, ROWS
    left, right = COLUMNS[-2] + WIDE / 2 + 0.04, COLUMNS[-1] - WIDE / 2 - 0.04
    _draw_phase(axis, (0.02, 0.2, COLUMNS[2] + 0.6, 2.8), "1. autoencoder, by back-propagation", stages[1])
    _draw_phase(axis, (left, top - 0.5, right, 2.8), "2. encoder W, by algorithm 1", stages[outputs])
    _draw_phase(axis, (left, 0.2, right, bottom + 0.4), "3. decoder U, by section 4.1", stages[outputs + 1], below=True)
    places = [*((x, top) for x in COLUMNS), *((x, bottom) for x in reversed(COLUMNS[:-1]))]
    for place, (stage, (x, y)) in enumerate(zip(stages, places, strict=True)):
        low = (bottom if place == outputs else y) - HIGH / 2
        height = y + HIGH / 2 - low
        text = f"{stage['stage']}\n{stage['shape']}".replace(" of ", "\nof ").replace("x", "×")
        box(axis, (x, low + height / 2), (WIDE, height), text)
        if place:
            _draw_operation(axis, stage, places[place - 1][0], x, y)


def _draw_operation(axis: Axes, stage: Mapping[str, Any], start: float, end: float, y: float) -> None:
    """Draw the arrow to a stage, with its operation above and kernel and weights below."""
    way = math.copysign(WIDE / 2, end - start)
    arrow(axis, (start + way, y), (end - way, y))
    below = [f"{stage['kernel']}, stride {stage['stride']}".replace("x", "×")] if stage["kernel"] else []
    below += [f"{n:,}", "weight" if n == 1 else "weights"] if (n := stage["weights"]) is not None else []
    above = stage["operation"].replace(", ", "\n").replace("transposed ", "transposed\n")
    for text, offset, side in ((above, 0.05, "bottom"), ("\n".join(below), -0.06, "top")):
        axis.text((start + end) / 2, y + offset, text, ha="center", va=side, fontsize=6.5)


def _draw_phase(
    axis: Axes, corners: tuple[float, float, float, float], title: str, stage: Mapping[str, Any], below: bool = False
) -> None:
    """Draw a frame (left, bottom, right, top) around the operations that learn in the phase of a stage."""
    left, bottom, right, top = corners
    axis.add_patch(Rectangle((left, bottom), right - left, top - bottom, fc="0.93", ec="0.5", ls="--", lw=0.8))
    y, side = (bottom - 0.05, "top") if below else (top + 0.05, "bottom")
    text = f"{title}\nsteps {stage['steps']}"
    axis.text((left + right) / 2, y, text, ha="center", va=side, fontsize=7.5)
