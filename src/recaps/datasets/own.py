"""Your own images: an NPZ file, or a folder with a folder of pictures for each class."""

from __future__ import annotations

import functools
import hashlib
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recaps.arrays import Arrays
from recaps.errors import UserError, nearest
from recaps.io import digest_of
from recaps.npz import Array

if TYPE_CHECKING:
    from PIL import Image

SPLITS = ("train", "test")
#: Endings of pictures that Pillow cannot read.
FOREIGN = (".heic", ".heif", ".svg", ".dng", ".cr2", ".nef", ".arw")
#: The images and labels of each split.
Parts = dict[str, tuple[Array, Array]]
#: Grey values of what is behind transparent pixels.
BACKGROUNDS = {"white": 255, "black": 0}


def read(
    path: Path,
    *,
    size: int | None = None,
    grey: bool = False,
    background: str = "white",
    test_fraction: float = 0.2,
    seed: int = 0,
) -> dict[str, Arrays]:
    """Read a set of images and labels.

    Args:
        path: an NPZ file with `images` [N, H, W] or [N, H, W, C], bytes or numbers from 0 to 1, and `labels` [N], whole
            numbers from 0 to K - 1. It may hold `test_images` and `test_labels`, or `split` [N] with the words `train`
            and `test`. Or a folder with a folder of pictures for each class, or with folders `train` and `test` that
            hold these.
        size: resize images to this height and width.
        grey: turn colour into grey.
        background: what is behind transparent pixels, one of `BACKGROUNDS`.
        test_fraction: share of each class that becomes the test split, if the data name none.
        seed: of the random choice of test images, and of the order.

    Returns:
        The splits `train` and `test`, each in a random order in which the first n images, for any n, have about the
        shares of classes that all have. Their records hold `sources`, the number of `classes` and the `class_names`.

    Raises:
        UserError: the data are missing, damaged or inconsistent; the message names the file.
    """
    path = Path(path)
    notes: dict[str, Any] = {}
    if path.is_dir():
        parts, names, sources = _folder(path, BACKGROUNDS[background], notes)
    elif path.is_file():
        parts, names = _archive(path)
        sources = [{"path": str(path), "size": path.stat().st_size, "sha256": digest_of(path)}]
    else:
        raise UserError(f"{path}: no such file or folder")
    if len(parts) == 1:
        parts = _divided(parts["train"], test_fraction, seed)
    train, test = ("x".join(map(str, parts[split][0].shape[1:])) for split in SPLITS)
    if train != test:
        raise UserError(f"{path}: training images are {train}, test images {test}")
    record = {"sources": sources, "seed": seed, "parameters": notes, "classes": len(names), "class_names": names}
    made = {}
    for split, (images, labels) in parts.items():
        missing = sorted(set(range(len(names))) - set(labels.tolist()))
        if missing:
            raise UserError(f"{path}: no image of class {names[missing[0]]} in split {split}")
        order = _mixed(labels, seed)
        pixels = _resized(_grey(images) if grey else images, size)[order]
        made[split] = Arrays(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)), labels[order], {}, record)
    return made


def _mixed(labels: Array, seed: int) -> Array:
    """Return a random order of images, in which classes are spread evenly."""
    random, places = np.random.default_rng(seed), np.empty(len(labels))
    for label in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == label))
        places[rows] = (np.arange(len(rows)) + random.random()) / len(rows)
    return np.argsort(places, kind="stable")


def number_of_classes(path: Path) -> int:
    """Return the number of classes, without reading images. Raises UserError as `read` does."""
    if path.is_dir():
        return len(_class_folders(_roots(path)["train"]))
    if not path.is_file():
        raise UserError(f"{path}: no such file or folder")
    labels = _arrays(path, "labels", "test_labels").values()
    return len(np.unique(np.concatenate([each.ravel() for each in labels])))


def sizes(path: Path, test_fraction: float) -> dict[str, int]:
    """Return the number of images of each split, without reading images. Raises UserError as `read` does."""
    if path.is_dir():
        of_classes = {
            split: [len(_pictures(root / name)) for name in _class_folders(root)]
            for split, root in _roots(path).items()
        }
    else:
        arrays = _arrays(path, "labels", "test_labels", "split")
        labels = {"train": arrays["labels"]}
        if "test_labels" in arrays:
            labels["test"] = arrays["test_labels"]
        elif "split" in arrays:
            by_word = _by_word(path, (arrays["labels"], arrays["labels"]), arrays["split"])
            labels = {split: each for split, (each, _) in by_word.items()}
        of_classes = {split: np.unique(each, return_counts=True)[1].tolist() for split, each in labels.items()}
    if "test" not in of_classes:
        of_classes["test"] = [_share(n, test_fraction) for n in of_classes["train"]]
        of_classes["train"] = [n - taken for n, taken in zip(of_classes["train"], of_classes["test"], strict=True)]
    return {split: sum(each) for split, each in of_classes.items()}


