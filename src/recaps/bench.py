"""How fast the models train here: `make bench`, or `python -m recaps.bench --help`.

With `--save` the times are kept for `make estimate`.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from recaps import provenance, step_times
from recaps.arrays import Arrays
from recaps.config.load import load, read_yaml
from recaps.config.training import Training
from recaps.config.variant import Variant
from recaps.datasets.catalogue import defaults, describe
from recaps.errors import UserError, nearest
from recaps.models import build
from recaps.models.model import Batch, Model
from recaps.step_times import OWN, TENSORS, StepTime, image_shape, work_of
from recaps.training import device as devices
from recaps.training.batches import Batches
from recaps.training.images import samples

GIGA = 1e9
#: Families that have compiled code on a CPU where a GPU runs tensor operations, and the modules that choose.
COMPILED = ("matrixcaps",)
CHOOSING = tuple(f"recaps.nn.routing.{name}" for name in ("connectionist", "em", "similarity"))
#: As many images of such a step have room on a small machine.
FEW_IMAGES = 4


@dataclass(frozen=True)
class Row:
    """One timed model."""

    name: str
    precision: str
    seconds: float
    """Median seconds of a training step."""
    spread: float
    """Slowest minus fastest step, relative to the median."""
    batch_size: int
    flop: float
    """Floating-point operations that a step needs."""
    peaks: dict[str, float]
    """Operations per second of matrix products in the same process, by precision."""
    peak_memory: int
    memory_per_image: float
    """Bytes by which each further image of a batch raises the peak."""
    calls: int
    """Tensor operations of a step that compute something."""
    bandwidth: float
    """Bytes per second of a large copy, read and written together."""


def time_step(
    name: str, variant: Variant, phase: str, precision: str, device_name: str, steps: int, code: str = OWN
) -> Row:
    """Time training steps of a variant, of one phase of its learning, on random images of its data set's shape.

    With `code: tensors` in tensor operations only, and on a few images.
    """
    if code == TENSORS:
        few_images = {"batch_size": min(FEW_IMAGES, variant.training.batch_size)}
        smaller = variant.model_copy(update={"training": variant.training.model_copy(update=few_images)})
        with leave_compiled_code():
            return time_step(name, smaller, phase, precision, device_name, steps)
    device = devices.choose(device_name)
    training = variant.training.model_copy(update={"precision": precision})
    arrays = random_split(variant.data.split("/")[0], training.batch_size)
    model = untrained(variant, training, device)
    model.train()
    size, at = training.batch_size, model.phases()[phase]
    batch = Batches(samples(arrays, device), training, 0, device)(0)
    few = {key: values[:2] for key, values in batch.items()}
    _stepper(model, few, at, device, precision)()  # compiles what is compiled
    base = devices.peak_memory(device)
    step = _stepper(model, batch, at, device, precision)
    for _ in range(2):
        step()
    seconds = [_timed(step, device) for _ in range(steps)]
    memory = devices.peak_memory(device)
    return Row(
        f"{name} {phase}".rstrip(),
        precision,
        seconds=statistics.median(seconds),
        spread=(max(seconds) - min(seconds)) / statistics.median(seconds),
        batch_size=size,
        flop=count_flop(model, batch, at, device, precision),
        peaks={"bf16": matmul_peak(torch.bfloat16, device), "float32": matmul_peak(torch.float32, device)},
        peak_memory=memory,
        memory_per_image=(memory - base) / (size - len(few["labels"])) if size > 2 else 0.0,
        calls=count_calls(model, batch, at, device, precision),
        bandwidth=copy_bandwidth(device),
    )


def untrained(variant: Variant, training: Training, device: torch.device) -> Model:
    """A variant's model, configured for training."""
    torch.manual_seed(0)
    classes = describe(variant.data.split("/")[0])["classes"]
    model = build(variant.model, image_shape(variant), classes).place(device)
    model.configure(training)
    return model


