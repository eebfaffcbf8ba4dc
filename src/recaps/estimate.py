"""Jobs and storage of a scale, and its hours of training on a device that was measured: `make estimate`.

Jobs come from the plan that the rules follow, storage from the models and from the shapes of the official data. Hours
come from times of training steps that `python -m recaps.bench --save` measured on the same device.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from recaps import bench
from recaps.command import command
from recaps.config.base import snapshot_of
from recaps.config.load import Project, load
from recaps.config.reading import read_yaml
from recaps.config.variant import Variant
from recaps.config.workflow import Scale
from recaps.datasets import catalogue
from recaps.errors import UserError, nearest
from recaps.evaluation.latents import latents_of
from recaps.io import read_json
from recaps.nn import kernels
from recaps.plan.plan import Plan
from recaps.training import device as devices
from recaps.training import machine
from recaps.training.batches import Batches
from recaps.training.images import images_of
from recaps.training.step import take_steps

CPU = torch.device("cpu")


def jobs(plan: Plan) -> dict[str, int]:
    """Return the number of jobs of each rule that make all results of the plan."""
    runs = [plan.of_run(*run) for run in plan.runs()]
    sets = [SimpleNamespace(dataset=Path(file).parts[-3], split=Path(file).parts[-2]) for file in plan.datasets()]
    counts = {
        "fetch_file": len({file for names in sets for file in plan.raw_files(names)}),
        "prepare_dataset": len(sets),
        "train_variant": len(plan.models()),
        "read_model": sum(bool(run["read"]) for run in runs),
        "evaluate_heads": sum(bool(run["heads"]) for run in runs),
        "record_run": len(runs),
        "time_steps": len(plan.timings()),
        "collect_metrics": len(plan.metrics()),
        "draw_tables": sum(bool(paper.tables) for paper in plan.project.papers.values()),
        "draw_figures": sum(bool(paper.figures) for paper in plan.project.papers.values()),
        "score_claims": 1,
        "build_report": 1,
    }
    return {rule: count for rule, count in counts.items() if count}


def sizes(variant: Variant) -> dict[str, int]:
    """Return the bytes of a run's model, of its last checkpoint, and of the latents of one image.

    The function builds the model, and trains it for one step of each phase on two random images.
    """
    training = variant.training.model_copy(update={"batch_size": 2})
    two = images_of(bench.random_split(variant.data.split("/")[0], 2), CPU)
    model = bench.untrained(variant, variant.training, CPU)
    with kernels.off():
        for _ in take_steps(model, Batches(two, training, 0, CPU), model.phases().values()):
            pass
        latents = latents_of(model.eval(), two, range(2), training, CPU)
    weights = _bytes(model.state_dict())
    per_image = sum(each.nbytes for each in latents.values()) // 2 + 8  # and the index of the original
    return {"models": weights, "checkpoints": weights, "latents": per_image}


def _bytes(state: Any) -> int:
    """Return the bytes of all tensors in nested mappings."""
    if isinstance(state, Mapping):
        return sum(map(_bytes, state.values()))
    return state.nbytes if isinstance(state, torch.Tensor) else 0


def images(set_name: str, scale: Scale, pairs: bool = False) -> int:
    """Return the number of images in a split of official data, `name/split`, or of the pairs that a model sees."""
    name, split = set_name.split("/")
    base, base_split = catalogue.base_of(name, split)
    options = catalogue.resolve(name, scale.dataset_options.get(name, {}))
    stored, versions = catalogue.entry(base).counts[base_split], options.get("versions", 1)
    if name == "affnist":  # the official files hold 32 versions of each digit
        stored, versions = stored * versions // 32, 1
    elif split == "validation":  # generated affNIST uses a sixth of MNIST's training images
        stored //= 6
    elif name == "smallnorb-48":  # two cameras
        versions = 2
    elif base == "smallnorb" != name:  # `novel` has two thirds of the viewpoints, the other splits have one third
        versions = 4 / 3 if split == "novel" else 2 / 3
    return round(min(stored, options["limit"] or stored) * versions) * (options.get("pairs", 1) if pairs else 1)


def storage(project: Project, known: Mapping[str, Mapping[str, int]]) -> dict[str, float]:
    """Return the gigabytes of a project by kind. `known` has the `sizes` of each work."""
    total: Counter[str] = Counter()
    for variant in variants(project).values():
        limits = {project.resolve(name): limit or sys.maxsize for name, limit in variant.latents.items()}
        read = sum(
            min(images(snapshot_of(name)[0], project.scale, pairs=True), limit) for name, limit in limits.items()
        )
        models = 1 + len(variant.training.snapshots)
        amounts = {"latents": read, "models": models, "checkpoints": models}
        for kind, size in known[bench.work_of(variant)].items():
            total[kind] += len(project.seeds_of(variant)) * size * amounts[kind]
    for name in {project.resolve(name) for paper in project.papers.values() for name in paper.used_sets}:
        about = catalogue.describe(name.split("/")[0])
        pixels = about["channels"] * about["height"] * about["width"]
        total["data sets"] += images(name, project.scale) * (pixels + 8)  # a label has 8 bytes
    return {kind: size / 1e9 for kind, size in total.items()}


def hours(variant: Variant, measured: Mapping[str, Any]) -> float | None:
    """Return the hours of a run's training steps; None if `measured`, the steps of a device, lacks a phase."""
    if not measured:
        return None
    phases = bench.untrained(variant, variant.training, CPU).phases()
    names = [bench.step_name(variant, phase, variant.training.precision) for phase in phases]
    if not measured.keys() >= set(names):
        return None
    spans = [end - start for start, end in pairwise([*phases.values(), variant.training.steps])]
    return sum(n * measured[name]["seconds"] for n, name in zip(spans, names, strict=True)) / 3600


