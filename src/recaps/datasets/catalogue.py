"""The catalogue of data sets: shapes, splits, options, and the raw files of each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from recaps.datasets import sources
from recaps.errors import UserError, nearest

TRAIN_TEST = ("train", "test")
AFFNIST_SPLITS = ("validation", "test", "training_and_validation")
VIEWPOINT_SPLITS = ("train", "familiar", "novel")
#: Splits that are derived from the base set's split of the second name. All others are derived from its train split.
DERIVED_FROM = {"test": "test", "familiar": "test", "novel": "test", "learn": "learn", "held_out": "held_out"}
#: The parts of a train split in studies: one to learn from, and its last sixth to judge settings on.
PARTS = ("learn", "held_out")
HELD_OUT_SHARE = 6
STAND_IN = "stand-in (scikit-learn digits)"
#: The module of `recaps.datasets.formats` that reads the official files of each base set.
FORMATS = {
    "mnist": "idx",
    "fashion-mnist": "idx",
    "cifar10": "cifar",
    "cifar10-jpeg": "jpegzip",
    "smallnorb": "smallnorb",
    "smallnorb-parquet": "norbparquet",
    "smallnorb-zip": "smallnorb",
    "affnist": "affnist",
}
#: Number of images in each split of a stand-in for a set that own data can replace.
STAND_IN_COUNTS = {"train": 1437, "test": 360}


@dataclass(frozen=True)
class Option:
    """An option of a data set: its default, which also sets the type, its bounds and its meaning."""

    default: int | float | None
    low: float
    high: float
    help: str

    def check(self, where: str, value: Any) -> int | float | None:
        """Return `value` converted to the option's type, or raise UserError."""
        if value is None and self.default is None:
            return None
        whole = not isinstance(self.default, float)
        kind = "a whole number" if whole else "a number"
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or not math.isfinite(value):
            raise UserError(f"{where}: {value!r} is not {kind}; {self.help}")
        if not self.low <= value <= self.high:
            raise UserError(f"{where}: {value!r} is outside {self.low:g} to {self.high:g}; {self.help}")
        return value if whole else float(value)


@dataclass(frozen=True)
class Entry:
    """A data set.

    Attributes:
        base: the data set that it is derived from; None for a base set, which has its own raw files.
        counts: number of images in each official split of a base set.
        copy_of: the set with the same images from the official files, if these come from a copy in another form.
    """

    title: str
    channels: int
    size: int
    classes: int
    splits: tuple[str, ...]
    official: bool = False
    base: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, Option] = field(default_factory=dict)
    copy_of: str | None = None


_LIMIT = Option(
    None,
    1,
    math.inf,
    "limit: use only the first n images of the base set; for smallNORB, the first n scenes of two images; default: all",
)
_LIMITED = {"limit": _LIMIT}
_FEWER = Option(
    32,
    1,
    32,
    "versions: number of affNIST's 32 versions of each digit to read; fewer only for the split"
    " `training_and_validation` and for stand-in data",
)
_VERSIONS = Option(
    32, 1, 10_000, "versions: number of random transforms of each digit; version k does not depend on it"
)
_SMALLEST = Option(0.7, 0.1, 1, "smallest: the smallest factor; a digit's factor is the same along both axes")
_LARGEST = Option(1.3, 1, 2, "largest: the largest factor; a digit's factor is the same along both axes")
_DEVIATION = Option(0.2, 0, 10, "deviation: standard deviation of the Gaussian noise of each pixel, white being 1")
_PAIRS = Option(
    1000, 1, 10**6, "pairs: number of pairs in which each digit is the first; they are made during training"
)
_AVERAGE = Option(
    0,
    0,
    1,
    "average: 0 keeps every second pixel, as the bilinear resize of TensorFlow 1 in the authors' code; "
    "1 takes the mean of each 2x2 block",
)


def _shift(default: int, high: int) -> Option:
    return Option(default, 0, high, "shift: the largest shift, in pixels, along each axis")


def _degrees(default: float) -> Option:
    return Option(default, 0, 180, "degrees: the rotation is uniform between minus and plus this many degrees")


