"""Read base sets from their official files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from recaps.arrays import Arrays
from recaps.datasets import catalogue, checksums, sources
from recaps.datasets.archive import broken
from recaps.datasets.formats import affnist, cifar, idx, jpegzip, norbparquet, smallnorb
from recaps.errors import UserError

_AFFNIST_VERSIONS = 32


def read(name: str, split: str, root: Path, options: Mapping[str, Any]) -> Arrays:
    """Read a split of a base set from the files `<root>/<dataset>/<file>`, after verifying them.

    Returns:
        Arrays with a record of their `sources`: path, size and SHA-256 of each file.

    Raises:
        UserError: a file is missing, malformed or not the official one.
    """
    found = []
    paths = []
    for relative in catalogue.raw_inputs(name, split):
        dataset, file = PurePosixPath(relative).parts
        digest = checksums.require(sources.file(dataset, file), Path(root) / dataset)
        paths.append(Path(root) / dataset / file)
        found.append({"path": relative, "size": paths[-1].stat().st_size, "sha256": digest})
    n = catalogue.entry(name).counts[split]
    record: dict[str, Any] = {"sources": found, "seed": None, "parameters": {}}
    if name in ("mnist", "fashion-mnist"):
        images, labels = idx.read_images(paths[0], expected_n=n), idx.read_labels(paths[1], expected_n=n)
        return Arrays(images, labels, {}, record)
    if name == "cifar10":
        return Arrays(*cifar.read(paths[0], split, expected_n=n), {}, record)
    if name == "cifar10-jpeg":
        record["parameters"] = {"order": "by number, then class"}
        return Arrays(*jpegzip.read(paths[0], split, expected_n=n), {}, record)
    if name == "smallnorb":
        return Arrays(*smallnorb.read(paths, split, expected_n=n), record)
    if name == "smallnorb-parquet":
        return Arrays(*norbparquet.read(paths[0], split, expected_n=n), record)
    if name == "smallnorb-zip":
        return Arrays(*smallnorb.read_zip(paths[0], split, expected_n=n), record)
    return _affnist(split, paths[0], n, options["versions"], record)


def _affnist(split: str, path: Path, n: int, versions: int, record: dict[str, Any]) -> Arrays:
    whole = split != "training_and_validation"
    if whole and versions != _AFFNIST_VERSIONS:
        raise UserError(
            f"data set 'affnist', option 'versions': the official {split} file holds all {_AFFNIST_VERSIONS} in one; "
            "use `limit`, or the split `training_and_validation`, which has a file per version"
        )
    n = n if whole else n // _AFFNIST_VERSIONS * versions
    images = np.empty((n, 1, affnist.SIZE, affnist.SIZE), np.uint8)
    labels, factors, done = [], [], 0
    for batch_images, batch_labels, batch_factors in affnist.read(path, versions=None if whole else versions):
        if done + len(batch_labels) > n:
            raise broken(path, f"more than {n} images")
        images[done : done + len(batch_labels)] = batch_images
        done += len(batch_labels)
        labels.append(batch_labels)
        factors.append(batch_factors)
    if done != n:
        raise broken(path, f"{done} images, expected {n}")
    common = set.intersection(*(set(batch) for batch in factors))
    joined = {key: np.concatenate([batch[key] for batch in factors]) for key in sorted(common)}
    if "original" not in joined:
        record["parameters"] = {"note": "the file names no original digits", "originals": "unknown"}
    return Arrays(images, np.concatenate(labels), joined, record)
