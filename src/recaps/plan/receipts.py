"""Receipts: what made the results that are there.

Each job writes one to the folder `.made` beside its outputs (JSON): the identity of the result (settings, data and
modules, see `recaps.identity`), and digest, size and time of each output. A start compares them with the plan and with
the files. A job compares its inputs with them, byte by byte.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from recaps import identity
from recaps.errors import TryAgain, UserError
from recaps.io import digest_of, read_json, write_json

FOLDER = ".made"
#: Parts of a run's record that tell of its identity and add nothing to its content.
ABOUT = ("identity", "proofs")

Receipt = dict[str, Any]


@contextmanager
def receipt(outputs: Sequence[Path], what: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Wrap the code that makes `outputs`: delete their old receipts first, and write a new one if it succeeds."""
    _forget(outputs)
    yield
    target = file_of(outputs)
    folder = target.parents[1]
    made = {os.path.relpath(file, folder): _state(file) for file in outputs if file.exists()}
    with suppress(TryAgain):  # the disk is full; keep the outputs nevertheless
        write_json(target, {"identity": what or {}, "outputs": made})


def file_of(outputs: Iterable[Path]) -> Path:
    """Return the receipt of a job with these outputs."""
    first = min(outputs)
    return first.parent / FOLDER / f"{first.name}.json"


def read(file: Path) -> Receipt | None:
    """Return a receipt, or None if there is none that can be read."""
    try:
        found = read_json(file)
    except UserError:
        return None
    return found if isinstance(found, dict) and {"identity", "outputs"} <= found.keys() else None


class Receipts:
    """The receipts below a folder, as they were when it was made. Each file is looked up once."""

    def __init__(self, folder: Path, only: Iterable[Path] | None = None) -> None:
        """Read the receipts below `folder`; only those of some files, if these are given."""
        self.folder = folder
        near = {each / FOLDER for file in only or () for each in file.parents[:2]}
        files = _places(folder) if only is None else (file for each in near for file in each.glob("*.json"))
        self.places = {file: found for file in sorted(files) if (found := read(file)) is not None}
        self.outputs = {
            _plain(file.parents[1] / name): about
            for file, found in self.places.items()
            for name, about in found["outputs"].items()
        }
        self._sets: dict[Path, str | None] = {}

    def of(self, outputs: Iterable[str]) -> Receipt | None:
        """Return the receipt of a job with these outputs, if it names them all."""
        files = [Path(file) for file in outputs]
        found = self.places.get(file_of(files))
        return found if found is not None and all(_plain(file) in self.outputs for file in files) else None

    def data(self, inputs: Iterable[Path]) -> dict[str, str | None]:
        """Return the digests of a job's inputs by their names, those of a data set as one; None without a receipt.

        Files outside the folder, such as official ones, count among the settings.
        """
        found: dict[str, str | None] = {}
        for file in inputs:
            if not file.is_relative_to(self.folder):
                continue
            if file.is_relative_to(self.folder / "datasets"):
                name, digest = file.parent.relative_to(self.folder / "datasets").as_posix(), self._set(file.parent)
            else:
                name, about = os.path.relpath(file, self.folder), self.outputs.get(_plain(file), {})
                digest = about.get("content", about.get("sha256"))
            found[name] = digest
        return found

    def check(self, *, refresh: bool = True, whole: bool = False) -> list[Path]:
        """Return the outputs that have changed since they were made; missing ones have not.

        Args:
            refresh: give files that are the same nevertheless their time back, so that each is read once. The receipts
                stay as they are, also in a clone, where all times are new: DVC versions them.
            whole: read every file, not only those with another size or time.
        """
        return [file for each, found in self.places.items() for file in _changed(each, found, refresh, whole)]

    def _set(self, folder: Path) -> str | None:
        """Return the digest of what a prepared split holds: its arrays, and how images are made from them."""
        if folder not in self._sets:
            self._sets[folder] = None
            with suppress(UserError, AttributeError):
                self._sets[folder] = identity.of_split(read_json(folder / "record.json"))
        return self._sets[folder]


