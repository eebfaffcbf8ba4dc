"""Prepare a split: read official files or the embedded stand-in, and write the project's format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from recaps import arrays
from recaps.arrays import Arrays
from recaps.datasets import catalogue, derived, norb, raw
from recaps.errors import UserError
from recaps.locks import alone

#: The function that derives sets from a base set.
_DERIVE = {"mnist": derived.derive, "smallnorb": norb.derive}


def build(
    name: str,
    split: str,
    raw_root: Path,
    *,
    stand_in: bool,
    options: Mapping[str, Any] = {},
    own: Mapping[str, Any] | None = None,
) -> Arrays:
    """Make a split in memory. Arguments and errors are those of `prepare`."""
    catalogue.check_split(name, split)
    values = catalogue.resolve(name, options)
    base_name, base_split = catalogue.base_of(name, split)
    base = _base(base_name, base_split, Path(raw_root), stand_in, values, own)
    if base_name == name:
        whole = base.take(slice(values["limit"]))
    else:
        whole = _DERIVE[catalogue.plain(base_name)](catalogue.plain(name), split, base, values)
    about = catalogue.describe(name, stand_in=stand_in)
    kept = {key: about[key] for key in ("title", "official", "derived_from", "classes")}
    record = {**whole.record, "name": name, "split": split, "stand_in": stand_in, **kept, "options": values}
    if own:
        mine = own["name"]
        record |= {"name": f"{name}-{mine}", "title": f"{mine}, made like {about['title']}", "official": False}
        record |= {"own": mine, "classes": base.record["classes"], "class_names": base.record["class_names"]}
    return Arrays(whole.images, whole.labels, whole.factors, record)


def prepare(
    name: str,
    split: str,
    raw_root: Path,
    out_root: Path,
    *,
    stand_in: bool,
    options: Mapping[str, Any] = {},
    own: Mapping[str, Any] | None = None,
) -> Path:
    """Write a split to `out_root/<name>/<split>/`, or, for own data, `out_root/<name>-<own name>/<split>/`. Return it.

    One process at a time writes a split. If the same split is already there, it stays: another process may read it.

    Args:
        name: one of `catalogue.names()`. A derived set is made directly from the files of its base set.
        split: one of `catalogue.splits(name)`.
        raw_root: folder of `<dataset>/<official file>`; a stand-in does not use it.
        out_root: folder of the prepared data sets.
        stand_in: use the embedded stand-in instead of the base set's files.
        options: options that differ from `catalogue.defaults(name)`.
        own: the user's own data, which take the place of the base set's files: `name`, and the arguments of `own.read`.

    Raises:
        UserError: the name, split or option is unknown; a file is missing, malformed or not the official one; own
            images do not have the base set's shape; or the disk is full.
    """
    made = build(name, split, raw_root, stand_in=stand_in, options=options, own=own)
    folder = Path(out_root) / made.record["name"] / split
    with alone(folder):
        return folder if _is_there(made, folder) else arrays.save(made, folder)


def _is_there(made: Arrays, folder: Path) -> bool:
    """Return whether the folder holds this split, whole and with the same content."""
    try:
        there = arrays.read(folder)
    except UserError:
        return False
    as_written = json.loads(json.dumps(made.record, default=str))
    return (
        there.record == {**there.record, **as_written}
        and there.digest() == made.digest()
        and there.factors.keys() == made.factors.keys()
        and all(np.array_equal(there.factors[name], values) for name, values in made.factors.items())
    )


def _own(name: str, split: str, settings: Mapping[str, Any]) -> Arrays:
    """Read a split of the user's own data in place of a base set."""
    from recaps.datasets import own

    path = Path(settings["path"])
    chosen = {key: settings[key] for key in ("size", "grey", "background", "test_fraction", "seed")}
    found = own.read(path, **chosen)[split]
    channels, size = found.images.shape[1:3]
    about = catalogue.entry(name)
    if channels != about.channels:
        advice = "set `grey: true`" if about.channels == 1 else "give images with three channels"
        raise UserError(f"{path}: {channels} channels, but {name}, which it replaces, has {about.channels}; {advice}")
    if size != about.size:
        raise UserError(
            f"{path}: images of {size}x{size}, but {name}, which it replaces, has {about.size}x{about.size}; set"
            f" `size: {about.size}`"
        )
    return found


def _base(
    name: str, split: str, raw_root: Path, stand_in: bool, options: Mapping[str, Any], own: Mapping[str, Any] | None
) -> Arrays:
    """Read a split of a base set, or a part of its train split."""
    if split in catalogue.PARTS:
        whole = _base(name, "train", raw_root, stand_in, options, own)
        end = catalogue.part_size(len(whole), "learn")
        if end == len(whole):
            raise UserError(f"{name}: {len(whole)} training images are too few to hold a sixth out; set `judged: test`")
        return whole.take(slice(end, None) if split == "held_out" else slice(end))
    if own:
        return _own(name, split, own)
    if not stand_in:
        return raw.read(name, split, raw_root, options)
    from recaps.datasets import standin

    return standin.read(name, split, options)
