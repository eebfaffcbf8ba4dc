"""The catalogue of data sets and official files."""

from __future__ import annotations

import subprocess
import sys

import pytest

from recaps.datasets import catalogue, sources
from recaps.errors import UserError

pytestmark = pytest.mark.unit


def test_every_raw_input_has_a_source() -> None:
    for name in catalogue.names():
        for split in catalogue.splits(name):
            inputs = catalogue.raw_inputs(name, split, stand_in=False)
            assert inputs
            for path in inputs:
                dataset, file = path.split("/")
                assert sources.file(dataset, file).path == path
            assert catalogue.raw_inputs(name, split, stand_in=True) == []


def test_sources_are_well_formed() -> None:
    for dataset in ("mnist", "fashion-mnist", "cifar10", "cifar10-jpeg", "smallnorb", "affnist"):
        for source in sources.files(dataset):
            assert source.dataset == dataset
            assert all(url.startswith("http") and url.endswith(source.name) for url in source.urls)
            assert bool(source.urls) == (dataset != "cifar10-jpeg")
            if dataset == "affnist":
                assert source.sha256 is None
            else:
                assert len(bytes.fromhex(source.sha256 or "")) == 32
                assert source.size


def test_copies_have_addresses_and_no_official_checksum() -> None:
    copies = {name: each for name, each in catalogue.CATALOGUE.items() if each.copy_of}
    assert len(copies) == 8
    for name, each in copies.items():
        assert not each.official
        assert each.title.startswith(catalogue.entry(catalogue.plain(name)).title)
        assert name not in catalogue.replaceable()
    for dataset in ("smallnorb-parquet", "smallnorb-zip"):
        for source in sources.files(dataset):
            (address,) = source.urls
            assert address.startswith("https://huggingface.co/datasets/")
            assert source.name.split(".")[0] in address.rpartition("/")[2]
            assert (source.size, source.sha256) == (None, None)


def test_derived_splits_read_their_base() -> None:
    assert catalogue.raw_inputs("affnist-generated", "validation") == [
        "mnist/train-images-idx3-ubyte.gz",
        "mnist/train-labels-idx1-ubyte.gz",
    ]
    assert catalogue.raw_inputs("mnist-40", "test")[0] == "mnist/t10k-images-idx3-ubyte.gz"
    train, test = (catalogue.raw_inputs("smallnorb", split) for split in ("train", "test"))
    for name in ("smallnorb-48-azimuth", "smallnorb-48-elevation"):
        assert [catalogue.raw_inputs(name, split) for split in ("train", "familiar", "novel")] == [train, test, test]


def test_describe() -> None:
    assert catalogue.describe("smallnorb") == {
        "channels": 2,
        "height": 96,
        "width": 96,
        "classes": 5,
        "title": "smallNORB",
        "official": True,
        "derived_from": None,
    }
    stand_in = catalogue.describe("mnist-40", stand_in=True)
    assert stand_in["title"].endswith("stand-in (scikit-learn digits)")
    assert stand_in["derived_from"] == "mnist"
    assert not catalogue.describe("mnist", stand_in=True)["official"]
    assert not catalogue.describe("cifar10-jpeg")["official"]
    assert not catalogue.describe("affnist-generated")["official"]


@pytest.mark.parametrize(
    ("call", "pattern"),
    [
        (lambda: catalogue.describe("minst"), "no data set 'minst' .did you mean 'mnist'"),
        (lambda: sources.files("smalnorb"), "did you mean 'smallnorb'"),
        (lambda: sources.file("mnist", "train-images"), "did you mean 'train-images-idx3-ubyte.gz'"),
        (lambda: catalogue.raw_inputs("mnist", "tset"), "no split 'tset' .did you mean 'test'"),
        (lambda: catalogue.resolve("affnist-generated", {"version": 3}), "did you mean 'versions'"),
        (lambda: catalogue.resolve("mnist-rotated", {"degrees": 181}), "181 is outside 0 to 180"),
        (lambda: catalogue.resolve("mnist-rotated", {"degrees": float("nan")}), "nan is not a number"),
        (lambda: catalogue.resolve("mnist-rotated", {"degrees": "90"}), "'90' is not a number"),
        (lambda: catalogue.resolve("mnist-shifted", {"shift": 1.5}), "1.5 is not a whole number"),
        (lambda: catalogue.resolve("mnist-shifted", {"shift": True}), "True is not a whole number"),
        (lambda: catalogue.resolve("mnist", {"limit": 0}), "0 is outside 1 to inf"),
        (lambda: catalogue.resolve("smallnorb-48", {"average": True}), "True is not a whole number"),
        (lambda: catalogue.raw_inputs("smallnorb-48-azimuth", "test"), "no split 'test'"),
    ],
)
def test_mistakes_are_reported_in_one_line(call: object, pattern: str) -> None:
    with pytest.raises(UserError, match=pattern) as caught:
        call()  # type: ignore[operator]
    assert "\n" not in str(caught.value)


def test_options_have_defaults() -> None:
    assert catalogue.defaults("affnist-generated") == {"limit": None, "versions": 32}
    assert catalogue.defaults("mnist-shifted") == {"limit": None, "shift": 2}
    assert catalogue.defaults("mnist-40-shifted") == {"limit": None, "shift": 6}
    assert catalogue.defaults("mnist-rotated") == {"limit": None, "degrees": 180.0}
    assert catalogue.defaults("smallnorb-48-azimuth") == {"limit": None, "average": 0}
    assert catalogue.resolve("mnist-rotated", {"degrees": 45}) == {"limit": None, "degrees": 45.0}


def test_importing_the_package_imports_nothing_heavy() -> None:
    script = (
        "import sys; from recaps.datasets import catalogue as c, sources; c.describe('mnist'); c.resolve('mnist', {}); "
        "light = [m for m in ('numpy', 'torch', 'scipy', 'sklearn', 'pandas', 'PIL') if m in sys.modules]; "
        "import recaps.arrays, recaps.datasets.download, recaps.datasets.preparation; "
        "heavy = [m for m in ('torch', 'scipy', 'sklearn', 'pandas', 'PIL') if m in sys.modules]; "
        "print(light, heavy)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] []"
