"""Measure how fast the models train on this machine: `make bench`, or `python -m recaps.bench --help`.

Each step alternates with the same step in plain PyTorch and float32 (`kernels.plain`). `--save` keeps the times for
`make estimate`.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recaps import provenance
from recaps.arrays import Arrays
from recaps.command import at_least_one, command
from recaps.config.load import Project, load
from recaps.config.reading import read_yaml
from recaps.config.training import Training
from recaps.config.variant import Variant
from recaps.datasets.catalogue import defaults, describe
from recaps.errors import UserError, nearest
from recaps.io import read_json, write_json
from recaps.models import build
from recaps.models.model import Model
from recaps.nn.kernels import plain
from recaps.step_times import FILE, image_shape, step_name, work_of
from recaps.training import device as devices
from recaps.training import machine
from recaps.training.batches import Batches
from recaps.training.images import images_of
from recaps.training.step import take_steps
from recaps.training.timing import count_operations

GIGA = 1e9
#: A time is not kept if the peak of matrix products is below this share of the peak at the last time.
BUSY = 0.6
#: Rows of the matrices whose products give the peak, from the first choice down.
_MATRIX_SIZES = (2048, 1024, 512, 256)


@dataclass(frozen=True)
class Row:
    """The measurements of one model."""

    name: str
    precision: str
    seconds: float
    """Median seconds of a training step."""
    spread: float
    """Slowest minus fastest step, relative to the median."""
    plain: float | None
    """Median seconds of the same step in plain PyTorch and float32, if it was timed."""
    batch_size: int
    flop: float
    """Floating-point operations that a step needs."""
    peaks: dict[str, float]
    """Operations per second of matrix products in the same process, by precision."""
    peak_memory: int
    memory_per_image: float
    """Bytes that each further image of a batch adds to the peak."""


def time_step(
    name: str, variant: Variant, phase: str, precision: str, device_name: str, steps: int, plain_steps: int = 0
) -> Row:
    """Time training steps of one phase of a variant's training, on random images with the shape of its data set.

    The first `plain_steps` steps alternate with plain ones.
    """
    device = devices.choose(device_name)
    training = variant.training.model_copy(update={"precision": precision})
    arrays = random_split(variant.data.split("/")[0], training.batch_size)
    model = untrained(variant, training, device)
    model.train()
    size, at, images = training.batch_size, model.phases()[phase], images_of(arrays, device)

    def stepper(**changes: Any) -> Callable[[], object]:
        batches = Batches(images, training.model_copy(update=changes), 0, device)
        steps = take_steps(model, batches, itertools.repeat(at))
        return lambda: next(steps)

    few = min(2, size)
    stepper(batch_size=few)()  # compiles the kernels
    base = machine.peak_memory(device)
    step = stepper()
    for _ in range(2):
        step()
    memory = machine.peak_memory(device)
    slow = stepper(precision="float32")
    seconds, slowly = [], []
    for place in range(max(steps, plain_steps)):
        seconds.append(_timed(step, device))
        if place < plain_steps:
            with plain():
                slowly.append(_timed(slow, device))
    return Row(
        f"{name} {phase}".rstrip(),
        devices.resolve(device, precision),
        seconds=statistics.median(seconds),
        spread=(max(seconds) - min(seconds)) / statistics.median(seconds),
        plain=statistics.median(slowly) if slowly else None,
        batch_size=size,
        flop=count_operations(model, Batches(images, training, 0, device), at),
        peaks={"bf16": matmul_peak(torch.bfloat16, device), "float32": matmul_peak(torch.float32, device)},
        peak_memory=memory,
        memory_per_image=(memory - base) / (size - few) if size > few else 0.0,
    )


def variants_of(project: Project) -> dict[str, Variant]:
    """Return all variants of the papers by `paper/name`."""
    return {f"{name}/{key}": each for name, paper in project.papers.items() for key, each in paper.variants.items()}


def untrained(variant: Variant, training: Training, device: torch.device) -> Model:
    """Return a variant's model, configured for training."""
    torch.manual_seed(0)
    classes = describe(variant.data.split("/")[0])["classes"]
    model = build(variant.model, image_shape(variant), classes).place(device)
    model.configure(training)
    return model


def random_split(name: str, n: int) -> Arrays:
    """Return random images in the shape of a data set's."""
    about, options, random = describe(name), defaults(name), np.random.default_rng(0)
    shape = (n, about["channels"], about["height"], about["width"])
    images = random.integers(0, 256, shape, dtype=np.uint8)
    paired = {key: options[key] for key in ("pairs", "shift")} if "pairs" in options else {}
    record = {"classes": about["classes"], "parameters": paired, "seed": "bench"}
    return Arrays(images, random.integers(about["classes"], size=n), {}, record)


def matmul_peak(dtype: torch.dtype, device: torch.device, limit: float = 10.0) -> float:
    """Return the operations per second of the best of several square matrix products.

    They have 2,048 rows, or fewer if that would take longer than about `limit` seconds: a processor without a unit for
    bfloat16 would take many minutes.
    """
    repeats, rounds = 50 if device.type == "cuda" else 3, 5

    def best(size: int, rounds: int) -> float:
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        products: Callable[[], object] = lambda: [a @ b for _ in range(repeats)][-1]  # noqa: E731
        products()
        return min(_timed(products, device) for _ in range(rounds))

    smallest = _MATRIX_SIZES[-1]
    cost = best(smallest, 1) / smallest**3
    size = next((each for each in _MATRIX_SIZES if (1 + rounds) * cost * each**3 < limit), smallest)
    return 2 * size**3 * repeats / best(size, rounds)


