"""What a scale costs on a GPU, in jobs, GPU-hours and storage: `make estimate`, or `python -m recaps.estimate --help`.

Jobs are those of the plan that the rules follow. A step's time is the measured one where recaps.bench was run with
`--save` on the named GPU, and otherwise converted from a machine that was measured; how is said below the table. Sizes
come from the models and the data's shapes. Nothing is trained and no data are read.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from recaps import step_times
from recaps.bench import leave_compiled_code, random_split, untrained
from recaps.config.load import Project, load, read_yaml
from recaps.config.variant import Variant
from recaps.config.workflow import Scale
from recaps.datasets import catalogue
from recaps.errors import UserError, nearest
from recaps.evaluation.latents import of_samples
from recaps.models.model import Model
from recaps.step_times import OWN, TENSORS, StepTime, work_of
from recaps.training import device as devices
from recaps.training.batches import Batches
from recaps.training.images import samples
from recaps.workflow.layout import FIGURE_FORMATS, TABLE_FORMATS
from recaps.workflow.plan import Plan

CPU = torch.device("cpu")
#: Assumed: seconds that Python, PyTorch and the driver need to start one tensor operation on a GPU.
LAUNCH = 10e-6
#: Assumed: part of a training step's time per image that latents and test scores of an image need.
FORWARD = 1 / 3
#: Families that learn on the CPU wherever the rest runs.
ON_CPU = ("rbm",)
#: Checkpoints of a run that are kept.
CHECKPOINTS = 2
#: Digits of the stand-ins' train and test split, and its scenes unless told.
STAND_IN = {"train": 1437, "test": 360}
STAND_IN_SCENES = 1200
#: Characters of a line of the notes.
WIDTH = 110
#: Versions of each digit in affNIST's files.
AFFNIST_VERSIONS = 32


@dataclass(frozen=True)
class Gpu:
    """What its vendor publishes of a GPU."""

    name: str
    bf16: float
    """GFLOP/s of dense bfloat16 matrix products with float32 sums; of float32 where it has no bfloat16."""
    float32: float
    """GFLOP/s in float32, not TF32."""
    bandwidth: float
    """GB/s of its memory."""
    memory: float
    """GB."""

    def peak(self, precision: str) -> float:
        return self.bf16 if precision == "bf16" else self.float32


GPUS = (
    Gpu("NVIDIA V100", 15_700, 15_700, 900, 32),
    Gpu("NVIDIA A100", 312_000, 19_500, 2039, 80),
    Gpu("NVIDIA H100", 989_000, 67_000, 3350, 80),
    Gpu("NVIDIA H200", 989_000, 67_000, 4800, 141),
    Gpu("NVIDIA RTX 3090", 71_000, 35_600, 936, 24),
    Gpu("NVIDIA RTX 4090", 165_000, 82_600, 1008, 24),
    Gpu("NVIDIA L40S", 362_000, 91_600, 864, 48),
)


#: Words that make another GPU of a name.
OTHER = {"ti", "d", "laptop", "super"}


@dataclass(frozen=True)
class Seconds:
    """Bounds of the time of something; equal where it was measured."""

    low: float = 0.0
    high: float = 0.0

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(self.low + other.low, self.high + other.high)

    def __mul__(self, factor: float) -> Seconds:
        return Seconds(self.low * factor, self.high * factor)


# Jobs


def jobs(plan: Plan) -> dict[str, int]:
    """How many jobs of each rule make everything in the plan."""
    counts = {
        "fetch_file": len({file for names in _sets(plan) for file in plan.raw_files(names)}),
        "prepare_dataset": len(set(plan.datasets())),
        "train_variant": len(set(plan.models())),
        "extract_latents": len(set(plan.latents())),
        "read_probe": len(set(plan.probes())),
        "evaluate_head": len(set(plan.heads())),
        "time_steps": len(set(plan.timings())),
        "draw_table": len(set(plan.tables())) // len(TABLE_FORMATS),
        "draw_figure": len(set(plan.figures())) // len(FIGURE_FORMATS),
        "collect_metrics": len(set(plan.metrics())),
        "score_claims": 1,
        "build_report": 1,
    }
    return {rule: count for rule, count in counts.items() if count}


def _sets(plan: Plan) -> Iterator[Any]:
    """The prepared sets as wildcards of a rule."""
    for record in sorted(set(plan.datasets())):
        *_, dataset, split, _ = record.split("/")
        yield SimpleNamespace(dataset=dataset, split=split)


#: The rules behind each line of the table.
KINDS = {
    "data sets": ("fetch_file", "prepare_dataset"),
    "trainings": ("train_variant",),
    "latents": ("extract_latents",),
    "probes": ("read_probe",),
    "heads (on CPUs)": ("evaluate_head",),
    "timings": ("time_steps",),
    "tables, figures, others": ("draw_table", "draw_figure", "collect_metrics", "score_claims", "build_report"),
}
#: Of no single paper.
OF_ALL = ("score_claims", "build_report")


# Time


class Times:
    """Seconds per training step on one GPU: measured there, or else converted."""

    def __init__(self, rows: Sequence[StepTime], gpu: Gpu | None, device: str) -> None:
        """As `choose_gpu` gives `gpu` and the name of the `device`."""
        self.gpu = gpu
        self.measured = {_key(row): row for row in rows if row.code == OWN and _is(row.device, device)}
        others = [row for row in rows if not _is(row.device, device)]
        # Of the rows for the same work those of GPUs count, and then those in tensor operations, as on a GPU.
        others.sort(key=lambda row: (_known(row.device) is not None, row.code == TENSORS))
        self.others = {_key(row): row for row in others}
        # Of each machine, GFLOP/s by precision and GB/s: medians, as its speed drifts from row to row.
        self.rates = {
            device: {
                rate: statistics.median(getattr(row, rate) for row in others if row.device == device)
                for rate in ("bf16", "float32", "bandwidth")
            }
            for device in {row.device for row in others}
        }

    def row(self, variant: Variant, phase: str) -> StepTime | None:
        """The measurement behind `step`."""
        key = (work_of(variant), phase, variant.training.precision)
        return self.measured.get(key) or (self.others.get(key) if self.gpu else None)

    def step(self, variant: Variant, phase: str) -> Seconds | None:
        """Of one training step in a phase of its learning; None where nothing is known."""
        row = self.row(variant, phase)
        if row is None:
            return None
        if _key(row) in self.measured or variant.model.family in ON_CPU:
            return Seconds(row.seconds, row.seconds)
        return self._converted(row)

    def is_least(self, variant: Variant, phase: str) -> bool:
        """Whether nothing but the number of tensor operations decides about a step's time."""
        row, step = self.row(variant, phase), self.step(variant, phase)
        return row is not None and step is not None and step.high == row.calls * LAUNCH

    def _converted(self, row: StepTime) -> Seconds:
        """As if arithmetic alone counted, and as if memory did; not below the time to start the tensor operations."""
        assert self.gpu is not None
        rates = self.rates[row.device]
        arithmetic = row.seconds * rates[row.precision] / self.gpu.peak(row.precision)
        memory = row.seconds * rates["bandwidth"] / self.gpu.bandwidth
        least = row.calls * LAUNCH
        return Seconds(max(least, min(arithmetic, memory)), max(least, arithmetic, memory))


