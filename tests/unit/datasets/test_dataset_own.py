"""Reading of the user's own images."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from messages import one_line
from PIL import Image

from recaps.datasets.own import read, sizes, state
from recaps.errors import UserError
from recaps.npz import Array

pytestmark = pytest.mark.unit

N = 20


def arrays(n: int = N, shape: tuple[int, ...] = (8, 8)) -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {"images": random.integers(0, 256, (n, *shape), dtype=np.uint8), "labels": np.arange(n) % 4}


@pytest.fixture
def npz(tmp_path: Path) -> Callable[..., Path]:
    def write(**changes: Any) -> Path:
        file = tmp_path / "mine.npz"
        np.savez(file, **{name: value for name, value in (arrays() | changes).items() if value is not None})
        return file

    return write


def picture(file: Path, pixels: Array) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of five grey pictures each."""
    for number in range(5):
        for name, value in (("cat", 10), ("dog", 200)):
            picture(tmp_path / "set" / name / f"{number}.png", np.full((8, 8), value + number, np.uint8))
    return tmp_path / "set"


def test_an_archive_is_divided_by_a_seed(npz: Callable[..., Path]) -> None:
    file = npz()
    made = read(file)
    assert [len(made[split]) for split in ("train", "test")] == [16, 4]
    assert sorted(made["test"].labels.tolist()) == [0, 1, 2, 3], "of each class"
    assert made["train"].images.shape == (16, 1, 8, 8)
    both = np.concatenate([made["train"].images, made["test"].images])[:, 0]
    assert {each.tobytes() for each in both} == {each.tobytes() for each in arrays()["images"]}
    assert np.array_equal(read(file)["test"].images, made["test"].images)
    assert not np.array_equal(read(file, seed=1)["test"].images, made["test"].images)
    assert len(read(file, test_fraction=0.4)["test"]) == 8
    (source,) = made["train"].record["sources"]
    assert (source["path"], len(source["sha256"])) == (str(file), 64)
    assert made["test"].record["class_names"] == ["0", "1", "2", "3"]


def test_an_archive_may_have_a_test_split(npz: Callable[..., Path]) -> None:
    more = arrays(8)
    made = read(npz(test_images=more["images"], test_labels=more["labels"]))
    assert [len(made[split]) for split in ("train", "test")] == [N, 8]
    words = np.array(["train"] * 12 + ["test"] * 8)
    made = read(npz(split=words))
    given = {each.tobytes() for each in arrays()["images"][12:]}
    assert {each.tobytes() for each in made["test"].images[:, 0]} == given


def test_floats_and_colours(npz: Callable[..., Path]) -> None:
    colour = arrays(shape=(8, 8, 3))["images"]
    by_bytes, by_floats = (read(npz(images=images))["train"].images for images in (colour, colour / 255))
    assert by_bytes.shape == (16, 3, 8, 8)
    assert np.array_equal(by_bytes, by_floats)
    grey = read(npz(images=colour), grey=True)["train"].images
    expected = np.einsum("c,nchw->nhw", [0.299, 0.587, 0.114], by_bytes)
    assert np.array_equal(grey[:, 0], np.rint(expected))


def test_images_are_resized(npz: Callable[..., Path]) -> None:
    flat = np.broadcast_to(np.arange(N, dtype=np.uint8)[:, None, None], (N, 8, 8))
    made = read(npz(images=flat), size=4)["train"].images
    assert made.shape == (16, 1, 4, 4)
    assert (made == made[:, :, :1, :1]).all()
    assert read(npz(images=flat), size=12)["test"].images.shape[2:] == (12, 12)


def test_a_folder_of_class_folders(folder: Path) -> None:
    made = read(folder)
    assert made["train"].record["class_names"] == ["cat", "dog"]
    assert [len(made[split]) for split in ("train", "test")] == [8, 2]
    for part in made.values():
        assert ((part.images[:, 0, 0, 0] >= 200) == (part.labels == 1)).all()
    (source,) = made["train"].record["sources"]
    assert source["files"] == 10
    picture(folder / "cat" / "0.png", np.zeros((8, 8), np.uint8))
    assert read(folder)["train"].record["sources"] != [source]


