"""Jobs and storage of a scale, and its hours of training on devices that were measured: `make estimate`.

Jobs come from the plan that the rules follow, storage from the models and from the shapes of the official data. Hours
come from times of training steps: those that `python -m recaps.bench --save` measured, and published ones.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from recaps import bench, step_times
from recaps.bench import variants_of
from recaps.command import command
from recaps.config.base import snapshot_of
from recaps.config.load import Project, load
from recaps.config.reading import read_yaml
from recaps.config.variant import Variant
from recaps.config.workflow import Scale
from recaps.datasets import catalogue
from recaps.errors import UserError, nearest
from recaps.evaluation.latents import latents_of
from recaps.models.model import Model
from recaps.nn import kernels
from recaps.papers import of
from recaps.plan import jobs as plan_jobs
from recaps.plan.jobs import TITLES
from recaps.plan.plan import Plan
from recaps.step_times import Times, hours, work_of
from recaps.training import device as devices
from recaps.training.images import images_of

CPU = torch.device("cpu")


def jobs(plan: Plan) -> dict[str, int]:
    """Return the number of jobs of each rule that make all results of the plan."""
    made = plan_jobs.needed(plan.jobs, plan.everything())
    fetched = {file for job in made if job.stage == "prepare_dataset" for file in plan.raw_files(job.names)}
    counts = Counter(job.stage for job in made)
    counts["fetch_file"] = len(fetched)
    return {stage: counts[stage] for stage in ("fetch_file", *TITLES) if counts[stage]}


def untrained(variant: Variant) -> Model:
    """Return a variant's model, configured for training. All weights that are drawn together have the same value."""
    with _OneDraw():
        return bench.untrained(variant, variant.training, CPU)


class _OneDraw(TorchDispatchMode):
    """Draw one number for a whole tensor: to draw all takes most of the time of building a model."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default):
            return args[0].fill_(func(args[0].new_empty(()), *args[1:], **kwargs or {}))
        return func(*args, **kwargs or {})


def sizes(variant: Variant, model: Model) -> dict[str, int]:
    """Return the bytes of a run's model, of its last checkpoint, and of the latents of one image."""
    images = images_of(bench.random_split(variant.data.split("/")[0], 2), CPU)
    with kernels.off():
        latents = latents_of(model.eval(), images, range(1), variant.training, CPU)
    weights = sum(each.nbytes for each in model.state_dict().values())
    per_image = sum(each.nbytes for each in latents.values()) + 8  # and the index of the original
    return {"models": weights, "checkpoints": weights, "latents": per_image}


def images(set_name: str, scale: Scale, pairs: bool = False) -> int:
    """Return the number of images in a split of official data, `name/split`, or of the pairs that a model sees."""
    name, split = set_name.split("/")
    base, base_split = catalogue.base_of(name, split)
    options = catalogue.resolve(name, scale.options_of(name))
    stored, versions = catalogue.entry(base).counts[base_split], options.get("versions", 1)
    name, base = catalogue.plain(name), catalogue.plain(base)
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
    for variant in variants_of(project).values():
        limits = {project.resolve(name): limit or sys.maxsize for name, limit in variant.latents.items()}
        read = sum(
            min(images(snapshot_of(name)[0], project.scale, pairs=True), limit) for name, limit in limits.items()
        )
        models = 1 + len(variant.training.snapshots)
        amounts = {"latents": read, "models": models, "checkpoints": models}
        for kind, size in known[work_of(variant)].items():
            total[kind] += len(project.seeds_of(variant)) * size * amounts[kind]
    for name in {project.resolve(name) for paper in project.papers.values() for name in paper.used_sets}:
        about = catalogue.describe(name.split("/")[0])
        pixels = about["channels"] * about["height"] * about["width"]
        total["data sets"] += images(name, project.scale) * (pixels + 8)  # a label has 8 bytes
    return {kind: size / 1e9 for kind, size in total.items()}


@command
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m recaps.estimate", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--scale", default="paper", help="the scale (default: paper)")
    add("--device", help="a device that was measured (default: all)")
    add("--papers", nargs="+", help="the papers (default: those of config.yaml)")
    add("--config", type=Path, default=Path("config"), help="the folder of the configuration (default: config)")
    add("--times", type=Path, default=step_times.FILE, help="the file that `recaps.bench --save` wrote")
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
    own = step_times.measured(options.times)
    times = step_times.merged(step_times.published(), own)
    if options.device and options.device not in times:
        close = nearest(options.device, times)
        raise UserError(f"--device: no times of '{options.device}', neither in {options.times} nor published{close}")
    chosen = {options.device: times[options.device]} if options.device else times
    devices.choose("cpu", threads=1)  # the work is too small for more
    known, runs = _models(project, chosen)
    chosen = {device: steps for device, steps in chosen.items() if runs[device] or options.device}
    columns = {}
    for name in (*project.papers, "all"):
        studies = {key: study for key, study in project.studies.items() if of(key) == name}
        alone = {"papers": {name: project.papers[name]}, "studies": studies} if name != "all" else {}
        part = project.model_copy(update=alone)
        counts = jobs(Plan(part))
        columns[name] = {
            **{f"jobs: {rule}": f"{count}" for rule, count in {**counts, "all": sum(counts.values())}.items()},
            **{f"hours: {_label(device, own)}": _hours(part, runs[device]) for device in chosen},
            **{f"GB: {kind}": f"{size:.2f}" for kind, size in (storage(part, known) if known else {}).items()},
        }
    rows = [[row, *(each.get(row, "0") for each in columns.values())] for row in columns["all"]]
    width = max(len(row[0]) for row in rows)
    lines = [f"{row[0]:<{width}}" + "".join(f"{cell:>15}" for cell in row[1:]) for row in (["", *columns], *rows)]
    n = len(variants_of(project))
    notes = [
        f"{_label(device, own)}: {n - len(runs[device])} of {n} variants were not measured; `make bench` there does so."
        for device in chosen
        if len(runs[device]) < n
    ]
    nothing = [] if chosen else ["No hours: no variant was measured; run `make bench`."]
    return [f"Scale {options.scale}, {len(project.seeds)} seeds", *lines, *notes, *nothing]


def _models(project: Project, times: Times) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, float]]]:
    """Build each model. Return the `sizes` of each work, and the hours of each measured variant's run by device."""
    known: dict[str, dict[str, int]] = {}
    runs: dict[str, dict[str, float]] = {device: {} for device in times}
    works: dict[str, dict[str, Variant]] = {}
    for key, variant in variants_of(project).items():
        works.setdefault(work_of(variant), {})[key] = variant
    for work, alike in works.items():
        model = untrained(next(iter(alike.values())))
        if not project.scale.stand_in:
            known[work] = sizes(next(iter(alike.values())), model)
        for key, variant in alike.items():
            model.configure(variant.training)
            for device, steps in times.items():
                if (found := hours(variant, model.phases(), steps)) is not None:
                    runs[device][key] = found
    return known, runs


def _hours(project: Project, runs: Mapping[str, float]) -> str:
    """Return the hours of training all runs of a project, as far as they are known."""
    every = variants_of(project)
    known = [runs[key] * len(project.seeds_of(variant)) for key, variant in every.items() if key in runs]
    return "not measured" if not known else f"{'' if len(known) == len(every) else '≥ '}{sum(known):.1f}"


def _label(device: str, own: Times) -> str:
    return device if device in own else f"{device} (published)"


if __name__ == "__main__":
    raise SystemExit(main())