def state(path: Path) -> str:
    """Return a digest of the names, sizes and times of the pictures or the NPZ file; it is quick to compute."""
    files = [path]
    if path.is_dir():
        every = filter(_is_picture, path.rglob("*"))
        files = sorted(file for file in every if not any(part[0] == "." for part in file.relative_to(path).parts))
    found = hashlib.sha256()
    for file in files:
        if file.is_file():
            about = file.stat()
            found.update(os.fsencode(f"{file.relative_to(path)} {about.st_size} {about.st_mtime_ns}\n"))
    return found.hexdigest()[:16]


def _arrays(path: Path, *names: str) -> dict[str, Array]:
    """Return the arrays of an NPZ file, or those of `names` that it holds."""
    if not zipfile.is_zipfile(path):
        raise UserError(f"{path}: not a whole NPZ file; write it with numpy.savez")
    arrays: dict[str, Array] = {}
    try:
        with np.load(path, allow_pickle=False) as archive:
            found = list(archive.files)
            for name in found:
                if not names or name in names:
                    arrays[name] = archive[name]
    except Exception as error:  # numpy, zipfile and zlib raise many kinds for broken bytes
        if "Object arrays" in str(error):
            mend = "perhaps as images have different sizes; save one array of numbers"
            raise UserError(f"{path}: {name} holds Python objects, {mend}") from error
        raise UserError(f"{path}: not a whole NPZ file ({_reason(error)})") from error
    for name in ("images", "labels"):
        if name not in found:
            raise UserError(f"{path}: no array '{name}'{nearest(name, found)}")
    return arrays


def _archive(path: Path) -> tuple[Parts, list[str]]:
    """Return the splits and the names of the classes, 0 to K - 1."""
    arrays = _arrays(path)
    if others := [name for name in arrays if name.startswith("val")]:
        raise UserError(f"{path}: '{others[0]}' is not used; join it with `images` and `labels`, or leave it out")
    given = {"train": _checked(path, arrays, "images", "labels")}
    if "test_images" in arrays or "test_labels" in arrays:
        for name in ("test_images", "test_labels"):
            if name not in arrays:
                raise UserError(f"{path}: no array '{name}' beside the other of the test split")
        given["test"] = _checked(path, arrays, "test_images", "test_labels")
    elif "split" in arrays:
        given = _by_word(path, given["train"], arrays["split"])
    found = np.unique(np.concatenate([labels for _, labels in given.values()]))
    if not np.array_equal(found, np.arange(len(found))):
        missing = int(np.setdiff1d(np.arange(found[-1]), found)[0])
        raise UserError(f"{path}: labels reach {found[-1]}, but no image has label {missing}; labels are 0 to K - 1")
    if len(found) < 2:
        raise UserError(f"{path}: all images have one label; at least two classes are needed")
    return given, [str(label) for label in found]


def _checked(path: Path, arrays: Mapping[str, Array], images_name: str, labels_name: str) -> tuple[Array, Array]:
    """Return images as bytes [N, H, W, C] and labels as int64 [N]."""
    images, labels = arrays[images_name], arrays[labels_name]
    if images.ndim not in (3, 4) or 0 in images.shape:
        raise UserError(f"{path}: {images_name} has shape {list(images.shape)}, not [N, H, W] or [N, H, W, C]")
    if images.ndim == 4 and images.shape[2] == images.shape[3] != images.shape[1]:
        raise UserError(
            f"{path}: {images_name} has shape {list(images.shape)}, with the channels first; write"
            f" numpy.moveaxis({images_name}, 1, -1)"
        )
    images = images if images.ndim == 4 else images[..., None]
    if images.shape[1] != images.shape[2]:
        raise UserError(f"{path}: {images_name} are {_size(images.shape[1:])}; crop or pad them to squares")
    if labels.shape != (len(images),):
        raise UserError(f"{path}: {labels_name} has shape {list(labels.shape)}, but there are {len(images)} images")
    if images.dtype != np.uint8:
        if images.dtype.kind != "f":
            raise UserError(f"{path}: {images_name} is {images.dtype}; use uint8, or floats from 0 to 1")
        wrong = ~((images >= 0) & (images <= 1))  # also NaN
        if wrong.any():
            place = int(np.flatnonzero(wrong.reshape(len(images), -1).any(1))[0])
            value = images[place][wrong[place]][0]
            mend = "scale the images, or store uint8"
            raise UserError(f"{path}: {images_name}[{place}] has a value {value:g}, which is not from 0 to 1; {mend}")
        images = np.rint(255 * images).astype(np.uint8)
    if labels.dtype.kind not in "iu":
        raise UserError(f"{path}: {labels_name} is {labels.dtype}; use whole numbers from 0 to K - 1")
    if labels.min() < 0:
        raise UserError(f"{path}: {labels_name}[{int(labels.argmin())}] is {labels.min()}; labels are 0 to K - 1")
    return images, labels.astype(np.int64)


