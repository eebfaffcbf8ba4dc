"""What single capsules draw, by the learning rate and the number of steps of W, on held-out training images.

    python -m recaps.papers.experts.sweep mnist results/desk/datasets/mnist/train --out sweep.csv \\
        --rates 1 4 10 40 --steps 100 300 1000 2500

The autoencoder is trained once. From it, W learns at each rate for each number of steps, and then U learns. A ConvNet
judges the samples. All networks learn from all images but the last 5,000; samples are compared with the first 2,000 of
these. The test set is not read.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from recaps import io
from recaps.arrays import Arrays, read
from recaps.command import command
from recaps.config.load import load
from recaps.config.training import Training
from recaps.config.variant import Variant
from recaps.errors import UserError
from recaps.evaluation.latents import latents_of
from recaps.models.model import Model
from recaps.papers.experts.judge import agreement, coverage, flat, frechet_distance, judged
from recaps.report.metrics import selectivity, usage
from recaps.training import device as devices
from recaps.training.batches import Batches
from recaps.training.images import images_of
from recaps.training.run import fresh_model

#: Images that nothing learns from, and those that samples are compared with.
HELD_OUT, COMPARED = 5000, 2000


def rows(
    experts: Variant,
    judge: Variant,
    arrays: Arrays,
    settings: Iterable[tuple[float, int]],
    decoder_steps: int,
    seed: int = 0,
) -> Iterator[dict[str, Any]]:
    """Yield the measures of each setting: a learning rate and a number of steps of W.

    Args:
        experts: the variant whose W is varied; its share of the steps trains the autoencoder.
        judge: the ConvNet.
        arrays: a training split.
        settings: learning rates and numbers of steps.
        decoder_steps: number of steps of U.
        seed: seed of weights, batches and samples.
    """
    where = devices.choose("auto")
    known, held_out = arrays.take(slice(-HELD_OUT)), arrays.take(slice(-HELD_OUT, None))
    convnet: Any = _learned(_fresh(judge, arrays, seed), known, judge.training, range(judge.training.steps), seed)
    convnet.cpu().eval()
    compared = held_out.take(slice(COMPARED))
    real = judged(convnet, np.asarray(compared.images, np.float32) / 255, judge.training)
    training, every = experts.training, images_of(compared, where)
    first: Any = _fresh(experts, arrays, seed)
    end = first.ends[0]
    _learned(first, known, training, range(end), seed)
    for rate, steps in settings:
        model: Any = copy.deepcopy(first)
        model.options = model.options.model_copy(update={"encoder_rate": rate})
        model.configure(training)
        model.ends = (end, end + steps, end + steps + decoder_steps)
        _learned(model, known, training, range(end, model.ends[2]), seed).eval()
        latents = latents_of(model, every, range(len(compared)), training, where)
        with torch.no_grad():
            samples = model.sample()["restricted"].cpu().numpy()
        seen = judged(convnet, flat(samples), judge.training)
        halves = np.array_split(seen.decisions.reshape(samples.shape[:2]), 2)
        yield {
            "rate": rate,
            "steps": steps,
            "seed": seed,
            "chain error": float(latents["reconstruction_error"].mean()),
            "length": float(latents["lengths"].mean()),
            "usage": usage(latents["lengths"]),
            "selectivity": float(selectivity(latents["lengths"], latents["labels"]).mean()),
            "frechet": frechet_distance(seen.features, real.features),
            "agreement": float(agreement(*halves).mean()),
            "classes": coverage(seen.probabilities),
        }


def _fresh(variant: Variant, arrays: Arrays, seed: int) -> Model:
    settings = {"model": variant.model.model_dump()}
    shape = arrays.images.shape[1:]
    model = fresh_model(settings, shape, int(arrays.record["classes"]), seed).place(devices.choose("auto"))
    model.configure(variant.training)
    return model


def _learned(model: Model, arrays: Arrays, training: Training, steps: range, seed: int) -> Model:
    """Train a model for some of its steps, in place."""
    where = devices.choose("auto")
    batches = Batches(images_of(arrays, where), training, seed, where)
    for step in steps:
        with devices.arithmetic(where, training.precision):
            model.training_step(batches(step), step)
    return model


@command
def main(arguments: list[str] | None = None) -> int:
    """Write the table, after each setting. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m recaps.papers.experts.sweep")
    parser.add_argument("dataset", help="the prefix of the variants, e.g. mnist")
    parser.add_argument("data", type=Path, help="a prepared training split, e.g. results/desk/datasets/mnist/train")
    parser.add_argument("--rates", type=float, nargs="+", required=True, help="learning rates of W")
    parser.add_argument("--steps", type=int, nargs="+", required=True, help="numbers of steps of W")
    parser.add_argument("--decoder-steps", type=int, default=400, help="number of steps of U")
    parser.add_argument("--out", type=Path, required=True, help="table to write (CSV)")
    parser.add_argument("--scale", default="desk")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help="CPU threads (default: chosen by PyTorch)")
    parser.add_argument("--config", type=Path, default=Path("config"), help="folder of the configuration")
    given = parser.parse_args(arguments)
    found = []
    devices.choose("auto", given.threads)
    variants = load({"scale": given.scale, "papers": ["experts"]}, given.config).papers["experts"].variants
    names = [f"{given.dataset}-{kind}" for kind in ("experts", "judge")]
    if not set(names) <= variants.keys():
        raise UserError(f"no variants {' and '.join(names)}")
    settings = itertools.product(given.rates, given.steps)
    experts, judge = (variants[name] for name in names)
    for row in rows(experts, judge, read(given.data), settings, given.decoder_steps, given.seed):
        found.append({name: round(value, 3) for name, value in row.items()})
        io.write_text(given.out, pd.DataFrame(found).to_csv(index=False))
        print(found[-1], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
