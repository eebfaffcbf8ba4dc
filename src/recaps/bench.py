"""How fast the models train here: `make bench`, or `python -m recaps.bench --help`."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from recaps.config.load import load
from recaps.config.variant import Variant
from recaps.datasets.catalogue import describe
from recaps.models import build
from recaps.models.model import Batch, Model
from recaps.training import device as devices
from recaps.training.batches import as_float

GIGA = 1e9


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
    peak_memory: int


def time_step(name: str, variant: Variant, precision: str, device: torch.device, steps: int) -> Row:
    """Time training steps of a variant on random images of its data set's shape."""
    about = describe(variant.data.split("/")[0])
    shape = (about["channels"], about["height"], about["width"])
    training = variant.training.model_copy(update={"precision": precision})
    torch.manual_seed(0)
    model = build(variant.model, shape, about["classes"]).place(device)
    model.configure(training)
    model.train()
    size = training.batch_size
    images = as_float(torch.randint(0, 256, (size, *shape), dtype=torch.uint8, device=device))
    batch = {"images": images, "labels": torch.randint(about["classes"], (size,), device=device)}
    step = _stepper(model, batch, device, precision)
    for _ in range(2):
        step()
    flop = count_flop(model, batch, device, precision)
    seconds = [_timed(step, device) for _ in range(steps)]
    middle = statistics.median(seconds)
    return Row(name, precision, middle, (max(seconds) - min(seconds)) / middle, size, flop, devices.peak_memory(device))


def count_flop(model: Model, batch: Batch, device: torch.device, precision: str) -> float:
    """Operations that a training step needs: what the model's equations ask for, not what the implementation spends.

    Convolutions and fully connected layers are counted as they run, votes and routing from their equations: the
    block-diagonal products that compute them fast do more arithmetic than that.
    """
    counter: Any = FlopCounterMode(display=False)
    with counter:
        _stepper(model, batch, device, precision)()
    by_operation = counter.get_flop_counts()["Global"]
    routing = model.routing_operations(len(batch["labels"]))
    return routing + sum(n for operation, n in by_operation.items() if not routing or "bmm" not in str(operation))


def matmul_peak(dtype: torch.dtype, device: torch.device, size: int = 2048) -> float:
    """Operations per second of the best of several square matrix products."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    repeats = 50 if device.type == "cuda" else 3
    product: Callable[[], Tensor] = lambda: [a @ b for _ in range(repeats)][-1]  # noqa: E731
    product()
    return 2 * size**3 * repeats / min(_timed(product, device) for _ in range(5))


def table(rows: list[Row], peaks: dict[str, float]) -> str:
    """The rows as text, with shares of the matmul peaks (operations per second, by precision)."""
    head = f"{'model':<26} {'precision':<9} {'s/step':>8} {'spread':>7} {'images/s':>9} {'GFLOP/s':>8}"
    lines = [head + f" {'of bf16':>8} {'of f32':>7} {'peak GiB':>9}"]
    for row in rows:
        rate = row.flop / row.seconds
        lines.append(
            f"{row.name:<26} {row.precision:<9} {row.seconds:>8.3f} {row.spread:>7.0%}"
            f" {row.batch_size / row.seconds:>9.1f} {rate / GIGA:>8.1f} {rate / peaks['bf16']:>8.0%}"
            f" {rate / peaks['float32']:>7.0%} {row.peak_memory / 2**30:>9.2f}"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m recaps.bench", description=__doc__)
    parser.add_argument("--config", type=Path, default=Path("config"), help="the folder of the configuration")
    parser.add_argument("--scale", default="paper", help="the scale whose models are timed (default: paper)")
    parser.add_argument("--papers", nargs="*", default=["sparse"], help="papers whose models are timed")
    parser.add_argument("--only", nargs="*", help="variants to time (default: all)")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--precisions", nargs="*", default=["bf16", "float32"])
    parser.add_argument("--steps", type=int, default=5, help="timed steps per model")
    options = parser.parse_args(arguments)
    device = devices.choose(options.device)
    print(f"PyTorch {torch.__version__} on {devices.describe(device)}")
    peaks = {"float32": matmul_peak(torch.float32, device), "bf16": matmul_peak(torch.bfloat16, device)}
    print(
        "matmul peak: " + ", ".join(f"{name} {value / GIGA:.0f} GFLOP/s" for name, value in peaks.items()), flush=True
    )
    project = load({"scale": options.scale, "papers": options.papers}, options.config)
    rows = []
    for paper, settings in project.papers.items():
        for name, variant in settings.variants.items():
            if options.only and name not in options.only:
                continue
            for precision in options.precisions:
                rows.append(time_step(f"{paper}/{name}", variant, precision, device, options.steps))
                print(table(rows[-1:], peaks).splitlines()[1], flush=True)
    print(f"\n{table(rows, peaks)}")


def _stepper(model: Model, batch: Batch, device: torch.device, precision: str) -> Callable[[], object]:
    def step() -> object:
        with devices.arithmetic(device, precision):
            return model.training_step(batch, 0)

    return step


def _timed(function: Callable[[], object], device: torch.device) -> float:
    started = time.perf_counter()
    function()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
