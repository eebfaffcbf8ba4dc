"""The format of prepared splits on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recaps import io
from recaps.arrays import Arrays, read, save
from recaps.errors import UserError

pytestmark = pytest.mark.unit


def example(n: int = 6) -> Arrays:
    random = np.random.default_rng(0)
    factors = {"original": np.arange(n), "transform": random.normal(size=(n, 3)).astype(np.float32)}
    images = random.integers(0, 256, (n, 1, 28, 28), dtype=np.uint8)
    return Arrays(images, random.integers(0, 10, n), factors, {"name": "mnist", "stand_in": True})


def test_round_trip(tmp_path: Path) -> None:
    arrays = example()
    save(arrays, tmp_path / "mnist" / "test")
    loaded = read(tmp_path / "mnist" / "test")
    assert isinstance(loaded.images, np.memmap)
    np.testing.assert_array_equal(loaded.images, arrays.images)
    np.testing.assert_array_equal(loaded.labels, arrays.labels)
    assert loaded.factors.keys() == arrays.factors.keys()
    for name, values in arrays.factors.items():
        np.testing.assert_array_equal(loaded.factors[name], values)
        assert loaded.factors[name].dtype == values.dtype
    assert loaded.record == {**arrays.record, "n": 6, "shape": [6, 1, 28, 28], "digest": arrays.digest()}
    assert loaded.digest() == arrays.digest()


def test_saving_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        save(example(), tmp_path / folder)
    for path in sorted((tmp_path / "a").iterdir()):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_digest_sees_every_part() -> None:
    arrays = example()
    images = arrays.images.copy()
    images[-1, 0, -1, -1] ^= 1
    labels = (arrays.labels + 1) % 10
    reshaped = arrays.images.reshape(6, 1, 56, 14)
    digests = {a.digest() for a in (arrays, Arrays(images, arrays.labels), Arrays(arrays.images, labels))}
    assert len(digests | {Arrays(reshaped, arrays.labels).digest()}) == 4


def test_not_prepared_yet(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"record\.json: no such file; prepare this split first"):
        read(tmp_path / "mnist" / "test")


@pytest.mark.parametrize("name", ["images.npy", "labels.npy", "factors.npz"])
@pytest.mark.parametrize("keep", [0, 60, -1])
def test_truncated(tmp_path: Path, name: str, keep: int) -> None:
    path = save(example(), tmp_path / "mnist" / "test") / name
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match=rf"{name}: truncated or damaged .*delete the folder and run again\Z"):
        read(tmp_path / "mnist" / "test")


@pytest.mark.parametrize("name", ["images.npy", "labels.npy", "factors.npz"])
def test_missing_file(tmp_path: Path, name: str) -> None:
    (save(example(), tmp_path / "mnist" / "test") / name).unlink()
    with pytest.raises(UserError, match=f"{name}: no such file"):
        read(tmp_path / "mnist" / "test")


def test_files_that_do_not_belong_together(tmp_path: Path) -> None:
    folder = save(example(), tmp_path / "mnist" / "test")
    np.save(folder / "labels.npy", np.zeros(5, np.int64))
    with pytest.raises(UserError, match=r"labels are int64 \(5,\), not int64 \[6\]"):
        read(tmp_path / "mnist" / "test")
    save(example(5), folder)
    io.write_json(folder / "record.json", {"shape": [6, 1, 28, 28]})
    with pytest.raises(UserError, match="its record says"):
        read(tmp_path / "mnist" / "test")


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    folder = save(example(), tmp_path / "mnist" / "test")
    np.save(folder / "labels.npy", np.array([print] * 6, object), allow_pickle=True)
    with pytest.raises(UserError, match="truncated or damaged"):
        read(tmp_path / "mnist" / "test")


def test_a_save_that_is_interrupted_is_not_taken_for_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(example(), tmp_path / "mnist" / "test")

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", killed)
    with pytest.raises(KeyboardInterrupt):
        save(example(5), folder)
    with pytest.raises(UserError, match=r"record\.json: no such file"):
        read(tmp_path / "mnist" / "test")


def test_wrong_types_are_a_programming_error() -> None:
    with pytest.raises(ValueError, match="not uint8"):
        Arrays(np.zeros((2, 1, 3, 3)), np.zeros(2, np.int64))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="labels"):
        Arrays(np.zeros((2, 1, 3, 3), np.uint8), np.zeros(3, np.int64))
    with pytest.raises(ValueError, match="factor 'a'"):
        Arrays(np.zeros((2, 1, 3, 3), np.uint8), np.zeros(2, np.int64), {"a": np.zeros(3)})
