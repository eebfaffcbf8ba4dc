"""Preparing splits from small files in the official formats."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import dataset_writers as write
import numpy as np
import pytest

from recaps.arrays import read
from recaps.datasets import catalogue, preparation, sources
from recaps.datasets.formats import smallnorb
from recaps.errors import UserError

pytestmark = pytest.mark.unit


@pytest.fixture
def register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Register the small files in `tmp_path` as the official ones, with `n` images in each split."""

    def take(dataset: str, **counts: int) -> None:
        folder = tmp_path / dataset
        table = []
        for path in filter(Path.exists, [folder / file.name for file in sources.files(dataset)]):
            digest = None if dataset == "affnist" else hashlib.sha256(path.read_bytes()).hexdigest()
            table.append(sources.SourceFile(dataset, path.name, (), None, digest))
        monkeypatch.setitem(sources._SOURCES, dataset, tuple(table))
        entry = dataclasses.replace(catalogue.entry(dataset), counts=counts)
        monkeypatch.setitem(catalogue.CATALOGUE, dataset, entry)

    return take


def mnist_files(root: Path, n: int = 12) -> None:
    (root / "mnist").mkdir()
    random = np.random.default_rng(0)
    for stem in ("train", "t10k"):
        images = np.zeros((n, 28, 28), np.uint8)
        images[:, 8:20, 8:20] = random.integers(1, 256, (n, 12, 12))
        write.idx(root / "mnist" / f"{stem}-images-idx3-ubyte.gz", images)
        write.idx(root / "mnist" / f"{stem}-labels-idx1-ubyte.gz", random.integers(0, 10, n))


def test_mnist_and_what_is_derived_from_it(tmp_path: Path, register) -> None:  # type: ignore[no-untyped-def]
    mnist_files(tmp_path)
    register("mnist", train=12, test=12)
    out = tmp_path / "out"
    for name in ("mnist", "mnist-40", "mnist-shifted", "mnist-40-shifted", "mnist-rotated", "affnist-generated"):
        options = {"versions": 2} if name == "affnist-generated" else {}
        preparation.prepare(name, "test", tmp_path, out, stand_in=False, options=options)
        record = read(out / name / "test").record
        assert record["stand_in"] is False
        assert [source["path"] for source in record["sources"]] == catalogue.raw_inputs(name, "test")
        assert all(len(source["sha256"]) == 64 for source in record["sources"])
    plain, padded = read(out / "mnist" / "test"), read(out / "mnist-40" / "test")
    np.testing.assert_array_equal(plain.images, padded.images[:, :, 6:-6, 6:-6])
    assert len(read(out / "affnist-generated" / "test")) == 24


def test_a_changed_file_is_refused(tmp_path: Path, register) -> None:  # type: ignore[no-untyped-def]
    mnist_files(tmp_path)
    register("mnist", train=12, test=12)
    path = tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(UserError, match=rf"{path.name}: SHA-256 expected \w+, found \w+; delete it and run"):
        preparation.prepare("mnist-40", "test", tmp_path, tmp_path / "out", stand_in=False)
    assert not (tmp_path / "out").exists()


def test_cifar_smallnorb_and_jpeg(tmp_path: Path, register) -> None:  # type: ignore[no-untyped-def]
    for dataset in ("cifar10", "smallnorb", "cifar10-jpeg"):
        (tmp_path / dataset).mkdir()
    records = {
        f"cifar-10-batches-bin/{k}.bin": bytes(3073) for k in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
    }
    write.cifar(tmp_path / "cifar10" / "cifar-10-binary.tar.gz", records)
    register("cifar10", train=5, test=1)
    for path in catalogue.raw_inputs("smallnorb", "test"):
        if "-dat" in path:
            write.norb(tmp_path / path, np.ones((3, 2, 96, 96), np.uint8), 0x1E3D4C55)
        elif "-cat" in path:
            write.norb(tmp_path / path, np.array([0, 4, 2], "<i4"), 0x1E3D4C54)
        else:
            write.norb(tmp_path / path, np.array([[5, 8, 34, 5]] * 3, "<i4"), 0x1E3D4C54)
    register("smallnorb", train=3, test=3)
    picture = write.jpeg(np.zeros((32, 32, 3), np.uint8))
    write.zipped(
        tmp_path / "cifar10-jpeg" / "cifar10-jpeg.zip", {f"train/{c}/0000.jpg": picture for c in ("dog", "bird")}
    )
    register("cifar10-jpeg", train=2, test=1)
    assert len(preparation.build("cifar10", "train", tmp_path, stand_in=False)) == 5
    norb = preparation.build("smallnorb", "test", tmp_path, stand_in=False, options={"limit": 2})
    assert norb.labels.tolist() == [0, 4]
    assert norb.factors["azimuth"].tolist() == [34, 34]
    assert preparation.build("cifar10-jpeg", "train", tmp_path, stand_in=False).labels.tolist() == [2, 5]


def smallnorb_files(root: Path, split: str, instances: tuple[int, ...], seed: int) -> tuple[np.ndarray, ...]:
    """Write the three files of a split with 108 scenes of different viewpoints."""
    random = np.random.default_rng(seed)
    elevation, azimuth = random.permutation(np.indices((9, 18)).reshape(2, -1).T)[:108].T
    images = random.integers(0, 256, (108, 2, 96, 96), dtype=np.uint8)
    labels = (np.arange(108) % 5).astype("<i4")
    columns = [random.choice(instances, 108), elevation, 2 * azimuth, random.integers(0, 6, 108)]
    info = np.stack(columns, 1).astype("<i4")
    (root / "smallnorb").mkdir(exist_ok=True)
    for path, values in zip(catalogue.raw_inputs("smallnorb", split), (images, labels, info), strict=True):
        write.norb(root / path, values, 0x1E3D4C55 if values.dtype == np.uint8 else 0x1E3D4C54)
    return images, labels, info


