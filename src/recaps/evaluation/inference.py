"""Everything that is computed from a trained model at once: the latents of sets, and the probes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from recaps import layout, npz
from recaps.config.base import snapshot_of
from recaps.config.training import Training
from recaps.errors import UserError
from recaps.evaluation.latents import extract
from recaps.evaluation.probes import probe
from recaps.io import digest_of, read_json
from recaps.npz import Array
from recaps.training import device as devices
from recaps.training.saved import load_model


def read_model(
    run: Path,
    *,
    latents: Mapping[str, tuple[Path, int | None]],
    probes: Mapping[str, tuple[Path, int]],
    codes: Mapping[str, str],
    device: str = "auto",
    threads: int | None = None,
) -> None:
    """Write the latents and the probes of a trained model to the folder of its run.

    A part of an existing file is kept if it was computed from the same model, data and settings with the same code: a
    set or a probe that is added to a variant computes nothing else.

    Args:
        latents: for each set its folder and the number of images (None: all). A name with `@1000` means the snapshot
            `1000`.
        probes: for each probe the folder of the images, and their number.
        codes: what stands for the code that computes `latents` and `probes`.
        device: `auto`, `cpu` or `cuda`.
        threads: CPU threads; None: PyTorch's default.

    Raises:
        UserError: a set has images of another shape, or the paper has no such probe.
    """

    @cache
    def trained(snapshot: str | None = None) -> Any:
        where = devices.choose(device, threads)
        return *load_model(run, where, steps[snapshot] if snapshot else None), where

    def latents_on(name: str) -> dict[str, Array]:
        model, config, where = trained(snapshot_of(name)[1])
        folder, limit = latents[name]
        return extract(model, config, folder, where, limit=limit)

    def probed(name: str) -> dict[str, Array]:
        model, config, where = trained()
        folder, images = probes[name]
        return probe(model, config, folder, where, name=name, images=images)

    files = layout.named(run, layout.RUN_FILES)
    steps = Training.model_validate(read_json(files["config"])["training"]).snapshots
    source = [digest_of(files["model"]), digest_of(files["config"])]

    def keys(kind: str, wanted: Mapping[str, tuple[Path, int | None]]) -> dict[str, str]:
        about = {
            name: [codes[kind], name, amount, digest_of(folder / "record.json"), *source]
            for name, (folder, amount) in wanted.items()
        }
        return {name: hashlib.sha256(json.dumps(each).encode()).hexdigest()[:16] for name, each in about.items()}

    _complete(layout.latents(run), keys("latents", latents), latents_on)
    _complete(layout.probes(run), keys("probes", probes), probed)


def _complete(file: Path, keys: Mapping[str, str], compute: Callable[[str], dict[str, Array]]) -> None:
    """Write the parts with these keys to `file`; compute those that it lacks."""
    parts = {part: _kept(file, part, key) or compute(part) | {"key": np.asarray(key)} for part, key in keys.items()}
    npz.save_parts(file, parts)


def _kept(file: Path, part: str, key: str) -> dict[str, Array] | None:
    """Return a part of an existing file, if it has this key."""
    try:
        arrays = npz.read(file, part=part)
    except UserError:
        return None
    return arrays if arrays.get("key") == key else None
