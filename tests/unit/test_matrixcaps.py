"""Matrix capsules: the sizes of table 1, and that each routing learns in them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from recaps.config.models.matrixcaps import Options
from recaps.config.training import Training
from recaps.models import build
from recaps.models.matrixcaps import MatrixCaps, effective_share, spread_margin
from recaps.nn.losses import spread_loss
from recaps.nn.routing.em import EMRouting, em_routing
from recaps.nn.routing.matrix import matrix_votes

pytestmark = pytest.mark.unit

ROUTINGS = ("em", "similarity", "connectionist")


def model(shape: tuple[int, int, int] = (1, 28, 28), classes: int = 10, **options: Any) -> MatrixCaps:
    torch.manual_seed(0)
    built = build(Options(**options), shape, classes)
    assert isinstance(built, MatrixCaps)
    return built


@pytest.mark.parametrize("routing", ROUTINGS)
def test_the_smallnorb_geometry_has_the_papers_weights(routing: str) -> None:
    """86,280 without batch normalisation and routing: 1,664 + 8,320 + 520 + 18,432 + 36,864 + 20,480."""
    net = model((1, 32, 32), 5, routing=routing)
    parts = {name: p.numel() for name, p in net.named_parameters() if "routing" not in name and "norm." not in name}
    assert sum(parts.values()) == 86_280
    assert [parts[f"layers.{k}.transform.weight"] for k in range(3)] == [18_432, 36_864, 20_480]


@pytest.mark.parametrize(
    ("shape", "sides"), [((1, 32, 32), [(6, 6), (4, 4), (1, 1)]), ((1, 28, 28), [(5, 5), (3, 3), (1, 1)])]
)
def test_the_layers_have_the_sizes_of_table_1(shape: tuple[int, int, int], sides: list[tuple[int, int]]) -> None:
    assert [(layer.fields.height, layer.fields.width) for layer in model(shape).layers] == sides


@pytest.mark.parametrize(
    ("routing", "options"),
    [
        ("em", {"types": (4, 8, 8), "conv_channels": 16}),
        ("similarity", {"loss": "cross_entropy"}),
        ("connectionist", {"lstm_units": 4, "compatibility_layers": ((), (), ())}),
    ],
)
def test_every_routing_learns(routing: str, options: dict[str, Any]) -> None:
    net = model((1, 20, 20), 4, routing=routing, **{"conv_channels": 8, "types": (2, 4, 4), **options})
    net.configure(Training(learning_rate=3e-3 if routing == "em" else 1e-2, steps=80))
    images = torch.zeros(8, 1, 20, 20)
    for k in range(8):
        images[k, :, 4 * (k % 4) : 4 * (k % 4) + 4, 5 + k // 4 : 15] = 1
    batch = {"images": images, "labels": torch.arange(8) % 4}
    history = [net.training_step(batch, step) for step in range(80)]
    assert history[-1]["accuracy"] == 1
    assert net.latents(images)["capsules"].shape == (8, 4, 16)


def test_the_compiled_routing_is_the_one_that_trains() -> None:
    """The same gradient by way of the compiled routine and of automatic differentiation."""
    net = model((1, 20, 20), 4, conv_channels=8, types=(2, 4, 4)).double()
    images = torch.rand(2, 1, 20, 20, dtype=torch.float64)
    gradients = []
    for forward in (EMRouting.forward, _eager):
        net.zero_grad()
        for layer in net.layers:
            layer.routing.forward = forward.__get__(layer.routing)
        net.class_scores(images).square().sum().backward()
        gradients.append({name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-5, atol=1e-9)


def _eager(routing: EMRouting, poses: Any, activations: Any, weight: Any, fields: Any) -> Any:
    return em_routing(poses, activations, weight, fields, routing.beta_u, routing.beta_a, routing.temperatures)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_the_probe_tells_how_capsules_are_assigned(routing: str) -> None:
    net = model((1, 28, 28), 5, routing=routing, conv_channels=8, types=(2, 4, 3)).eval()
    with torch.inference_mode():
        found = net.probes()["routing"](torch.rand(2, 1, 28, 28), torch.tensor([1, 2]))
    assert found["coupling"].shape == (2, 3, 3, 3, 5)
    total = found["coupling"].sum(4) if routing == "em" else found["coupling"].sum((1, 2, 3))
    torch.testing.assert_close(total, torch.ones_like(total))
    shapes = [tuple(found[f"effective-{k}"].shape) for k in range(3)]
    assert shapes == [(2, 25, 4), (2, 9, 3), (2, 1, 5)]
    for k in range(3):
        assert (found[f"effective-{k}"] > 0).all()
        assert (found[f"effective-{k}"] < 1 + 1e-5).all()


def test_the_effective_share_is_that_of_so_many_equal_parts() -> None:
    coupling = torch.tensor([0.25, 0.25, 0, 0, 0, 0]).view(1, 1, 6, 1)
    torch.testing.assert_close(effective_share(coupling), torch.full((1, 1, 1), 2 / 6))


def test_nothing_of_a_network_stays_behind_when_it_moves() -> None:
    """All tensors, those that say which capsules are seen among them: on a GPU the routing would fail otherwise."""
    for layer in model().to("meta").layers:
        poses = torch.zeros(2, layer.fields.inputs, 16, device="meta")
        votes = matrix_votes(layer.transform.placed(poses), layer.transform.normalised(), layer.fields)
        assert votes.is_meta
        assert layer.fields.children.is_meta


@pytest.mark.parametrize("side", [24, 32])
def test_images_of_another_size_are_refused(side: int) -> None:
    with pytest.raises(ValueError, match="input capsules, but the layer was built for 1152"):
        model(coordinates=False)(torch.zeros(1, 1, side, side))


def test_spread_loss_counts_every_class_that_comes_too_close() -> None:
    activations = torch.tensor([[0.9, 0.2, 0.8], [0.1, 0.5, 0.3]])
    losses = spread_loss(activations, torch.tensor([0, 1]), margin=0.5)
    torch.testing.assert_close(losses, torch.tensor([0.4**2, 0.1**2 + 0.3**2]))


def test_the_margin_grows() -> None:
    assert spread_margin(0, 1000) == pytest.approx(0.2 + 0.79 / (1 + 2.718281828**4))
    assert spread_margin(999, 1000) == pytest.approx(0.2 + 0.79 / (1 + 2.718281828**-5.99), abs=1e-3)
