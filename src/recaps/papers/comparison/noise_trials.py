"""What it is in noisy images that models with labels fail on: noise in parts of the image, weaker noise, or brightness.

`python -m recaps.papers.comparison.noise_trials results/desk/runs/comparison/{convnet,supcaps}/seed-*
--data results/desk/datasets/mnist-40/test --out noise.csv` writes the table of the page, "Noise".
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.distributions import Normal
from torch.nn.functional import max_pool2d

from recaps import io
from recaps.arrays import read
from recaps.command import command
from recaps.config.training import Training
from recaps.evaluation.latents import as_array
from recaps.models.model import Model
from recaps.training import device as devices
from recaps.training.batches import as_float, view
from recaps.training.randomness import generator
from recaps.training.saved import load_model

#: Standard deviation of the noise of the test `noisy`, as a part of white.
DEVIATION = 0.2
#: Pixels at most this far from the digit, along each axis, are near it. It is the reach of a 9x9 convolution.
NEAR = 4


def noisy(images: Tensor, noise: Tensor, deviation: float = DEVIATION) -> Tensor:
    """Add noise and clip, as the test does. Both are [N, 1, H, W]; images are in 0..1, noise has variance 1."""
    return (images + deviation * noise).clamp(0, 1)


def expected(images: Tensor, deviation: float = DEVIATION) -> Tensor:
    """Return the mean of `noisy` over all noise, pixel by pixel: grey where the image is black."""
    normal = Normal(0.0, 1.0)
    low, high = -images / deviation, (1 - images) / deviation
    below_white = normal.cdf(high)
    fluctuation = deviation * (normal.log_prob(low).exp() - normal.log_prob(high).exp())
    return images * (below_white - normal.cdf(low)) + fluctuation + 1 - below_white


def near_digit(images: Tensor) -> Tensor:
    """Return where a pixel of the digit is at most `NEAR` pixels away along each axis, as bool [N, 1, H, W]."""
    return max_pool2d((images > 0).float(), 2 * NEAR + 1, stride=1, padding=NEAR) > 0


TRIALS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "none": lambda images, noise: images,
    "as in the test": noisy,
    "0.1 instead of 0.2": lambda images, noise: noisy(images, noise, 0.1),
    "0.05 instead of 0.2": lambda images, noise: noisy(images, noise, 0.05),
    "not clipped": lambda images, noise: images + DEVIATION * noise,
    "its mean alone": lambda images, noise: expected(images),
    "near the digit alone": lambda images, noise: torch.where(near_digit(images), noisy(images, noise), images),
    "elsewhere alone": lambda images, noise: torch.where(near_digit(images), images, noisy(images, noise)),
}


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    given = _parser().parse_args(arguments)
    where = devices.choose("auto", given.threads)
    arrays = read(given.data)
    images = as_float(torch.from_numpy(np.array(arrays.images[: given.images])).to(where))
    labels = np.array(arrays.labels[: given.images])
    rows: list[dict[str, Any]] = []
    for run in given.runs:
        settings = Training.model_validate(io.read_json(run / "config.json")["training"])
        model, config = load_model(run, where, settings.snapshots.get("equal-images"))
        for trial, accuracy in trials(model, settings, images, labels).items():
            row = {"model": config["variant"], "seed": int(run.name.removeprefix("seed-")), "noise": trial}
            rows.append(row | {"n": len(images), "accuracy %": round(accuracy, 1)})
            io.write_text(given.out, pd.DataFrame(rows).to_csv(index=False))
            print(rows[-1], flush=True)
    return 0


def trials(
    model: Model, training: Training, images: Tensor, labels: np.ndarray[Any, Any], batch_size: int = 250
) -> dict[str, float]:
    """Return the accuracy in percent of a model's own class scores in each trial. The noise is always the same.

    Args:
        model: a trained model with class scores.
        training: the settings of its training.
        images: [N, 1, H, W], in 0..1, on the model's device.
        labels: [N].
        batch_size: images per batch; does not change the result.
    """
    noise = torch.randn(images.shape, generator=generator(0, "noise trials")).to(images.device)
    found = {}
    with torch.inference_mode():
        for name, change in TRIALS.items():
            changed = change(images, noise).split(batch_size)
            scores = [as_array(model.latents(view(batch, training))["scores"]) for batch in changed]
            found[name] = float(100 * np.mean(np.concatenate(scores).argmax(1) == labels))
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m recaps.papers.comparison.noise_trials", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of runs of models with class scores")
    parser.add_argument(
        "--data", type=Path, required=True, help="a prepared split, e.g. results/desk/datasets/mnist-40/test"
    )
    parser.add_argument("--images", type=int, default=2500, help="number of images, from the first")
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch")
    parser.add_argument("--out", type=Path, required=True, help="table to write (CSV)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
