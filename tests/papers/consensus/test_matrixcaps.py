"""Matrix capsules: the sizes of table 1, and that each routing learns in them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from recaps.config.training import Training
from recaps.models import build
from recaps.nn import kernels
from recaps.nn.fields import everything
from recaps.nn.kernels import connectionist, em, similarity
from recaps.nn.losses.spread import spread_loss
from recaps.nn.matrix_capsules import PrimaryMatrixCapsules, Transformations, coordinates
from recaps.nn.routing.interface import matrix_votes
from recaps.papers.consensus import probes
from recaps.papers.consensus.matrixcaps import MatrixCaps, spread_margin
from recaps.papers.consensus.options import MatrixCapsOptions

pytestmark = pytest.mark.unit

ROUTINGS = ("em", "similarity", "connectionist")
#: The compiled function of each routing.
KERNELS = {
    "em": (em, "fused_em_routing"),
    "similarity": (similarity, "fused_clusters"),
    "connectionist": (connectionist, "fused_lstm_routing"),
}


def model(shape: tuple[int, int, int] = (1, 28, 28), classes: int = 10, **options: Any) -> MatrixCaps:
    torch.manual_seed(0)
    built = build(MatrixCapsOptions(**options), shape, classes)
    assert isinstance(built, MatrixCaps)
    return built


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """From 0 to 1."""
    return torch.rand(*shape, dtype=dtype, generator=torch.Generator().manual_seed(1))


# Layers


def test_primary_capsules_are_those_of_the_loop_over_rows_columns_and_types() -> None:
    torch.manual_seed(0)
    layer = PrimaryMatrixCapsules(5, 3).double()
    features = random(2, 5, 2, 4, dtype=torch.float64) - 0.5
    poses, activations = layer(features)
    place = 0
    for row in range(2):
        for column in range(4):
            for kind in range(3):
                own = slice(16 * kind, 16 * kind + 16)
                for image in range(2):
                    seen = features[image, :, row, column]
                    pose = (layer.pose.weight[own, :, 0, 0] @ seen + layer.pose.bias[own]).relu()
                    torch.testing.assert_close(poses[image, place], pose / (pose.square().sum().sqrt() + 1e-7))
                    logit = layer.activation.weight[kind, :, 0, 0] @ seen + layer.activation.bias[kind]
                    torch.testing.assert_close(activations[image, place], torch.sigmoid(logit))
                place += 1
    assert poses.shape == (2, place, 16)
    torch.testing.assert_close(poses.norm(dim=2), torch.ones(2, place, dtype=torch.float64), atol=1e-5, rtol=0)


def test_a_primary_pose_of_zeros_stays_one_and_has_a_gradient() -> None:
    layer = PrimaryMatrixCapsules(5, 3)
    with torch.no_grad():
        layer.pose.weight.zero_()
        layer.pose.bias.zero_()
    poses, _ = layer(random(2, 5, 2, 4))
    poses.sum().backward()
    assert not poses.any()
    assert layer.pose.weight.grad.isfinite().all()


def test_transformations_are_divided_by_their_norms() -> None:
    """Equation 1, but for constants that keep a matrix of zeros from a division by zero."""
    torch.manual_seed(0)
    layer = Transformations(everything(4), 3, None).double()
    with torch.no_grad():
        layer.weight[1, 1] *= 1e-3
        layer.weight[2, 0] = 0
        made = layer.normalised()
    for slot, row in enumerate(layer.weight.detach()):
        for kind, matrix in enumerate(row):
            squares = sum(float(entry) ** 2 for entry in matrix.flatten())
            torch.testing.assert_close(made[slot, kind], matrix / ((squares + 1e-5) ** 0.5 + 1e-6))
            if squares > 1:
                torch.testing.assert_close(made[slot, kind], matrix / squares**0.5, rtol=1e-5, atol=0)
    assert not made[2, 0].any()


def test_coordinates_are_counted_row_by_row_and_shared_by_all_types() -> None:
    expected = torch.zeros(2 * 3 * 4, 16)
    for row in range(2):
        for column in range(3):
            for kind in range(4):
                expected[(row * 3 + column) * 4 + kind, :2] = torch.tensor([(row + 0.5) / 2, (column + 0.5) / 3])
    torch.testing.assert_close(coordinates(2, 3, 4), expected)
    poses = random(2, 24, 16)
    layer = Transformations(everything(24), 3, coordinates(2, 3, 4))
    torch.testing.assert_close(layer.with_coordinates(poses), poses + expected)


# The network


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
        ("em", {"types": (4, 8, 8), "conv_channels": 16, "loss": "spread"}),
        ("similarity", {}),
        ({"name": "connectionist", "lstm_units": 4, "compatibility_layers": ((), (), ())}, {}),
    ],
)
def test_every_routing_learns(routing: str | dict[str, Any], options: dict[str, Any]) -> None:
    net = model(
        (1, 20, 20), 4, routing=routing, **{"conv_channels": 8, "types": (2, 4, 4), "compiled": False, **options}
    )
    net.configure(Training(learning_rate=3e-3 if routing == "em" else 1e-2, steps=80))
    images = torch.zeros(8, 1, 20, 20)
    for k in range(8):
        images[k, :, 4 * (k % 4) : 4 * (k % 4) + 4, 5 + k // 4 : 15] = 1
    batch = {"images": images, "labels": torch.arange(8) % 4}
    history = [net.training_step(batch, step) for step in range(80)]
    assert history[-1]["accuracy"] == 1
    assert net.latents(images)["capsules"].shape == (8, 4, 16)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_network_has_the_same_gradient_compiled_and_in_tensor_operations(
    routing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"name": routing} | ({"lstm_units": 4} if routing == "connectionist" else {})
    shape = {"conv_channels": 8, "types": (2, 4, 4)}
    net = model((1, 20, 20), 4, routing=settings, loss="spread", **shape)  # the logits do not use theta_3
    with torch.no_grad():  # initial values have gradients near zero
        for parameter in net.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    images = random(2, 1, 20, 20)
    gradients, compiled = [], []
    kernel, function = KERNELS[routing]
    fused = getattr(kernel, function)
    monkeypatch.setattr(kernel, function, lambda *args: compiled.append(args) or fused(*args))
    for context, calls in ((nullcontext(), len(net.layers)), (kernels.off(), 0)):
        net.zero_grad()
        compiled.clear()
        with context:
            net.class_scores(images).square().sum().backward()
        assert len(compiled) == calls
        gradients.append({name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys() == dict(net.named_parameters()).keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=0, atol=1e-7 + 1e-3 * float(gradient.abs().max()))


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("loss", ["spread", "cross_entropy"])
def test_logits_are_given_by_the_class_layer_for_a_softmax_alone(routing: str, loss: str) -> None:
    layers = model(routing=routing, loss=loss).layers
    assert [layer.routing.logits for layer in layers] == [False, False, loss == "cross_entropy"]


@pytest.mark.parametrize("routing", ROUTINGS)
def test_logits_are_those_of_the_activations(routing: str) -> None:
    images, shape = random(2, 1, 20, 20), {"conv_channels": 8, "types": (2, 4, 4)}
    spread = model((1, 20, 20), 4, routing=routing, loss="spread", **shape)
    softmax = model((1, 20, 20), 4, routing=routing, loss="cross_entropy", **shape)
    softmax.load_state_dict(spread.state_dict())
    if routing == "similarity":  # theta_3 is not in the logits
        with torch.no_grad():
            spread.layers[2].routing.theta3.zero_()
    torch.testing.assert_close(softmax.class_scores(images).sigmoid(), spread.class_scores(images))


@pytest.mark.parametrize("routing", ROUTINGS)
def test_the_probe_returns_assignments_andeffective_shares(routing: str) -> None:
    net = model((1, 28, 28), 5, routing=routing, conv_channels=8, types=(2, 4, 3)).eval()
    with torch.inference_mode():
        found = probes.routing(net, random(2, 1, 28, 28), torch.tensor([1, 2]))
    assert found["coupling"].shape == (2, 3, 3, 3, 5)
    total = found["coupling"].sum(4) if routing == "em" else found["coupling"].sum((1, 2, 3))
    torch.testing.assert_close(total, torch.ones_like(total))
    shapes = [tuple(found[f"effective-{k}"].shape) for k in range(3)]
    assert shapes == [(2, 25, 4), (2, 9, 3), (2, 1, 5)]
    for k in range(3):
        assert (found[f"effective-{k}"] > 0).all()
        assert (found[f"effective-{k}"] < 1 + 1e-5).all()


def test_theeffective_share_counts_equal_parts() -> None:
    coupling = torch.tensor([0.25, 0.25, 0, 0, 0, 0]).view(1, 1, 6, 1)
    torch.testing.assert_close(probes.effective_share(coupling), torch.full((1, 1, 1), 2 / 6))


def test_nothing_of_a_network_stays_behind_when_it_moves() -> None:
    """All tensors, those that say which capsules are seen among them: on a GPU the routing would fail otherwise."""
    for layer in model().to("meta").layers:
        poses = torch.zeros(2, layer.fields.inputs, 16, device="meta")
        votes = matrix_votes(layer.transform.with_coordinates(poses), layer.transform.normalised(), layer.fields)
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