def _by_word(path: Path, whole: tuple[Array, Array], words: Array) -> Parts:
    images, labels = whole
    if words.shape != labels.shape or words.dtype.kind not in "US":
        raise UserError(
            f"{path}: split has shape {list(words.shape)} and type {words.dtype}, not a word for each image"
        )
    words = words.astype(str)
    unknown = sorted(set(words.tolist()) - set(SPLITS))
    if unknown:
        raise UserError(f"{path}: split has the word '{unknown[0]}'{nearest(unknown[0], SPLITS)}")
    return {split: (images[words == split], labels[words == split]) for split in SPLITS}


def _divided(whole: tuple[Array, Array], fraction: float, seed: int) -> Parts:
    """Take a share of each class, at least one image, as the test split."""
    images, labels = whole
    random, test = np.random.default_rng(seed), np.zeros(len(labels), bool)
    for label in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == label))
        test[rows[: _share(len(rows), fraction)]] = True
    return {"train": (images[~test], labels[~test]), "test": (images[test], labels[test])}


def _share(n: int, fraction: float) -> int:
    """Return how many of the n images of a class are for testing."""
    return max(1, round(fraction * n))


def _folder(path: Path, background: int, notes: dict[str, Any]) -> tuple[Parts, list[str], list[dict[str, Any]]]:
    """Return the splits, the names of the classes and the sources. `notes` gets what was done with the pictures."""
    roots = _roots(path)
    names = _class_folders(roots["train"])
    found = list[tuple[str, Path, int]]()
    for split, root in roots.items():
        others = sorted(set(_folders(root)) - set(names))
        if others:
            raise UserError(f"{root / others[0]}: no such class in {roots['train']}")
        found += [(split, file, label) for label, name in enumerate(names) for file in _pictures(root / name)]
    images = _decoded([file for _, file, _ in found], background, notes)
    labels = np.array([label for _, _, label in found], np.int64)
    rows = {split: np.array([each == split for each, _, _ in found]) for split in roots}
    state = hashlib.sha256()
    for _, file, _ in found:
        state.update(f"{file.relative_to(path)} {digest_of(file)}\n".encode())
    sources = [{"path": str(path), "files": len(found), "sha256": state.hexdigest()}]
    return {split: (images[own], labels[own]) for split, own in rows.items()}, names, sources


def _roots(path: Path) -> dict[str, Path]:
    """Return the folder of each split."""
    there = set(_folders(path))
    if "train" in there and (others := sorted(there - set(SPLITS))):
        mend = "move its pictures to `train` or `test`, or the folder away"
        raise UserError(f"{path / others[0]}: not used beside the folder train; {mend}")
    return {split: path / split for split in SPLITS} if set(SPLITS) <= there else {"train": path}


def _class_folders(path: Path) -> list[str]:
    names = _folders(path)
    if len(names) < 2:
        found = f"only the folder {names[0]}" if names else "no folders"
        raise UserError(f"{path}: {found}; there must be a folder for each of at least two classes")
    for name in names:
        if not name.isprintable():
            raise UserError(f"{path}: the name of the folder {name!r} is not UTF-8 text, or has no printable form")
    return names


def _folders(path: Path) -> list[str]:
    """Return the names of the folders in a folder. Refuse pictures beside them, which nobody would read."""
    if beside := sorted(file for file in path.iterdir() if _is_picture(file)):
        raise UserError(f"{beside[0]}: a picture in no folder of a class; move it into one, or away")
    return sorted(each.name for each in path.iterdir() if each.is_dir() and not each.name.startswith("."))


@functools.cache
def _endings() -> frozenset[str]:
    """The endings of all pictures that Pillow reads."""
    from PIL import Image

    return frozenset(ending for ending, kind in Image.registered_extensions().items() if kind in Image.OPEN)


def _is_picture(file: Path) -> bool:
    return file.suffix.lower() in _endings() and not file.name.startswith(".")


