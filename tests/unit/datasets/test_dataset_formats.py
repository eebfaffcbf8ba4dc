"""Readers of the official formats, on valid and on malformed files."""

from __future__ import annotations

import gzip
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import dataset_writers as write
import numpy as np
import pytest

from recaps.datasets.formats import affnist, cifar, idx, jpegzip, norbparquet, smallnorb
from recaps.errors import UserError

pytestmark = pytest.mark.unit

BYTE, INT32 = 0x1E3D4C55, 0x1E3D4C54


def fails(pattern: str) -> pytest.RaisesExc[UserError]:
    """Expect a UserError of one line that says how to correct the mistake."""
    return pytest.raises(UserError, match=rf"\A[^\n]*(?:{pattern})[^\n]*`snakemake data`[^\n]*\Z")


# IDX


def test_idx_round_trip(tmp_path: Path) -> None:
    images = np.arange(3 * 28 * 28).reshape(3, 28, 28) % 251
    labels = np.array([5, 0, 9])
    read = idx.read_images(write.idx(tmp_path / "i.gz", images), expected_n=3)
    assert read.shape == (3, 1, 28, 28)
    assert read.dtype == np.uint8
    np.testing.assert_array_equal(read[:, 0], images)
    read_labels = idx.read_labels(write.idx(tmp_path / "l.gz", labels), expected_n=3)
    assert read_labels.dtype == np.int64
    np.testing.assert_array_equal(read_labels, labels)


@pytest.mark.parametrize(
    ("magic", "pattern"), [(b"\0\0\x0d\3", "magic number 00000d03"), (b"\0\0\x08\1", "magic number 00000801")]
)
def test_idx_wrong_magic(tmp_path: Path, magic: bytes, pattern: str) -> None:
    with fails(pattern):
        idx.read_images(write.idx(tmp_path / "i.gz", np.zeros((1, 28, 28)), magic=magic), expected_n=1)


def test_idx_wrong_size_count_and_label(tmp_path: Path) -> None:
    with fails(r"\(2, 27, 28\)"):
        idx.read_images(write.idx(tmp_path / "i.gz", np.zeros((2, 27, 28))), expected_n=2)
    with fails(r"\(2, 28, 28\), expected \(3, 28, 28\)"):
        idx.read_images(write.idx(tmp_path / "i.gz", np.zeros((2, 28, 28))), expected_n=3)
    with fails("2 labels, expected 3"):
        idx.read_labels(write.idx(tmp_path / "l.gz", np.zeros(2)), expected_n=3)
    with fails("label 10 out of range 0 to 9"):
        idx.read_labels(write.idx(tmp_path / "l.gz", np.array([3, 10])), expected_n=2)


@pytest.mark.parametrize("keep", [0, 3, 11, 40, -1])
def test_idx_truncated_gzip(tmp_path: Path, keep: int) -> None:
    path = write.idx(tmp_path / "i.gz", np.random.default_rng(0).integers(0, 256, (2, 28, 28)))
    path.write_bytes(path.read_bytes()[:keep])
    with fails("i.gz"):
        idx.read_images(path, expected_n=2)