def line(row: Row, first: Row) -> str:
    """Return a row as text; `first` is the row that it is compared with."""
    rate = row.flop / row.seconds
    relative = row.seconds / row.batch_size / (first.seconds / first.batch_size)
    return (
        f"{row.name:<36} {row.precision:<9} {row.seconds:>8.3f} {row.spread:>7.0%} {row.batch_size:>6}"
        f" {row.batch_size / row.seconds:>9.1f} {relative:>8.2f}"
        f" {rate / GIGA:>8.1f} {row.peaks['bf16'] / GIGA:>6.0f} {rate / row.peaks['bf16']:>5.0%}"
        f" {row.peaks['float32'] / GIGA:>6.0f} {rate / row.peaks['float32']:>5.0%} {row.peak_memory / 2**30:>7.2f}"
        f" {row.memory_per_image / 2**20:>9.2f}" + (f" {row.plain / row.seconds:>6.2f}" if row.plain else "")
    )


HEAD = (
    f"{'model':<36} {'precision':<9} {'s/step':>8} {'spread':>7} {'images':>6} {'images/s':>9} {'relative':>8}"
    f" {'GFLOP/s':>8}"
    f" {'bf16':>6} {'share':>5} {'f32':>6} {'share':>5} {'GiB':>7}"
    f" {'MiB/image':>9} {'plain':>6}"
)


@command
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m recaps.bench", description=__doc__)
    add, precisions = parser.add_argument, ["auto", "bf16", "float32"]
    add("--config", type=Path, default=Path("config"), help="the folder of the configuration (default: config)")
    add("--scale", default="paper", help="the scale of the models (default: paper)")
    add("--papers", nargs="+", help="the papers of the models (default: those of config.yaml)")
    add("--only", nargs="+", help="the variants to time (default: all)")
    add("--device", default="auto", choices=devices.NAMES, help="the device (default: auto)")
    more = "time steps in each of these (default: auto)"
    add("--precisions", nargs="+", default=["auto"], choices=precisions, help=more)
    add("--steps", type=at_least_one, default=5, help="timed steps per model (default: 5)")
    add("--plain", type=int, default=2, metavar="N", help="timed steps in plain PyTorch (default: 2)")
    add("--save", nargs="?", type=Path, const=FILE, metavar="FILE", help=f"keep the times (default: in {FILE})")
    _bench(parser.parse_args(arguments))
    return 0


def _bench(options: argparse.Namespace) -> None:
    # The images are random, so no data set is needed.
    values = dict(read_yaml(options.config / "config.yaml")) | {"scale": options.scale, "datasets": {}, "without": []}
    project = load(values | ({"papers": options.papers} if options.papers else {}), options.config)
    variants = variants_of(project)
    known = [name.split("/")[1] for name in variants]
    for wanted in options.only or []:
        if wanted not in known:
            raise UserError(f"--only: no variant '{wanted}'{nearest(wanted, known)}")
    device = machine.describe(devices.choose(options.device))
    print(f"PyTorch {torch.__version__} on {device}, models of scale {options.scale}")
    print("relative: seconds per image, relative to the paper's first model on the same data")
    print("bf16, f32: GFLOP/s of matrix products in the same process, and the training step's share of them")
    print("GiB: peak memory; MiB/image: memory that each image of a batch adds")
    print("plain: seconds of the same step in plain PyTorch and float32, relative to s/step")
    print(HEAD, flush=True)
    first: dict[tuple[str, ...], Row] = {}
    timed: dict[str, str] = {}
    for name, variant in variants.items():
        if options.only and name.split("/")[1] not in options.only:
            continue
        twin = timed.setdefault(work_of(variant), name)
        if twin != name:
            print(f"{name:<36} as {twin}", flush=True)
            continue
        phases = untrained(variant, variant.training, torch.device("cpu")).phases()
        for phase, precision in itertools.product(phases, options.precisions):
            # Each model is timed in a process of its own, so that the peak memory is its own.
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
                arguments = (name, variant, phase, precision, options.device, options.steps, options.plain)
                row = process.submit(time_step, *arguments).result()
            beside = first.setdefault((name.split("/")[0], variant.data, precision), row)
            if options.save:
                _save(options.save, device, step_name(variant, phase, precision), row)
            print(line(row, beside), flush=True)


def _save(file: Path, device: str, step: str, row: Row) -> None:
    """Add the time of a step on a device to the file, in place of an earlier one from a machine that was as idle."""
    times = read_json(file) if file.is_file() else {}
    kept, peak = times.setdefault(device, {}), row.peaks[row.precision]
    last = kept.get(step, {}).get("peak", 0.0)
    if peak < BUSY * last:
        print(
            f"not saved: products reach {peak / GIGA:.0f} GFLOP/s, and {last / GIGA:.0f} at the last time in {file};"
            " run again when nothing else is running"
        )
        return
    about = {"model": row.name, "date": provenance.now()[:10], "torch": str(torch.__version__)}
    kept[step] = {"seconds": row.seconds, "peak": peak, **about}
    write_json(file, times)


def _timed(function: Callable[[], object], device: torch.device) -> float:
    started = time.perf_counter()
    function()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


if __name__ == "__main__":
    raise SystemExit(main())