def test_a_folder_with_splits_and_colours(folder: Path) -> None:
    picture(folder / "test" / "cat" / "a.png", np.full((8, 8, 3), 7, np.uint8))
    picture(folder / "test" / "dog" / "b.jpg", np.full((8, 8), 9, np.uint8))
    (folder / "train").mkdir()
    for name in ("cat", "dog"):
        (folder / name).rename(folder / "train" / name)
    made = read(folder)
    assert [made[split].images.shape for split in ("train", "test")] == [(10, 3, 8, 8), (2, 3, 8, 8)]
    assert sorted(made["test"].images[:, :, 0, 0].tolist()) == [[7] * 3, [9] * 3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": None}, "no array 'images'"),
        ({"images": np.zeros((N, 8), np.uint8)}, r"images has shape \[20, 8\], not \[N, H, W\]"),
        ({"images": np.zeros((N, 8, 6), np.uint8)}, "images are 8x6; crop or pad them to squares"),
        ({"images": np.zeros((N, 8, 8), np.int32)}, "images is int32; use uint8, or floats from 0 to 1"),
        ({"images": np.full((N, 8, 8), 255.0)}, r"images\[0\] has a value 255, which is not from 0 to 1"),
        ({"images": np.full((N, 8, 8), np.nan)}, r"images\[0\] has a value nan"),
        ({"labels": np.arange(N - 1)}, r"labels has shape \[19\], but there are 20 images"),
        ({"labels": np.arange(N) % 4 + 0.5}, "labels is float64; use whole numbers"),
        ({"labels": np.arange(N) % 4 - 1}, r"labels\[0\] is -1; labels are 0 to K - 1"),
        ({"labels": np.arange(N) % 4 * 2}, "labels reach 6, but no image has label 1"),
        ({"labels": np.zeros(N, int)}, "all images have one label"),
        ({"test_images": arrays()["images"]}, "no array 'test_labels' beside the other"),
        ({"split": np.array(["train", "valid"] * 10)}, "split has the word 'valid'"),
        ({"split": np.array(["train"] * N)}, "no image of class 0 in split test"),
        ({"split": np.arange(N)}, "not a word for each image"),
        (
            {"test_images": arrays(shape=(9, 9))["images"], "test_labels": arrays()["labels"]},
            "training images are 8x8x1, test images 9x9x1",
        ),
    ],
)
def test_wrong_archives_get_one_line(npz: Callable[..., Path], changes: dict[str, Any], message: str) -> None:
    file = npz(**changes)
    with one_line(message) as raised:
        read(file)
    assert str(raised.value).startswith(str(file))


def test_wrong_files_get_one_line(tmp_path: Path, folder: Path, npz: Callable[..., Path]) -> None:
    with one_line("no such file or folder"):
        read(tmp_path / "none.npz")
    broken = npz()
    broken.write_bytes(broken.read_bytes()[:100])
    with one_line("not a whole NPZ file"):
        read(broken)
    np.savez_compressed(broken, **arrays())
    content = broken.read_bytes()
    start = content.index(b"images.npy") + len("images.npy") + 20  # after the header of this member
    broken.write_bytes(content[:start] + 8 * b"\xff" + content[start + 8 :])
    with one_line(r"not a whole NPZ file \(Error -3 while decompressing"):
        read(broken)
    picture(folder / "dog" / "9.png", np.zeros((8, 9), np.uint8))
    with one_line(r"dog/9\.png: 8x9, but 0\.png is 8x8"):
        read(folder)
    (folder / "dog" / "9.png").write_text("no picture")
    with one_line(r"dog/9\.png: not a whole picture"):
        read(folder)
    (folder / "dog" / "9.png").unlink()
    (folder / "fox").mkdir()
    with one_line(r"fox: no picture"):
        read(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"labels": np.arange(N) % 3},
        {"test_images": np.zeros((7, 8, 8), np.uint8), "test_labels": np.arange(7) % 4},
        {"split": np.array(["train", "train", "train", "test"]).repeat(5)},
    ],
)
def test_sizes_are_those_of_the_splits(npz: Callable[..., Path], changes: dict[str, Any]) -> None:
    file = npz(**changes)
    for fraction in (0.2, 0.01, 0.33):
        assert sizes(file, fraction) == {split: len(each) for split, each in read(file, test_fraction=fraction).items()}


def test_sizes_of_folders_are_those_of_the_splits(folder: Path) -> None:
    assert sizes(folder, 0.2) == {"train": 8, "test": 2}
    for name in ("cat", "dog"):
        picture(folder / "test" / name / "a.png", np.zeros((8, 8), np.uint8))
        (folder / "train").mkdir(exist_ok=True)
        (folder / name).rename(folder / "train" / name)
    assert sizes(folder, 0.2) == {"train": 10, "test": 2}


@pytest.mark.parametrize("highest", [65535, 4095])
def test_pictures_of_16_bits_are_scaled_by_the_range_of_all(folder: Path, highest: int) -> None:
    for file in folder.glob("*/*.png"):
        picture(file, (np.array([0, 0.25, 0.5, 0.75, 0.9] * 5) * highest).astype(np.uint16).reshape(5, 5))
    picture(folder / "cat" / "0.png", np.full((5, 5), highest, np.uint16))
    made = read(folder)
    assert sorted({*made["train"].images.ravel().tolist()}) == [0, 64, 127, 191, 229, 255]
    assert made["train"].record["parameters"] == {"scaled from": [0, highest]}