def _of_mnist(title: str, size: int, splits: tuple[str, ...] = TRAIN_TEST, **options: Option) -> Entry:
    return Entry(title, 1, size, 10, splits, base="mnist", options={**_LIMITED, **options})


def _by_camera(title: str, splits: tuple[str, ...]) -> Entry:
    return Entry(title, 1, 48, 5, splits, base="smallnorb", options={**_LIMITED, "average": _AVERAGE})


_SIXTY = {"train": 60_000, "test": 10_000}
_FIFTY = {"train": 50_000, "test": 10_000}
_NORB = {"train": 24_300, "test": 24_300}
_AFFNIST = {"validation": 320_000, "test": 320_000, "training_and_validation": 1_920_000}

CATALOGUE: dict[str, Entry] = {
    "mnist": Entry("MNIST", 1, 28, 10, TRAIN_TEST, True, None, _SIXTY, _LIMITED),
    "fashion-mnist": Entry("Fashion-MNIST", 1, 28, 10, TRAIN_TEST, True, None, _SIXTY, _LIMITED),
    "cifar10": Entry("CIFAR-10", 3, 32, 10, TRAIN_TEST, True, None, _FIFTY, _LIMITED),
    "cifar10-jpeg": Entry("CIFAR-10 as JPEG (not official)", 3, 32, 10, TRAIN_TEST, False, None, _FIFTY, _LIMITED),
    "smallnorb": Entry("smallNORB", 2, 96, 5, TRAIN_TEST, True, None, _NORB, _LIMITED),
    "affnist": Entry("affNIST", 1, 40, 10, AFFNIST_SPLITS, True, None, _AFFNIST, {**_LIMITED, "versions": _FEWER}),
    "mnist-40": _of_mnist("MNIST on 40x40", 40),
    "mnist-shifted": _of_mnist("MNIST shifted by up to 2 pixels", 28, shift=_shift(2, 27)),
    "mnist-40-shifted": _of_mnist("MNIST on 40x40 shifted by up to 6 pixels", 40, shift=_shift(6, 39)),
    "affnist-generated": _of_mnist(
        "affNIST as documented, generated from MNIST", 40, AFFNIST_SPLITS, versions=_VERSIONS
    ),
    "multimnist": _of_mnist("MultiMNIST: MNIST in overlapping pairs", 36, shift=_shift(4, 8), pairs=_PAIRS),
    "mnist-rotated": _of_mnist("MNIST rotated by up to 180 degrees", 28, degrees=_degrees(180.0)),
    "mnist-rotated-45": _of_mnist("MNIST rotated by up to 45 degrees", 28, degrees=_degrees(45.0)),
    "mnist-rotated-90": _of_mnist("MNIST rotated by up to 90 degrees", 28, degrees=_degrees(90.0)),
    "mnist-rotated-135": _of_mnist("MNIST rotated by up to 135 degrees", 28, degrees=_degrees(135.0)),
    "mnist-40-rotated": _of_mnist("MNIST on 40x40 rotated by up to 180 degrees", 40, degrees=_degrees(180.0)),
    "mnist-40-rotated-45": _of_mnist("MNIST on 40x40 rotated by up to 45 degrees", 40, degrees=_degrees(45.0)),
    "mnist-40-rotated-90": _of_mnist("MNIST on 40x40 rotated by up to 90 degrees", 40, degrees=_degrees(90.0)),
    "mnist-40-scaled": _of_mnist("MNIST on 40x40 scaled by 0.7 to 1.3", 40, smallest=_SMALLEST, largest=_LARGEST),
    "mnist-40-noisy": _of_mnist("MNIST on 40x40 with noise", 40, deviation=_DEVIATION),
    "smallnorb-48": _by_camera("smallNORB, single cameras on 48x48", TRAIN_TEST),
    "smallnorb-48-azimuth": _by_camera("smallNORB, single cameras on 48x48, by azimuth", VIEWPOINT_SPLITS),
    "smallnorb-48-elevation": _by_camera("smallNORB, single cameras on 48x48, by elevation", VIEWPOINT_SPLITS),
}
for _copy, _form in (("smallnorb-parquet", "Parquet"), ("smallnorb-zip", "zip")):
    for _name in ("smallnorb", "smallnorb-48", "smallnorb-48-azimuth", "smallnorb-48-elevation"):
        _entry = CATALOGUE[_name]
        CATALOGUE[_name.replace("smallnorb", _copy)] = replace(
            _entry,
            title=f"{_entry.title} ({_form}, not official)",
            official=False,
            base=_entry.base and _copy,
            copy_of=_name,
        )