def random_split(name: str, n: int) -> Arrays:
    """Random images in the shape of a data set's."""
    about, options, random = describe(name), defaults(name), np.random.default_rng(0)
    shape = (n, about["channels"], about["height"], about["width"])
    images = random.integers(0, 256, shape, dtype=np.uint8)
    paired = {key: options[key] for key in ("pairs", "shift")} if "pairs" in options else {}
    record = {"classes": about["classes"], "parameters": paired, "seed": "bench"}
    return Arrays(images, random.integers(about["classes"], size=n), {}, record)


def count_flop(model: Model, batch: Batch, at: int, device: torch.device, precision: str) -> float:
    """Operations that training step `at` needs: what the model's equations ask for, not what the implementation spends.

    Convolutions and fully connected layers are counted as they run, votes and routing from their equations: the
    block-diagonal products that compute them fast do more arithmetic than that.
    """
    counter: Any = FlopCounterMode(display=False)
    with counter:
        _stepper(model, batch, at, device, precision)()
    by_operation = counter.get_flop_counts()["Global"]
    routing = model.routing_operations(len(batch["labels"]))
    return routing + sum(n for operation, n in by_operation.items() if not routing or "bmm" not in str(operation))


def count_calls(model: Model, batch: Batch, at: int, device: torch.device, precision: str) -> int:
    """Tensor operations of training step `at` that compute something: views do not."""
    counter = _CallCounter()
    with counter:
        _stepper(model, batch, at, device, precision)()
    return counter.calls


class _CallCounter(TorchDispatchMode):
    calls = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += not function.is_view
        return function(*args, **(kwargs or {}))


def copy_bandwidth(device: torch.device, numbers: int = 2**26) -> float:
    """Bytes per second of the best of several copies, far larger than any cache; read and written bytes together."""
    a, b = (torch.ones(numbers, device=device) for _ in range(2))
    return 2 * 4 * numbers / min(_timed(lambda: b.copy_(a), device) for _ in range(5))


