"""Batches: padding, shifts, crops, flips, brightness, contrast, standardisation, and pairs of digits."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
import reference
import torch

from recaps.arrays import Arrays
from recaps.config.reading import check
from recaps.config.training import Training
from recaps.errors import UserError
from recaps.training.batches import Batches, cropped, standardised, view, view_shape
from recaps.training.images import ImagePairs, Images, drawn, images_of
from recaps.training.randomness import ShufflingQueue, batch_indices, generator

pytestmark = pytest.mark.unit

CPU = torch.device("cpu")


def split(n: int = 40, side: int = 12, channels: int = 1, **parameters: Any) -> Arrays:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (n, channels, side, side), dtype=np.uint8)
    record = {"parameters": parameters, "seed": "test", "classes": 10}
    return Arrays(images, random.integers(0, 10, n), {}, record)


def batches(arrays: Arrays, seed: int = 0, **training: Any) -> Batches:
    return Batches(images_of(arrays, CPU), Training(batch_size=16, **training), seed, CPU)


def test_crops_are_where_the_corners_say() -> None:
    images = torch.tensor(split(3).images)
    corners = torch.tensor([[0, 0], [2, 7], [7, 1]])
    expected = torch.stack([i[:, y : y + 5, x : x + 5] for i, (y, x) in zip(images, corners.tolist(), strict=True)])
    assert torch.equal(cropped(images, corners, 5), expected)


def test_training_crops_are_random_places_of_the_image() -> None:
    arrays = split(n=16)
    made = batches(arrays, crop=10)(0)["images"]
    order = batches(arrays)(0)["images"]
    found = set()
    for small, whole in zip(made, order, strict=True):
        places = [(y, x) for y in range(3) for x in range(3) if torch.equal(small, whole[:, y : y + 10, x : x + 10])]
        assert len(places) == 1
        found |= set(places)
    assert len(found) > 4


def test_about_half_of_the_images_are_mirrored() -> None:
    arrays = split(n=16)
    made, plain = batches(arrays, flip=True)(0)["images"], batches(arrays)(0)["images"]
    mirrored = sum(torch.equal(a, b.flip(2)) for a, b in zip(made, plain, strict=True))
    same = sum(torch.equal(a, b) for a, b in zip(made, plain, strict=True))
    assert mirrored + same == 16
    assert 3 <= mirrored <= 13


def test_brightness_shifts_and_contrast_scales_about_the_mean() -> None:
    arrays = split(n=16, channels=3)
    plain = batches(arrays)(0)["images"]
    brighter = batches(arrays, brightness=63)(0)["images"] - plain
    torch.testing.assert_close(brighter, brighter[:, :1, :1, :1].expand_as(brighter))
    assert 0.05 < brighter.abs().max() <= 63 / 255 + 1e-6
    scaled = batches(arrays, contrast=(0.2, 1.8))(0)["images"]
    torch.testing.assert_close(scaled.mean((2, 3)), plain.mean((2, 3)))
    factor = scaled.std((2, 3)) / plain.std((2, 3))
    torch.testing.assert_close(factor, factor[:, :1].expand_as(factor))
    assert 0.2 <= factor.min() < 0.8
    assert 1.2 < factor.max() <= 1.8


def test_standardised_images_have_mean_zero_and_standard_deviation_one_and_flat_ones_do_not_explode() -> None:
    made = standardised(torch.rand(4, 3, 8, 8) * 5 + 2)
    torch.testing.assert_close(made.mean((1, 2, 3)), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(made.std((1, 2, 3), correction=0), torch.ones(4))
    assert standardised(torch.full((1, 3, 8, 8), 0.7)).abs().max() < 1e-4


def standard(image: np.ndarray) -> np.ndarray:
    """TensorFlow's `per_image_standardization` of one image."""
    return (image - image.mean()) / max(image.std(), image.size**-0.5)


