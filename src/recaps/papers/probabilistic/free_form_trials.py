"""Why free-form inference changes presences: inference with other draws, and of the presences alone.

`python -m recaps.papers.probabilistic.free_form_trials results/desk/runs/probabilistic/capsules/seed-*
--data results/desk/datasets/mnist/test --out free-form.csv` writes the table of the page, "Free-form inference".
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import torch

import recaps
from recaps import io
from recaps.arrays import read as read_arrays
from recaps.command import command
from recaps.config.heads import Head
from recaps.config.load import read_yaml
from recaps.evaluation.heads import classifier
from recaps.evaluation.latents import as_array
from recaps.npz import Array, read
from recaps.papers import FOLDER
from recaps.papers.probabilistic.capsules import GenerativeCapsules
from recaps.papers.probabilistic.probes import free_form
from recaps.training import device as devices

TRIALS: dict[str, dict[str, Any]] = {
    "all": {},
    "all, other draws": {"purpose": "other draws"},
    "presences": {"presences_only": True},
}


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    given = _parser().parse_args(arguments)
    where = devices.choose("auto", given.threads)
    arrays = read_arrays(given.data)
    images = torch.from_numpy(np.array(arrays.images[: given.images])).to(where).float() / 255
    labels = torch.from_numpy(np.array(arrays.labels[: given.images])).to(where)
    rows: list[dict[str, Any]] = []
    for run in given.runs:
        rows += trials(run, given.fit, images, labels)
        io.write_text(given.out, pd.DataFrame(rows).to_csv(index=False))
    return 0


def trials(run: Path, fit: str, images: torch.Tensor, labels: torch.Tensor) -> list[dict[str, Any]]:
    """All trials with the model of a run, a row each.

    Args:
        run: the run's folder, with its latents.
        fit: the latents that the classifier of presences is fitted on.
        images: [B, C, H, W], in 0..1.
        labels: [B].
    """
    model, truth = cast(GenerativeCapsules, recaps.load(run, device=images.device.type).model), as_array(labels)
    fitted = read(run / "latents.npz", ("presence", "labels"), part=fit)
    settings = Head.model_validate(read_yaml(FOLDER / "probabilistic" / "paper.yaml")["heads"]["presence"])
    head = classifier(settings).fit(fitted["presence"], fitted["labels"])
    rows: list[dict[str, Any]] = []
    moves: list[Array] = []
    for name, options in TRIALS.items():
        found = {key: as_array(values) for key, values in free_form(model, images, labels, **options).items()}
        bounds = found["bound_along"].mean(1)
        moves.append(found["presence_free"] - found["presence"])
        correlations = [np.corrcoef(one, other)[0, 1] for one, other in zip(moves[0].T, moves[-1].T, strict=True)]
        rows.append(
            {
                "seed": int(run.name.removeprefix("seed-")),
                "optimised": name,
                "n": len(images),
                "bound before": round(float(bounds[0]), 2),
                "bound after": round(float(bounds[-1]), 2),
                "accuracy % before": round(100 * head.score(found["presence"], truth), 1),
                "accuracy % after": round(100 * head.score(found["presence_free"], truth), 1),
                "correlation with the first trial": round(float(np.median(correlations)), 2),
            }
        )
        print(rows[-1], flush=True)
    return rows


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m recaps.papers.probabilistic.free_form_trials", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of runs with latents")
    parser.add_argument(
        "--data", type=Path, required=True, help="a prepared split, e.g. results/desk/datasets/mnist/test"
    )
    parser.add_argument("--fit", default="mnist/train", help="latents that the classifier is fitted on")
    parser.add_argument("--images", type=int, default=200, help="number of images, from the first")
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch")
    parser.add_argument("--out", type=Path, required=True, help="table to write (CSV)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