def choose_gpu(name: str, rows: Iterable[StepTime]) -> tuple[Gpu | None, str]:
    """The GPU of a name and the name; None and the name for a device that was measured and is in no table.

    Raises:
        UserError: neither is known by this name.
    """
    measured = sorted({row.device for row in rows})
    if gpu := _known(name):
        return gpu, gpu.name
    if name in measured:
        return None, name
    names = [*(gpu.name for gpu in GPUS), *measured]
    raise UserError(f"--gpu: nothing is known of '{name}'{nearest(name, names)}")


def _known(device: str) -> Gpu | None:
    """The GPU in the table that a name means: PyTorch's (`NVIDIA A100-SXM4-80GB`), or a shorter one (`a100`)."""
    words = set(_words(device))
    return None if words & OTHER else next((gpu for gpu in GPUS if words.issuperset(_words(gpu.name))), None)


def _is(device: str, name: str) -> bool:
    gpu = _known(name)
    return device == name if gpu is None else _known(device) == gpu


def _words(name: str) -> list[str]:
    """Words of a GPU's name that tell it from others."""
    return [word for word in name.lower().replace("-", " ").split() if word not in ("nvidia", "geforce", "tesla")]


def _key(row: StepTime) -> tuple[str, str, str]:
    return row.work, row.phase, row.precision


# One variant


@dataclass(frozen=True)
class Sizes:
    """What one network has, whatever the seed."""

    phases: Mapping[str, int]
    """The first step of each phase of learning."""
    model: int
    """Bytes of its parameters and buffers."""
    optimizers: int
    """Bytes of what its optimisers remember."""
    latents: int
    """Bytes of the latents of one image, with its label and which original it shows."""