def _pictures(folder: Path) -> list[Path]:
    """Return the pictures in a folder. Refuse those that nobody would read."""
    every = sorted(folder.glob("*"))
    if foreign := [file for file in every if file.suffix.lower() in FOREIGN]:
        raise UserError(f"{foreign[0]}: pictures of this kind cannot be read; save them as PNG")
    found = list(filter(_is_picture, every))
    for inner in (each for each in every if not _is_picture(each) and each.is_dir()):
        if any(map(_is_picture, inner.rglob("*"))):
            raise UserError(f"{inner}: a folder in the folder of a class is not read; move its pictures to {folder}")
    if not found:
        raise UserError(f"{folder}: no picture")
    return found


def _decoded(files: Sequence[Path], background: int, notes: dict[str, Any]) -> Array:
    """Return pictures as bytes [N, H, W, C], with three channels if any picture has colour.

    They look as viewers show them: turned as their EXIF data say, and on a background where they are transparent.
    Pictures with more than 8 bits are scaled by the smallest and the largest value of all of them.
    """
    from PIL import Image, ImageOps

    pictures = list[Array]()
    for file in files:
        try:
            with Image.open(file) as opened:
                # A camera's MPO holds views of one picture, of which the first is the picture.
                n = 1 if opened.format == "MPO" else getattr(opened, "n_frames", 1)
                picture: Image.Image = ImageOps.exif_transpose(opened)
                if picture.mode.startswith(("I", "F")):
                    pixels = np.asarray(picture).astype(np.float64)
                    if not np.isfinite(pixels).all():
                        raise ValueError("values that are not finite")
                else:
                    pixels = np.asarray(_opaque(picture, background))
        except Exception as error:  # Pillow raises many kinds for broken bytes
            raise UserError(f"{file}: not a whole picture ({_reason(error)})") from error
        if n > 1:
            raise UserError(f"{file}: has {n} pictures; save each in a file of its own")
        if pictures and pixels.shape[:2] != pictures[0].shape[:2]:
            raise UserError(f"{file}: {_size(pixels.shape)}, but {files[0].name} is {_size(pictures[0].shape)}")
        if pixels.shape[0] != pixels.shape[1]:
            raise UserError(f"{file}: {_size(pixels.shape)}; crop or pad pictures to squares")
        pictures.append(pixels)
    pictures = _as_bytes(pictures, notes)
    if any(each.ndim == 3 for each in pictures):
        pictures = [each if each.ndim == 3 else np.repeat(each[..., None], 3, 2) for each in pictures]
    stacked = np.stack(pictures)
    return stacked if stacked.ndim == 4 else stacked[..., None]


def _opaque(picture: Image.Image, background: int) -> Image.Image:
    """Return a picture in grey or colour, with transparent pixels on the background."""
    from PIL import Image

    if picture.has_transparency_data:
        behind = Image.new("RGBA", picture.size, (background, background, background, 255))
        return Image.alpha_composite(behind, picture.convert("RGBA")).convert("L" if picture.mode == "LA" else "RGB")
    return picture.convert("L" if picture.mode in ("1", "L") else "RGB")


def _as_bytes(pictures: list[Array], notes: dict[str, Any]) -> list[Array]:
    """Scale pictures with more than 8 bits by their common range, which `notes` gets."""
    deep = [each for each in pictures if each.dtype != np.uint8]
    if not deep:
        return pictures
    low, high = min(float(each.min()) for each in deep), max(float(each.max()) for each in deep)
    notes["scaled from"] = [low, high]
    scale = 255 / (high - low) if high > low else 0.0
    return [each if each.dtype == np.uint8 else np.rint((each - low) * scale).astype(np.uint8) for each in pictures]


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _grey(images: Array) -> Array:
    """Weigh red, green and blue as ITU-R 601 does. Other numbers of channels are averaged."""
    weights = np.array([0.299, 0.587, 0.114]) if images.shape[3] == 3 else np.full(images.shape[3], 1 / images.shape[3])
    return np.rint(images @ weights).astype(np.uint8)[..., None]


def _resized(images: Array, size: int | None) -> Array:
    """Resize bytes [N, H, W, C] with Pillow, averaging over pixels where images shrink."""
    if size is None or images.shape[1] == size:
        return images
    from PIL import Image

    made = np.empty((len(images), size, size, images.shape[3]), np.uint8)
    for place, image in enumerate(images):
        for channel in range(images.shape[3]):
            plane = Image.fromarray(np.ascontiguousarray(image[..., channel]))
            made[place, ..., channel] = np.asarray(plane.resize((size, size), Image.Resampling.BILINEAR))
    return made


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(str(side) for side in shape[:2])
