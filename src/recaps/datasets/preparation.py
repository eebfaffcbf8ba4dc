"""Prepare a split: read official files or the embedded stand-in, and write the project's format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from recaps import arrays
from recaps.arrays import Arrays
from recaps.datasets import catalogue, derived, norb, raw

#: The function that derives sets from a base set.
_DERIVE = {"mnist": derived.derive, "smallnorb": norb.derive}

_NONE: Mapping[str, Any] = MappingProxyType({})


def build(name: str, split: str, raw_root: Path, *, stand_in: bool, options: Mapping[str, Any] = _NONE) -> Arrays:
    """Make a split in memory. Arguments and errors are those of `prepare`."""
    catalogue.check_split(name, split)
    values = catalogue.resolve(name, options)
    base_name, base_split = catalogue.base_of(name, split)
    base = _base(base_name, base_split, Path(raw_root), stand_in, values)
    whole = base.take(slice(values["limit"])) if base_name == name else _DERIVE[base_name](name, split, base, values)
    about = catalogue.describe(name, stand_in=stand_in)
    record = {
        **whole.record,
        "name": name,
        "split": split,
        "stand_in": stand_in,
        "title": about["title"],
        "official": about["official"],
        "derived_from": about["derived_from"],
        "classes": about["classes"],
        "options": values,
    }
    return Arrays(whole.images, whole.labels, whole.factors, record)


def prepare(
    name: str, split: str, raw_root: Path, out_root: Path, *, stand_in: bool, options: Mapping[str, Any] = _NONE
) -> Path:
    """Write a split to `out_root/<name>/<split>/` and return this path.

    Args:
        name: one of `catalogue.names()`. A derived set is made directly from the files of its base set.
        split: one of `catalogue.splits(name)`.
        raw_root: folder of `<dataset>/<official file>`; a stand-in does not use it.
        out_root: folder of the prepared data sets.
        stand_in: use the embedded stand-in instead of the base set's files.
        options: options that differ from `catalogue.defaults(name)`.

    Raises:
        UserError: the name, split or option is unknown; a raw file is missing, malformed or not the official one; or
            the disk is full.
    """
    made = build(name, split, raw_root, stand_in=stand_in, options=options)
    return arrays.save(made, Path(out_root) / name / split)


def load(name: str, split: str, root: Path) -> Arrays:
    """Read the split that `prepare` wrote below `root`. Raises UserError as `recaps.arrays.read` does."""
    catalogue.check_split(name, split)
    return arrays.read(Path(root) / name / split)


def _base(name: str, split: str, raw_root: Path, stand_in: bool, options: Mapping[str, Any]) -> Arrays:
    if not stand_in:
        return raw.read(name, split, raw_root, options)
    from recaps.datasets import standin

    return standin.read(name, split, options)
