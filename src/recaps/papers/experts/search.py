"""The search for the rates of W and U that *Training products of expert capsules* leaves out.

    python -m recaps.papers.experts.search results/desk/datasets/mnist/train --out docs/papers/experts-search.csv
    python -m recaps.papers.experts.search results/desk/datasets/mnist/train --finalists \\
        --steps 1000 2500 600 --batch-size 64 --out docs/papers/experts-finalists.csv

One autoencoder is trained, and from it W and U again and again, each time with other options: one at a time, then the
best together. What counts is the squared error of the chain, image to capsules to image, on the last images of the
training set, which nothing learns from. The test set is not read.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recaps import arrays
from recaps.config.training import Training
from recaps.papers.experts.experts import Experts
from recaps.papers.experts.options import ExpertsOptions
from recaps.training.device import arithmetic, keep_memory

#: Where both searches set out from; all else as the defaults.
START: Mapping[str, Any] = {"encoder_rate": 20.0}
#: What is tried, beside that.
TRIALS: tuple[Mapping[str, Any], ...] = (
    {},
    {"encoder_rate": 10.0},
    {"encoder_rate": 40.0},
    {"encoder_decay": 1e-5},
    {"encoder_decay": 1e-3},
    {"code_length": 0.15},
    {"code_length": 0.35},
    {"decoder_scale": 1.0},
    {"decoder_scale": 0.25},
    {"decoder_rate": 0.1},
    {"decoder_rate": 0.8},
    {"decoder_decay": 1e-5},
    {"decoder_decay": 1e-3},
    {"rate_end": 0.02},
    {"momentum": 0.5},
    {"iterations": 1},
    {"initial": 0.1},
)
#: The best of those together, for longer: what is best after 500 steps of W need not be after 2,500.
FINALISTS: tuple[Mapping[str, Any], ...] = (
    {},
    {"encoder_rate": 40.0},
    {"encoder_rate": 40.0, "decoder_scale": 1.0},
    {"encoder_rate": 40.0, "initial": 0.1},
)
HELD_OUT = 2000


def search(
    images: Tensor, trials: Sequence[Mapping[str, Any]], steps: tuple[int, int, int], batch_size: int
) -> list[dict[str, Any]]:
    """Squared error of the chain after training with each trial's options.

    Args:
        images: float32 [N, C, H, W] in 0..1; the last `HELD_OUT` measure.
        trials: options that differ from `START`.
        steps: of the autoencoder, W and U.
        batch_size: images per step, in all phases.

    Returns:
        A row per trial: `option`, `value`, `chain_error`, `autoencoder_error` and mean `length` of the capsules.
    """
    first = trained(images, ExpertsOptions(autoencoder=1, encoder=0), steps[0], batch_size)
    shared = first.autoencoder.state_dict()
    rows: list[dict[str, Any]] = []
    for changed in trials:
        options = ExpertsOptions(autoencoder=0, encoder=steps[1] / (steps[1] + steps[2]), **{**START, **changed})
        model = trained(images, options, steps[1] + steps[2], batch_size, shared)
        row: dict[str, Any] = {
            "option": ", ".join(changed) or "start",
            "value": ", ".join(map(str, changed.values())),
        }
        rows.append(row | measured(model, images[-HELD_OUT:]))
        print(rows[-1], flush=True)
    return rows


def trained(
    images: Tensor,
    options: ExpertsOptions,
    steps: int,
    batch_size: int,
    autoencoder: Mapping[str, Tensor] | None = None,
) -> Experts:
    """A model that has learned from all but the held-out images, with an autoencoder's weights if given."""
    torch.manual_seed(0)
    model = Experts(options, (images.shape[1], images.shape[2], images.shape[3]))
    if autoencoder is not None:
        model.autoencoder.load_state_dict(autoencoder)
    model.place(images.device).configure(Training(steps=steps, batch_size=batch_size, log_every=1))
    drawn = torch.Generator().manual_seed(0)
    for step in range(steps):
        chosen = torch.randint(len(images) - HELD_OUT, (batch_size,), generator=drawn)
        with arithmetic(images.device, "bf16"):
            model.training_step({"images": images[chosen]}, step)
    return model.eval()


@torch.no_grad()
def measured(model: Experts, images: Tensor) -> dict[str, float]:
    with arithmetic(images.device, "bf16"):
        parts = [model.latents(part) for part in images.split(500)]
    means = {name: float(torch.cat([part[name] for part in parts]).mean()) for name in parts[0] if name != "capsules"}
    return {
        "chain_error": round(means["reconstruction_error"], 2),
        "autoencoder_error": round(means["autoencoder_error"], 2),
        "length": round(means["lengths"], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path, help="a prepared training split, e.g. results/desk/datasets/mnist/train")
    parser.add_argument("--out", type=Path, required=True, help="the table to write (CSV)")
    parser.add_argument("--steps", type=int, nargs=3, default=(600, 500, 200), metavar=("AUTOENCODER", "W", "U"))
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--finalists", action="store_true", help="the best together, instead of one option at a time")
    given = parser.parse_args()
    keep_memory()
    images = torch.tensor(arrays.read(given.data).images[-20000:]).float() / 255
    trials = FINALISTS if given.finalists else TRIALS
    rows = search(images, trials, tuple(given.steps), given.batch_size)
    with given.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
