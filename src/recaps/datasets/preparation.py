"""From official files, or the embedded stand-in, to a split in the one format on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from recaps import arrays
from recaps.arrays import Arrays
from recaps.datasets import catalogue, derived, norb, raw

#: What makes the derived sets of a base set.
_DERIVE = {"mnist": derived.derive, "smallnorb": norb.derive}

_NONE: Mapping[str, Any] = MappingProxyType({})


def build(name: str, split: str, raw_root: Path, *, stand_in: bool, options: Mapping[str, Any] = _NONE) -> Arrays:
    """Make a split in memory. Arguments and errors as `prepare`."""
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
    """Make `out_root/<name>/<split>/` and return it.

    Args:
        name: one of `catalogue.names()`; a derived set is made directly from the files of its base set.
        split: one of `catalogue.splits(name)`.
        raw_root: holds `<dataset>/<official file>`; unused for a stand-in.
        stand_in: use the embedded stand-in in place of the base set's files.
        options: options of the set, over `catalogue.defaults(name)`.

    Raises:
        UserError: unknown name, split or option; a raw file missing, not the official one, or malformed; disk full.
    """
    made = build(name, split, raw_root, stand_in=stand_in, options=options)
    return arrays.save(made, Path(out_root) / name / split)


def load(name: str, split: str, root: Path) -> Arrays:
    """Read the split that `prepare` made below `root`; errors as `recaps.arrays.read`, and unknown names."""
    catalogue.check_split(name, split)
    return arrays.read(Path(root) / name / split)


def _base(name: str, split: str, raw_root: Path, stand_in: bool, options: Mapping[str, Any]) -> Arrays:
    if not stand_in:
        return raw.read(name, split, raw_root, options)
    from recaps.datasets import standin

    return standin.read(name, split, options)
