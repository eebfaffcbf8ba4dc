"""The numbers of a few steps, as digests: two versions of the code that give the same ones compute the same.

`python -m recaps.training.proof` reads trials from standard input and writes their digests to standard output (JSON).
`recaps.workflow.accept` runs it with the code of two commits.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recaps.arrays import read
from recaps.config.training import Training
from recaps.evaluation.probes import function
from recaps.training import device as devices
from recaps.training.batches import Batches, view, view_shape
from recaps.training.images import images_of
from recaps.training.step import fresh_model, take_steps

#: Steps of each phase, and images whose latents and probes are computed.
STEPS, IMAGES = 3, 16


def digests(
    settings: Mapping[str, Any], *, paper: str, seed: int, dataset: str, probes: list[str], device: str, threads: int
) -> dict[str, str]:
    """Return digests of what a run computes first, from its initial weights, by name.

    These are metrics and weights after some steps of each phase, and the latents and probes of some images.

    Args:
        settings: `model` and `training`, as in the variant's configuration.
        paper: the paper, for its probes.
        seed: the run's seed.
        dataset: the prepared training split.
        probes: names of probes.
        device: `cpu` or `cuda`.
        threads: CPU threads.
    """
    where, training = devices.choose(device, threads), Training.model_validate(settings["training"])
    arrays = read(Path(dataset))
    shape = view_shape(arrays.images.shape[1:], training)
    model = fresh_model(settings, shape, int(arrays.record["classes"]), seed).place(where)
    model.configure(training)
    images = images_of(arrays, where)
    batches = Batches(images, training, seed, where)
    model.train()
    found = {}
    for phase, start in model.phases().items():
        metrics = list(take_steps(model, batches, range(start, min(start + STEPS, training.steps))))
        found[f"steps {phase}".strip()] = _digest([*_tensors(metrics), *model.state_dict().values()])
    model.eval()
    with torch.inference_mode():
        batch = images(torch.arange(min(IMAGES, len(images)), device=where))
        seen = view(batch["images"], training)
        found["latents"] = _digest([*_tensors([model.latents(seen)])])
        for probe in probes:
            made = function(paper, probe)(model, seen, batch["labels"])
            found[f"probe {probe}"] = _digest([*_tensors([made])])
    return found


def _tensors(values: list[dict[str, Tensor]]) -> list[Tensor]:
    return [each[name] for each in values for name in sorted(each)]


def _digest(tensors: list[Tensor]) -> str:
    state = hashlib.sha256()
    for each in tensors:
        state.update(f"{each.dtype} {tuple(each.shape)}".encode())
        state.update(each.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return state.hexdigest()[:16]


if __name__ == "__main__":
    for line in sys.stdin:
        try:
            result: dict[str, str] = digests(**json.loads(line))
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
        print(json.dumps(result), flush=True)