#: Official sets, each with the set that takes its place if the user's own images replace the base of that set.
GENERATED = {"affnist": "affnist-generated"}


def entry(name: str) -> Entry:
    """Return a data set's entry, or raise UserError with the nearest name."""
    if name not in CATALOGUE:
        raise UserError(f"no data set {name!r}{nearest(name, CATALOGUE)}")
    return CATALOGUE[name]


def plain(name: str) -> str:
    """Return the set that a copy has the images of, e.g. `smallnorb-48` for `smallnorb-zip-48`; others stay."""
    return entry(name).copy_of or name


def on_base(name: str, base: str) -> str:
    """Return the copy of a derived set that is derived from `base`; the set itself if there is none."""
    return next((copy for copy, each in CATALOGUE.items() if (each.copy_of, each.base) == (name, base)), name)


def names() -> list[str]:
    """Return the names of all data sets."""
    return list(CATALOGUE)


def splits(name: str) -> list[str]:
    """Return the splits of a data set, with the parts of its train split that studies use.

    A set that is generated from another's test digits, such as affNIST, is generated from held-out ones, too.
    """
    own = entry(name).splits
    parts = PARTS if "train" in own else PARTS[1:] if entry(name).base and "test" in own else ()
    return [*own, *parts]


def check_split(name: str, split: str) -> None:
    """Raise UserError with the nearest split if the data set has no such split."""
    if split not in (known := splits(name)):
        raise UserError(f"the data set {name!r} has no split {split!r}{nearest(split, known)}")


def part_size(whole: int, part: str) -> int:
    """Return the number of images in a part of a train split of `whole` images."""
    held_out = whole // HELD_OUT_SHARE
    return held_out if part == "held_out" else whole - held_out


def describe(name: str, *, stand_in: bool = False) -> dict[str, Any]:
    """Describe a data set: channels, height and width in pixels, classes, title, official, derived_from."""
    e = entry(name)
    return {
        "channels": e.channels,
        "height": e.size,
        "width": e.size,
        "classes": e.classes,
        "title": f"{e.title}: {STAND_IN}" if stand_in else e.title,
        "official": e.official and not stand_in,
        "derived_from": e.base,
    }


def defaults(name: str) -> dict[str, int | float | None]:
    """Return the options of a data set with their defaults."""
    return {key: option.default for key, option in entry(name).options.items()}


def resolve(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of a data set: `options`, checked, and the defaults of the others.

    Raises UserError if an option is unknown, or a value has a wrong type or is out of bounds.
    """
    known = entry(name).options
    for key in options:
        if key not in known:
            raise UserError(f"the data set {name!r} has no option {key!r}{nearest(key, known)}")
    given = {key: known[key].check(f"data set {name!r}, option {key!r}", value) for key, value in options.items()}
    return {**defaults(name), **given}


def base_of(name: str, split: str) -> tuple[str, str]:
    """Return the base of a split, e.g. (`mnist`, `train`) for (`affnist-generated`, `validation`)."""
    check_split(name, split)
    base = entry(name).base
    return (base, DERIVED_FROM.get(split, "train")) if base else (name, split)


def replaceable() -> list[str]:
    """Return the base sets that the user's own images can replace: those that are images and labels only."""
    return [
        name for name, each in CATALOGUE.items() if each.base is None and plain(name) not in ("smallnorb", "affnist")
    ]


def raw_inputs(name: str, split: str, stand_in: bool = False) -> list[str]:
    """Return the paths below `data/` of the official files of a split; none for a stand-in."""
    base, base_split = base_of(name, split)
    files = [] if stand_in else sources.files(base)
    if base == "affnist":
        return [file.path for file in files if file.name.startswith(base_split)]
    train = base_split in ("train", *PARTS)  # a set has one file of all images, or names those of training so
    return [file.path for file in files if len(files) == 1 or ("train" in file.name) == train]
