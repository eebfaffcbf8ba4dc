"""Stand-ins: shapes, labels and factors of the real sets, from data that ships with scikit-learn."""

from __future__ import annotations

import multiprocessing
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pytest

from recaps.arrays import Arrays, read
from recaps.datasets import catalogue, preparation, standin
from recaps.datasets.formats.smallnorb import INSTANCES
from recaps.errors import UserError

pytestmark = pytest.mark.unit

NOWHERE = Path("no-such-folder")


def build(name: str, split: str, **options: object) -> Arrays:
    return preparation.build(name, split, NOWHERE, stand_in=True, options=options)


@pytest.mark.parametrize("name", catalogue.names())
def test_every_split_has_the_described_shape(name: str) -> None:
    options = {"limit": 40, "versions": 2} if "versions" in catalogue.defaults(name) else {"limit": 40}
    about = catalogue.describe(name)
    for split in catalogue.entry(name).splits:
        arrays = build(name, split, **options)
        assert arrays.images.shape[1:] == (about["channels"], about["height"], about["width"])
        assert len(arrays) in (40, 80) or (0 < len(arrays) < 80 and "novel" in catalogue.entry(name).splits)
        assert 0 <= arrays.labels.min() <= arrays.labels.max() < about["classes"]
        assert arrays.record["stand_in"] is True
        assert arrays.record["title"].endswith("stand-in (scikit-learn digits)")
        assert arrays.images.reshape(len(arrays), -1).std(axis=1).min() > 1


def test_whole_sets_have_all_classes_and_disjoint_digits() -> None:
    train, test = build("mnist", "train"), build("mnist", "test")
    assert (len(train), len(test)) == (1437, 360)
    assert set(train.labels) == set(test.labels) == set(range(10))
    digits = [{image.tobytes() for image in arrays.images} for arrays in (train, test)]
    assert len(digits[0] | digits[1]) == 1797
    assert len(build("affnist", "test", versions=2)) == 720
    assert len(build("affnist", "validation", versions=1)) == 239


def test_digits_look_like_mnist() -> None:
    """They are white on black, upright in a 20x20 box, centred by mass."""
    digits = build("mnist", "train").images[:, 0].astype(float)
    assert 20 < digits.mean() < 60
    assert digits.max(axis=(1, 2)).min() == 255
    assert not digits[:, 0].any()
    assert not digits[:, :, 0].any()
    places = np.arange(28) - 13.5
    mass = digits.sum(axis=(1, 2))
    assert np.abs((digits.sum(axis=2) @ places) / mass).max() < 1
    assert np.abs((digits.sum(axis=1) @ places) / mass).max() < 1


def test_enlarged_digits_are_the_small_ones() -> None:
    """Averaged to 8x8 pixels again, they equal the originals: nothing is shifted or rotated."""
    small = standin._sources()[0]
    doubled = standin.enlarged(small).repeat(2, axis=1).repeat(2, axis=2)
    coarse = doubled.reshape(-1, 8, 5, 8, 5).mean(axis=(2, 4))
    matches = [np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in zip(coarse, small, strict=True)]
    assert min(matches) > 0.9


def test_fashion_is_another_set_than_mnist() -> None:
    mnist, fashion = build("mnist", "test"), build("fashion-mnist", "test")
    np.testing.assert_array_equal(mnist.labels, fashion.labels)
    assert np.abs(mnist.images.astype(int) - fashion.images).mean() > 20


def test_cifar_is_in_colour_and_digits_show() -> None:
    arrays = build("cifar10", "test")
    assert np.abs(arrays.images[:, 0].astype(int) - arrays.images[:, 2]).mean() > 5
    assert len({arrays.images[k].tobytes() for k in range(360)}) == 360


def test_smallnorb_grid() -> None:
    for split in ("train", "test"):
        arrays = build("smallnorb", split, limit=300)
        assert np.bincount(arrays.labels).tolist() == [60] * 5
        assert set(arrays.factors["instance"]) == set(INSTANCES[split])
        assert set(arrays.factors["elevation"]) == set(range(9))
        assert set(arrays.factors["azimuth"]) == set(range(0, 36, 2))
        assert set(arrays.factors["lighting"]) == set(range(6))
    few = build("smallnorb", "test", limit=20)
    np.testing.assert_array_equal(few.images, arrays.images[:20])


@pytest.mark.parametrize("name", ["smallnorb-48", "smallnorb-48-azimuth", "smallnorb-48-elevation"])
def test_single_cameras_of_smallnorb_show_all_classes(name: str) -> None:
    made = {split: build(name, split, limit=300) for split in catalogue.entry(name).splits}
    for arrays in made.values():
        for camera in (0, 1):
            seen = np.bincount(arrays.labels[arrays.factors["camera"] == camera], minlength=5)
            assert seen.min() >= 10
        left, right = arrays.images[0::2].astype(int), arrays.images[1::2].astype(int)
        assert np.abs(left - right).mean(axis=(1, 2, 3)).min() > 0.5
    train = made.pop("train")
    assert sum(len(arrays) for arrays in made.values()) == 600
    for arrays in made.values():
        assert not set(train.factors["instance"]) & set(arrays.factors["instance"])


