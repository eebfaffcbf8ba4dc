"""Compare settings of a variant by their accuracy on held-out training images.

    python -m recaps.search probabilistic capsules results/desk/datasets/mnist/train --scale desk --out search.csv \\
        --trial '{}' --trial '{model: {template_rate: 5}}' --trial '{training: {learning_rate: 0.002}}'

A trial is the variant with some settings changed. The last images of the split are held out: the model is trained on
the others, and the variant's heads are fitted on the first images and tested on the held-out ones. The test set is not
read.

With `--minutes`, every trial trains for the same processor time, to compare networks of different widths: the number of
steps follows from the time of a step, and the schedule of the learning rate is compressed to it.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import yaml

from recaps import io
from recaps.arrays import Arrays, read
from recaps.command import at_least_one, command
from recaps.config.heads import Head
from recaps.config.load import load, mapping
from recaps.config.training import Training
from recaps.config.variant import Variant
from recaps.errors import STOPPED, UserError, nearest
from recaps.evaluation.heads import classifier, features, highest_are_labels
from recaps.evaluation.latents import latents_of
from recaps.models.model import Model
from recaps.npz import Array
from recaps.training import device as devices
from recaps.training.batches import Batches, view_shape
from recaps.training.images import images_of
from recaps.training.interruption import Interrupted
from recaps.training.lease import Lease
from recaps.training.loop import fit
from recaps.training.step import fresh_model

#: Steps that are timed to find out how many fit into a given time.
TIMED = 20


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the command line. Return the exit status: 0, 1 for a user's mistake, or 130 if the process was stopped."""
    given = _parser().parse_args(arguments)
    arrays = read(given.data)
    if min(given.fit, given.held_out) < 1 or given.fit + given.held_out > len(arrays):
        raise UserError(
            f"--fit, --held-out: {given.fit} and {given.held_out} images, but {given.data} has {len(arrays)};"
            " give at least one each, and at most all together"
        )
    trials = [mapping(text, f"--trial '{text}'") for text in given.trial or ["{}"]]
    rows: list[dict[str, Any]] = []
    for changed in trials:
        try:
            rows.append(row(given, changed, arrays))
        except Interrupted:
            print(f"recaps: stopped; finished trials in {given.out}: {len(rows)} of {len(trials)}", file=sys.stderr)
            return STOPPED
        # Written after every trial, so that a later failure does not lose it.
        io.write_text(given.out, pd.DataFrame(rows).to_csv(index=False))
        print(rows[-1], flush=True)
    return 0


def row(given: argparse.Namespace, changed: Mapping[str, Any], arrays: Arrays) -> dict[str, Any]:
    """Run a trial.

    Returns:
        Its settings, the accuracies of the heads in percent, means of the scalar latents, and the model's diagnosis.
    """
    values = {"scale": given.scale, "papers": [given.paper]}
    if given.variant not in (known := load(values, given.config).papers[given.paper].variants):
        raise UserError(f"{given.paper}: no variant '{given.variant}'{nearest(given.variant, known)}")
    changes = {given.paper: {"variants": {given.variant: changed}}}
    paper = load(values | {"overrides": changes}, given.config).papers[given.paper]
    variant = paper.variants[given.variant]
    if given.minutes is not None:
        variant = affordable(variant, arrays, given)
    heads = {name: paper.heads[name] for name in variant.heads}
    started = time.perf_counter()
    model = _trained(variant, arrays, given)
    fitted, tested = _latents(model, variant.training, arrays, given)
    accuracies = {f"{name} %": 100 * _accuracy(head, fitted, tested) for name, head in heads.items()}
    means = {name: float(each.mean()) for name, each in tested.items() if each.ndim == 1 and name != "labels"}
    made: dict[str, Any] = {
        "changed": yaml.safe_dump(changed, default_flow_style=True, width=math.inf).strip(),
        "seed": given.seed,
    }
    made |= {"steps": variant.training.steps, "batch_size": variant.training.batch_size}
    made |= {name: round(value, 3) for name, value in {**accuracies, **means, **model.diagnosis(tested)}.items()}
    made |= {"n": given.held_out, "seconds": round(time.perf_counter() - started)}
    return made


