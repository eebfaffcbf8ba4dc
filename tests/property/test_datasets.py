"""A reader of a damaged file returns arrays or raises a UserError of one line, whatever the damage."""

from __future__ import annotations

import gzip
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import dataset_writers as write
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recaps.arrays import Arrays, save
from recaps.arrays import read as read_split
from recaps.datasets import archive, catalogue, norb, warp
from recaps.datasets.formats import affnist, idx, smallnorb
from recaps.errors import UserError

pytestmark = pytest.mark.property

relaxed = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

#: Where to truncate, and which bytes to overwrite by what; positions are fractions of the length.
damage = st.tuples(
    st.floats(0, 1), st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4)
)


def damaged(content: bytes, how: tuple[float, list[tuple[float, int]]]) -> bytes:
    cut, changes = how
    changed = bytearray(content)
    for place, value in changes:
        changed[int(place * len(changed))] = value
    return bytes(changed[: max(1, round(cut * len(changed)))])


def survives(read: Callable[[], object]) -> None:
    message = ""
    try:
        read()
    except UserError as error:
        message = str(error)
    assert "\n" not in message


IDX = b"\0\0\x08\3" + struct.pack(">3I", 2, 28, 28) + bytes(2 * 28 * 28)
NORB = struct.pack("<Ii3i", 0x1E3D4C54, 2, 3, 4, 1) + bytes(48)


@relaxed
@given(damage)
def test_gzipped_formats(tmp_path: Path, how: tuple[float, list[tuple[float, int]]]) -> None:
    path = tmp_path / "f.gz"
    for inner, read in (
        (IDX, lambda: idx.read_images(path, expected_n=2)),
        (NORB, lambda: smallnorb.read_matrix(path)),
    ):
        path.write_bytes(damaged(gzip.compress(inner), how))
        survives(read)
        path.write_bytes(gzip.compress(damaged(inner, how)))
        survives(read)


@relaxed
@given(damage)
def test_archives(tmp_path: Path, how: tuple[float, list[tuple[float, int]]]) -> None:
    for path in (
        write.zipped(tmp_path / "a.zip", {"a.mat": bytes(500)}, zipfile.ZIP_DEFLATED),
        write.cifar(tmp_path / "a.tar.gz", {"a.bin": bytes(500)}),
    ):
        path.write_bytes(damaged(path.read_bytes(), how))
        survives(lambda path=path: list(archive.members(path, lambda _: True)))  # type: ignore[misc]


@relaxed
@given(damage)
def test_matlab_files(tmp_path: Path, how: tuple[float, list[tuple[float, int]]]) -> None:
    """The archive is damaged: its CRC must protect SciPy's parser, which can crash on damaged bytes."""
    content = write.mat({"image": np.zeros((1600, 2), np.uint8), "label_int": np.zeros((1, 2), np.uint8)})
    path = write.zipped(tmp_path / "test.mat.zip", {"a.mat": content}, zipfile.ZIP_DEFLATED)
    path.write_bytes(damaged(path.read_bytes(), how))
    survives(lambda: list(affnist.read(path)))
    affnist.problem(path)


@relaxed
@given(st.sampled_from(["images.npy", "labels.npy", "factors.npz", "record.json"]), damage)
def test_prepared_splits(tmp_path: Path, name: str, how: tuple[float, list[tuple[float, int]]]) -> None:
    arrays = Arrays(np.zeros((3, 1, 8, 8), np.uint8), np.zeros(3, np.int64), {"a": np.arange(3)}, {})
    path = save(arrays, tmp_path / "mnist" / "test") / name
    path.write_bytes(damaged(path.read_bytes(), how))
    survives(lambda: read_split(tmp_path / "mnist" / "test"))


@relaxed
@given(st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 9), st.integers(1, 9))
def test_a_whole_pixel_translation_is_a_shift(down: int, right: int, size: int, seed: int) -> None:
    images = np.random.default_rng(seed).integers(0, 256, (2, size, size), dtype=np.uint8)
    shifted = warp.shift(images, np.full(2, down), np.full(2, right))
    moved = warp.affine(images, np.stack([np.eye(2)] * 2), np.array([[right, down]] * 2, float), size)
    np.testing.assert_array_equal(shifted, moved)


@relaxed
@given(st.integers(0, 2**32 - 1))
def test_all_ink_stays_on_the_canvas(seed: int) -> None:
    random = np.random.default_rng(seed)
    images = (random.random((3, 9, 9)) < 0.2).astype(np.uint8) * 255
    matrices = np.eye(2) + random.uniform(-0.4, 0.4, (3, 2, 2))
    low, high = warp.translation_range(images, matrices, 24)
    translations = low + (high - low) * random.random((3, 2))
    small = warp.affine(images, matrices, translations, 24)
    large = warp.affine(images, matrices, translations, 40)
    assert small.sum(dtype=np.int64) == large.sum(dtype=np.int64)


@relaxed
@given(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9), st.sampled_from([0, 1, 127, 255]), st.integers(0, 99))
def test_half_size_equals_loops(n: int, height: int, width: int, floor: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    images = random.integers(floor, 256, (n, 2, 2 * height, 2 * width), dtype=np.uint8)
    plain, averaged = (norb.halved(images, average=average) for average in (False, True))
    assert plain.shape == averaged.shape == (n, 2, height, width)
    assert plain.dtype == averaged.dtype == np.uint8
    for k, camera, y, x in np.ndindex(plain.shape):
        block = [int(images[k, camera, 2 * y + down, 2 * x + right]) for down in (0, 1) for right in (0, 1)]
        assert plain[k, camera, y, x] == block[0]
        assert averaged[k, camera, y, x] == (sum(block) + 2) // 4


@relaxed
@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 17), st.integers(0, 4)), min_size=1, max_size=30), st.data()
)
def test_viewpoints_part_the_scenes(seen: list[tuple[int, int, int]], data: st.DataObject) -> None:
    """Each scene is in exactly one of `familiar` and `novel`, with both images and its label, for every limit."""
    name = data.draw(st.sampled_from(["smallnorb-48-azimuth", "smallnorb-48-elevation"]))
    limit = data.draw(st.none() | st.integers(1, len(seen) + 1))
    elevation, azimuth, labels = np.array(seen).T
    images = np.arange(2 * len(seen), dtype=np.uint8).reshape(-1, 2, 1, 1) * np.ones((4, 4), np.uint8)
    base = Arrays(images, labels, {"elevation": elevation, "azimuth": 2 * azimuth}, {})
    near = (azimuth <= 2) | (azimuth >= 15) if name.endswith("azimuth") else elevation < 3
    n = min(len(seen), limit or len(seen))
    for split in ("familiar", "novel"):
        expected = [k for k in range(n) if near[k] == (split == "familiar")]
        options = catalogue.resolve(name, {"limit": limit})
        if not expected:
            with pytest.raises(UserError, match="raise the option `limit`"):
                norb.derive(name, split, base, options)
            continue
        made = norb.derive(name, split, base, options)
        scene, camera = made.factors["original"], made.factors["camera"]
        assert list(zip(scene.tolist(), camera.tolist(), strict=True)) == [(k, c) for k in expected for c in (0, 1)]
        np.testing.assert_array_equal(made.images, images[scene, camera][:, None, ::2, ::2])
        np.testing.assert_array_equal(made.labels, labels[scene])
