"""The stacked capsule autoencoder: densities and losses against loops, who learns from what, readings, resuming."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pandas as pd
import pytest
import reference
import resuming
import torch
from torch import Tensor
from torch.distributions import Normal
from torch.nn.functional import logsigmoid

from recaps.arrays import read
from recaps.config.training import Training
from recaps.errors import UserError
from recaps.models import build
from recaps.nn.poses import bounded_pose
from recaps.papers.probabilistic import figures
from recaps.papers.probabilistic import template_mixture as mixtures
from recaps.papers.probabilistic.options import SCAEOptions
from recaps.papers.probabilistic.rmsprop import RMSProp
from recaps.papers.probabilistic.scae import SCAE, Attention, Capsules, Parts, entropies, vote_mixture
from recaps.papers.probabilistic.template_mixture import template_mixture

pytestmark = pytest.mark.unit

SMALL: dict[str, Any] = {
    "parts": 5,
    "objects": 4,
    "template_size": 3,
    "features": 6,
    "channels": 8,
    "width": 8,
    "layers": 2,
    "object_width": 12,
    "object_dim": 7,
    "hidden": 10,
}
SHAPE = (1, 28, 28)


def test_without_labels_the_sparsity_losses_assume_ten_classes() -> None:
    """One class for all images would ask for all objects in each."""
    assert build(SCAEOptions(**SMALL), SHAPE, 1).classes == 10
    assert build(SCAEOptions(**SMALL), SHAPE, 3).classes == 3


def model(shape: tuple[int, int, int] = SHAPE, **options: Any) -> SCAE:
    torch.manual_seed(0)
    built = build(SCAEOptions(**(SMALL | options)), shape, 10)
    assert isinstance(built, SCAE)
    return built


def some(n: int, shape: tuple[int, int, int] = SHAPE) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(n, *shape, generator=generator)
    return {"images": images, "labels": torch.randint(10, (n,), generator=generator)}


# The picture's likelihood


def mixture_by_loops(
    images: Tensor, drawn: Tensor, colours: Tensor, log_presence: Tensor, background: Tensor, logit: Tensor
) -> tuple[Tensor, Tensor]:
    """One pixel at a time, in densities rather than their logarithms."""
    batch, channels, height, width = images.shape
    likelihoods, means = [], []
    for b in range(batch):
        total = images.new_zeros(())
        for c in range(channels):
            for y in range(height):
                for x in range(width):
                    weights, values = [logit.exp()], [background]
                    for j in range(drawn.shape[1]):
                        weights.append(log_presence[b, j].exp() * drawn[b, j, channels, y, x].exp())
                        values.append(colours[b, j, c] * drawn[b, j, c, y, x])
                    densities = [Normal(value, 1.0).log_prob(images[b, c, y, x]).exp() for value in values]
                    joint = sum(w * d for w, d in zip(weights, densities, strict=True))
                    total = total + (joint / sum(weights)).log()
                    means.append(sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights))
        likelihoods.append(total)
    return torch.stack(likelihoods), torch.stack(means).reshape(images.shape)


def mixture_arguments(batch: int, parts: int, channels: int) -> tuple[Tensor, ...]:
    return (
        reference.random(batch, channels, 3, 4).detach(),
        reference.random(batch, parts, channels + 1, 3, 4, seed=1),
        reference.random(batch, parts, channels, seed=2),
        logsigmoid(reference.random(batch, parts, seed=3)),
        reference.random(seed=4),
        reference.random(seed=5),
    )


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("chunk", [1, 2**19])
def test_the_pictures_mixture_matches_the_loops_in_value_and_gradient(
    channels: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixtures, "CHUNK", chunk)
    arguments = mixture_arguments(3, 2, channels)
    (fast, mean), (slow, expected) = template_mixture(*arguments), mixture_by_loops(*arguments)
    torch.testing.assert_close(fast, slow)
    torch.testing.assert_close(mean, expected)
    assert not mean.requires_grad
    direction = torch.randn_like(slow)
    ours, theirs = (torch.autograd.grad(each, arguments[1:], direction) for each in (fast, slow))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_the_pictures_mixture_survives_extreme_weights() -> None:
    images, drawn, colours, _, background, logit = mixture_arguments(2, 2, 1)
    drawn = (drawn + torch.tensor([0.0, 500.0])[:, None, None]).detach().float().requires_grad_()
    presence = torch.tensor([[-1e8, 0.0], [-1e8, -1e8]], requires_grad=True)
    found = template_mixture(
        images.float(), drawn, colours.detach().float(), presence, background.float(), logit.float()
    )
    found.log_likelihood.sum().backward()
    assert torch.isfinite(found.log_likelihood).all()
    for each in (drawn, presence):
        assert each.grad is not None
        assert torch.isfinite(each.grad).all()
    # Of one template in the first picture, of the background in the second.
    template = Normal(colours[0, 1] * drawn[0, 1, 0], 1.0).log_prob(images[0, 0]).sum()
    torch.testing.assert_close(found.log_likelihood[0].double(), template.double())
    alone = Normal(background, 1.0).log_prob(images[1]).sum()
    torch.testing.assert_close(found.log_likelihood[1].double(), alone, rtol=1e-5, atol=1e-5)


def test_the_pictures_are_the_templates_in_colour_where_the_poses_put_them() -> None:
    net, images = model((2, 28, 28)).eval(), some(2, (2, 28, 28))["images"]
    parts = net.parts(images)
    half = torch.tensor([[0.5, 0.0, 0.5], [0.0, 0.5, 0.5]])
    with torch.no_grad():
        net.templates.alphas[0] = 40.0
        net.templates.logits[0] = torch.tensor([0.5, -1.0])[:, None, None]
        only_first = Parts(half.expand(2, 5, 2, 3), parts.features, parts.logits + torch.tensor([60.0] + [-60.0] * 4))
        mean = net.pictures(only_first, images).mean
        colours = net.templates.colours(parts.features)
    # In the lower right quarter, but for its rim.
    expected = colours[:, 0] * torch.tensor([0.5, -1.0]).sigmoid()
    torch.testing.assert_close(mean[:, :, 17:25, 17:25], expected[..., None, None].expand(2, 2, 8, 8))
    # Elsewhere the part speaks for black, with a weight of e^0; the background's logit is softplus(0), its weight 2.
    grey = net.templates.background.detach().sigmoid() * 2 / 3
    torch.testing.assert_close(mean[:, :, :11, :11], grey.expand(2, 2, 11, 11))


# Poses and votes


def test_a_pose_is_a_shear_of_scales_of_a_rotation() -> None:
    raw = reference.random(50, 6)
    made = bounded_pose(*raw.unbind(1))
    for numbers, matrix in zip(raw, made, strict=True):
        scales = numbers[:2].sigmoid() + 0.01
        cos, sin = (2 * math.pi * numbers[2]).cos(), (2 * math.pi * numbers[2]).sin()
        shear, right, down = (5 * numbers[3:]).tanh()
        one = torch.ones_like(cos)
        sheared = torch.stack([one, shear, 0 * one, one]).reshape(2, 2)
        rotation = torch.stack([cos, -sin, sin, cos]).reshape(2, 2)
        torch.testing.assert_close(matrix[:, :2], sheared @ scales.diag() @ rotation)
        torch.testing.assert_close(matrix[:, 2], torch.stack([right, down]))


def test_the_mixture_of_votes_matches_the_loops() -> None:
    poses, votes = reference.random(2, 3, 2, 3), reference.random(2, 4, 3, 2, 3, seed=1)
    scales, log_presence = reference.random(2, 4, 3, seed=2).exp(), logsigmoid(reference.random(2, 4, 3, seed=3))
    densities, posterior = vote_mixture(poses, votes, scales, log_presence)
    for b in range(2):
        for j in range(3):
            joint = [
                log_presence[b, k, j].exp() * Normal(votes[b, k, j], scales[b, k, j]).log_prob(poses[b, j]).sum().exp()
                for k in range(4)
            ]
            dummy = 0.01 * 0.01  # weight and density
            torch.testing.assert_close(densities[b, j], (sum(joint) + dummy).log())
            torch.testing.assert_close(posterior[b, :, j], torch.stack(joint) / (sum(joint) + dummy))


def test_what_no_object_votes_for_is_the_dummys() -> None:
    densities, posterior = vote_mixture(
        torch.full((1, 2, 2, 3), 1e4), torch.zeros(1, 3, 2, 2, 3), torch.full((1, 3, 2), 0.01), torch.zeros(1, 3, 2)
    )
    torch.testing.assert_close(densities, torch.full((1, 2), -4 * math.log(10)))
    assert not posterior.any()


# Losses


def test_entropies_match_the_loops() -> None:
    mass = torch.tensor([[2.0, 1.0, 1.0], [0.0, 3.0, 0.0], [0.0, 0.0, 0.0]], requires_grad=True)
    within, between = entropies(mass)
    expected = [1.5 * math.log(2), 0.0, 0.0]
    assert within.item() == pytest.approx(sum(expected) / 3)
    shares = [2 / 7, 4 / 7, 1 / 7]
    assert between.item() == pytest.approx(-sum(share * math.log(share) for share in shares))
    (within - between).backward()
    assert mass.grad is not None
    assert torch.isfinite(mass.grad).all()


@pytest.mark.parametrize(("constant", "expected"), [(None, 0.4), (4.3, 4.3)])
def test_the_losses_are_what_the_released_code_adds_up(constant: float | None, expected: float) -> None:
    net, batch = model(within_constant=constant), some(6)
    found = net.losses(batch)
    net.noise.schedule(0)  # the same noise again
    parts = net.parts(batch["images"])
    objects = net.objects(parts)
    of_images = sum(float((sum(objects.presence[b, k].detach() for k in range(4)) - expected) ** 2) for b in range(6))
    assert found["prior_within"].item() == pytest.approx(of_images / 6, rel=1e-4)
    of_objects = sum(float((sum(objects.presence[b, k].detach() for b in range(6)) - 6 / 10) ** 2) for k in range(4))
    assert found["prior_between"].item() == pytest.approx(of_objects / 4, rel=1e-4)
    assert found["dynamic"].item() == pytest.approx(float((objects.offsets.detach() ** 2).sum()) / 2 / 6, rel=1e-4)
    likelihood = net.pictures(parts, batch["images"]).log_likelihood.mean()
    torch.testing.assert_close(found["image"], -likelihood)
    torch.testing.assert_close(found["poses"], -objects.log_likelihood.mean())
    within, between = entropies(objects.posterior.sum(2))
    torch.testing.assert_close(found["posterior_within"], within)
    torch.testing.assert_close(found["posterior_between"], between)
    total = (
        found["image"]
        + found["poses"]
        + 10 * found["dynamic"]
        + 0.7 * found["posterior_within"]
        - 0.2 * found["posterior_between"]
        + 2 * found["prior_within"]
        + 0.35 * found["prior_between"]
        + found["probes"]
    )
    torch.testing.assert_close(found["loss"], total)


def test_poses_count_as_much_as_parts_are_present() -> None:
    net, images = model().eval(), some(2)["images"]
    parts = net.parts(images)
    absent = net.objects(parts._replace(logits=torch.full_like(parts.logits, -100.0)))
    torch.testing.assert_close(absent.log_likelihood, torch.zeros(2))
    present = net.objects(parts._replace(logits=torch.full_like(parts.logits, 100.0)))
    assert (present.log_likelihood.abs() > 1).all()


def test_prior_presence_is_the_objects_times_its_surest_parts() -> None:
    net, images = model().eval(), some(3)["images"]
    seen: list[Capsules] = []
    net.object_decoder.register_forward_hook(lambda layer, inputs, capsules: seen.append(capsules))
    found = net.objects(net.parts(images))
    assert found.presence.shape == found.mass.shape == (3, 4)
    expected = seen[0].object_logits.sigmoid() * seen[0].part_logits.sigmoid().amax(2)
    torch.testing.assert_close(found.presence, expected)
    with torch.no_grad():
        net.object_decoder.bias[:, 6] = -1e4  # of the objects' own presences, behind six numbers of a pose
    assert not net.objects(net.parts(images)).presence.any()


# Who learns from what


def learners(net: SCAE, loss: Tensor) -> set[str]:
    """Names of the parameters that have a gradient other than zero."""
    named = dict(net.named_parameters())
    gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True, retain_graph=True)
    return {name for name, each in zip(named, gradients, strict=True) if each is not None and each.any()}


def test_gradients_stop_between_pictures_and_objects() -> None:
    net, batch = model(), some(8)
    losses = net.losses(batch)
    of_pictures = {name for name, _ in net.named_parameters() if name.startswith(("part_encoder.", "templates."))}
    assert learners(net, losses["image"]) == of_pictures
    explained = losses["poses"] + losses["prior_within"] + losses["posterior_within"]
    touched = learners(net, explained)
    assert not any(name.startswith(("templates.", "prior_probe.", "posterior_probe.")) for name in touched)
    assert "object_decoder.relations" in touched
    # Of what the part encoder gives, features alone, which lie between a pose and the logit of a presence.
    (weight,) = torch.autograd.grad(explained, [net.part_encoder.pooling.layer.bias], retain_graph=True)
    of_parts = weight.unflatten(0, (5, 6 + 6 + 1 + 1))
    assert of_parts[:, 6:12].any()
    assert not of_parts[:, :6].any()
    assert not of_parts[:, 12].any()


def test_labels_teach_nothing_but_the_probes() -> None:
    net, batch = model(), some(8)
    losses = net.losses(batch)
    assert learners(net, losses["probes"]) == {
        f"{probe}_probe.{kind}" for probe in ("prior", "posterior") for kind in ("weight", "bias")
    }
    named = {name: each for name, each in net.named_parameters() if "_probe" not in name}
    gradients = torch.autograd.grad(losses["loss"], list(named.values()))
    net.noise.schedule(0)  # the same noise again
    others = net.losses(batch | {"labels": (batch["labels"] + 1) % 10})
    assert others["probes"] != losses["probes"]
    for one, other in zip(gradients, torch.autograd.grad(others["loss"], list(named.values())), strict=True):
        assert torch.equal(one, other)


def test_accuracies_are_those_of_the_probes() -> None:
    net, batch = model(), some(8)
    with torch.no_grad():
        for probe, answer in ((net.prior_probe, 3), (net.posterior_probe, 5)):
            probe.weight.zero_()
            probe.bias.copy_(torch.arange(10) == answer)
    losses = net.losses(batch | {"labels": torch.tensor([3, 3, 3, 5, 5, 1, 2, 4])})
    assert float(losses["accuracy_prior"]) == pytest.approx(3 / 8)
    assert float(losses["accuracy_posterior"]) == pytest.approx(2 / 8)


# Attention


@torch.no_grad()
def test_attention_matches_the_loops() -> None:
    layer, queries, items, bias = Attention(4), torch.randn(3, 4), torch.randn(2, 5, 4), torch.randn(2, 5)
    found = layer(queries, items, bias)
    for b in range(2):
        for n in range(3):
            scores = [float(layer.query(queries[n]) @ layer.key(items[b, m])) / 2 + float(bias[b, m]) for m in range(5)]
            powers = [math.exp(score) for score in scores]
            seen = sum(p / sum(powers) * layer.value(items[b, m]) for m, p in enumerate(powers))
            torch.testing.assert_close(found[b, n], layer.out(seen))


@pytest.mark.parametrize(("attention", "alike"), [("most_present", True), ("weighted", False)])
def test_the_readings_of_attention(attention: str, alike: bool) -> None:
    """In the released code objects see what the part with the greatest presence is, and nothing else."""
    net = model(attention=attention)
    parts = torch.randn(2, 5, 6 + 1 + 6 + 9)
    presences = torch.tensor([[0.5, 0.6, 0.3, 0.9, 0.89], [0.5, 0.6, 0.3, 0.9, 0.89]])
    with torch.no_grad():
        changed = parts.clone()
        changed[:, 4] += 1.0
        before, after = (net.object_encoder(each, presences) for each in (parts, changed))
        assert torch.allclose(before, after, atol=1e-6) == alike
        assert torch.allclose(before[:, :1].expand_as(before), before, atol=1e-6) == alike
        moved = net.object_encoder(parts.index_fill(1, torch.tensor([3]), 0.0), presences)
    assert not torch.allclose(moved, before, atol=1e-3)


def test_absent_parts_are_not_attended_to() -> None:
    net = model(attention="weighted")
    parts, presences = torch.randn(2, 5, 6 + 1 + 6 + 9), torch.tensor([[0.9, 0.8, 0.0, 0.7, 0.6]]).expand(2, 5)
    with torch.no_grad():
        changed = parts.clone()
        changed[:, 2] += 1.0
        torch.testing.assert_close(net.object_encoder(parts, presences), net.object_encoder(changed, presences))


# Noise, shapes, initial values


def test_every_step_draws_noise_anew() -> None:
    net, data = model(), some(4)
    found = []
    for step in (0, 1, 0):
        net.noise.schedule(step)
        found.append(net.losses(data)["loss"])
    assert found[0] == found[2] != found[1]
    calm = model(noise_scale=0.0)
    losses = [calm.losses(data)["loss"] for _ in range(2)]
    assert losses[0] == losses[1]


def test_noise_is_uniform_and_as_wide_as_asked() -> None:
    net, images = model(noise_scale=3.0, parts=40), some(64)["images"]
    noise = (net.parts(images).logits - net.eval().parts(images).logits).flatten()
    assert -1.5 <= noise.min() < -1.4
    assert 1.4 < noise.max() <= 1.5
    assert abs(noise.mean()) < 0.1
    assert float(noise.detach().std()) == pytest.approx(3 / math.sqrt(12), rel=0.05)


def test_latents_depend_on_the_image_alone_unless_noise_is_asked_for() -> None:
    images = some(6)["images"]
    for noise_at_test in (False, True):
        net = model(noise_at_test=noise_at_test).eval()
        whole, single = net.latents(images), net.latents(images[3:4])
        assert {name: value.shape for name, value in whole.items()} == {
            "presence": (6, 4),
            "prior_presence": (6, 4),
            "reconstruction_error": (6,),
        }
        for name, value in whole.items():
            assert torch.allclose(single[name][0], value[3], rtol=1e-4) != noise_at_test, name


@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 40, 40), (2, 28, 36)])
def test_it_takes_canvases_of_all_shapes(shape: tuple[int, int, int]) -> None:
    net, batch = model(shape), some(3, shape)
    net.configure(Training(batch_size=3))
    with torch.autocast("cpu", torch.bfloat16):
        found = net.training_step(batch, 0)
        assert all(math.isfinite(value) for value in found.values())
        net.eval()
        with torch.inference_mode():
            pictures = net.pictures(net.parts(batch["images"]), batch["images"]).mean
            latents = net.latents(batch["images"])
    assert pictures.shape == (3, *shape)
    assert all(value.dtype == torch.float32 for value in (pictures, *latents.values()))
    error = (pictures - batch["images"]).square().sum((1, 2, 3))
    torch.testing.assert_close(latents["reconstruction_error"], error)


def test_an_image_may_be_too_small() -> None:
    with pytest.raises(UserError, match="images of 20x28 are too small"):
        model((1, 20, 28))


def test_templates_start_as_rows_of_a_rescaled_orthogonal_matrix() -> None:
    net = model(parts=6, template_size=11)
    rows = net.templates.logits.detach().flatten(1)
    assert rows.shape == (6, 121)
    torch.testing.assert_close(torch.stack([rows.min(), rows.max()]), torch.tensor([0.0, 1.0]))
    # Rescaled, all rows are of the same length about the same zero.
    differences = torch.cdist(rows, rows)[torch.triu_indices(6, 6, 1).unbind()]
    torch.testing.assert_close(differences, differences[0].expand_as(differences))
    assert not net.templates.alphas.any()


# Learning


def test_rmsprop_is_tensorflows() -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    unused = torch.nn.Parameter(torch.ones(1))
    optimizer = RMSProp([weight, unused], 0.1, epsilon=0.01)
    expected, square, moment = [1.0, -2.0], [1.0, 1.0], [0.0, 0.0]
    for step in range(5):
        gradient = [math.sin(step + 1.0), 3.0 * step]
        weight.grad = torch.tensor(gradient)
        optimizer.step()
        for i, g in enumerate(gradient):
            square[i] = 0.9 * square[i] + 0.1 * g * g
            moment[i] = 0.9 * moment[i] + 0.1 * g / math.sqrt(square[i] + 0.01)
            expected[i] -= moment[i]
        torch.testing.assert_close(weight.detach(), torch.tensor(expected))
    assert unused.item() == 1


def test_the_optimiser_has_the_released_epsilon() -> None:
    net = model()
    net.configure(Training(batch_size=128, learning_rate=3e-5))
    (group,) = net.optimizers()["rmsprop"].param_groups
    assert (group["lr"], group["momentum"], group["decay"]) == (3e-5, 0.9, 0.9)
    assert group["epsilon"] == pytest.approx(6.1035e-7, rel=1e-4)


def test_it_learns_a_few_digits(tmp_path: Path) -> None:
    data = read(resuming.digits(tmp_path, 16))
    images, labels = torch.tensor(data.images).float() / 255, torch.tensor(data.labels)
    net = model(template_size=11, parts=8, objects=8, channels=32)
    net.configure(Training(learning_rate=2e-3, lr_decay=1.0, batch_size=16))
    history = []
    for step in range(160):
        with torch.autocast("cpu", torch.bfloat16):
            history.append(net.training_step({"images": images, "labels": labels}, step))
    for name in ("loss", "image", "poses", "dynamic", "prior_within"):
        first, last = (torch.stack([row[name] for row in rows]).mean() for rows in (history[:5], history[-5:]))
        assert last < first, name
    mean = (images.mean(0) - images).square().sum((1, 2, 3)).mean()
    assert net.latents(images)["reconstruction_error"].mean() < 0.9 * mean


def test_a_run_that_was_cut_ends_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"model": {**SMALL, "family": "scae"}, "training": {"steps": 12, "batch_size": 8, "log_every": 5}}
    resuming.check(settings, tmp_path, [3, 7], monkeypatch)


def test_accuracies_are_drawn_at_the_steps_of_the_snapshots_and_at_the_last() -> None:
    accuracies = {
        "affnist-a": 20.0,
        "affnist": 60.0,
        "affnist-b": 40.0,
        "mnist-40-a": 70.0,
        "mnist-40": 90.0,
        "mnist-40-b": 80.0,
    }
    rows = [{"metric": f"presence-{name}", "value": value} for name, value in accuracies.items()]
    training = {"steps": 300, "snapshots": {"b": 200, "a": 100}}
    results = SimpleNamespace(
        paper=SimpleNamespace(variants={"scae": None}),
        metrics=pd.DataFrame(rows),
        config=lambda variant: {"training": training},
    )
    drawing, data = figures.by_steps(cast(Any, results))
    assert data["step"].tolist() == [100, 200, 300] * 2
    assert data["accuracy"].tolist() == [70, 80, 90, 20, 40, 60]
    assert [line.get_ydata().tolist() for line in drawing.axes[0].lines] == [[70, 80, 90], [20, 40, 60]]
