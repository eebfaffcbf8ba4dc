"""Data sets: where they come from, their official formats, what is derived from them, and embedded stand-ins.

What needs no arrays (`names`, `splits`, `describe`, `raw_inputs`, `files`) is imported at once; the rest on first
use, so that validating a config does not pay for numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from recaps.datasets.catalogue import defaults, describe, names, raw_inputs, resolve, splits
from recaps.datasets.sources import SourceFile, file, files

if TYPE_CHECKING:
    from recaps.arrays import Arrays, save
    from recaps.datasets.download import fetch
    from recaps.datasets.preparation import load, prepare

_LAZY = {
    "Arrays": "recaps.arrays",
    "save": "recaps.arrays",
    "fetch": "recaps.datasets.download",
    "load": "recaps.datasets.preparation",
    "prepare": "recaps.datasets.preparation",
}

__all__ = [
    "Arrays",
    "SourceFile",
    "defaults",
    "describe",
    "fetch",
    "file",
    "files",
    "load",
    "names",
    "prepare",
    "raw_inputs",
    "resolve",
    "save",
    "splits",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