def variants(project: Project) -> dict[str, Variant]:
    """Return all variants by `paper/name`."""
    return {f"{name}/{key}": each for name, paper in project.papers.items() for key, each in paper.variants.items()}


@command
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m recaps.estimate", description=__doc__.split("\n")[0])
    parser.add_argument("--scale", default="paper", help="the scale (default: paper)")
    parser.add_argument("--device", help="a device that was measured (default: this machine's)")
    parser.add_argument("--papers", nargs="+", help="the papers (default: those of config.yaml)")
    parser.add_argument(
        "--config", type=Path, default=Path("config"), help="the folder of the configuration (default: config)"
    )
    parser.add_argument("--times", type=Path, default=bench.FILE, help="the file that `recaps.bench --save` wrote")
    print("\n".join(_estimate(parser.parse_args(arguments))))
    return 0


def _estimate(options: argparse.Namespace) -> list[str]:
    """Return the lines to print: a table with a column for each paper and one for all, and a note."""
    values = dict(read_yaml(options.config / "config.yaml")) | {"scale": options.scale}
    values |= {"papers": options.papers} if options.papers else {}
    project = load(values, options.config)
    # The user's own data are left out, because only the shapes of official data are known.
    sets = {name: other for name, other in project.config.datasets.items() if not {name, other} & project.own.keys()}
    project = load(values | {"datasets": sets}, options.config)
    times = read_json(options.times) if options.times.is_file() else {}
    device = options.device or machine.describe(devices.choose("auto"))
    if options.device and device not in times:
        raise UserError(f"--device: no times of '{device}' in {options.times}{nearest(device, times)}")
    runs = {key: hours(variant, times.get(device, {})) for key, variant in variants(project).items()}
    works = {bench.work_of(variant): variant for variant in variants(project).values()}
    known = {} if project.scale.stand_in else {work: sizes(variant) for work, variant in works.items()}
    columns = {}
    for name in (*project.papers, "all"):
        part = project.model_copy(update={"papers": {name: project.papers[name]}}) if name != "all" else project
        counts = jobs(Plan(part))
        own = {key: (runs[key], len(project.seeds_of(variant))) for key, variant in variants(part).items()}
        known_hours = [each * seeds for each, seeds in own.values() if each is not None]
        total = f"{sum(known_hours):.1f}" if len(known_hours) == len(own) else "not measured"
        sized = storage(part, known) if known else {}
        columns[name] = {
            **{f"jobs: {rule}": f"{count}" for rule, count in {**counts, "all": sum(counts.values())}.items()},
            "hours of training": total,
            **{f"GB: {kind}": f"{size:.2f}" for kind, size in sized.items()},
        }
    rows = [[row, *(each.get(row, "0") for each in columns.values())] for row in columns["all"]]
    lines = [f"{row[0]:<24}" + "".join(f"{cell:>15}" for cell in row[1:]) for row in (["", *columns], *rows)]
    missing = [key for key, each in runs.items() if each is None]
    note = f"Not measured: {len(missing)} of {len(runs)} variants; run `make bench` on this device."
    return [f"Scale {options.scale}, {len(project.seeds)} seeds, {device}", *lines, *([note] if missing else [])]


if __name__ == "__main__":
    raise SystemExit(main())