def sizes(variant: Variant) -> Sizes:
    """Found by building the model, training it once in each phase and reading it, on two random images."""
    key = (work_of(variant), variant.training.steps)
    if key not in _found:
        _found[key] = _measured_sizes(variant)
    return _found[key]


_found: dict[tuple[str, int], Sizes] = {}


def _measured_sizes(variant: Variant) -> Sizes:
    training = variant.training.model_copy(update={"batch_size": 2})
    few = samples(random_split(variant.data.split("/")[0], 2), CPU)
    batch = Batches(few, training, 0, CPU)(0)
    with leave_compiled_code():
        model = untrained(variant, variant.training, CPU)
        phases = model.phases()
        for start in phases.values():
            with devices.arithmetic(CPU, training.precision):
                model.training_step(batch, start)
        read = of_samples(model.eval(), few, range(2), training, CPU)
    latents = sum(values.nbytes for values in read.values()) // 2
    return Sizes(phases, _bytes(model.state_dict()), _of_optimizers(model), latents + (few.versions == 1) * 8)


def _of_optimizers(model: Model) -> int:
    return sum(_bytes(optimizer.state_dict()) for optimizer in model.optimizers().values())


def _bytes(state: Any) -> int:
    """Of all tensors in nested dictionaries and lists."""
    if isinstance(state, torch.Tensor):
        return state.numel() * state.element_size()
    if isinstance(state, Mapping):
        return sum(_bytes(value) for value in state.values())
    return sum(_bytes(value) for value in state) if isinstance(state, list | tuple) else 0


def training_time(variant: Variant, phases: Mapping[str, int], times: Times) -> Seconds | None:
    """Of all training steps of one run; None where a phase was measured nowhere."""
    total = Seconds()
    ends = [*list(phases.values())[1:], variant.training.steps]
    for (phase, start), end in zip(phases.items(), ends, strict=True):
        step = times.step(variant, phase)
        if step is None:
            return None
        total += step * (end - start)
    return total