def affordable(variant: Variant, arrays: Arrays, given: argparse.Namespace) -> Variant:
    """Return the variant with as many steps as fit into `given.minutes` of processor time, timed on a few steps."""
    short = variant.training.model_copy(update={"steps": TIMED})
    _trained(variant.model_copy(update={"training": short}), arrays, given)  # warms up
    started = time.process_time()
    _trained(variant.model_copy(update={"training": short}), arrays, given)
    steps = max(TIMED, round(60 * given.minutes * TIMED / (time.process_time() - started)))
    decay = max(1, round(variant.training.lr_decay_steps * steps / variant.training.steps))
    changed = {"steps": steps, "lr_decay_steps": decay}
    return variant.model_copy(update={"training": variant.training.model_copy(update=changed)})


def _latents(
    model: Model, training: Training, arrays: Arrays, given: argparse.Namespace
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the model's latents and the labels of the first and of the held-out images."""
    where = devices.choose("auto", given.threads)
    every = images_of(arrays, where)
    first, last = range(given.fit), range(len(arrays) - given.held_out, len(arrays))
    return latents_of(model, every, first, training, where), latents_of(model, every, last, training, where)


def _trained(variant: Variant, arrays: Arrays, given: argparse.Namespace) -> Model:
    """Train a model on all but the held-out images."""
    where, training = devices.choose("auto", given.threads), variant.training
    shape = view_shape(arrays.images.shape[1:], training)
    settings = {"model": variant.model.model_dump()}
    model = fresh_model(settings, shape, int(arrays.record["classes"]), given.seed).place(where)
    model.configure(training)
    learned = images_of(arrays.take(slice(-given.held_out)), where)
    with TemporaryDirectory() as folder:
        batches = Batches(learned, training, given.seed, where)
        with Lease(Path(folder)) as lease:
            fit(model, batches, Path(folder), "", lease=lease, checkpoint_seconds=1e9, start={})
    model.eval()
    return model


def _accuracy(head: Head, fitted: Mapping[str, Array], tested: Mapping[str, Array]) -> float:
    if head.kind == "argmax":
        return float(highest_are_labels(features(tested, head), tested["labels"]).mean())
    answers = classifier(head).fit(features(fitted, head), fitted["labels"]).predict(features(tested, head))
    return float((answers == tested["labels"]).mean())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m recaps.search", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paper", help="a paper, e.g. probabilistic")
    parser.add_argument("variant", help="a variant of the paper, e.g. capsules")
    parser.add_argument("data", type=Path, help="a prepared training split, e.g. results/desk/datasets/mnist/train")
    parser.add_argument(
        "--trial", action="append", help="changed settings, as YAML, e.g. '{training: {steps: 100}}'; may be repeated"
    )
    parser.add_argument("--out", type=Path, required=True, help="table to write (CSV)")
    parser.add_argument("--scale", default="desk", help="the scale of the variant (default: desk)")
    parser.add_argument(
        "--config", type=Path, default=Path("config"), help="the folder of the configuration (default: config)"
    )
    parser.add_argument(
        "--fit", type=int, default=10000, help="number of images, from the first, to fit heads on (default: 10000)"
    )
    parser.add_argument(
        "--held-out", type=int, default=5000, help="number of images, from the last, to test heads on (default: 5000)"
    )
    parser.add_argument("--minutes", type=float, help="processor time of each training, instead of its steps")
    parser.add_argument("--seed", type=int, default=0, help="seed of each training (default: 0)")
    parser.add_argument("--threads", type=at_least_one, help="CPU threads (default: PyTorch's choice)")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