def changed(files: Iterable[Path]) -> list[Path]:
    """Return which of some files differ from their receipts; a file without a receipt does not."""
    every = {file: _plain(file) for file in files}
    made = Receipts(Path(), every).outputs
    return [file for file, name in every.items() if name in made and _digest(file) not in (made[name]["sha256"], None)]


def known(folder: Path, inputs: Collection[Path]) -> dict[str, str | None]:
    """Return the digests of a job's inputs. One without a digest would never be compared again.

    Raises:
        TryAgain: an input has no receipt, as while another process makes it.
    """
    found = Receipts(folder, inputs).data(inputs)
    if lacks := [name for name, digest in found.items() if digest is None]:
        raise TryAgain(f"{lacks[0]}: nothing says what made it, perhaps as it is being made; run again")
    return found


def refuse(files: Sequence[Path]) -> None:
    """Raise a UserError that names changed files, if there are any."""
    if files:
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        raise UserError(
            f"{files[0]}{more}: changed since it was made; `rm` it to make it again, or restore a copy "
            f"(`dvc checkout --force {files[0]}`)"
        )


def rewrite(target: Path, found: Receipt, outputs: Iterable[Path] = ()) -> None:
    """Write a receipt again, after some of its outputs were written anew on purpose."""
    for file in outputs:
        found["outputs"][os.path.relpath(file, target.parents[1])] = _state(file)
    write_json(target, found)


def _state(file: Path) -> dict[str, Any]:
    about = file.stat()
    state = {"sha256": digest_of(file), "size": about.st_size, "time": about.st_mtime_ns}
    if file.name == "record.json":
        with suppress(UserError, AttributeError):
            content = {name: each for name, each in read_json(file).items() if name not in ABOUT}
            state["content"] = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return state


def _forget(outputs: Sequence[Path]) -> None:
    """Delete what receipts tell of `outputs`, also those of a job with other outputs, such as one more figure."""
    target = file_of(outputs)
    folder = target.parents[1]
    names = {os.path.relpath(file, folder) for file in outputs}
    for file in (folder / FOLDER).glob("*.json"):
        if (found := read(file)) is None:
            continue
        kept = {name: about for name, about in found["outputs"].items() if name not in names}
        if not kept or file == target:
            file.unlink(missing_ok=True)
        elif len(kept) < len(found["outputs"]):
            write_json(file, found | {"outputs": kept})


def _places(folder: Path) -> Iterator[Path]:
    """Yield all receipts, also those in folders that lie on another disk behind a link."""
    for parent, _, names in os.walk(folder, followlinks=True):
        if os.path.basename(parent) == FOLDER:
            yield from (Path(parent) / name for name in names if name.endswith(".json"))


def _changed(place: Path, found: Receipt, refresh: bool, whole: bool) -> list[Path]:
    """Return the files of one receipt that have changed.

    A job that makes these files again at the same time first deletes the receipt, or its entries; at its end there is
    another.
    """
    folder, same, changed = place.parents[1], {}, []
    for name, about in found["outputs"].items():
        file = _plain(folder / name)
        try:
            now = file.stat()
        except FileNotFoundError:
            continue
        as_made = (now.st_size, now.st_mtime_ns) == (about["size"], about["time"])
        if as_made and not whole:
            continue
        if _digest(file) not in (about["sha256"], None):
            changed.append(file)
        elif not as_made:
            same[file] = about["time"]
    if changed and read(place) != found:
        return []
    for file, time in same.items() if refresh else ():
        with suppress(OSError):  # another user's results, or a read-only disk
            os.utime(file, ns=(time, time))
    return changed


def _digest(file: Path) -> str | None:
    try:
        return digest_of(file)
    except FileNotFoundError:
        return None


def _plain(file: Path) -> Path:
    return Path(os.path.normpath(file))