def test_smallnorb_factors_act_on_the_picture() -> None:
    from recaps.datasets import standin_stereo as stereo

    small, targets = standin._sources()
    digit = stereo._instances(standin.enlarged(small), targets)[2, 4][None]

    def photograph(side: float, **change: float) -> np.ndarray:
        view = {"elevation": 4.0, "azimuth": 0.0, "lighting": 2.0, **change}
        arrays = {name: np.array([value], np.float32) for name, value in view.items()}
        return stereo._photograph(digit, arrays, side)[0].astype(float)

    def ink(picture: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.nonzero(picture < picture[0, 0] - 60)

    plain = photograph(0.0)
    assert ink(photograph(-0.12))[1].mean() - ink(photograph(0.12))[1].mean() > 4  # what the right camera sees is left
    heights = [np.ptp(ink(photograph(0.0, elevation=e))[0]) for e in (0, 4, 8)]
    assert heights == sorted(set(heights))
    assert photograph(0.0, lighting=5)[0, 0] > plain[0, 0] > photograph(0.0, lighting=0)[0, 0]
    quarter = photograph(0.0, azimuth=9)
    assert np.ptp(ink(quarter)[1]) > np.ptp(ink(plain)[1])  # a digit is taller than wide: lying, it is wider


def test_prepare_and_load(tmp_path: Path) -> None:
    folder = preparation.prepare("mnist-40", "test", NOWHERE, tmp_path, stand_in=True, options={"limit": 30})
    assert folder == tmp_path / "mnist-40" / "test"
    assert sorted(path.name for path in folder.iterdir()) == ["factors.npz", "images.npy", "labels.npy", "record.json"]
    loaded = read(tmp_path / "mnist-40" / "test")
    record = loaded.record
    assert (record["name"], record["split"], record["derived_from"]) == ("mnist-40", "test", "mnist")
    assert record["options"] == {"limit": 30}
    assert record["digest"] == loaded.digest()
    assert record["sources"][0]["version"]
    assert "NaN" not in (folder / "record.json").read_text()


def test_prepare_refuses_mistakes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'degrees'"):
        preparation.prepare("mnist-rotated", "test", NOWHERE, tmp_path, stand_in=True, options={"degree": 3})
    with pytest.raises(UserError, match="did you mean 'mnist'"):
        preparation.prepare("mnits", "test", NOWHERE, tmp_path, stand_in=True)
    with pytest.raises(UserError, match="no split 'valid'"):
        preparation.prepare("mnist", "valid", NOWHERE, tmp_path, stand_in=True)
    with pytest.raises(UserError, match="no split"):
        preparation.prepare("affnist-generated", "train", NOWHERE, tmp_path, stand_in=True)
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte\.gz: no such file; run `snakemake data` first"):
        preparation.prepare("mnist", "train", NOWHERE, tmp_path, stand_in=False)
    assert not list(tmp_path.iterdir())


ROUNDS = 10


def prepare_many(out: Path, together: Barrier) -> None:
    """Prepare a split in many folders, each at the same time as another process, and read it while that one ends."""
    for n in range(ROUNDS):
        together.wait(60)
        preparation.prepare("mnist-40", "test", NOWHERE, out / str(n), stand_in=True, options={"limit": 30})
        for _ in range(50):
            loaded = read(out / str(n) / "mnist-40" / "test")
            assert loaded.record["digest"] == loaded.digest()


def test_two_processes_prepare_the_same_split_at_once(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    together = spawn.Barrier(2)
    both = [spawn.Process(target=prepare_many, args=(tmp_path, together)) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert [each.exitcode for each in both] == [0, 0]
    assert all([file.name for file in (tmp_path / str(n) / "mnist-40").iterdir()] == ["test"] for n in range(ROUNDS))


def test_a_split_that_is_there_stays_and_another_one_replaces_it(tmp_path: Path) -> None:
    def prepare(limit: int) -> int:
        """Return the number of the file of images, which a new file would change."""
        made = preparation.prepare("mnist", "test", NOWHERE, tmp_path, stand_in=True, options={"limit": limit})
        assert len(read(tmp_path / "mnist" / "test")) == limit
        return (made / "images.npy").stat().st_ino

    before = prepare(30)
    with open(tmp_path / "mnist" / "test" / "images.npy", "rb"):  # so that its number is not used again
        assert prepare(30) == before
        assert prepare(20) != before
        (tmp_path / "mnist" / "test" / "labels.npy").write_bytes(b"damaged")
        prepare(20)
