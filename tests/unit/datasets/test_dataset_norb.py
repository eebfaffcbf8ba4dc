"""Data sets derived from smallNORB, compared with loops: single cameras at half size, and subsets by viewpoint."""

from __future__ import annotations

import re

import numpy as np
import pytest

from recaps.arrays import Arrays
from recaps.datasets import catalogue, norb
from recaps.errors import UserError

pytestmark = pytest.mark.unit

SETS = ["smallnorb-48", "smallnorb-48-azimuth", "smallnorb-48-elevation"]
BY_VIEWPOINT = SETS[1:]


@pytest.fixture(scope="module")
def scenes() -> Arrays:
    """Every viewpoint once, in a random order."""
    random = np.random.default_rng(0)
    elevation, azimuth = random.permutation(np.indices((9, 18)).reshape(2, -1).T).T
    n = len(azimuth)
    factors = {
        "instance": random.integers(0, 10, n),
        "elevation": elevation,
        "azimuth": 2 * azimuth,
        "lighting": random.integers(0, 6, n),
    }
    images = random.integers(0, 256, (n, 2, 96, 96), dtype=np.uint8)
    return Arrays(images, random.integers(0, 5, n), factors, {"sources": [{"path": "here"}], "seed": None})


def make(name: str, split: str, base: Arrays, **options: object) -> Arrays:
    return norb.derive(name, split, base, catalogue.resolve(name, options))


def originals(arrays: Arrays) -> list[int]:
    return sorted(set(arrays.factors["original"].tolist()))


@pytest.mark.parametrize("name", SETS)
def test_every_image_is_one_cameras_picture_of_its_scene(scenes: Arrays, name: str) -> None:
    for split in catalogue.entry(name).splits:
        made = make(name, split, scenes)
        assert made.images.shape[1:] == (1, 48, 48)
        assert made.images.flags.c_contiguous
        for k in range(len(made)):
            scene, camera = made.factors["original"][k], made.factors["camera"][k]
            expected = scenes.images[scene, camera].tolist()
            assert made.images[k, 0].tolist() == [row[::2] for row in expected[::2]]
            assert made.labels[k] == scenes.labels[scene]
            for factor, values in scenes.factors.items():
                assert made.factors[factor][k] == values[scene]


@pytest.mark.parametrize("name", SETS)
def test_scene_by_scene_left_then_right(scenes: Arrays, name: str) -> None:
    for split in catalogue.entry(name).splits:
        factors = make(name, split, scenes).factors
        assert factors["camera"].tolist() == [0, 1] * (len(factors["camera"]) // 2)
        assert factors["original"].tolist() == [n for n in originals(make(name, split, scenes)) for _ in range(2)]


def test_all_scenes_without_viewpoints(scenes: Arrays) -> None:
    for split in ("train", "test"):
        assert originals(make("smallnorb-48", split, scenes)) == list(range(162))


def test_viewpoints_are_those_of_the_paper(scenes: Arrays) -> None:
    def degrees(name: str, split: str) -> tuple[set[int], set[int]]:
        factors = make(name, split, scenes).factors
        return {10 * code for code in factors["azimuth"].tolist()}, {30 + 5 * e for e in factors["elevation"].tolist()}

    azimuths, elevations = set(range(0, 360, 20)), set(range(30, 75, 5))
    for split in ("train", "familiar"):
        assert degrees("smallnorb-48-azimuth", split) == ({300, 320, 340, 0, 20, 40}, elevations)
        assert degrees("smallnorb-48-elevation", split) == (azimuths, {30, 35, 40})
    assert degrees("smallnorb-48-azimuth", "novel") == (set(range(60, 281, 20)), elevations)
    assert degrees("smallnorb-48-elevation", "novel") == (azimuths, {45, 50, 55, 60, 65, 70})


@pytest.mark.parametrize("name", BY_VIEWPOINT)
def test_familiar_and_novel_are_the_whole_test_split(scenes: Arrays, name: str) -> None:
    familiar, novel = (originals(make(name, split, scenes)) for split in ("familiar", "novel"))
    assert sorted(familiar + novel) == list(range(162))
    assert len(familiar) == 162 // 3
    for split in ("familiar", "novel"):
        assert catalogue.base_of(name, split) == ("smallnorb", "test")
    assert catalogue.base_of(name, "train") == ("smallnorb", "train")


@pytest.mark.parametrize("name", SETS)
def test_limit_counts_scenes_of_the_base(scenes: Arrays, name: str) -> None:
    for split in catalogue.entry(name).splits:
        whole, few = make(name, split, scenes), make(name, split, scenes, limit=40)
        n = int((whole.factors["original"] < 40).sum())
        assert len(few) == n > 0
        np.testing.assert_array_equal(few.images, whole.images[:n])
        for key, values in few.factors.items():
            np.testing.assert_array_equal(values, whole.factors[key][:n])


def test_a_limit_that_leaves_no_scene_is_reported(scenes: Arrays) -> None:
    split = "novel" if scenes.factors["elevation"][0] < 3 else "familiar"
    mistake = f"data set 'smallnorb-48-elevation', split '{split}': none of the first 1 scenes has such a viewpoint"
    with pytest.raises(UserError, match=rf"\A{re.escape(mistake)}; raise the option `limit`\Z"):
        make("smallnorb-48-elevation", split, scenes, limit=1)


def test_halved_by_a_known_example() -> None:
    image = np.array([[0, 1, 7, 255], [0, 1, 0, 255], [9, 9, 1, 2], [9, 9, 3, 5]], np.uint8)
    assert norb.halved(image, average=False).tolist() == [[0, 7], [9, 1]]
    # Means 0.5, 129.25, 9 and 2.75.
    assert norb.halved(image, average=True).tolist() == [[1, 129], [9, 3]]
    assert norb.halved(np.full((2, 2), 255, np.uint8), average=True).tolist() == [[255]]


def test_average_is_an_option(scenes: Arrays) -> None:
    plain, averaged = (make("smallnorb-48", "test", scenes, average=average) for average in (0, 1))
    means = scenes.images.reshape(162, 2, 48, 2, 48, 2).mean(axis=(3, 5))
    np.testing.assert_array_equal(averaged.images.reshape(162, 2, 48, 48), np.floor(means + 0.5))
    assert averaged.digest() != plain.digest() == make("smallnorb-48", "test", scenes).digest()
    with pytest.raises(UserError, match="option 'average': 2 is outside 0 to 1; average: 0 keeps every second pixel"):
        catalogue.resolve("smallnorb-48", {"average": 2})


def test_the_record_of_a_split(scenes: Arrays) -> None:
    parameters = {"order": "by scene, left camera first", "average": 1}
    assert make("smallnorb-48", "test", scenes, average=1).record["parameters"] == parameters
    record = make("smallnorb-48-elevation", "novel", scenes, average=1).record
    assert record["parameters"] == parameters | {"familiar": {"elevation": [0, 1, 2]}}
    assert record["sources"] == scenes.record["sources"]


@pytest.mark.parametrize("name", SETS)
def test_deterministic(scenes: Arrays, name: str) -> None:
    for split in catalogue.entry(name).splits:
        assert make(name, split, scenes).digest() == make(name, split, scenes).digest()
