"""The official files; set RECAPS_MIRROR to a mirror that has them to run these tests."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
import yaml

from recaps.arrays import Arrays
from recaps.datasets import catalogue, download, preparation, sources

MIRROR = os.environ.get("RECAPS_MIRROR", "")
MNIST_TEST = "4718853ea946af656684509414983beff2e65cf414265c27966161014c003b8b"

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(not Path(MIRROR, "mnist").is_dir(), reason="RECAPS_MIRROR names no folder with mnist"),
]


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    for dataset in ("mnist", "fashion-mnist", "cifar10-jpeg"):
        if Path(MIRROR, dataset).is_dir():
            for file in sources.files(dataset):
                download.fetch(file, root / dataset, MIRROR, lambda *_: None)
    return root


def build(raw: Path, name: str, split: str, **options: object) -> Arrays:
    if not (raw / (catalogue.describe(name)["derived_from"] or name)).is_dir():
        pytest.skip(f"the mirror has no {name}")
    return preparation.build(name, split, raw, stand_in=False, options=options)


def test_mnist(raw: Path) -> None:
    train, test = build(raw, "mnist", "train"), build(raw, "mnist", "test")
    assert train.images.shape == (60_000, 1, 28, 28)
    assert test.images.shape == (10_000, 1, 28, 28)
    assert train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert test.labels[:5].tolist() == [7, 2, 1, 0, 4]
    assert np.bincount(train.labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert round(float(train.images.mean() / 255), 4) == 0.1307  # the mean that every MNIST recipe subtracts


def test_fashion_mnist(raw: Path) -> None:
    train = build(raw, "fashion-mnist", "train")
    assert train.labels[0] == 9
    assert np.bincount(train.labels).tolist() == [6000] * 10
    assert round(float(train.images.mean() / 255), 4) == 0.2860


def test_cifar10_jpeg(raw: Path) -> None:
    test = build(raw, "cifar10-jpeg", "test")
    assert np.bincount(test.labels).tolist() == [1000] * 10
    np.testing.assert_allclose(test.images.mean(axis=(0, 2, 3)) / 255, [0.494, 0.485, 0.450], atol=0.002)


def test_generated_affnist(raw: Path) -> None:
    made = build(raw, "affnist-generated", "test", versions=1)
    assert made.images.shape == (10_000, 1, 40, 40)
    np.testing.assert_array_equal(made.labels, build(raw, "mnist", "test").labels)
    assert np.abs(made.factors["translate_x"]).max() > 10


def test_digests(raw: Path) -> None:
    assert build(raw, "mnist", "test").digest() == MNIST_TEST


def test_data_dvc_names_these_files(raw: Path, root: Path) -> None:
    for out in yaml.safe_load((root / "data.dvc").read_text())["outs"]:
        files = sorted((raw / Path(out["path"]).name).iterdir())
        # A folder's hash is that of the list of its files, as DVC writes it.
        listed = [{"md5": hashlib.md5(file.read_bytes()).hexdigest(), "relpath": file.name} for file in files]
        assert out["md5"] == hashlib.md5(json.dumps(listed).encode()).hexdigest() + ".dir", out["path"]
        assert (out["nfiles"], out["size"]) == (len(files), sum(file.stat().st_size for file in files))
