"""Measured times of training steps, by device: those of this checkout, and published ones.

Steps are named by the work that they do: variants and scales with the same work share a time. PyTorch is not imported,
because the rules ask for times whenever Snakemake starts.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import ValidationError

from recaps.config.families import families
from recaps.config.training import Training
from recaps.config.variant import Variant
from recaps.datasets.catalogue import defaults, describe
from recaps.io import read_json

#: Where `python -m recaps.bench --save` keeps times by device and `step_name`.
FILE = Path("results/step-times.json")
#: The published runs. A file beside them has published times of steps that no published run took.
PUBLISHED = Path("results/published")

Times = dict[str, dict[str, float]]
"""Seconds by device and `step_name`."""


def image_shape(variant: Variant) -> tuple[int, int, int]:
    """Return the shape (C, H, W) of the images that a variant's model gets."""
    about, training = describe(variant.data.split("/")[0]), variant.training
    height, width = (training.crop or about[side] + 2 * training.pad for side in ("height", "width"))
    return about["channels"], height, width


def work_of(variant: Variant) -> str:
    """Return a digest of all that a step's work depends on: model, shape of images and labels, batch size."""
    pairs = "pairs" in defaults(variant.data.split("/")[0])
    work = [variant.model.model_dump(mode="json"), image_shape(variant), pairs, variant.training.batch_size]
    return hashlib.sha256(json.dumps(work, sort_keys=True).encode()).hexdigest()[:12]


def step_name(variant: Variant, phase: str, precision: str) -> str:
    """Return the key of a training step in the file of times. Variants that do the same work share it."""
    return f"{work_of(variant)}/{phase}/{precision}"


def measured(file: Path = FILE) -> Times:
    """Return the times in the file that `python -m recaps.bench --save` wrote; none without a file."""
    found = read_json(file) if file.is_file() else {}
    return {device: {name: step["seconds"] for name, step in steps.items()} for device, steps in found.items()}


def published(folder: Path = PUBLISHED) -> Times:
    """Return the published times, as medians over runs. A step of a run has no phase in its name: it is a mean step."""
    timed = folder / FILE.name
    others = read_json(timed) if timed.is_file() else []
    return merged(_medians(others), _medians(map(read_json, folder.glob("*/runs/*/*/*/record.json"))))


def merged(times: Times, better: Times) -> Times:
    """Return all times; where both have a step, that of `better`."""
    return {device: times.get(device, {}) | better.get(device, {}) for device in {**times, **better}}


def hours(variant: Variant, phases: Mapping[str, int], times: Mapping[str, float]) -> float | None:
    """Return the hours of a run's training steps, or None if they were not measured.

    Args:
        phases: the first step of each phase, see `Model.phases`.
        times: seconds on one device, by `step_name`.
    """
    precision, steps = variant.training.precision, variant.training.steps
    names = [step_name(variant, phase, precision) for phase in phases]
    if times.keys() >= set(names):
        ends = [*phases.values(), steps][1:]
        spans = [end - start for start, end in zip(phases.values(), ends, strict=True)]
        return sum(n * times[name] for n, name in zip(spans, names, strict=True)) / 3600
    whole = times.get(step_name(variant, "", precision))
    return None if whole is None else steps * whole / 3600


def slowest(times: Times, *, gpu: bool) -> dict[str, float]:
    """Return the seconds of the slowest step of each work, over all phases and all GPUs, or all CPUs."""
    found: dict[str, float] = {}
    for device, steps in times.items():
        # CPUs are named with their threads, see `recaps.training.machine.describe`.
        if gpu != bool(re.search(r", \d+ threads?$", device)):
            for name, seconds in steps.items():
                work = name.split("/")[0]
                found[work] = max(seconds, found.get(work, 0.0))
    return found


def _medians(records: Iterable[Mapping[str, Any]]) -> Times:
    """Return the median over runs of the seconds of a mean step. Some runs had another beside them, or were paused."""
    found: dict[str, dict[str, list[float]]] = {}
    for record in records:
        if (variant := _variant(record)) and "trained" not in record:
            name = step_name(variant, "", variant.training.precision)
            steps = found.setdefault(record["device"], {})
            steps.setdefault(name, []).append(record["wall_seconds"] / record["steps"])
    return {device: {name: median(each) for name, each in steps.items()} for device, steps in found.items()}


def _variant(record: Mapping[str, Any]) -> Variant | None:
    """Return a published run's variant without options that no longer exist; None if it is not valid otherwise."""
    config, family = record["config"], families().get(record["config"]["model"]["family"])
    known = {"model": family.model_fields if family else {}, "training": Training.model_fields}
    settings = {part: {key: config[part][key] for key in names if key in config[part]} for part, names in known.items()}
    try:
        return Variant.model_validate(settings | {"title": record["variant"], "data": config["data"]})
    except ValidationError:
        return None