@pytest.mark.parametrize("standardise", [None, "first", "last"])
@pytest.mark.parametrize(("channels", "seed"), [(1, 0), (3, 7)])
def test_changes_come_in_their_order(standardise: str | None, channels: int, seed: int) -> None:
    """Compare with loops over images that use the same random numbers."""
    arrays, step, n = split(channels=channels), 3, 16
    brightness, (low, high) = (2.0 if standardise == "first" else 63.0), (0.5, 1.5)
    changes: dict[str, Any] = {"shift": 2, "crop": 7, "flip": True, "contrast": (low, high), "standardise": standardise}
    made = batches(arrays, seed, brightness=brightness, **changes)(step)["images"]

    def draws(purpose: str, *shape: int) -> np.ndarray:
        return torch.rand(n, *shape, generator=generator(seed, purpose, step)).double().numpy()

    shifts = torch.randint(-2, 3, (n, 2), generator=generator(seed, "shift", step)).tolist()
    corners = np.floor(6 * draws("crop", 2)).astype(int)
    mirror, light, gain = draws("flip") < 0.5, 2 * draws("brightness") - 1, low + (high - low) * draws("contrast")
    for k, index in enumerate(batch_indices(len(arrays), n, seed, step).tolist()):
        image = arrays.images[index] / 255
        if standardise == "first":
            image = standard(image)
        moved = np.zeros_like(image)
        for y, x in np.ndindex(12, 12):
            from_y, from_x = y - shifts[k][0], x - shifts[k][1]
            if 0 <= from_y < 12 and 0 <= from_x < 12:
                moved[:, y, x] = image[:, from_y, from_x]
        top, left = corners[k]
        image = moved[:, top : top + 7, left : left + 7]
        image = image[:, :, ::-1] if mirror[k] else image
        image = image + light[k] * brightness / (1 if standardise == "first" else 255)
        mean = image.mean((1, 2), keepdims=True)
        image = mean + (image - mean) * gain[k]
        if standardise == "last":
            image = standard(image)
        np.testing.assert_allclose(made[k], image, atol=2e-5)
    assert made.dtype == torch.float32


def test_a_queue_releases_each_record_once_and_none_before_it_is_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShufflingQueue, "_CHUNK", 64)
    capacity, draws = 10, 1000
    records = ShufflingQueue(capacity, seed=0)(0, draws)
    assert len(records.unique()) == draws
    delay = torch.arange(draws) - records
    assert delay.min() == 1 - capacity
    assert delay.double().mean() == pytest.approx(0, abs=1)  # a record waits for `capacity` draws on average
    again = ShufflingQueue(capacity, seed=0)
    assert torch.equal(again(500, 700), records[500:700])
    assert torch.equal(again(0, 16), records[:16])
    assert not torch.equal(ShufflingQueue(capacity, seed=1)(0, draws), records)


def test_a_queue_of_one_reads_every_shift_of_image_after_image() -> None:
    arrays = split(n=2)
    made = batches(arrays, shift=1, queue=1)
    images = torch.cat([made(step)["images"] for step in (0, 1)])
    shifts = [(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1)]
    for place, image in enumerate(images):
        which, (y, x) = place // 9 % 2, shifts[place % 9]
        moved = torch.zeros(1, 14, 14)
        moved[:, 1 + y : 13 + y, 1 + x : 13 + x] = torch.tensor(arrays.images[which] / 255)
        torch.testing.assert_close(image, moved[:, 1:13, 1:13])


def test_batches_from_a_short_queue_hold_few_images() -> None:
    arrays = split(n=40)
    arrays.labels[:] = np.arange(40)
    few, many = (batches(arrays, shift=2, queue=queue)(2)["labels"].unique() for queue in (50, 1000))
    assert len(few) < 8 < len(many)


def test_standardised_first_is_the_whole_image_then_its_centre() -> None:
    """As for smallNORB: 48x48 standardised, then the central 32x32, from pixel 8."""
    images = split(5, side=48).images
    made = view(torch.tensor(images), Training(crop=32, standardise="first"))
    whole = np.stack([standard(image / 255) for image in images])
    np.testing.assert_allclose(made, whole[:, :, 8:40, 8:40], atol=1e-5)
    assert made.mean((1, 2, 3)).abs().max() > 1e-3
    last = view(torch.tensor(images), Training(crop=32, standardise="last"))
    np.testing.assert_allclose(last, np.stack([standard(image[:, 8:40, 8:40] / 255) for image in images]), atol=1e-5)


