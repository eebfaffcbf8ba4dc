"""The official files, and copies of them: addresses, sizes and SHA-256 checksums."""

from __future__ import annotations

from dataclasses import dataclass

from recaps.errors import UserError, nearest


@dataclass(frozen=True)
class SourceFile:
    """An official file, or a copy in another form.

    Attributes:
        dataset: its folder below `data/` and below a mirror.
        name: its official name; for a copy, our name.
        urls: addresses in the order to try; empty if only a mirror has it.
        size: size in bytes, or None if it is not published.
        sha256: hexadecimal digest, or None if it is not published. In this case the digest of the first download with a
            valid format is stored beside the file (`<name>.sha256`) and verified from then on.
    """

    dataset: str
    name: str
    urls: tuple[str, ...]
    size: int | None
    sha256: str | None

    @property
    def path(self) -> str:
        """Path below `data/` and below a mirror, e.g. `mnist/train-images-idx3-ubyte.gz`."""
        return f"{self.dataset}/{self.name}"


def _table(dataset: str, bases: tuple[str, ...], *rows: tuple[str, int | None, str | None]) -> tuple[SourceFile, ...]:
    return tuple(SourceFile(dataset, n, tuple(base + n for base in bases), size, sha) for n, size, sha in rows)


_NORB_TRAIN = "smallnorb-5x46789x9x18x6x2x96x96-training"
_NORB_TEST = "smallnorb-5x01235x9x18x6x2x96x96-testing"

# The copies of smallNORB on the Hugging Face hub.
_HUB = "https://huggingface.co/datasets"
_PARQUET = f"{_HUB}/Ramos-Ramos/smallnorb/resolve/7962619a7ba6dfcc7d16e4e2d948d846f9624b15/data"
_ZIP = f"{_HUB}/randall-lab/small-norb/resolve/main"

_SOURCES: dict[str, tuple[SourceFile, ...]] = {
    "mnist": _table(
        "mnist",
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "http://yann.lecun.com/exdb/mnist/",
        ),
        ("train-images-idx3-ubyte.gz", 9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        ("train-labels-idx1-ubyte.gz", 28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        ("t10k-images-idx3-ubyte.gz", 1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        ("t10k-labels-idx1-ubyte.gz", 4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    ),
    "fashion-mnist": _table(
        "fashion-mnist",
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        ),
        ("train-images-idx3-ubyte.gz", 26421880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
        ("train-labels-idx1-ubyte.gz", 29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        ("t10k-images-idx3-ubyte.gz", 4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
        ("t10k-labels-idx1-ubyte.gz", 5148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    ),
    "cifar10": _table(
        "cifar10",
        ("https://www.cs.toronto.edu/~kriz/",),
        ("cifar-10-binary.tar.gz", 170052171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),
    ),
    "cifar10-jpeg": _table(
        "cifar10-jpeg",
        (),
        ("cifar10-jpeg.zip", 62190935, "0287a3668d9e0d204fc6ffa0e85a171724de09b8aec55d93153b270368489df4"),
    ),
    "smallnorb": _table(
        "smallnorb",
        ("https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/",),
        (f"{_NORB_TRAIN}-dat.mat.gz", 131896188, "5ffd6272a07d32695ee1082a26a41a93a37aab8c28da047f8c34ed348d214873"),
        (f"{_NORB_TRAIN}-cat.mat.gz", 348, "2784e542c1922060691090952b6cd6278879a216c90f81476f0f00256d42cdaa"),
        (f"{_NORB_TRAIN}-info.mat.gz", 71052, "de7eb932ebe7a4ee16217fead60660d0eb3d23632c2f4d1c51f88c501c17bf32"),
        (f"{_NORB_TEST}-dat.mat.gz", 130799817, "cf7104eed3e51174d2f65b66d1e5878b9da233b886f161b0d88f4510ba2c7474"),
        (f"{_NORB_TEST}-cat.mat.gz", 347, "ecaf6d5bb8c3bc5eab9cf0258f6d2198dd474e016e374836fc097f2e5ff509ff"),
        (f"{_NORB_TEST}-info.mat.gz", 10428, "16adf314226327ee006d1a44db8cfef52773c06c829951d5653a9f6f310248a2"),
    ),
    "smallnorb-parquet": tuple(
        SourceFile("smallnorb-parquet", f"{split}.parquet", (f"{_PARQUET}/{split}-{rest}.parquet",), None, None)
        for split, rest in (("train", "00000-of-00001-ba54590c34eb8af1"), ("test", "00000-of-00001-b4af1727fb5b132e"))
    ),
    "smallnorb-zip": _table(
        "smallnorb-zip", (f"{_ZIP}/smallnorb-",), ("train.zip", None, None), ("test.zip", None, None)
    ),
    "affnist": _table(
        "affnist",
        ("https://www.cs.toronto.edu/~tijmen/affNIST/32x/transformed/",),
        ("test.mat.zip", None, None),
        ("validation.mat.zip", None, None),
        ("training_and_validation_batches.zip", None, None),
    ),
}


def files(dataset: str) -> list[SourceFile]:
    """Return the official files of a base set, or raise UserError. Those of a split are in the order of reading."""
    if dataset not in _SOURCES:
        raise UserError(f"no source for the data set {dataset!r}{nearest(dataset, _SOURCES)}")
    return list(_SOURCES[dataset])


def file(dataset: str, name: str) -> SourceFile:
    """Return an official file by its name. Raise UserError if there is no such data set, or it has no such file."""
    known = {source.name: source for source in files(dataset)}
    if name not in known:
        raise UserError(f"the data set {dataset!r} has no file {name!r}{nearest(name, known)}")
    return known[name]