def images_read(variant: Variant, project: Project) -> int:
    """Images that a run's model sees without learning: in tests along its training, and for its latents."""
    training = variant.training
    read = sum(latent_images(name, limit, project) for name, limit in variant.latents.items())
    if training.evaluate_every:
        tested = latent_images(variant.test, training.evaluate_images, project)
        read += tested * -(-training.steps // training.evaluate_every)
    return read


def latent_images(name: str, limit: int | None, project: Project) -> int:
    """Images of a set that a model reads at most `limit` of; pairs of digits are as many as can be made."""
    resolved = project.resolve(name)
    options = _options(resolved.split("/")[0], project.scale)
    return _limited(stored_images(resolved, project.scale) * options.get("pairs", 1), limit)


def stored_images(set_name: str, scale: Scale) -> int:
    """Images of a prepared split, given the set that is really used."""
    name, split = set_name.split("/")
    options = _options(name, scale)
    base, base_split = catalogue.base_of(name, split)
    official = catalogue.entry(base).counts
    limit = options["limit"]
    if base == "smallnorb":
        scenes = (limit or STAND_IN_SCENES) if scale.stand_in else _limited(official[base_split], limit)
        # A third of the viewpoints is familiar; each camera's picture is an image.
        part = {"smallnorb": 1 / 2, "smallnorb-48": 1}.get(name, 2 / 3 if split == "novel" else 1 / 3)
        return round(2 * scenes * part)
    if name == "affnist" and not scale.stand_in:
        return _limited(official[split] * options["versions"] // AFFNIST_VERSIONS, limit)
    digits = STAND_IN["test" if base_split == "test" else "train"] if scale.stand_in else official[base_split]
    if split == "validation":
        digits //= 6
    return int(_limited(digits, limit) * options.get("versions", 1))


def _limited(number: int, limit: int | None) -> int:
    return number if limit is None else min(limit, number)


def stored_bytes(set_name: str, scale: Scale) -> int:
    """Of a prepared split: images and labels."""
    about = catalogue.describe(set_name.split("/")[0])
    return stored_images(set_name, scale) * (about["channels"] * about["height"] * about["width"] + 8)


def _options(name: str, scale: Scale) -> dict[str, Any]:
    return catalogue.resolve(name, scale.dataset_options.get(name, {}))


# A paper


@dataclass(frozen=True)
class Cost:
    """What a paper, or all of them, cost."""

    jobs: Mapping[str, int]
    steps: int
    training: Seconds
    reading: Seconds
    unknown: tuple[str, ...]
    """Variants whose steps were measured nowhere: their time is not in the sums."""
    models: int
    checkpoints: int
    latents: int
    datasets: int

    @property
    def storage(self) -> int:
        """Bytes."""
        return self.models + self.checkpoints + self.latents + self.datasets


def cost(plan: Plan, times: Times, of: Callable[[Variant], Sizes] = sizes) -> Cost:
    """Of all papers in the plan."""
    project, seeds = plan.project, len(plan.project.seeds)
    training, reading, unknown = Seconds(), Seconds(), []
    models = checkpoints = latents = steps = 0
    for paper, settings in project.papers.items():
        for name, variant in settings.variants.items():
            size = of(variant)
            steps += seeds * variant.training.steps
            models += seeds * size.model
            checkpoints += seeds * CHECKPOINTS * (size.model + size.optimizers)
            read = {project.resolve(each): latent_images(each, n, project) for each, n in variant.latents.items()}
            latents += seeds * size.latents * sum(read.values())
            seconds = training_time(variant, size.phases, times)
            if seconds is None:
                unknown.append(f"{paper}/{name}")
                continue
            per_image = seconds * (1 / (variant.training.steps * variant.training.batch_size))
            training += seconds * seeds
            reading += per_image * (FORWARD * seeds * images_read(variant, project))
    sets = sum(stored_bytes(f"{each.dataset}/{each.split}", project.scale) for each in _sets(plan))
    return Cost(jobs(plan), steps, training, reading, tuple(unknown), models, checkpoints, latents, sets)


def of_paper(plan: Plan, name: str) -> Plan:
    """The plan of one paper alone."""
    project = plan.project
    return Plan(project.model_copy(update={"papers": {name: project.papers[name]}}), plan.root)


# What is printed


def table(plan: Plan, times: Times) -> str:
    """A column for each paper and their total."""
    columns = {name: cost(of_paper(plan, name), times) for name in plan.project.papers}
    columns["total"] = cost(plan, times)
    numbers = {name: {**each.jobs} for name, each in columns.items()}
    for name in plan.project.papers:
        for rule in OF_ALL:
            numbers[name].pop(rule)
    rows: list[tuple[str, list[str]]] = [("jobs", [])]
    for kind, rules in KINDS.items():
        rows.append((f"  {kind}", [str(sum(each.get(rule, 0) for rule in rules)) for each in numbers.values()]))
    rows.append(("  all", [str(sum(each.values())) for each in numbers.values()]))
    costs = list(columns.values())
    rows += [
        ("training steps, millions", [f"{each.steps / 1e6:.2f}" for each in costs]),
        ("GPU-hours", []),
        ("  trainings", [_hours(each.training) for each in costs]),
        ("  tests and latents", [_hours(each.reading) for each in costs]),
        ("storage, GB", []),
        ("  models", [_gigabytes(each.models) for each in costs]),
        ("  checkpoints", [_gigabytes(each.checkpoints) for each in costs]),
        ("  latents", [_gigabytes(each.latents) for each in costs]),
        ("  data sets", [_gigabytes(each.datasets) for each in costs]),
        ("  all", [_gigabytes(each.storage) for each in costs]),
    ]
    widths = [max(11, len(name) + 2) for name in columns]
    lines = [("", list(columns)), *rows]
    return "\n".join(
        f"{label:<26}{''.join(f'{cell:>{width}}' for cell, width in zip(cells, widths, strict=False))}".rstrip()
        for label, cells in lines
    )


def notes(plan: Plan, times: Times, device: str) -> list[str]:
    """What the numbers rest on, a sentence or two each."""
    rows: list[StepTime] = []
    found = {"measured": 0, "converted": 0, "unknown": 0}
    unknown = []
    for paper, settings in plan.project.papers.items():
        for name, variant in settings.variants.items():
            each = [times.row(variant, phase) for phase in sizes(variant).phases]
            known = [row for row in each if row is not None]
            rows += known
            if len(known) < len(each):
                unknown.append(f"{paper}/{name}")
                found["unknown"] += 1
            else:
                found["measured" if all(_is(row.device, device) for row in known) else "converted"] += 1
    told = [
        f"Seconds per step: {found['measured']} of {sum(found.values())} variants measured on this device,"
        f" {found['converted']} converted, {found['unknown']} unknown."
    ]
    if unknown:
        told.append(f"Unknown, and in no sum of hours: {', '.join(unknown)}. Measure: python -m recaps.bench --save.")
    if found["converted"] and times.gpu:
        told += _conversion(plan, rows, times, times.gpu, device)
    return [*told, *_always()]


def _conversion(plan: Plan, rows: Sequence[StepTime], times: Times, gpu: Gpu, device: str) -> list[str]:
    """What a conversion assumes."""
    sources = sorted({row.device for row in rows if not _is(row.device, device)})
    from_ = " and ".join(
        f"{source} ({rates['bf16'] / 1000:.2f} TFLOP/s of bfloat16 matrix products, {rates['bandwidth']:.0f} GB/s of"
        " copies, medians)"
        for source, rates in times.rates.items()
        if source in sources
    )
    variants = [variant for paper in plan.project.papers.values() for variant in paper.variants.values()]
    decided = sum(times.is_least(variant, phase) for variant in variants for phase in list(sizes(variant).phases)[:1])
    kind = "bfloat16" if gpu.bf16 > gpu.float32 else "float32, as it has no bfloat16"
    told = [
        f"Converted from {from_}. One number assumes that a step reaches the same share of this GPU's published"
        f" {gpu.bf16 / 1000:.4g} TFLOP/s ({kind}) as there, the other one the same share of its memory's"
        f" {gpu.bandwidth:.0f} GB/s. Neither is below {LAUNCH * 1e6:.0f} microseconds for each tensor operation, which"
        f" alone decides for {decided} variants. These are assumptions, not measurements: one run of"
        " python -m recaps.bench --save on the GPU replaces them."
    ]
    if few := sorted({row.paper for row in rows if row.code == TENSORS}):
        told.append(
            f"{', '.join(few)}: converted from tensor operations on a few images of a batch, as a GPU has no compiled"
            " routing; what they take is then in proportion to the batch."
        )
    largest = max(rows, key=lambda row: row.gib)
    told.append(
        f"Most memory for one batch: {largest.paper}/{largest.variant}, about {largest.gib:.0f} GiB"
        + (f", more than this GPU's {gpu.memory:.0f} GB: take a smaller batch." if largest.gib > gpu.memory else ".")
    )
    return told


def _always() -> list[str]:
    return [
        f"Tests along a training and latents: {FORWARD:.2f} of a training step's time per image. Not counted: making"
        " batches, loading, probes, timings; heads run on CPUs. RBMs learn on the CPU whatever the GPU.",
        "Checkpoints: the last two of every run, with optimisers, as while they train; nothing deletes them. Not"
        " counted: downloads, probes, histories, tables and figures.",
        "Data sets that several papers use count once in the total; it also has the scorecard and the report.",
    ]


def _hours(seconds: Seconds) -> str:
    low, high = (_short(each / 3600) for each in (seconds.low, seconds.high))
    return low if low == high else f"{low}-{high}"


def _gigabytes(size: int) -> str:
    return _short(size / 1e9)


def _short(value: float) -> str:
    """Two digits, or all before the point."""
    return f"{value:.0f}" if value >= 9.5 else f"{value:.1f}" if value >= 0.95 else f"{value:.2f}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m recaps.estimate", description="What a scale costs on a GPU.")
    parser.add_argument("--gpu", default="NVIDIA A100", help="its name (default: NVIDIA A100), or a measured device's")
    parser.add_argument("--scale", default="paper", help="the scale that is run (default: paper)")
    parser.add_argument("--papers", nargs="+", help="papers that are run (default: config.yaml's)")
    parser.add_argument("--config", type=Path, default=Path("config"), help="the folder of the configuration")
    parser.add_argument("--times", type=Path, default=step_times.FILE, help="measured times of training steps")
    try:
        _estimate(parser.parse_args(arguments))
    except UserError as error:
        print(f"recaps: {error}", file=sys.stderr)
        return 1
    return 0


def _estimate(options: argparse.Namespace) -> None:
    values = dict(read_yaml(options.config / "config.yaml")) | {"scale": options.scale}
    rows = step_times.read(options.times)
    gpu, device = choose_gpu(options.gpu, rows)
    project = load(values | ({"papers": options.papers} if options.papers else {}), options.config)
    plan = Plan(project, options.config.resolve().parent)
    times = Times(rows, gpu, device)
    seeds = len(project.seeds)
    print(f"Scale {options.scale}, {seeds} seed{'s' * (seeds > 1)}, on one {device}")
    print(table(plan, times))
    for note in notes(plan, times, device):
        print(textwrap.fill(note, WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False))


if __name__ == "__main__":
    raise SystemExit(main())
