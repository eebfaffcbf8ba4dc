"""Derived data sets, compared with simple reference implementations."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from recaps.arrays import Arrays
from recaps.datasets import catalogue, derived, standin, warp

pytestmark = pytest.mark.unit

# The first draws of the test splits.
SHIFT_Y = [-1, -2, 2, 2, 0, -1]
ROTATION = [1.45242, 35.23493, 149.75084, 24.21774, 78.53554, 171.45187]
SHEAR = [0.1746055, 0.1093105, 0.072434, 0.1159528, 0.1760886, 0.0550852]


@pytest.fixture(scope="module")
def digits() -> Arrays:
    images, labels = standin.mnist("train")
    return Arrays(images[:120, None], labels[:120])


def make(name: str, split: str, base: Arrays, **options: object) -> Arrays:
    return derived.derive(name, split, base, catalogue.resolve(name, options))


def slow_affine(image: np.ndarray, matrix: np.ndarray, translation: np.ndarray, size: int) -> np.ndarray:
    """Bilinear interpolation by SciPy, one image at a time, in (row, column) order."""
    swap = np.array([[0, 1], [1, 0]])
    inverse = np.linalg.inv(swap @ matrix @ swap)
    centre_in, centre_out = (np.array(image.shape) - 1) / 2, np.full(2, (size - 1) / 2)
    offset = centre_in - inverse @ (centre_out + translation[::-1])
    padded = np.pad(image.astype(float), 40)
    return ndimage.affine_transform(padded, inverse, offset + 40, (size, size), order=1, mode="constant")


def test_padded_equals_numpy(digits: Arrays) -> None:
    made = make("mnist-40", "train", digits)
    np.testing.assert_array_equal(made.images, np.pad(digits.images, ((0, 0), (0, 0), (6, 6), (6, 6))))
    np.testing.assert_array_equal(made.labels, digits.labels)
    np.testing.assert_array_equal(made.factors["original"], np.arange(120))


@pytest.mark.parametrize(("name", "border", "largest"), [("mnist-shifted", 0, 2), ("mnist-40-shifted", 6, 6)])
def test_shifted_equals_loops(digits: Arrays, name: str, border: int, largest: int) -> None:
    made = make(name, "test", digits)
    seen = set()
    for k, image in enumerate(np.pad(digits.images[:, 0], ((0, 0), (border, border), (border, border)))):
        dy, dx = made.factors["shift_y"][k], made.factors["shift_x"][k]
        seen |= {dy, dx}
        expected = np.zeros_like(image)
        for y in range(len(image)):
            for x in range(len(image)):
                if 0 <= y - dy < len(image) and 0 <= x - dx < len(image):
                    expected[y, x] = image[y - dy, x - dx]
        np.testing.assert_array_equal(made.images[k, 0], expected)
    assert seen == set(range(-largest, largest + 1))


def test_shift_zero_and_larger_than_the_picture(digits: Arrays) -> None:
    np.testing.assert_array_equal(make("mnist-shifted", "test", digits, shift=0).images, digits.images)
    far = np.full(120, 28)
    assert not warp.shift(digits.images[:, 0], far, 0 * far).any()


def test_rotated_equals_scipy(digits: Arrays) -> None:
    made = make("mnist-rotated", "test", digits)
    angles = made.factors["rotation"]
    assert angles.min() < -150
    assert angles.max() > 150
    for k in range(40):
        expected = ndimage.rotate(np.pad(digits.images[k, 0].astype(float), 14), angles[k], reshape=False, order=1)
        np.testing.assert_allclose(made.images[k, 0], expected[14:-14, 14:-14], atol=0.51)


def test_rotation_is_counter_clockwise_as_seen() -> None:
    right_half = np.zeros((1, 5, 5), np.uint8)
    right_half[0, 2, 4] = 200  # a dot on the right goes to the top
    turned = warp.affine(right_half, warp.rotation(np.array([90.0])), np.zeros((1, 2)), 5)
    assert np.argwhere(turned[0]).tolist() == [[0, 2]]


def test_smaller_ranges_show_the_same_turns_scaled(digits: Arrays) -> None:
    full = make("mnist-rotated", "test", digits).factors["rotation"]
    for name, degrees in (("mnist-rotated-45", 45), ("mnist-rotated-90", 90), ("mnist-rotated-135", 135)):
        part = make(name, "test", digits).factors["rotation"]
        np.testing.assert_allclose(part, full * degrees / 180, rtol=1e-5)
    np.testing.assert_array_equal(make("mnist-rotated", "test", digits, degrees=0).images, digits.images)


@pytest.mark.parametrize(("name", "degrees"), [("", 180), ("-45", 45), ("-90", 90)])
def test_rotated_on_a_larger_canvas_loses_no_corner(digits: Arrays, name: str, degrees: int) -> None:
    """The middle is the rotated 28x28 image."""
    whole, small = (make(f"{stem}{name}", "test", digits) for stem in ("mnist-40-rotated", "mnist-rotated"))
    np.testing.assert_array_equal(whole.images[:, :, 6:-6, 6:-6], small.images)
    np.testing.assert_array_equal(whole.factors["rotation"], small.factors["rotation"])
    assert whole.record["parameters"] == {"rotation": [-degrees, degrees]}
    block = Arrays(np.full((120, 1, 28, 28), 255, np.uint8), digits.labels)
    ink = make(f"mnist-40-rotated{name}", "test", block).images.sum((1, 2, 3)) / 255
    np.testing.assert_allclose(ink, 28 * 28, rtol=0.01)


def test_scaled_equals_scipy(digits: Arrays) -> None:
    made = make("mnist-40-scaled", "test", digits)
    factors = made.factors["scale"]
    assert factors.min() == pytest.approx(0.7, abs=0.02)
    assert factors.max() == pytest.approx(1.3, abs=0.02)
    for k in range(0, 120, 3):
        expected = slow_affine(digits.images[k, 0], factors[k] * np.eye(2), np.zeros(2), 40)
        np.testing.assert_allclose(made.images[k, 0], expected, atol=0.52)


def test_noise_has_its_deviation_and_stays_between_black_and_white(digits: Arrays) -> None:
    plain, noisy = make("mnist-40", "test", digits), make("mnist-40-noisy", "test", digits)
    black = plain.images == 0
    noise = noisy.images[black].astype(float)
    # A Gaussian cut at zero: half the pixels stay black, and the others have its upper half.
    assert np.mean(noise == 0) == pytest.approx(0.5, abs=0.01)
    assert np.sqrt(np.square(noise).mean() * 2) == pytest.approx(0.2 * 255, rel=0.01)
    grey = (plain.images > 115) & (plain.images < 140)
    change = noisy.images[grey].astype(float) - plain.images[grey]
    assert change.std() == pytest.approx(0.2 * 255, rel=0.1)
    np.testing.assert_array_equal(make("mnist-40-noisy", "test", digits, deviation=0).images, plain.images)


def test_affine_equals_scipy(digits: Arrays) -> None:
    made = make("affnist-generated", "test", digits, versions=2)
    f = made.factors
    for k in range(0, 240, 3):
        turn, shear = np.deg2rad(f["rotation"][k]), f["shear"][k]
        rotate = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
        matrix = rotate @ np.array([[1, shear], [0, 1]]) @ np.diag([f["scale_x"][k], f["scale_y"][k]])
        translation = np.array([f["translate_x"][k], f["translate_y"][k]])
        expected = slow_affine(digits.images[f["original"][k], 0], matrix, translation, 40)
        np.testing.assert_allclose(made.images[k, 0], expected, atol=0.52)


def test_affine_order_ranges_and_labels(digits: Arrays) -> None:
    made = make("affnist-generated", "test", digits, versions=5)
    assert made.images.shape == (600, 1, 40, 40)
    np.testing.assert_array_equal(made.factors["original"], np.tile(np.arange(120), 5))
    np.testing.assert_array_equal(made.factors["version"], np.repeat(np.arange(5), 120))
    np.testing.assert_array_equal(made.labels, np.tile(digits.labels, 5))
    for key, (low, high) in derived.AFFINE_RANGES.items():
        values = made.factors[key]
        assert low <= values.min() < low + 0.05 * (high - low)
        assert high - 0.05 * (high - low) < values.max() <= high
        assert abs(values.mean() - (low + high) / 2) < 0.05 * (high - low)
    assert made.record["parameters"]["rotation"] == [-20.0, 20.0]
    assert "not the official file" in made.record["parameters"]["note"]


def test_ink_stays_on_the_canvas(digits: Arrays) -> None:
    """On a larger canvas the same maps leave no ink outside the 40x40 canvas, but some at its edges."""
    made = make("affnist-generated", "test", digits, versions=8)
    f = made.factors
    matrices = derived._matrices(*(f[key].astype(float) for key in derived.AFFINE_RANGES))
    translations = np.stack([f["translate_x"], f["translate_y"]], -1).astype(float)
    large = warp.affine(digits.images[f["original"], 0], matrices, translations, 60)
    inside = large[:, 10:50, 10:50]
    assert large.sum(dtype=np.int64) == inside.sum(dtype=np.int64)
    ink = made.images[:, 0] > 0
    for edge in (ink[:, 0], ink[:, -1], ink[:, :, 0], ink[:, :, -1]):
        assert edge.any()


def test_ink_larger_than_the_canvas_is_centred_and_no_ink_is_no_trouble() -> None:
    images = np.stack([np.full((28, 28), 255, np.uint8), np.zeros((28, 28), np.uint8)])
    low, high = warp.translation_range(images, np.stack([2 * np.eye(2)] * 2), 40)
    np.testing.assert_allclose(low[0], 0, atol=1e-12)
    np.testing.assert_allclose(high[0], 0, atol=1e-12)
    assert (low[1] <= high[1]).all()


def test_translation_range_is_tight() -> None:
    """A single pixel of ink can be centred on any pixel of the canvas, but not outside."""
    image = np.zeros((1, 5, 5), np.uint8)
    image[0, 2, 2] = 255
    low, high = warp.translation_range(image, np.eye(2)[None], 9)
    assert low.tolist() == [[-4, -4]]
    assert high.tolist() == [[4, 4]]
    corner = warp.affine(image, np.eye(2)[None], high, 9)
    assert np.argwhere(corner[0]).tolist() == [[8, 8]]


@pytest.mark.parametrize(
    "name",
    ["mnist-shifted", "mnist-40-shifted", "mnist-rotated", "mnist-40-scaled", "mnist-40-noisy", "affnist-generated"],
)
def test_deterministic_and_different_between_splits(digits: Arrays, name: str) -> None:
    first, again, other = (make(name, split, digits) for split in ("test", "test", catalogue.splits(name)[0]))
    assert first.digest() == again.digest()
    assert other.digest() != first.digest()


@pytest.mark.parametrize(
    "name", ["mnist-40", "mnist-shifted", "mnist-40-shifted", "mnist-rotated", "mnist-40-scaled", "mnist-40-noisy"]
)
def test_limit_gives_the_first_images(digits: Arrays, name: str) -> None:
    whole, few = make(name, "test", digits), make(name, "test", digits, limit=7)
    np.testing.assert_array_equal(few.images, whole.images[:7])
    for key, values in few.factors.items():
        np.testing.assert_array_equal(values, whole.factors[key][:7])


def test_versions_are_the_same_whatever_their_number(digits: Arrays) -> None:
    few, many = (make("affnist-generated", "test", digits, versions=k) for k in (2, 4))
    np.testing.assert_array_equal(many.images[:240], few.images)
    limited = make("affnist-generated", "test", digits, versions=3, limit=10)
    for version in range(3):
        rows = slice(120 * version, 120 * version + 10)
        np.testing.assert_array_equal(limited.images[10 * version :][:10], many.images[rows])


def test_validation_is_the_last_sixth_of_the_training_digits(digits: Arrays) -> None:
    made = make("affnist-generated", "validation", digits, versions=1)
    assert made.factors["original"].tolist() == list(range(100, 120))
    np.testing.assert_array_equal(made.labels, digits.labels[100:])
    limited = make("affnist-generated", "validation", digits, versions=1, limit=4)
    assert limited.factors["original"].tolist() == [100, 101, 102, 103]
    np.testing.assert_array_equal(limited.images, made.images[:4])


def test_known_values_never_change() -> None:
    """If the random numbers changed, all results would change without notice."""
    ramp = np.arange(6 * 28 * 28, dtype=np.uint32).reshape(6, 1, 28, 28)
    base = Arrays((ramp * 7 % 256).astype(np.uint8), np.arange(6))
    assert make("mnist-shifted", "test", base).factors["shift_y"].tolist() == SHIFT_Y
    np.testing.assert_allclose(make("mnist-rotated", "test", base).factors["rotation"], ROTATION, rtol=1e-5)
    generated = make("affnist-generated", "test", base, versions=1)
    np.testing.assert_allclose(generated.factors["shear"], SHEAR, rtol=1e-5)