def test_a_flat_image_standardised_first_is_zero() -> None:
    flat = torch.full((2, 1, 12, 12), 200, dtype=torch.uint8)
    assert view(flat, Training(crop=6, standardise="first")).abs().max() < 1e-4


@pytest.mark.parametrize("standardise", [None, "first", "last"])
@pytest.mark.parametrize("change", [{}, {"crop": 7}, {"shift": 2, "crop": 7, "flip": True}])
def test_channels_come_last_in_memory(standardise: str | None, change: dict[str, Any]) -> None:
    arrays = split(channels=3)
    shown = view(torch.tensor(arrays.images), Training(standardise=standardise, **change))
    for images in (batches(arrays, standardise=standardise, **change)(0)["images"], shown):
        assert images.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("value", [True, False, "frist", 1])
def test_standardise_is_first_last_or_null(value: object) -> None:
    with pytest.raises(UserError, match=r"\Ahere: standardise: [^\n]*'first' or 'last'[^\n]*\Z"):
        check(Training, {"standardise": value}, "here")


def test_the_test_view_is_the_centre() -> None:
    images = torch.tensor(split(2).images)
    training = Training(crop=6, flip=True, brightness=9, contrast=(0.5, 2))
    assert torch.equal(view(images, training), images[:, :, 3:9, 3:9] / 255)
    assert view_shape((1, 12, 12), training) == (1, 6, 6)
    assert view(images, Training(crop=6, standardise="last")).mean().abs() < 1e-6


@pytest.mark.parametrize("standardise", [None, "first", "last"])
def test_padding_comes_first(standardise: str | None) -> None:
    """The result is that of a data set that was padded before, in training and in evaluation."""
    small, changes = (
        split(n=16, channels=3),
        {"crop": 13, "flip": True, "contrast": (0.5, 2), "standardise": standardise},
    )
    images = np.pad(small.images, ((0, 0), (0, 0), (3, 3), (3, 3)))
    large = Arrays(images, small.labels, {}, small.record)
    made = batches(small, pad=3, shift=3, **changes)(2)["images"]
    assert torch.equal(made, batches(large, shift=3, **changes)(2)["images"])
    assert made.shape == (16, 3, 13, 13)
    shown = view(torch.tensor(small.images), Training(pad=3, **changes))
    assert torch.equal(shown, view(torch.tensor(images), Training(**changes)))
    assert view_shape((3, 12, 12), Training(pad=3, **changes)) == (3, 13, 13)


def test_padding_alone_is_a_border_of_zeros() -> None:
    arrays = split(n=16)
    shown = view(torch.tensor(arrays.images), Training(pad=2))
    assert torch.equal(shown[:, :, 2:14, 2:14], torch.tensor(arrays.images) / 255)
    assert shown.sum() == pytest.approx(float((torch.tensor(arrays.images) / 255).sum()))
    assert view_shape((1, 12, 12), Training(pad=2)) == (1, 16, 16)
    made = batches(arrays, pad=2)(0)["images"]
    assert made.shape == (16, 1, 16, 16)
    assert made.is_contiguous(memory_format=torch.channels_last)


def test_a_shift_after_padding_keeps_all_ink() -> None:
    arrays = split(n=16)
    plain, moved = batches(arrays)(0)["images"], batches(arrays, pad=4, shift=4)(0)["images"]
    torch.testing.assert_close(moved.sum((1, 2, 3)), plain.sum((1, 2, 3)))
    places = {tuple(image[0].nonzero().amin(0).tolist()) for image in moved}
    assert len(places) > 8


def test_pairs_show_two_digits_of_different_classes() -> None:
    arrays = split(pairs=50, shift=2)
    pairs = images_of(arrays, CPU)
    assert isinstance(pairs, ImagePairs)
    assert len(pairs) == 40 * 50
    indices = torch.arange(0, 2000, 7)
    made = pairs(indices)
    assert made["labels"].shape == (len(indices), 2)
    assert (made["labels"][:, 0] == torch.tensor(arrays.labels)[indices % 40]).all()
    assert (made["labels"][:, 0] != made["labels"][:, 1]).all()
    both = made["parts"].int().sum(1).clamp_max(255)
    assert torch.equal(both.byte(), made["images"])