@pytest.mark.parametrize("content", [b"\0\0\x08\3\0\0", b"\0\0\x08\3" + b"\xff" * 12, b"\0\0\x08\3" + b"\0\0\0\1" * 3])
def test_idx_length_does_not_fit(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "i.gz"
    path.write_bytes(gzip.compress(content))
    with fails("cut short|need"):
        idx.read_images(path, expected_n=1)


def test_idx_not_gzip_and_missing(tmp_path: Path) -> None:
    (tmp_path / "i.gz").write_bytes(b"<html>not found</html>")
    with fails("damaged gzip"):
        idx.read_images(tmp_path / "i.gz", expected_n=1)
    with fails("no such file"):
        idx.read_images(tmp_path / "absent.gz", expected_n=1)


# CIFAR-10


def cifar_batches(per_batch: int = 2) -> dict[str, bytes]:
    random = np.random.default_rng(1)
    names = [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]
    content = {}
    for name in names:
        records = random.integers(0, 256, (per_batch, 3073), dtype=np.uint8)
        records[:, 0] = random.integers(0, 10, per_batch)
        content[f"cifar-10-batches-bin/{name}"] = records.tobytes()
    return {"cifar-10-batches-bin/readme.html": b"hello", **content}


def test_cifar_round_trip(tmp_path: Path) -> None:
    batches = cifar_batches()
    shuffled = dict(sorted(batches.items(), reverse=True))  # the archive's own order must not matter
    path = write.cifar(tmp_path / "c.tar.gz", shuffled)
    images, labels = cifar.read(path, "train", expected_n=10)
    assert images.shape == (10, 3, 32, 32)
    third = np.frombuffer(batches["cifar-10-batches-bin/data_batch_2.bin"], np.uint8).reshape(2, 3073)[0]
    assert labels[2] == third[0]
    assert images[2, 0, 0, 1] == third[2]
    assert images[2, 2, 31, 31] == third[3072]
    assert len(cifar.read(path, "test", expected_n=2)[1]) == 2


def test_cifar_malformed(tmp_path: Path) -> None:
    batches = cifar_batches()
    test = "cifar-10-batches-bin/test_batch.bin"
    path = tmp_path / "c.tar.gz"
    with fails("10 images in split 'train', expected 12"):
        cifar.read(write.cifar(path, batches), "train", expected_n=12)
    with fails("test_batch.bin has 6145 bytes"):
        cifar.read(write.cifar(path, {**batches, test: batches[test][:-1]}), "test", expected_n=2)
    with fails("label 77 out of range"):
        cifar.read(write.cifar(path, {**batches, test: b"\x4d" + batches[test][1:]}), "test", expected_n=2)
    with fails("no member .*test_batch.bin"):
        cifar.read(write.cifar(path, {k: v for k, v in batches.items() if k != test}), "test", expected_n=2)
    whole = write.cifar(path, batches).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with fails("truncated or damaged"):
        cifar.read(path, "train", expected_n=10)


# smallNORB


def norb_parts(n: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(2)
    images = random.integers(0, 256, (n, 2, 96, 96), dtype=np.uint8)
    labels = np.arange(n, dtype="<i4") % 5
    info = np.array([[4, 0, 0, 0], [6, 8, 34, 5], [9, 3, 12, 2], [8, 1, 2, 1]] * n, "<i4")[:n]
    return images, labels, info


def norb_files(folder: Path, **change: object) -> list[Path]:
    parts = {**dict(zip(("dat", "cat", "info"), norb_parts(), strict=True)), **change}
    magics = {"dat": BYTE, "cat": INT32, "info": INT32}
    return [write.norb(folder / f"{name}.mat.gz", np.asarray(parts[name]), magics[name]) for name in magics]


def test_smallnorb_round_trip(tmp_path: Path) -> None:
    images, labels, factors = smallnorb.read(norb_files(tmp_path), "train", expected_n=4)
    np.testing.assert_array_equal(images, np.random.default_rng(2).integers(0, 256, (4, 2, 96, 96), dtype=np.uint8))
    assert labels.tolist() == [0, 1, 2, 3]
    assert {name: values.tolist() for name, values in factors.items()} == {
        "instance": [4, 6, 9, 8],
        "elevation": [0, 8, 3, 1],
        "azimuth": [0, 34, 12, 2],
        "lighting": [0, 5, 2, 1],
    }


@pytest.mark.parametrize(("magic", "dtype"), [(0x1E3D4C51, "<f4"), (0x1E3D4C53, "<f8"), (0x1E3D4C56, "<i2")])
@pytest.mark.parametrize("shape", [(5,), (2, 3), (2, 3, 4), (2, 1, 2, 3)])
def test_smallnorb_matrix_of_any_type(tmp_path: Path, magic: int, dtype: str, shape: tuple[int, ...]) -> None:
    values = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    np.testing.assert_array_equal(smallnorb.read_matrix(write.norb(tmp_path / "m.gz", values, magic)), values)


def test_smallnorb_headers_have_the_documented_sizes(tmp_path: Path) -> None:
    dat, cat, info = (gzip.decompress(path.read_bytes()) for path in norb_files(tmp_path))
    assert len(dat) == 24 + 4 * 2 * 96 * 96
    assert len(cat) == 20 + 4 * 4
    assert len(info) == 20 + 4 * 4 * 4


def test_smallnorb_malformed(tmp_path: Path) -> None:
    with fails("label 5 is none of"):
        smallnorb.read(norb_files(tmp_path, cat=np.array([0, 1, 2, 5], "<i4")), "train", expected_n=4)
    with fails("instance 4 is none of 0, 1, 2, 3, 5"):
        smallnorb.read(norb_files(tmp_path), "test", expected_n=4)
    for row, what in (([4, 9, 0, 0], "elevation 9"), ([4, 0, 3, 0], "azimuth 3"), ([4, 0, 0, 6], "lighting 6")):
        with fails(f"{what} is none of"):
            smallnorb.read(norb_files(tmp_path, info=np.array([row] * 4, "<i4")), "train", expected_n=4)
    with fails(r"expected uint8 \(5, 2, 96, 96\)"):
        smallnorb.read(norb_files(tmp_path), "train", expected_n=5)
    with fails(r"\(4, 2, 95, 96\)"):
        smallnorb.read(norb_files(tmp_path, dat=np.zeros((4, 2, 95, 96), np.uint8)), "train", expected_n=4)
    with fails("magic number 00000801"):
        smallnorb.read_matrix(write.norb(tmp_path / "m.gz", np.zeros(3, "<i4"), 0x801))


@pytest.mark.parametrize(
    "content",
    [b"", b"\x54\x4c\x3d\x1e\1\0\0\0\3\0", b"\x54\x4c\x3d\x1e\0\0\0\0", b"\x55\x4c\x3d\x1e\1\0\0\0" + b"\xff" * 12],
)
def test_smallnorb_broken_header(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.gz").write_bytes(gzip.compress(content))
    with fails("m.gz"):
        smallnorb.read_matrix(tmp_path / "m.gz")


def test_smallnorb_data_cut_inside_a_whole_gzip(tmp_path: Path) -> None:
    dat = norb_files(tmp_path)[0]
    dat.write_bytes(gzip.compress(gzip.decompress(dat.read_bytes())[:-1]))
    with fails("need 73752 bytes, found 73751"):
        smallnorb.read_matrix(dat)


def test_smallnorb_in_zip_is_the_official_one(tmp_path: Path) -> None:
    path = write.norb_zip(tmp_path / "train.zip", *norb_parts())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("__MACOSX/._smallnorb-dat.mat", b"hidden")
    same_scenes(smallnorb.read_zip(path, "train", expected_n=4), norb_files(tmp_path))
    with fails("instance 4 is none of"):
        smallnorb.read_zip(path, "test", expected_n=4)
    with fails(r"expected uint8 \(5, 2, 96, 96\)"):
        smallnorb.read_zip(path, "train", expected_n=5)
    with fails(r"0 files \*-dat.mat, expected 1"):
        smallnorb.read_zip(write.zipped(path, {"a-cat.mat": b""}), "train", expected_n=4)
    with fails("header is cut short"):
        smallnorb.read_zip(write.zipped(path, {"a-dat.mat": b""}), "train", expected_n=4)


def test_smallnorb_in_parquet_is_the_official_one(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = write.norb_parquet(tmp_path / "train.parquet", *norb_parts(5))
    assert norbparquet.problem(path) is None
    five = dict(zip(("dat", "cat", "info"), norb_parts(5), strict=True))
    images, labels, factors = norbparquet.read(path, "train", expected_n=5)
    same_scenes((images, labels, factors), norb_files(tmp_path, **five))
    path.write_bytes(path.read_bytes()[:-1])
    assert norbparquet.problem(path) == "not a whole Parquet file"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"azimuth": None},
            r"no column azimuth \(it has image_lt, image_rt, category, instance, elevation, lighting\)",
        ),
        ({"image_rt": None}, "no column image_rt"),
        ({"image_lt": [b"png"] * 4}, "not a Parquet file of scenes"),
        ({"image_lt": [{"path": "a.png"}] * 4}, "not a Parquet file of scenes"),
        ({"image_rt": [{"bytes": None}] * 4}, "image_rt of row 0 is not a whole PNG picture"),
        ({"image_rt": [{"bytes": write.jpeg(np.zeros((96, 96), np.uint8))}] * 4}, "is not a whole PNG picture"),
        (
            {"image_rt": [{"bytes": write.png(np.zeros((96, 95), np.uint8))}] * 4},
            r"L \(95, 96\), expected L \(96, 96\)",
        ),
        ({"image_lt": [{"bytes": write.png(np.zeros((96, 96, 3), np.uint8))}] * 4}, "image_lt of row 0 is RGB"),
        ({"category": [0, 1, 2, None]}, r"float64 \(4,\), expected int32 \(4,\)"),
        ({"category": ["car"] * 4}, "not a Parquet file of scenes"),
        ({"category": [0, 1, 2, 5]}, "label 5 is none of"),
        ({"azimuth": [0, 1, 2, 3]}, "azimuth 1 is none of"),
        ({"instance": [0, 1, 2, 3]}, "instance 0 is none of"),
    ],
)
def test_smallnorb_in_malformed_parquet(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    pytest.importorskip("pyarrow")
    path = write.norb_parquet(tmp_path / "train.parquet", *norb_parts(), **change)
    with fails(f"train.parquet: .*{message}"):
        norbparquet.read(path, "train", expected_n=4)


def test_smallnorb_in_cut_parquet_or_of_another_length(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = write.norb_parquet(tmp_path / "train.parquet", *norb_parts())
    with fails(r"expected uint8 \(5, 2, 96, 96\)"):
        norbparquet.read(path, "train", expected_n=5)
    path.write_bytes(path.read_bytes()[:100])
    with fails("not a Parquet file"):
        norbparquet.read(path, "train", expected_n=4)


def test_parquet_without_pyarrow_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"\A.*pyarrow is missing; `pip install pyarrow` .*\Z"):
        norbparquet.read(tmp_path / "train.parquet", "train", expected_n=4)


def same_scenes(found: smallnorb.Scenes, official: list[Path]) -> None:
    """Compare scenes with those of the official files, bit by bit."""
    images, labels, factors = smallnorb.read(official, "train", expected_n=len(found[0]))
    for one, other in ((found[0], images), (found[1], labels)):
        np.testing.assert_array_equal(one, other, strict=True)
    assert list(found[2]) == list(factors)
    for name, values in factors.items():
        np.testing.assert_array_equal(found[2][name], values, strict=True)


# affNIST


def test_affnist_round_trip(tmp_path: Path) -> None:
    fields = write.affnist_fields(9)
    path = write.zipped(tmp_path / "test.mat.zip", {"test.mat": write.mat(fields)})
    ((images, labels, factors),) = affnist.read(path)
    assert images.shape == (9, 1, 40, 40)
    assert images.flags.c_contiguous
    assert images[3, 0, 2, 5] == fields["image"][2 * 40 + 5, 3]
    np.testing.assert_array_equal(labels, fields["label_int"][0])
    np.testing.assert_array_equal(factors["original"], fields["original_id"][0].astype(int) - 1)
    np.testing.assert_allclose(factors["transform"], fields["human_readable_transform"].T, rtol=1e-6)


@pytest.mark.parametrize("key", ["original_id", "id_original", "originalId", "original_id_number", "ORIGINAL_ID"])
def test_affnist_spellings_of_the_original_id(tmp_path: Path, key: str) -> None:
    fields = write.affnist_fields(4)
    fields[key] = fields.pop("original_id")
    _, _, factors = affnist.parse(tmp_path / "z", "m", write.mat(fields))
    assert len(factors["original"]) == 4


def test_affnist_without_original_ids(tmp_path: Path) -> None:
    fields = {key: value for key, value in write.affnist_fields(4).items() if key != "original_id"}
    assert "original" not in affnist.parse(tmp_path / "z", "m", write.mat(fields))[2]


def test_affnist_batches_come_by_number(tmp_path: Path) -> None:
    batches = {f"training_batches/{k}.mat": write.mat(write.affnist_fields(2, seed=k)) for k in (10, 9, 1, 2)}
    path = write.zipped(tmp_path / "b.zip", batches)
    read = list(affnist.read(path, versions=3))
    for (images, _, _), seed in zip(read, (1, 2, 9), strict=True):
        np.testing.assert_array_equal(images.reshape(2, 1600).T, write.affnist_fields(2, seed=seed)["image"])


def test_affnist_malformed(tmp_path: Path) -> None:
    path = tmp_path / "test.mat.zip"
    good = write.affnist_fields(4)

    def parse(**change: object) -> None:
        fields = {key: value for key, value in {**good, **change}.items() if value is not None}
        affnist.parse(path, "test.mat", write.mat(fields))

    with fails("no field image"):
        parse(image=None)
    with fails("no field label_int"):
        parse(label_int=None)
    with fails("image is uint8 .1599, 4."):
        parse(image=good["image"][:-1])
    with fails("image is float64"):
        parse(image=good["image"].astype(float))
    with fails("label_int is .* expected 4 numbers"):
        parse(label_int=good["label_int"][:, :3])
    with fails("label out of range"):
        parse(label_int=np.array([[0, 1, 10, 2]]))
    with fails("not whole"):
        parse(label_int=np.array([[0, 1, 2.5, 2]]))
    with fails("human_readable_transform"):
        parse(human_readable_transform=np.zeros((6, 3)))
    with fails("no MATLAB struct"):
        affnist.parse(path, "test.mat", write.mat(good, name="other"))
    with fails("no MATLAB struct"):
        affnist.parse(path, "test.mat", write.mat(good)[:1000])
    with fails("no .mat file"):
        list(affnist.read(write.zipped(path, {"readme": b""})))
    path.write_bytes(path.read_bytes()[:20])
    with fails("truncated or damaged"):
        list(affnist.read(path))


def test_affnist_download_check(tmp_path: Path) -> None:
    path = write.zipped(tmp_path / "a.zip", {"test.mat": write.mat(write.affnist_fields(3))})
    assert affnist.problem(path) is None
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    assert "not a whole zip" in str(affnist.problem(path))
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes((whole[middle] ^ 255,)) + whole[middle + 1 :])
    assert affnist.problem(path)
    assert "no .mat" in str(affnist.problem(write.zipped(path, {"a.txt": b""})))
    assert "MATLAB 5" in str(affnist.problem(write.zipped(path, {"a.mat": b"<html>"})))