def test_any_number_of_first_images_has_the_classes_of_all(npz: Callable[..., Path]) -> None:
    labels = np.sort(np.minimum(np.arange(600) % 6, 3))  # in order, and of different sizes
    made = read(npz(images=np.zeros((600, 4, 4), np.uint8), labels=labels))["train"]
    whole = np.bincount(made.labels) / len(made)
    for n in (20, 100, 300):
        assert np.abs(np.bincount(made.labels[:n], minlength=4) / n - whole).max() < 0.06


@pytest.mark.parametrize(("background", "behind"), [("white", 255), ("black", 0)])
@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparent_pixels_show_the_background(folder: Path, mode: str, background: str, behind: int) -> None:
    alpha = np.zeros((8, 8), np.uint8)
    alpha[2:6, 2:6] = 255
    drawn = np.full((8, 8), 100, np.uint8)
    for file in folder.glob("*/*.png"):
        channels = [drawn] * (len(mode) - 1) + [alpha]
        Image.fromarray(np.stack(channels, 2), mode).save(file)
    image = read(folder, background=background)["train"].images[0]
    assert image.shape[0] == len(mode) - 1
    assert np.array_equal(image[0], np.where(alpha == 255, 100, behind))


def test_pictures_are_turned_as_viewers_turn_them(folder: Path) -> None:
    pixels = np.zeros((8, 8), np.uint8)
    pixels[0, 0] = 255
    for file in folder.glob("*/*.png"):
        exif = Image.Exif()
        exif[274] = 6  # to be turned by 90 degrees
        Image.fromarray(pixels).save(file, exif=exif)
    assert np.argwhere(read(folder)["train"].images[0, 0] == 255).tolist() == [[0, 7]]


@pytest.mark.parametrize("ending", ["bmp", "tiff", "gif", "webp", "ppm"])
def test_all_pictures_that_pillow_reads_are_read(folder: Path, ending: str) -> None:
    for file in folder.glob("*/[0-2].png"):
        Image.open(file).save(file.with_suffix(f".{ending}"))
        file.unlink()
    assert sum(len(each) for each in read(folder).values()) == 10
    assert sum(sizes(folder, 0.2).values()) == 10


def test_folders_and_files_that_would_be_left_out_are_refused(folder: Path, npz: Callable[..., Path]) -> None:
    (folder / "cat" / "a.HEIC").touch()
    with one_line(r"cat/a\.HEIC: pictures of this kind cannot be read; save them as PNG"):
        read(folder)
    (folder / "cat" / "a.HEIC").unlink()
    for name in ("cat", "dog"):
        for split in ("train", "test", "val"):
            picture(folder / split / name / "a.png", np.zeros((8, 8), np.uint8))
        for file in (folder / name).iterdir():
            file.unlink()
        (folder / name).rmdir()
    with one_line(r"set/val: not used beside the folder train; move its pictures to `train` or `test`"):
        read(folder)
    with one_line("'val_images' is not used; join it"):
        read(npz(val_images=arrays()["images"]))
    with one_line(r"channels first; write numpy\.moveaxis\(images, 1, -1\)"):
        read(npz(images=arrays(shape=(3, 8, 8))["images"]))


def test_names_that_are_no_text_are_told(folder: Path) -> None:
    os.rename(os.fsencode(folder / "cat"), os.fsencode(folder) + b"/caf\xe9")
    state(folder)
    with one_line("is not UTF-8 text"):
        read(folder)


#: Damaged files of each reader; set RECAPS_FUZZ to try more.
DAMAGED = int(os.environ.get("RECAPS_FUZZ", "200"))


@pytest.mark.parametrize("kind", ["npz", "npz-compressed", "png", "jpg", "tiff", "gif"])
def test_damaged_files_get_one_line(kind: str, tmp_path: Path) -> None:
    """Bytes that are changed, cut off or added anywhere; what can still be read is read."""
    random = np.random.default_rng(len(kind))
    if kind.startswith("npz"):
        file = tmp_path / "mine.npz"
        (np.savez_compressed if "compressed" in kind else np.savez)(file, **arrays(8))
    else:
        for name in ("a", "b"):
            for number in (0, 1):
                picture(tmp_path / name / f"{number}.{kind}", arrays(1, (8, 8))["images"][0])
        file = tmp_path / "a" / f"0.{kind}"
    whole = file.read_bytes()
    told: list[str] = []
    for _ in range(DAMAGED):
        content = bytearray(whole)
        for _ in range(random.integers(1, 4)):
            place = int(random.integers(len(content) or 1))
            change = random.integers(4)
            if change == 0 and content:
                content[place] = random.integers(256)
            elif change == 1:
                content[place : place + int(random.integers(1, 20))] = random.bytes(int(random.integers(1, 20)))
            elif change == 2:
                del content[place:]
            else:
                content[place:place] = random.bytes(int(random.integers(1, 400)))
        file.write_bytes(content)
        try:
            read(file if kind.startswith("npz") else tmp_path)
        except UserError as error:
            told.append(str(error))
    assert told
    assert not [each for each in told if "\n" in each]