def test_parts_of_a_pair_are_the_digits_shifted() -> None:
    arrays = split(n=12, pairs=3, shift=2)
    digits = torch.tensor(arrays.images[:, 0])
    made = images_of(arrays, CPU)(torch.arange(36))
    reach = [(y, x) for y in range(-2, 3) for x in range(-2, 3)]
    shifted = torch.stack([torch.stack([reference.shift(digit, *s) for s in reach]) for digit in digits])
    for index in range(36):
        first, second = ((shifted == made["parts"][index, part, 0]).all(3).all(2) for part in (0, 1))
        assert first[index % 12].sum() == 1
        assert arrays.labels[second.any(1).numpy()] == made["labels"][index, 1].numpy()


def test_a_digit_has_one_shift_in_all_its_pairs_and_many_partners() -> None:
    made = images_of(split(pairs=50, shift=2), CPU)(3 + 40 * torch.arange(50))
    assert (made["parts"][:, 0] == made["parts"][0, 0]).all()
    assert len({part.numpy().tobytes() for part in made["parts"][:, 1]}) > 30


def test_partners_are_uniform_among_the_other_classes() -> None:
    arrays = split(n=10, pairs=20_000, shift=0)
    pairs = ImagePairs(arrays, CPU)
    base = torch.zeros(20_000, dtype=torch.int64)
    partners = pairs._partner(base, 10 * torch.arange(20_000))
    others = torch.tensor([n for n in range(10) if arrays.labels[n] != arrays.labels[0]])
    counts = partners.bincount(minlength=10)
    assert counts.sum() == counts[others].sum()
    expected = 20_000 / len(others)
    assert ((counts[others] - expected).abs() < 5 * expected**0.5).all()


def test_draws_depend_on_seed_and_counter_alone() -> None:
    counters = torch.arange(1000)
    one = drawn("a", counters, 9)
    assert torch.equal(one, drawn("a", counters, 9))
    assert torch.equal(one[500:], drawn("a", counters[500:], 9))
    assert (one != drawn("b", counters, 9)).float().mean() > 0.8
    assert one.bincount(minlength=9).min() > 70
    # SplitMix64 with Python's integers.
    start = int.from_bytes(hashlib.sha256(b"a").digest()[:8], "little")
    for counter in (0, 7, 999):
        word = ((counter + 1) * 0x9E3779B97F4A7C15 + start) % 2**64
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
        assert int(one[counter]) == ((word ^ word >> 31) % 2**63) % 9


def test_training_on_pairs_goes_through_all_digits_with_a_new_partner_each_pass() -> None:
    arrays = split(n=16, pairs=3, shift=2)
    made = batches(arrays)
    passes = [made(step) for step in range(4)]
    assert passes[0]["parts"].shape == (16, 2, 1, 12, 12)
    assert passes[0]["parts"].dtype == torch.float32
    assert all(sorted(p["labels"][:, 0].tolist()) == sorted(arrays.labels.tolist()) for p in passes)

    def shown(number: int) -> set[bytes]:
        return {image.numpy().tobytes() for image in passes[number]["images"]}

    assert len(shown(0) & shown(1)) <= 2
    assert shown(0) == shown(3)


@pytest.mark.parametrize("change", [{"pad": 2}, {"shift": 2}, {"crop": 8}, {"flip": True}, {"standardise": "first"}])
def test_changes_that_pairs_do_not_support_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=rf"training\.{next(iter(change))}: not supported for pairs"):
        batches(split(pairs=3, shift=2), **change)


def test_a_crop_larger_than_the_image_is_refused() -> None:
    with pytest.raises(UserError, match=r"training\.crop: 14, but the images are only 12x12"):
        view_shape((1, 12, 12), Training(crop=14))
    with pytest.raises(UserError, match=r"training\.crop: 15, but the images are only 14x14"):
        view_shape((1, 12, 12), Training(crop=15, pad=1))


def test_plain_splits_are_not_pairs() -> None:
    made = images_of(split(), CPU)
    assert type(made) is Images
    assert "parts" not in made(torch.arange(3))
