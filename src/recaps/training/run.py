"""A run: train one variant with one seed at one scale, and write the result to one folder."""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd
import safetensors.torch
import torch

from recaps import io, provenance
from recaps.arrays import read
from recaps.config.training import Training
from recaps.errors import UserError
from recaps.identity import of_split
from recaps.models.model import Model
from recaps.training import checkpoint, machine, saved
from recaps.training import device as devices
from recaps.training.batches import Batches, view_shape
from recaps.training.board import Board
from recaps.training.images import images_of
from recaps.training.lease import Lease
from recaps.training.loop import Progress, fit
from recaps.training.step import fresh_model, take_steps
from recaps.training.testing import error_on

#: Steps that are timed to find out how many fit into a given time.
TIMED = 20


def train(
    settings: Mapping[str, Any],
    *,
    identity: Mapping[str, Any],
    seed: int,
    dataset: Path,
    test: Path | None = None,
    start: Path | None = None,
    modules: Mapping[str, str] = MappingProxyType({}),
    out: Path,
    checkpoints: Path,
    lease: Lease | None = None,
    device: str = "auto",
    threads: int | None = None,
    checkpoint_seconds: float = 120,
    project: Path | None = None,
    given: Mapping[str, Any] | None = None,
) -> None:
    """Train a variant, and write `model.safetensors`, `config.json`, `history.csv` and `record.json` to `out`.

    Args:
        settings: `model` and `training`, as in the variant's configuration.
        identity: `paper`, `variant` and `scale`, for the record.
        seed: seed of all random numbers.
        dataset: the prepared training split, `<root>/<name>/<split>`.
        test: the prepared test split; required if `evaluate_every` is set.
        start: the `model.safetensors` of a run whose trained weights it starts from.
        modules: digests of the modules that compute the run's numbers, see `recaps.identity`.
        out: folder of the run.
        checkpoints: folder of the run's checkpoints; an interrupted run with the same identity continues from there.
        lease: the lease on that folder, if the caller holds it.
        device: `auto`, `cpu` or `cuda`.
        threads: CPU threads; None: PyTorch's default.
        checkpoint_seconds: seconds between two checkpoints.
        project: the git checkout whose commit goes into the record.
        given: resources of this start, for the record: `job`, `gpus`, `minutes`.

    Raises:
        Interrupted: the process received SIGTERM, SIGHUP or SIGINT and saved its state; run again to continue.
        TryAgain: another process trains this run, or the disk is full.
        UserError: invalid settings or data, images that differ from their record, or a loss that is not finite.
    """
    started = provenance.now()
    where = devices.choose(device, threads)
    training = Training.model_validate(settings["training"])
    arrays = read(dataset)
    shape, classes = view_shape(arrays.images.shape[1:], training), int(arrays.record["classes"])
    splits = {"/".join(each.parts[-2:]): of_split(_verified(each)) for each in (dataset, test) if each}
    weights = {start.relative_to(out.parents[3]).as_posix(): io.digest_of(start)} if start else {}
    made_by = {"settings": {**settings, "seed": seed}, "data": splits | weights, "modules": dict(modules)}

    def fresh(training: Training) -> tuple[Model, Batches]:
        model = fresh_model(settings, shape, classes, seed).place(where)
        if start:
            saved.start_from(model, start)
        model.configure(training)
        return model, Batches(images_of(arrays, where), training, seed, where)

    with machine.telling_of_compilation(), nullcontext(lease) if lease else Lease(checkpoints) as held:
        # Bits differ between kinds of devices, so a run does not move from one to the other.
        folder = checkpoint.folder_of(checkpoints, {**made_by, "device": {"type": where.type}})
        if training.minutes:
            training = affordable(training, training.minutes, fresh, folder / "steps.json")
        model, batches = fresh(training)
        about = {"device": machine.describe(where), "started": started}
        used = {"precision": devices.resolve(where, training.precision), "torch": str(torch.__version__)}
        progress = fit(
            model,
            batches,
            folder,
            lease=held,
            checkpoint_seconds=checkpoint_seconds,
            start=about | used | dict(given or {}),
            test=_tester(model, test, training, where),
            report=_reporter(model, batches, folder),
        )
    _save(model, folder, training, out / "model.safetensors")
    config = {**identity, "seed": seed, **settings, "training": training.model_dump(mode="json")}
    config["data"] = "/".join(dataset.parts[-2:])
    io.write_json(out / "config.json", config | {"image_shape": list(shape), "classes": classes})
    io.write_text(out / "history.csv", pd.DataFrame(progress.history).to_csv(index=False))
    record = {"kind": "run", **identity, "seed": seed, "identity": made_by, "config": config, "dataset": arrays.record}
    record |= provenance.describe(project) | about
    record |= {"started": progress.starts[0]["started"], "starts": progress.starts, "finished": provenance.now()}
    io.write_json(out / "record.json", record | _cost(model, progress, training, where))
    # The last checkpoint stays, so that lost outputs are written again without training.
    (folder / checkpoint.PREVIOUS).unlink(missing_ok=True)