def test_what_is_derived_from_smallnorb(tmp_path: Path, register) -> None:  # type: ignore[no-untyped-def]
    parts = {"train": smallnorb_files(tmp_path, "train", (4, 6, 7, 8, 9), 1)}
    parts["test"] = smallnorb_files(tmp_path, "test", (0, 1, 2, 3, 5), 2)
    register("smallnorb", train=108, test=108)
    out = tmp_path / "out"
    familiar = {"azimuth": (30, 32, 34, 0, 2, 4), "elevation": (0, 1, 2)}
    columns = {"azimuth": 2, "elevation": 1}
    for name in ("smallnorb-48", "smallnorb-48-azimuth", "smallnorb-48-elevation"):
        for split in catalogue.entry(name).splits:
            preparation.prepare(name, split, tmp_path, out, stand_in=False)
            made = read(out / name / split)
            images, labels, info = parts["train" if split == "train" else "test"]
            rows = list(range(108))
            if name != "smallnorb-48":
                factor = name.split("-")[-1]
                rows = [n for n in rows if (info[n, columns[factor]] in familiar[factor]) == (split != "novel")]
            assert made.factors["original"][::2].tolist() == rows
            assert made.factors["original"][1::2].tolist() == rows
            for camera in (0, 1):
                np.testing.assert_array_equal(made.images[camera::2, 0], images[rows][:, camera, 0::2, 0::2])
                np.testing.assert_array_equal(made.labels[camera::2], labels[rows])
                for k, factor in enumerate(("instance", "elevation", "azimuth", "lighting")):
                    np.testing.assert_array_equal(made.factors[factor][camera::2], info[rows, k])
            assert [source["path"] for source in made.record["sources"]] == catalogue.raw_inputs(name, split)
            assert (made.record["stand_in"], made.record["derived_from"]) == (False, "smallnorb")
            assert made.record["title"].startswith("smallNORB")


@pytest.mark.parametrize("copy", ["smallnorb-zip", "smallnorb-parquet"])
def test_a_copy_of_smallnorb_has_the_official_images(tmp_path: Path, register, copy: str) -> None:  # type: ignore[no-untyped-def]
    form = copy.removeprefix("smallnorb-")
    if form == "parquet":
        pytest.importorskip("pyarrow")
    (tmp_path / copy).mkdir()
    for split, instances in smallnorb.INSTANCES.items():
        scenes = smallnorb_files(tmp_path, split, instances, 1)
        {"zip": write.norb_zip, "parquet": write.norb_parquet}[form](tmp_path / copy / f"{split}.{form}", *scenes)
    for dataset in ("smallnorb", copy):
        register(dataset, train=108, test=108)
    for official in ("smallnorb", "smallnorb-48", "smallnorb-48-azimuth", "smallnorb-48-elevation"):
        name = official.replace("smallnorb", copy)
        for split in catalogue.splits(official):
            one, other = (preparation.build(each, split, tmp_path, stand_in=False) for each in (official, name))
            assert (one.digest(), list(one.factors)) == (other.digest(), list(other.factors))
            for factor, values in one.factors.items():
                np.testing.assert_array_equal(values, other.factors[factor], strict=True)
            assert other.record["parameters"] == one.record["parameters"]
            assert other.record["name"] == name
            assert other.record["title"].endswith(", not official)")
            assert not other.record["official"]
            assert other.record["derived_from"] == (None if official == "smallnorb" else copy)
            assert [source["path"] for source in other.record["sources"]] == catalogue.raw_inputs(name, split)
    (tmp_path / copy / f"test.{form}").unlink()
    with pytest.raises(UserError, match=rf"\A.*test.{form}: no such file; run `snakemake data` first\Z"):
        preparation.build(f"{copy}-48", "test", tmp_path, stand_in=False)


def affnist_archives(root: Path) -> None:
    (root / "affnist").mkdir()
    write.zipped(root / "affnist" / "test.mat.zip", {"test.mat": write.mat(write.affnist_fields(64))})
    batches = {f"b/{k}.mat": write.mat(write.affnist_fields(3, seed=k)) for k in range(1, 33)}
    write.zipped(root / "affnist" / "training_and_validation_batches.zip", batches)


def test_affnist(tmp_path: Path, register) -> None:  # type: ignore[no-untyped-def]
    affnist_archives(tmp_path)
    register("affnist", test=64, validation=64, training_and_validation=96)
    test = preparation.build("affnist", "test", tmp_path, stand_in=False)
    assert (len(test), sorted(test.factors)) == (64, ["original", "transform"])
    batches = preparation.build("affnist", "training_and_validation", tmp_path, stand_in=False, options={"versions": 2})
    assert len(batches) == 6
    assert len(preparation.build("affnist", "training_and_validation", tmp_path, stand_in=False)) == 96
    with pytest.raises(UserError, match="holds all 32 in one"):
        preparation.build("affnist", "test", tmp_path, stand_in=False, options={"versions": 2})
    register("affnist", test=65, training_and_validation=64)
    with pytest.raises(UserError, match="64 images, expected 65"):
        preparation.build("affnist", "test", tmp_path, stand_in=False)
    with pytest.raises(UserError, match="more than 64 images"):
        preparation.build("affnist", "training_and_validation", tmp_path, stand_in=False)