def matmul_peak(dtype: torch.dtype, device: torch.device, size: int = 2048) -> float:
    """Operations per second of the best of several square matrix products."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    repeats = 50 if device.type == "cuda" else 3
    product: Callable[[], Tensor] = lambda: [a @ b for _ in range(repeats)][-1]  # noqa: E731
    product()
    return 2 * size**3 * repeats / min(_timed(product, device) for _ in range(5))


def line(row: Row, first: Row) -> str:
    """A row as text; `first` is the one that it is compared with."""
    rate = row.flop / row.seconds
    relative = row.seconds / row.batch_size / (first.seconds / first.batch_size)
    return (
        f"{row.name:<36} {row.precision:<9} {row.seconds:>8.3f} {row.spread:>7.0%} {row.batch_size:>6}"
        f" {row.batch_size / row.seconds:>9.1f} {relative:>8.2f}"
        f" {rate / GIGA:>8.1f} {row.peaks['bf16'] / GIGA:>6.0f} {rate / row.peaks['bf16']:>5.0%}"
        f" {row.peaks['float32'] / GIGA:>6.0f} {rate / row.peaks['float32']:>5.0%} {row.peak_memory / 2**30:>7.2f}"
        f" {row.memory_per_image / 2**20:>9.2f}"
    )


HEAD = (
    f"{'model':<36} {'precision':<9} {'s/step':>8} {'spread':>7} {'images':>6} {'images/s':>9} {'relative':>8}"
    f" {'GFLOP/s':>8}"
    f" {'bf16':>6} {'share':>5} {'f32':>6} {'share':>5} {'GiB':>7}"
    f" {'MiB/image':>9}"
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m recaps.bench", description=__doc__)
    parser.add_argument("--config", type=Path, default=Path("config"), help="the folder of the configuration")
    parser.add_argument("--scale", default="paper", help="the scale whose models are timed (default: paper)")
    parser.add_argument("--papers", nargs="+", help="papers whose models are timed (default: config.yaml's)")
    parser.add_argument("--only", nargs="+", help="variants to time (default: all)")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--precisions", nargs="+", default=["bf16"], choices=["bf16", "float32"])
    parser.add_argument("--steps", type=int, default=5, help="timed steps per model")
    parser.add_argument(
        "--save",
        nargs="?",
        type=Path,
        const=step_times.FILE,
        metavar="FILE",
        help=f"keep the times for `make estimate`, in {step_times.FILE} unless told",
    )
    try:
        _bench(parser.parse_args(arguments))
    except UserError as error:
        print(f"recaps: {error}", file=sys.stderr)
        return 1
    return 0


def _bench(options: argparse.Namespace) -> None:
    # Random images: no data set is needed.
    values = dict(read_yaml(options.config / "config.yaml")) | {"scale": options.scale, "without": []}
    project = load(values | ({"papers": options.papers} if options.papers else {}), options.config)
    variants = {f"{p}/{name}": v for p, paper in project.papers.items() for name, v in paper.variants.items()}
    for wanted in options.only or []:
        if wanted not in {name.split("/")[1] for name in variants}:
            raise UserError(f"--only: no variant '{wanted}'{nearest(wanted, (n.split('/')[1] for n in variants))}")
    print(
        f"PyTorch {torch.__version__} on {devices.describe(devices.choose(options.device))}, models of {options.scale}"
    )
    print("relative: seconds per image, relative to the paper's first model on the same data")
    print("bf16, f32: GFLOP/s of matrix products in the same process, and the training step's share of it")
    print("GiB: peak memory; MiB/image: what each image of a batch adds to it, from two images on")
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
        for phase, precision, code in itertools.product(phases, options.precisions, _codes(variant, options)):
            # A process for each, so that one model's memory does not count for the next.
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
                job = process.submit(time_step, name, variant, phase, precision, options.device, options.steps, code)
                row = job.result()
            beside = first.setdefault((name.split("/")[0], variant.data, precision), row)
            print(line(row, beside) + ("" if code == OWN else " as on a GPU"), flush=True)
            if options.save:
                step_times.save(options.save, [_kept(row, name, variant, phase, code, options)])


def _codes(variant: Variant, options: argparse.Namespace) -> tuple[str, ...]:
    """What a variant's steps are timed with: for `make estimate` also what a GPU would run."""
    on_cpu = devices.choose(options.device).type == "cpu"
    return (OWN, TENSORS) if options.save and on_cpu and variant.model.family in COMPILED else (OWN,)


@contextmanager
def leave_compiled_code() -> Iterator[None]:
    """Within, this process uses tensor operations where it would use the compiled routing of matrix capsules."""
    modules: list[Any] = [importlib.import_module(name) for name in CHOOSING]
    before = [module.fits for module in modules]
    try:
        for module in modules:
            module.fits = lambda *_: False
        yield
    finally:
        for module, fits in zip(modules, before, strict=True):
            module.fits = fits


def _kept(row: Row, name: str, variant: Variant, phase: str, code: str, options: argparse.Namespace) -> StepTime:
    """A timed model as a row of the file."""
    paper, _, short = name.partition("/")
    size = variant.training.batch_size
    return StepTime(
        device=devices.describe(devices.choose(options.device)),
        work=work_of(variant),
        phase=phase,
        precision=row.precision,
        code=code,
        batch_size=size,
        images=row.batch_size,
        seconds=row.seconds * size / row.batch_size,
        gflop=row.flop / GIGA * size / row.batch_size,
        calls=row.calls,
        gib=row.memory_per_image * size / 2**30,
        bf16=row.peaks["bf16"] / GIGA,
        float32=row.peaks["float32"] / GIGA,
        bandwidth=row.bandwidth / GIGA,
        scale=options.scale,
        paper=paper,
        variant=short,
        date=provenance.now()[:10],
        torch=str(torch.__version__),
    )


def _stepper(model: Model, batch: Batch, at: int, device: torch.device, precision: str) -> Callable[[], object]:
    def step() -> object:
        with devices.arithmetic(device, precision):
            return model.training_step(batch, at)

    return step


def _timed(function: Callable[[], object], device: torch.device) -> float:
    started = time.perf_counter()
    function()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


if __name__ == "__main__":
    raise SystemExit(main())