# the JPEG zip


def jpegs() -> dict[str, bytes]:
    def plain(k: int) -> bytes:
        return write.jpeg(np.full((32, 32, 3), (k, 2 * k, 3 * k), np.uint8))

    places = [(s, c, i) for s in ("test", "train") for c in ("truck", "cat") for i in (1, 0)]
    return {f"{split}/{kind}/{i:04d}.jpg": plain(10 * i + 5) for split, kind, i in places}


def test_jpegzip_round_trip(tmp_path: Path) -> None:
    path = write.zipped(tmp_path / "j.zip", jpegs())
    images, labels = jpegzip.read(path, "train", expected_n=4)
    assert images.shape == (4, 3, 32, 32)
    assert labels.tolist() == [3, 9, 3, 9]
    np.testing.assert_allclose(images[0].mean(axis=(1, 2)), [5, 10, 15], atol=2)
    np.testing.assert_allclose(images[2].mean(axis=(1, 2)), [15, 30, 45], atol=2)


def test_jpegzip_malformed(tmp_path: Path) -> None:
    path = tmp_path / "j.zip"
    good = jpegs()
    with fails("4 images in split 'train', expected 5"):
        jpegzip.read(write.zipped(path, good), "train", expected_n=5)
    with fails("unexpected member train/whale/0000.jpg"):
        jpegzip.read(write.zipped(path, {**good, "train/whale/0000.jpg": b""}), "train", expected_n=5)
    with fails("not a whole JPEG"):
        jpegzip.read(write.zipped(path, {**good, "train/cat/0002.jpg": b"GIF89a"}), "train", expected_n=5)
    with fails("not a whole JPEG"):
        cut = {**good, "train/cat/0002.jpg": good["train/cat/0000.jpg"][:-200]}
        jpegzip.read(write.zipped(path, cut), "train", expected_n=5)
    small = write.jpeg(np.zeros((16, 32, 3), np.uint8))
    with fails(re.escape("RGB (32, 16), expected RGB (32, 32)")):
        jpegzip.read(write.zipped(path, {**good, "train/cat/0002.jpg": small}), "train", expected_n=5)
    grey = write.jpeg(np.zeros((32, 32), np.uint8))
    with fails("L .32, 32."):
        jpegzip.read(write.zipped(path, {**good, "train/cat/0002.jpg": grey}), "train", expected_n=5)
