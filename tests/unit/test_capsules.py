"""SUPCAPS, dense and sparse capsules: sizes, masks, boosting, and that each of them learns."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import reference
import torch

from recaps.config.families import families
from recaps.config.training import Training
from recaps.errors import UserError
from recaps.models import build
from recaps.models.network import CapsuleNetwork
from recaps.models.supcaps import SupCaps
from recaps.papers.sparse import probes
from recaps.papers.sparse.options import SparseCapsOptions
from recaps.papers.sparse.sparsecaps import Boosting, SparseCaps

pytestmark = pytest.mark.unit

MNIST = (1, 28, 28)
SMALL: dict[str, Any] = {"conv_channels": 8, "primary_types": 4, "capsule_dim": 8, "decoder": (16,)}


def supervised(shape: tuple[int, int, int] = (1, 20, 20), **options: Any) -> SupCaps:
    torch.manual_seed(0)
    built = build(families()["supcaps"](**(SMALL | options)), shape, 10)
    assert isinstance(built, SupCaps)
    return built


def model(shape: tuple[int, int, int] = (1, 20, 20), **options: Any) -> SparseCaps:
    torch.manual_seed(0)
    built = build(SparseCapsOptions(**(SMALL | options)), shape, 10)
    assert isinstance(built, SparseCaps)
    return built


def parameters(options: Any, shape: tuple[int, int, int]) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build(options, shape, 10).parameters())


def test_supcaps_has_the_published_number_of_parameters() -> None:
    assert parameters(families()["supcaps"](), MNIST) == 8_215_728
    assert parameters(families()["supcaps"](decoder=None), MNIST) == 6_804_384


@pytest.mark.parametrize(("shape", "millions"), [(MNIST, 9.15), ((1, 40, 40), 17.06)])
def test_unsupervised_models_have_the_derived_number_of_parameters(
    shape: tuple[int, int, int], millions: float
) -> None:
    assert parameters(SparseCapsOptions(learning="sparse", capsules=16), shape) / 1e6 == pytest.approx(
        millions, abs=0.005
    )


def test_primary_capsules_lie_in_the_order_type_row_column() -> None:
    net = supervised()
    images = torch.rand(2, 1, 20, 20)
    features = net.conv(images).relu()
    poses = net.primary.conv(features) / 4
    type_, row, column, side = 3, 1, 0, poses.shape[2]
    raw = poses[1, type_ * 8 : type_ * 8 + 8, row, column] + 0.1
    expected = reference.squash(raw.detach())
    torch.testing.assert_close(net.primary(features)[1, type_ * side * side + row * side + column], expected)


@pytest.mark.parametrize("grouping", ["location", "released"])
def test_support_matches_the_loops(grouping: str) -> None:
    net = model(learning="sparse", capsules=5, mask_grouping=grouping)
    coupling = torch.rand(3, 4 * 9, 5)
    torch.testing.assert_close(net.support(coupling), reference.support(coupling, 4, grouping))


def test_the_two_readings_of_the_grouping_differ() -> None:
    coupling = torch.rand(3, 4 * 9, 5)
    one, other = (
        model(learning="sparse", capsules=5, mask_grouping=g).support(coupling) for g in ("location", "released")
    )
    assert not torch.allclose(one, other)


def test_sparse_mask_matches_the_loops_and_the_printed_values() -> None:
    boosting = Boosting(SparseCapsOptions(learning="sparse", capsules=16))
    support = torch.rand(6, 16)
    boosting.boost.copy_(1 + torch.rand(16))
    torch.testing.assert_close(boosting.mask(support), reference.sparse_mask(support, boosting.boost))
    values = boosting.mask(support)[0].sort(descending=True).values
    expected = torch.tensor([1, 0.449, 0.202, 0.091, 0.041, 0.018] + [0] * 10)
    torch.testing.assert_close(values, expected, atol=5e-4, rtol=0)


def test_boosting_matches_algorithm_1() -> None:
    options = SparseCapsOptions(learning="sparse", capsules=4, frequency_range=(0.2, 0.3), boost_every=5)
    ours, plain = Boosting(options), reference.Boosting(4, 0.2, 0.3, every=5)
    torch.manual_seed(0)
    for _ in range(60):
        support = torch.rand(16, 4) * torch.tensor([1.0, 1.2, 0.8, 0.5])
        plain.observe(ours.ranks(support).argmin(1).tolist())
        ours.observe(support)
    torch.testing.assert_close(ours.frequency, torch.tensor(plain.frequency), atol=1e-5, rtol=0)
    torch.testing.assert_close(ours.boost, torch.tensor(plain.boost), atol=1e-5, rtol=0)
    assert ours.boost.max() > 1.3
    assert ours.boost.min() == 1


def test_boosts_settle_before_the_end_of_training() -> None:
    options = SparseCapsOptions(learning="sparse", conv_channels=4, primary_types=2, boost_every=2, settle_steps=3)
    net = SparseCaps(options, (1, 20, 20))
    net.configure(Training(steps=8))
    batch = {"images": torch.rand(4, 1, 20, 20)}
    boosts = []
    for step in range(8):
        net.training_step(batch, step)
        boosts.append(net.boosting.boost.clone())
    changed = [bool((after != before).any()) for before, after in itertools.pairwise(boosts)]
    assert changed == [True, False, True, False, False, False, False], "after steps 2 and 4, but not 6 and 8"


def test_without_a_label_the_longest_capsule_is_decoded() -> None:
    capsules = torch.zeros(2, 10, 8)
    capsules[0, 3], capsules[1, 7] = 0.2, 0.2
    assert supervised().longest(capsules).argmax(1).tolist() == [3, 7]
    assert supervised().longest(capsules).sum() == 2


def test_only_unmasked_capsules_reach_the_decoder() -> None:
    net = supervised()
    capsules, mask = torch.rand(1, 10, 8), torch.zeros(1, 10)
    mask[0, 4] = 0.5
    changed = capsules.clone()
    changed[0, [0, 9]] = 0
    torch.testing.assert_close(net.decode(capsules, mask), net.decode(changed, mask))
    assert not torch.allclose(net.decode(capsules, mask), net.decode(capsules * 1.1, mask))


def test_loss_readings_differ_by_the_stated_factor() -> None:
    batch = {"images": torch.rand(4, 1, 20, 20), "labels": torch.tensor([1, 2, 3, 4])}
    released, paper = (supervised(loss_scale=scale).losses(batch)["margin"] for scale in ("released", "paper"))
    torch.testing.assert_close(released * 20, paper)


@pytest.mark.parametrize(
    ("options", "term"),
    [({}, "margin"), ({"learning": "dense", "capsules": 6}, "loss"), ({"learning": "sparse", "capsules": 6}, "loss")],
)
def test_every_way_of_learning_learns(options: dict[str, Any], term: str) -> None:
    net: CapsuleNetwork = model(**options) if "learning" in options else supervised(**options)
    net.configure(Training(learning_rate=3e-3))
    images = torch.zeros(8, 1, 20, 20)
    for k in range(8):
        images[k, :, 2 * k : 2 * k + 4, 5:15] = 1
    batch = {"images": images, "labels": torch.arange(8)}
    losses = [float(net.training_step(batch, step)[term]) for step in range(40)]
    assert losses[-1] < 0.6 * losses[0]


def test_latents_and_probes_have_the_documented_shapes() -> None:
    net = model(learning="sparse", capsules=6)
    images, labels = torch.rand(3, 1, 20, 20), torch.zeros(3, dtype=torch.int64)
    latents = net.latents(images)
    assert latents["capsules"].shape == (3, 6, 8)
    assert latents["support"].shape == latents["mask"].shape == latents["ranks"].shape == (3, 6)
    assert latents["ranks"].sort(1).values.tolist() == [list(range(6))] * 3
    assert latents["reconstruction_error"].shape == (3,)
    single = probes.single_capsules(net, images, labels)
    assert single["single"].shape == single["without"].shape == (3, 6, 1, 20, 20)
    moved = probes.traversals(net, images, labels)
    assert moved["decoded"].shape == (3, 8, 11, 1, 20, 20)
    assert moved["values"][[0, -1]].tolist() == [-1, 1]


def test_a_capsule_for_every_class_is_needed() -> None:
    with pytest.raises(UserError, match=r"model\.capsules: 6, but the data has 10 classes"):
        supervised(capsules=6)


def test_images_too_small_are_refused() -> None:
    with pytest.raises(UserError, match="12x12 are too small"):
        model(shape=(1, 12, 12))