def affordable(
    training: Training, minutes: float, fresh: Callable[[Training], tuple[Model, Batches]], file: Path
) -> Training:
    """Return a training with as many steps as fit into some minutes of processor time.

    Args:
        fresh: returns a new model and its batches.
        file: keeps the number of steps, so that an interrupted run has the same one.
    """
    if not file.exists():
        model, batches = fresh(training)
        ends = [*model.phases().values(), training.steps]
        seconds = 0.0
        for start, end in itertools.pairwise(ends):
            timed = range(start, min(start + TIMED, end))
            for _ in range(2):  # the first time warms up
                started = time.process_time()
                for _ in take_steps(model, batches, timed):
                    pass
                taken = time.process_time() - started
            seconds += (end - start) / training.steps * taken / len(timed)
        io.write_json(file, {"steps": max(1, round(60 * minutes / seconds))})
    steps = int(io.read_json(file)["steps"])

    def compressed(step: int) -> int:
        return max(1, round(step * steps / training.steps))

    snapshots = {name: compressed(step) for name, step in training.snapshots.items()}
    changed = {"steps": steps, "lr_decay_steps": compressed(training.lr_decay_steps), "snapshots": snapshots}
    return training.model_copy(update=changed)


def take_over(source: Path, settings: Mapping[str, Any], identity: Mapping[str, Any], out: Path) -> None:
    """Write the files of a run to `out` as those of another run with the same training.

    Args:
        source: the folder of the run.
        settings: `model` of the other run, which may differ in what training does not depend on.
        identity: its `paper`, `variant` and `scale`.
        out: its folder.
    """
    for file in ("model.safetensors", "history.csv"):
        io.write_bytes(out / file, (source / file).read_bytes())
    config, record = (io.read_json(source / file) for file in ("config.json", "record.json"))
    config |= {**identity, "model": settings["model"]}
    io.write_json(out / "config.json", config)
    trained = "/".join(source.parts[-3:-1])
    io.write_json(out / "record.json", record | identity | {"config": config, "trained": trained})


def _tester(
    model: Model, test: Path | None, training: Training, device: torch.device
) -> Callable[[Callable[[], None]], float]:
    """Return a function that computes the test error in percent and calls its argument before every batch."""
    if not training.evaluate_every:
        return lambda alive: math.nan
    if test is None:
        raise UserError("training.evaluate_every: requires a test split, but none is given")
    if type(model).class_scores is Model.class_scores:
        raise UserError(
            "training.evaluate_every: the model is trained without labels and has no test error; set it to 0"
        )
    tested = images_of(read(test), device)
    return lambda alive: error_on(model, tested, training, device, alive)


def _reporter(model: Model, batches: Batches, folder: Path) -> Callable[[dict[str, float], bool], None]:
    """Return a function that prints a row of the history and, if the training asks for it, adds it to TensorBoard."""
    training = model.training_options
    board = Board(folder / "tensorboard", model, batches) if training.tensorboard else None

    def report(row: dict[str, float], new: bool) -> None:
        _print(row, training.steps)
        if board:
            board.add(row, pictures=new)

    return report


def _verified(folder: Path) -> Mapping[str, Any]:
    """Return the record of a prepared split, if its images and labels are those that it describes."""
    arrays = read(folder)
    if arrays.digest() != arrays.record["digest"]:
        raise UserError(f"{folder}: its images differ from its record; delete the folder and run again")
    return arrays.record


def _save(model: Model, checkpoints: Path, training: Training, file: Path) -> None:
    """Write the weights, and those of the snapshots as `step-1000/...`."""
    snapshots = [checkpoint.snapshot(checkpoints, step).read_bytes() for step in {*training.snapshots.values()}]
    tensors = saved.weights(model)
    for each in snapshots:
        tensors |= safetensors.torch.load(each)
    io.write_bytes(file, safetensors.torch.save(tensors))


def _cost(model: Model, progress: Progress, training: Training, device: torch.device) -> dict[str, Any]:
    return {
        "steps": progress.step,
        "wall_seconds": round(progress.seconds, 2),
        "interruptions": progress.interruptions,
        "images_per_second": round(progress.step * training.batch_size / max(progress.seconds, 1e-9), 1),
        "peak_memory_bytes": machine.peak_memory(device),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "metrics": {k: v for k, v in progress.history[-1].items() if k not in ("step", "seconds", "images_per_second")},
    }


def _print(row: Mapping[str, float], steps: int) -> None:
    rest = " ".join(f"{k} {v:.4g}" for k, v in row.items() if k not in ("step", "seconds", "images_per_second"))
    left = row["seconds"] / row["step"] * (steps - row["step"])
    print(
        f"step {row['step']:>6}/{steps}  {row['images_per_second']:8.1f} images/s  {left:6.0f} s left  {rest}",
        file=sys.stderr,
        flush=True,
    )
