"""The generative model: densities against Pyro and loops, drawing, inference, learning, probes."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import resuming
import torch
from pydantic import ValidationError
from pyro import poutine
from pyro.infer import TraceEnum_ELBO, config_enumerate
from torch import Tensor

from recaps.arrays import read
from recaps.config.training import Training
from recaps.models import build
from recaps.nn.poses import rotated, warp
from recaps.papers.probabilistic import diagrams, probes
from recaps.papers.probabilistic.capsules import Belief, GenerativeCapsules, Inferred, ObjectEncoder
from recaps.papers.probabilistic.compositing import over
from recaps.papers.probabilistic.generative_model import (
    Capsules,
    Generative,
    concrete,
    orthogonal_templates,
    starting_poses,
)
from recaps.papers.probabilistic.options import GenerativeOptions

pytestmark = pytest.mark.unit

SHAPE = (2, 9, 9)
SMALL: dict[str, Any] = {"objects": 3, "parts": 4, "template_size": 5, "channels": 6, "width": 8, "heads": 2}
SMALL |= {"points": 3, "layers": 1, "encoding": 5, "hidden": 7, "free_steps": 6, "free_samples": 2, "samples": 5}
READINGS = ("mixture", "geometric", "moments")


def model(shape: tuple[int, int, int] = SHAPE, **options: Any) -> GenerativeCapsules:
    torch.manual_seed(0)
    built = build(GenerativeOptions(**(SMALL | options)), shape, 10)
    assert isinstance(built, GenerativeCapsules)
    return built


def generative(**options: Any) -> Generative:
    """In float64, and with no two parameters alike."""
    net = model(**options).generative.double()
    torch.manual_seed(1)
    with torch.no_grad():
        for values in net.parameters():
            values += 0.3 * torch.randn_like(values)
    return net


def capsules(net: Generative, images: int = 5) -> tuple[Capsules, Capsules]:
    """Some objects and parts."""
    torch.manual_seed(2)
    objects, parts = net.relations.shape[:2]
    offsets = 0.3 * torch.randn(images, objects, 2, 3).double()
    poses = net.relations.detach().mean(0) + 0.3 * torch.randn(images, parts, 2, 3).double()
    return (
        Capsules(2 * torch.randn(images, objects).double(), offsets),
        Capsules(2 * torch.randn(images, parts).double(), poses),
    )


# The model as Pyro would have it


def pyro_model(net: Generative, images: Tensor) -> None:
    """Equations 1 to 7, with concrete presences; every selection is a choice that Pyro enumerates."""
    options, (objects, parts) = net.options, net.relations.shape[:2]
    temperature = torch.tensor(options.temperature).double()
    rows, columns = len(images), torch.arange(parts)
    with pyro.plate("images", rows, dim=-2):
        prior = torch.full((rows, 1, objects), options.object_probability).double()
        t0 = pyro.sample("t0", dist.RelaxedBernoulli(temperature, probs=prior).to_event(1))
        identity = torch.eye(2, 3).double()
        a0 = pyro.sample("A0", dist.Normal(torch.zeros(rows, 1, objects, 2, 3).double(), 1.0).to_event(3))
        present = torch.cat([torch.ones(rows, 1, 1).double(), t0], 2).squeeze(1)  # [B, n0 + 1]
        learned = (options.affinity_bound * (net.affinities / options.affinity_bound).tanh()).exp()
        rho = torch.cat([torch.full((1, parts), options.dummy_affinity).double(), learned])
        homogeneous = torch.tensor([0.0, 0, 1]).double()
        relations = torch.cat([net.relations, homogeneous.expand(objects, parts, 1, 3)], 2)
        means = torch.einsum("bikl,ijlm->bijkm", (identity + a0).squeeze(1), relations)
        means = torch.cat([torch.zeros(rows, 1, parts, 2, 3).double(), means], 1)
        widths = options.pose_deviation_floor + net.widths.exp().log1p()
        widths = torch.cat([torch.full((1, parts), options.dummy_deviation).double(), widths])
        gamma = net.appearances.sigmoid()
        with pyro.plate("parts", parts, dim=-1):
            weights = present[:, None, :] * rho.t()  # [B, n1, n0 + 1]
            s = pyro.sample("s", dist.Categorical(weights / weights.sum(2, keepdim=True)))
            t1 = pyro.sample("t1", dist.RelaxedBernoulli(temperature, probs=gamma[s, columns]))
            mean, width = means[torch.arange(rows)[:, None], s, columns], widths[s, columns][..., None, None]
            a1 = pyro.sample("A1", pose_density(options, t1, mean, width))
    picture = net.draw(Capsules(t1.logit(), a1)).mean
    with pyro.plate("pictures", rows):
        pyro.sample("X", dist.Normal(picture, options.pixel_deviation).to_event(3), obs=images)


def pose_density(options: GenerativeOptions, t: Tensor, mean: Tensor, width: Tensor) -> Any:
    """Of the pose of a part that is present to the degree t."""
    t, absent = t[..., None, None], options.absent_deviation
    if options.relaxed_pose == "moments":
        return dist.Normal(t * mean, t * width + (1 - t) * absent).to_event(2)
    if options.relaxed_pose == "geometric":
        precision = t / width**2 + (1 - t) / absent**2
        return dist.Normal(t / width**2 * mean / precision, precision**-0.5).to_event(2)
    means = torch.stack([mean, torch.zeros_like(mean)], -3)
    widths = torch.stack([width.expand_as(mean), torch.full_like(mean, absent)], -3)
    weights = torch.stack([t, 1 - t], -1)[..., 0, 0, :].expand(*mean.shape[:-2], 2)
    return dist.MixtureSameFamily(dist.Categorical(weights), dist.Normal(means, widths).to_event(2))


def pyro_guide(net: Generative, parts: Belief, objects: Belief) -> None:
    temperature = torch.tensor(net.options.temperature).double()
    with pyro.plate("images", len(parts.logits), dim=-2):
        t0 = dist.RelaxedBernoulli(temperature, logits=objects.logits.unsqueeze(1)).to_event(1)
        pyro.sample("t0", t0)
        pyro.sample("A0", pose_posterior(objects._replace(poses=objects.poses.unsqueeze(1))).to_event(1))
        with pyro.plate("parts", parts.logits.shape[1], dim=-1):
            pyro.sample("t1", dist.RelaxedBernoulli(temperature, logits=parts.logits))
            pyro.sample("A1", pose_posterior(parts))


def pose_posterior(belief: Belief) -> Any:
    if belief.log_deviations is None:
        return dist.Delta(belief.poses, event_dim=2)
    return dist.Normal(belief.poses, belief.log_deviations.exp()).to_event(2)


@pytest.mark.parametrize("relaxed_pose", READINGS)
@pytest.mark.parametrize("poses", ["delta", "gaussian"])
def test_joint_bound_and_posterior_of_selections_are_those_of_pyro(relaxed_pose: str, poses: str) -> None:
    """On the draws that Pyro makes of q; the sums over what parts belong to are Pyro's own enumeration."""
    family = model(relaxed_pose=relaxed_pose, poses=poses, temperature=0.7)
    net = family.generative = generative(relaxed_pose=relaxed_pose, poses=poses, temperature=0.7)
    log = None if poses == "delta" else torch.linspace(-3, -1, 6).view(2, 3).double()
    beliefs = [Belief(*each, log) for each in capsules(net)]
    images = torch.rand(5, *SHAPE).double()

    def guide() -> None:
        pyro_guide(net, beliefs[1], beliefs[0])

    @config_enumerate
    def joint() -> None:
        pyro_model(net, images)

    elbo = TraceEnum_ELBO(max_plate_nesting=2)
    pyro.set_rng_seed(3)
    trace = poutine.trace(guide).get_trace()
    drawn = {name: trace.nodes[name]["value"] for name in ("t0", "A0", "t1", "A1")}
    pyro.set_rng_seed(3)  # so that the same are drawn again
    expected = -elbo.loss(joint, guide)
    pyro.set_rng_seed(3)
    posterior = elbo.compute_marginals(joint, guide)["s"].probs

    objects = Capsules(drawn["t0"].squeeze(1).logit(), drawn["A0"].squeeze(1))
    parts = Capsules(drawn["t1"].logit(), drawn["A1"])
    bound = family.bound(images, Inferred(beliefs[1], parts, beliefs[0], objects))
    assert float(bound["bound"].sum().detach()) == pytest.approx(expected, rel=1e-9)
    torch.testing.assert_close(bound["bound"], bound["image"] + bound["parts"] + bound["objects"])
    # Pyro's densities are those of presences, ours those of their logits.
    change = sum(float((t * (1 - t)).log().sum()) for t in (drawn["t0"], drawn["t1"]))
    joints = net.joint(images, objects, parts)
    ours = float((joints.image + joints.parts + joints.objects).sum().detach()) - change
    assert ours == pytest.approx(expected + float(trace.log_prob_sum()), rel=1e-9)
    torch.testing.assert_close(net.selections(objects, parts).transpose(1, 2), posterior)
    assert posterior.detach().std() > 0.1


def test_selections_are_summed_out_as_if_every_choice_of_all_parts_were_tried() -> None:
    """Not part by part: over the 4^4 ways in which four parts can choose among three objects and the dummy."""
    net = generative()
    objects, parts = capsules(net)
    terms = net.by_selection(objects, parts)
    every = [terms[:, list(way), range(4)].sum(1) for way in itertools.product(range(4), repeat=4)]
    expected = torch.stack(every).logsumexp(0)
    torch.testing.assert_close(net.joint(torch.zeros(5, *SHAPE).double(), objects, parts).parts, expected)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_a_concrete_variable_is_drawn_from_its_density(temperature: float) -> None:
    belief = Belief(torch.full((25_000, 4), 1.5), torch.zeros(25_000, 4, 2, 3), None)
    drawn = model(temperature=temperature).draw(belief, "x").logits.double()
    assert float(drawn.std()) == pytest.approx(math.pi / math.sqrt(3) / temperature, rel=0.02)
    # P(t > 1/2) is the probability of the discrete variable, whatever the temperature.
    assert float((drawn.sigmoid() > 0.5).double().mean()) == pytest.approx(1 / (1 + math.exp(-1.5)), abs=0.005)
    inside = drawn[drawn.abs() < 8]
    theirs = torch.distributions.RelaxedBernoulli(torch.tensor(temperature).double(), logits=torch.tensor(1.5).double())
    density = theirs.log_prob(inside.sigmoid()) + (inside.sigmoid() * (-inside).sigmoid()).log()
    torch.testing.assert_close(concrete(inside, 1.5, temperature), density)
    assert torch.isfinite(concrete(torch.tensor([-200.0, 200.0]), 0.0, 1.0)).all()


def test_an_object_moves_its_parts_along() -> None:
    """(I + A) M in homogeneous coordinates, point by point."""
    net = generative()
    objects, _ = capsules(net)
    means, corner = net.expected(objects), torch.tensor([0.3, -0.7, 1]).double()
    for image, i, j in itertools.product(range(2), range(3), range(4)):
        whole = objects.poses[image, i] + torch.eye(2, 3).double()
        place = net.relations[i, j] @ corner
        moved = whole[:, :2] @ place + whole[:, 2]
        torch.testing.assert_close(means[image, i, j] @ corner, moved)


def test_an_absent_object_is_chosen_by_no_part() -> None:
    net = generative()
    objects, parts = capsules(net)
    objects.logits[:, 1] = -60
    shares = net.selections(objects, parts)
    assert shares[:, 2].max() < 1e-12
    torch.testing.assert_close(shares.sum(1), torch.ones(5, 4).double())
    objects.logits[:] = -60
    torch.testing.assert_close(net.selections(objects, parts)[:, 0], torch.ones(5, 4).double())


# Pictures


def a_on_b(colour_a: Tensor, alpha_a: Tensor, colour_b: Tensor, alpha_b: Tensor) -> tuple[Tensor, Tensor]:
    """The paper's operation: a on top of b."""
    alpha = alpha_a + alpha_b * (1 - alpha_a)
    colour = (colour_a * alpha_a + colour_b * alpha_b * (1 - alpha_a)) / alpha
    return torch.where(alpha > 0, colour, 0.0), alpha


@pytest.mark.parametrize("opaque", [False, True])
def test_compositing_is_the_papers_loop(opaque: bool) -> None:
    """From nothing and then held against black, or from opaque black: the same picture."""
    net = generative()
    _, parts = capsules(net)
    picture = net.draw(parts)
    drawn = warp(net.layers(), parts.poses / net.extent, SHAPE[1:])
    colour, alpha = torch.zeros(5, *SHAPE).double(), torch.full((5, 1, *SHAPE[1:]), float(opaque)).double()
    for j, t in enumerate(parts.logits.sigmoid().unbind(1)):
        colour, alpha = a_on_b(drawn[:, j, :-1], t[:, None, None, None] * drawn[:, j, -1:], colour, alpha)
    torch.testing.assert_close(picture.mean, colour * alpha)
    if not opaque:
        torch.testing.assert_close(picture.shares.sum(1, keepdim=True), alpha)


def test_what_lies_on_top_hides_the_rest() -> None:
    layers = torch.tensor([[1.0, 0.5], [1.0, 1.0], [1.0, 0.5]]).view(1, 3, 2, 1, 1)
    picture, shares = over(layers, torch.tensor([[1.0, 1.0, 0.5]]))
    assert shares.flatten().tolist() == [0, 0.75, 0.25]
    assert picture.item() == 1


def test_compositing_has_the_gradient_of_the_formula() -> None:
    torch.manual_seed(0)
    layers, presence = torch.rand(2, 5, 4, 3, 2).double().requires_grad_(), torch.rand(2, 5).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda *given: over(*given)[0], (layers, presence))


def test_an_absent_part_is_not_seen_and_the_identity_draws_a_template_as_it_is() -> None:
    net = generative(template_size=5)
    poses = torch.eye(2, 3).double().expand(1, 4, -1, -1).clone()
    logits = torch.full((1, 4), -torch.inf).double()
    assert net.draw(Capsules(logits, poses)).mean.abs().max() == 0
    logits[0, 2] = torch.inf
    picture = net.draw(Capsules(logits, poses)).mean[0]
    layers = net.layers()[2]
    torch.testing.assert_close(picture[:, 2:7, 2:7], layers[:-1] * layers[-1])
    assert picture[:, :1].abs().max() == 0


def test_the_unit_of_poses_can_be_the_canvas() -> None:
    """Then the identity fills it."""
    net = generative(template_size=9, extent=1.0, part_scale=0.5)
    poses = torch.eye(2, 3).double().expand(1, 4, -1, -1)
    logits = torch.tensor([[torch.inf, -torch.inf, -torch.inf, -torch.inf]]).double()
    layers = net.layers()[0]
    torch.testing.assert_close(net.draw(Capsules(logits, poses)).mean[0], layers[:-1] * layers[-1])
    start = starting_poses(net.options, SHAPE)
    assert (start[:, :, :2] == 0.5 * torch.eye(2)).all()
    assert 0 < start[:, :, 2].abs().max() <= net.options.part_spread


def test_samples_have_the_distribution_of_the_equations() -> None:
    net = generative(object_probability=0.3)
    with torch.no_grad():
        net.appearances.mul_(0.5)
    n = 40_000
    with torch.no_grad():
        drawn = net.sample(n, torch.Generator().manual_seed(0))
    present = drawn.objects.logits > 0
    assert float(present.double().mean()) == pytest.approx(0.3, abs=0.005)
    assert float(drawn.objects.poses.std()) == pytest.approx(1, abs=0.01)
    image, part = torch.arange(n)[:, None], torch.arange(4)
    on = torch.cat([torch.ones(n, 1).bool(), present], 1)
    assert on[image, drawn.selections].all(), "only what is there is chosen"
    alone = on.sum(1) == 1
    assert (drawn.selections[alone] == 0).all()
    assert alone.any()
    # Of two that are there and the dummy, each is chosen as often as its affinity says.
    pair = (present == torch.tensor([True, False, True])).all(1)
    rho = torch.cat([torch.full((1, 4), net.options.dummy_affinity).double(), net.affinities.detach().tanh().exp()])
    rho[2] = 0
    for i in range(4):
        often = (drawn.selections[pair] == i).double().mean(0)
        torch.testing.assert_close(often, (rho / rho.sum(0))[i], atol=0.03, rtol=0)
    appear = drawn.parts.logits > 0
    gamma = net.appearances.detach().sigmoid()[drawn.selections, part]
    torch.testing.assert_close(appear.double().mean(0), gamma.mean(0), atol=0.01, rtol=0)
    means = torch.cat([torch.zeros(n, 1, 4, 2, 3).double(), net.expected(drawn.objects).detach()], 1)
    off = drawn.parts.poses - means[image, drawn.selections, part]
    scaled = off / net.deviations().detach()[drawn.selections, part][..., None, None]
    for values, deviation in ((scaled[appear], 1.0), (drawn.parts.poses[~appear], net.options.absent_deviation)):
        assert float(values.std()) == pytest.approx(deviation, abs=0.01)
        assert float(values.mean()) == pytest.approx(0, abs=0.01)


# Inference and learning


def test_parts_start_where_objects_expect_them() -> None:
    net = model(relation_spread=0.0)
    start = net.part_encoder.start
    torch.testing.assert_close(net.generative.relations, start.expand(3, -1, -1, -1))
    belief = net.part_encoder(torch.zeros(2, *SHAPE))
    reach = net.part_encoder.reach
    assert reach == pytest.approx(net.options.part_reach * 9 / 5)
    assert 0 < float((belief.poses - start).abs().max().detach()) < 3 * reach


@pytest.mark.parametrize(("identity", "alike"), [("projection", False), ("one_hot", False), ("none", True)])
def test_objects_know_parts_by_their_identity_alone(identity: Any, alike: bool) -> None:
    torch.manual_seed(0)
    options, order = GenerativeOptions(**(SMALL | {"identity": identity})), torch.tensor([2, 0, 3, 1])
    encoder = ObjectEncoder(options, SHAPE, torch.zeros(4, 2, 3))
    parts = Capsules(torch.randn(2, 4), torch.randn(2, 4, 2, 3))
    one, other = encoder(parts), encoder(Capsules(parts.logits[:, order], parts.poses[:, order]))
    assert torch.allclose(one.logits, other.logits, atol=1e-5) == alike
    assert torch.allclose(one.poses, other.poses, atol=1e-5) == alike
    assert one.logits.std(0).min() > 1e-3


def test_objects_are_inferred_from_the_parts_that_were_drawn() -> None:
    net, images = model(), torch.rand(3, *SHAPE)
    inferred = net.infer(images, "x")
    assert not torch.equal(inferred.parts.logits, inferred.part_belief.logits)
    belief = net.object_encoder(inferred.parts)
    torch.testing.assert_close(inferred.object_belief.logits, belief.logits)
    middle = net.infer(images)
    assert torch.equal(middle.parts.logits, middle.part_belief.logits)
    assert torch.equal(middle.objects.logits, middle.object_belief.logits)


def test_every_step_draws_anew_and_the_same_again() -> None:
    net, data = model(), {"images": torch.rand(6, *SHAPE)}
    found = []
    for step in (0, 1, 0):
        net.noise.schedule(step)
        found.append(net.losses(data)["loss"])
    assert found[0] == found[2] != found[1]


def test_losses_are_the_bound_and_what_it_is_made_of() -> None:
    net, images = model(), torch.rand(6, *SHAPE)
    losses = net.losses({"images": images})
    torch.testing.assert_close(-losses["loss"], losses["image"] + losses["parts"] + losses["objects"])
    inferred = net.infer(images, "training")
    torch.testing.assert_close(-losses["loss"], net.bound(images, inferred)["bound"].mean())
    error = (net.generative.draw(inferred.parts).mean - images).square().sum((1, 2, 3)).mean()
    torch.testing.assert_close(losses["reconstruction_error"], error)
    constant = images[0].numel() * (math.log(0.2) + 0.5 * math.log(2 * math.pi))
    torch.testing.assert_close(losses["image"], -error / (2 * 0.2**2) - constant)
    torch.testing.assert_close(losses["parts_present"], inferred.parts.logits.sigmoid().sum(1).mean())


def test_all_that_is_learned_gets_a_gradient_and_its_own_rate() -> None:
    net = model(poses="gaussian", deltas_first=0.0, template_rate=7.0, arrangement_rate=3.0)
    net.configure(Training(steps=10, learning_rate=0.01, lr_decay=1))
    net.training_step({"images": torch.rand(4, *SHAPE)}, 99)
    assert all(values.grad is not None and values.grad.abs().max() > 0 for values in net.parameters())
    rates = {id(values): group["lr"] for group in net.optimizer.param_groups for values in group["params"]}
    assert len(rates) == len(list(net.parameters()))
    found = {name: rates[id(values)] / 0.01 for name, values in net.named_parameters()}
    assert found["generative.colours"] == found["generative.alphas"] == pytest.approx(7)
    assert found["generative.relations"] == found["generative.widths"] == pytest.approx(3)
    assert found["generative.affinities"] == pytest.approx(1)
    assert found["part_encoder.start"] == found["part_encoder.pooling.layer.weight"] == pytest.approx(1)
    assert found["object_encoder.names"] == pytest.approx(net.options.object_rate)


def test_rates_rise_in_the_first_steps() -> None:
    net = model()
    net.configure(Training(steps=10, learning_rate=0.01, lr_decay=1, warmup=4))
    rates = []
    for step in range(6):
        net.training_step({"images": torch.rand(4, *SHAPE)}, step)
        rates.append(net.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01, 0.01])


READ: list[dict[str, Any]] = [
    {"padding": "valid"},
    {"object_layers": "own"},
    {"attention": "present"},
    {"template_start": "orthogonal"},
    {"part_pose": "bounded"},
    {"poses": "gaussian", "gaussian_from": "image", "deltas_first": 0.0},
    {"learned_probability": True},
]


@pytest.mark.parametrize("reading", READ)
def test_every_reading_changes_the_model_and_learns_all_that_it_has(reading: dict[str, Any]) -> None:
    shape, images = (1, 28, 28), torch.rand(4, 1, 28, 28)
    net, plain = model(shape, **reading), model(shape)
    losses = []
    for each in (net, plain):
        each.configure(Training(steps=10))
        losses.append([float(each.training_step({"images": images}, step)["loss"]) for step in (1, 2)])
    assert losses[0] != losses[1]
    # Scores that all change by the same do not change attention, so biases of keys may have no gradient.
    still = {name for name, values in net.named_parameters() if values.grad is None or not values.grad.any()}
    assert all(name.endswith("key.bias") for name in still), still
    assert all(values.isfinite().all() for values in net.latents(images).values())


def test_orthogonal_templates_are() -> None:
    rows = orthogonal_templates(4, 2, 5).flatten(1)
    assert (rows.min(), rows.max()) == (0, 1)
    torch.manual_seed(1)
    shifted = orthogonal_templates(60, 2, 5).flatten(1)  # more than numbers: no longer all orthogonal
    assert shifted.shape == (60, 50)
    # All are scaled by one map, so that for one number c the products (r_i - c) . (r_j - c) are zero.
    grams = [(rows - c) @ (rows - c).t() for c in torch.linspace(0, 1, 2001)]
    assert min((each - each.diag().diag()).abs().max() / each.diag().min() for each in grams) < 0.01


def test_parts_are_attended_to_as_they_are_present() -> None:
    """With an absent part, the objects are those of a set without it."""
    net = model(attention="present")
    parts = Capsules(torch.tensor([[1.0, 2.0, -200.0, 0.5]]), torch.rand(1, 4, 2, 3))
    moved = parts._replace(poses=parts.poses.clone())
    moved.poses[:, 2] += 3
    torch.testing.assert_close(net.object_encoder(parts).logits, net.object_encoder(moved).logits)
    every = model()
    assert not torch.allclose(every.object_encoder(parts).logits, every.object_encoder(moved).logits)


def test_labels_set_presences_in_training_alone() -> None:
    net, images, labels = model(presences_from_labels=4.0), torch.rand(3, *SHAPE), torch.tensor([2, 0, 1])
    known = net.infer(images, labels=labels).object_belief.logits
    assert torch.equal(known, torch.tensor([[-4.0, -4, 4], [4, -4, -4], [-4, 4, -4]]))
    free = net.infer(images).object_belief.logits
    assert torch.equal(free, model().infer(images, labels=labels).object_belief.logits)
    losses = [float(net.losses({"images": images, "labels": each})["objects_present"]) for each in (labels, labels)]
    assert all(math.isfinite(each) for each in losses)
    net.configure(Training(steps=4))
    net.training_step({"images": images, "labels": labels}, 0)
    gradients = [values.grad for values in net.object_encoder.presence.parameters()]
    assert all(each is None for each in gradients)


def test_gaussian_poses_are_points_at_first() -> None:
    net, data = model(poses="gaussian", deltas_first=0.5), {"images": torch.rand(4, *SHAPE)}
    net.configure(Training(steps=4))
    deviations = net.part_encoder.log_deviations
    assert deviations is not None
    begun = []
    for step in range(4):
        before = deviations.detach().clone()
        net.training_step(data, step)
        begun.append(not torch.equal(before, deviations.detach()))
    assert begun == [False, False, True, True]
    inferred = net.infer(data["images"], "x")
    assert not torch.equal(inferred.parts.poses, inferred.part_belief.poses)
    assert model().infer(data["images"], "x").part_belief.log_deviations is None


def test_the_generative_side_has_fewer_than_30_000_parameters() -> None:
    net = build(GenerativeOptions(), (1, 28, 28), 10)
    sizes = {name: values.numel() for name, values in net.state_dict().items() if name.startswith("generative.")}
    assert sum(sizes.values()) == 2 * 16 * 144 + 16 * 16 * 6 + 3 * 16 * 16 + 16 < 30_000
    assert sum(values.numel() for values in net.parameters()) < 2_000_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 9}, "width: 9 cannot be shared by 2 heads"),
        ({"pose_deviation": 0.05}, r"pose_deviation: 0\.05 is not above pose_deviation_floor"),
        ({"parts": 5, "occurrences": 2}, "occurrences: 5 parts cannot be shared out by 2"),
        ({"identity": "colour"}, "identity\n  Input should be 'projection', 'one_hot' or 'none'"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        GenerativeOptions(**(SMALL | options))


def test_parts_that_share_a_template() -> None:
    shared, own = model(occurrences=2), model()
    with torch.no_grad():
        for name, values in own.state_dict().items():
            given = shared.state_dict()[name]
            values.copy_(given if given.shape == values.shape else torch.cat([given, given]))
    images = torch.rand(6, *SHAPE)
    for name, values in own.latents(images).items():
        found = shared.latents(images)[name]
        torch.testing.assert_close(found, values[:, :2] + values[:, 2:] if name == "ink" else values)
    before, after = shared.generative.colours, own.generative.colours
    assert (len(before), len(after)) == (2, 4)
    for net in (own, shared):
        net.losses({"images": images})["loss"].backward()
    assert before.grad is not None
    assert after.grad is not None
    torch.testing.assert_close(before.grad, after.grad[:2] + after.grad[2:])
    assert len(probes.templates(shared, images, torch.arange(6))["templates"]) == 2
    assert probes.rotations(shared, images, torch.arange(6))["owner"].max() < 2


def test_latents() -> None:
    net, images = model(), torch.rand(6, *SHAPE)
    latents = net.latents(images)
    shapes = {name: tuple(values.shape) for name, values in latents.items()}
    expected = {"presence": (6, 3), "pose": (6, 3, 6), "part_presence": (6, 4), "part_pose": (6, 4, 6)}
    assert shapes == expected | {"ink": (6, 4)} | dict.fromkeys(("bound", "objects", "reconstruction_error"), (6,))
    inferred = net.infer(images)
    assert torch.equal(latents["presence"], inferred.object_belief.logits)
    assert torch.equal(latents["part_presence"], inferred.part_belief.logits.sigmoid())
    error = (net.picture(net.part_encoder(images)).mean - images).square().sum((1, 2, 3))
    torch.testing.assert_close(latents["reconstruction_error"], error)
    torch.testing.assert_close(latents["bound"], net.bound(images, net.infer(images, "bound"))["bound"])
    torch.testing.assert_close(latents["objects"], net.bound(images, net.infer(images, "bound"))["objects"])
    shares = net.picture(inferred.part_belief).shares
    torch.testing.assert_close(latents["ink"][:, 1], (shares[:, 1] * images.sum(1)).sum((1, 2)))
    assert torch.equal(net.latents(images)["bound"], latents["bound"]), "the same draws every time"


def test_the_diagnosis_tells_whether_presences_and_templates_are_used() -> None:
    presence = np.array([[0.0, 1.0], [2.0, 1.0]])
    ink = np.array([[8.0, 0.5, 0.9], [0.0, 0.1, 2.0]])
    part_presence = np.array([[1.0, 0.5, 0.0], [1.0, 1.0, 1.0]])
    found = model().diagnosis({"presence": presence, "ink": ink, "part_presence": part_presence})
    expected = {"log odds spread": 0.5, "largest spread": 1.0, "parts present": 2.25, "live templates": 2.0}
    assert found == expected


# Diagrams


def _parents(output: Tensor, named: dict[str, Tensor]) -> set[str]:
    """The tensors that an output depends on."""
    torch.manual_seed(2)
    weighed = (output * torch.randn_like(output)).sum()
    found = torch.autograd.grad(weighed, list(named.values()), allow_unused=True, retain_graph=True)
    return {name for name, each in zip(named, found, strict=True) if each is not None and each.abs().sum() > 0}


def test_figure_1_shows_what_the_generative_model_depends_on() -> None:
    net = generative()
    objects, parts = (Capsules(torch.randn(2, n).double(), torch.randn(2, n, 2, 3).double()) for n in (3, 4))
    named = {"t0": objects.logits, "A0": objects.poses, "t1": parts.logits, "A1": parts.poses}
    named |= {"rho": net.affinities, "gamma": net.appearances, "M": net.relations, "c": net.widths}
    named |= {"T": net.colours, "alpha": net.alphas}
    for each in named.values():
        each.requires_grad_()
    chosen = net._chosen(objects)
    shown = {name: set(parents) - {"s"} for name, parents in diagrams.GENERATIVE.items()}
    assert _parents(chosen, named) == shown["s"]
    given = net.by_selection(objects, parts) - chosen  # log p(t1, A1 | s, t0, A0)
    assert _parents(given, named) == shown["t1"] | shown["A1"] | {"A1"}
    assert given.std(1).min() > 0, "they depend on s"
    assert _parents(net.draw(parts).mean, named) == shown["X"]


def test_figure_2_shows_what_the_layers_depend_on() -> None:
    net, images = model(), torch.rand(2, *SHAPE, requires_grad=True)
    inferred = net.infer(images, "diagram")
    objects, parts = (
        Capsules(each.logits.detach().requires_grad_(), each.poses.detach().requires_grad_())
        for each in (inferred.objects, inferred.parts)
    )
    named = {"t0": objects.logits, "A0": objects.poses, "t1": parts.logits, "A1": parts.poses, "X": images}
    joint = net.generative.joint(images.detach(), objects, parts)
    layers = {
        "p": {"t1, A1": joint.parts, "X": joint.picture.mean},
        "q": {"t1, A1": net.part_encoder(images).logits, "t0, A0": net.object_encoder(parts).logits},
    }
    for side, outputs in layers.items():
        assert outputs.keys() == diagrams.DEPENDENCIES[side].keys()
        for name, output in outputs.items():
            expected = {each for parent in diagrams.DEPENDENCIES[side][name] for each in parent.split(", ")}
            assert _parents(output, named) - set(name.split(", ")) == expected


def test_the_sizes_in_the_diagrams_are_those_of_the_model() -> None:
    config = {"model": {"family": "generative", **SMALL}, "image_shape": SHAPE, "classes": 10}
    numbers = diagrams.sizes(config).set_index("part")["numbers"]
    net = model()
    learned = [numbers[name] for name in ("rho", "gamma", "M", "c", "T", "alpha")]
    assert sum(learned) == sum(each.numel() for each in net.generative.parameters())
    assert numbers["gamma"] == (3 + 1) * 4
    networks = numbers["convolutional network"] + numbers["set transformer"]
    assert networks == sum(each.numel() for each in (*net.part_encoder.parameters(), *net.object_encoder.parameters()))


# Probes


def test_pictures_of_probes() -> None:
    net, images, labels = model(), torch.rand(3, *SHAPE), torch.tensor([1, 2, 0])
    templates = probes.templates(net, images, labels)
    assert templates["templates"].shape == (4, 2, 5, 5)
    assert templates["alphas"].shape == (4, 1, 5, 5)
    assert torch.equal(torch.cat([templates["templates"], templates["alphas"]], 1), net.generative.layers())
    samples = probes.samples(net, images, labels)["samples"]
    assert samples.shape == (5, *SHAPE)
    assert ((samples >= 0) & (samples <= 1)).all()
    assert samples.std(0).max() > 0.01
    assert torch.equal(samples, probes.samples(net, images, labels)["samples"])


def test_rotations_say_which_template_is_seen_most_at_each_pixel() -> None:
    net, images = model(), torch.rand(3, *SHAPE)
    made = probes.rotations(net, images, torch.zeros(3))
    assert made["angles"].tolist() == list(range(0, 360, 30))
    torch.testing.assert_close(made["images"][0], images)
    torch.testing.assert_close(made["images"][5], rotated(images, 150.0))
    torch.testing.assert_close(made["chain"][5], net.picture(net.part_encoder(made["images"][5])).mean)
    assert made["owner"].dtype == torch.int64
    shares = net.picture(net.part_encoder(made["images"][5])).shares
    for image, row, column in itertools.product(range(3), range(9), range(9)):
        seen = shares[image, :, row, column].tolist()
        owner = max(range(4), key=seen.__getitem__) if sum(seen) >= 0.05 else -1
        assert made["owner"][5, image, row, column] == owner
    assert len(made["owner"].unique()) > 3
    objects = net.infer(made["images"][5]).object_belief
    torch.testing.assert_close(made["presence"][5], objects.logits)
    torch.testing.assert_close(made["pose"][5].unflatten(2, (2, 3)), objects.poses)


def test_posterior_presences_are_the_logarithms_of_expected_numbers_of_parts() -> None:
    net, images = model(), torch.rand(3, *SHAPE)
    made, found = probes.selections(net, images, torch.zeros(3)), net.infer(images)
    shares = net.generative.selections(found.objects, found.parts)
    torch.testing.assert_close(made["posterior_presence"].exp(), shares[:, 1:].sum(2))
    torch.testing.assert_close(made["posterior_presence"].exp().sum(1), 4 - shares[:, 0].sum(1))
    torch.testing.assert_close(made["presence"], found.object_belief.logits)
    assert made["posterior_presence"].isfinite().all()


@pytest.mark.parametrize("poses", ["delta", "gaussian"])
def test_free_form_inference_climbs_the_bound_of_each_image(poses: str) -> None:
    net = model(poses=poses, free_steps=60, free_rate=0.05, free_samples=8)
    images, labels = torch.rand(4, *SHAPE), torch.tensor([1, 2, 0, 2])
    before = {name: values.clone() for name, values in net.state_dict().items()}
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        made = probes.free_form(net, images.clone(), labels)
        latents = net.latents(images.clone())
    shapes = {name: tuple(values.shape) for name, values in made.items()}
    expected = {"presence": (4, 3), "pose": (4, 3, 6), "chain": (4, *SHAPE)}
    expected |= {f"{name}_free": shape for name, shape in expected.items()}
    assert shapes == expected | {"images": (4, *SHAPE), "bound_along": (21, 4), "steps": (21,), "gradients": (21,)}
    assert made["steps"].tolist() == list(range(0, 61, 3))
    assert torch.equal(made["presence"], latents["presence"])
    assert (made["bound_along"][-1] > made["bound_along"][0] + 5).all()
    errors = [(made[name] - images).square().sum((1, 2, 3)) for name in ("chain", "chain_free")]
    torch.testing.assert_close(errors[0], latents["reconstruction_error"])
    assert (errors[1] < errors[0]).all()
    assert all(torch.equal(values, before[name]) for name, values in net.state_dict().items())
    assert not any(values.requires_grad for values in made.values())
    # No image's answer depends on another one's.
    others = probes.free_form(net, torch.cat([images[:1], 1 - images[1:]]), labels)
    plain = probes.free_form(net, images, labels)
    torch.testing.assert_close(others["presence_free"][0], plain["presence_free"][0], atol=1e-4, rtol=0)
    assert not torch.allclose(others["presence_free"][1], plain["presence_free"][1], atol=1e-2)


def test_free_form_inference_of_presences_alone_and_with_other_draws() -> None:
    images, labels = torch.rand(2, *SHAPE), torch.tensor([0, 1])
    every, alone, others = (
        probes.free_form(model(free_steps=4, free_rate=0.05, **options), images, labels)
        for options in ({}, {"free_presences_only": True}, {"free_draws": "other draws"})
    )
    assert torch.equal(alone["pose_free"], alone["pose"])
    assert torch.equal(alone["chain_free"], alone["chain"])
    assert not torch.allclose(alone["presence_free"], alone["presence"])
    assert not torch.equal(every["pose_free"], every["pose"])
    assert not torch.equal(every["presence_free"], others["presence_free"])
    assert torch.equal(every["presence"], others["presence"])


def test_plain_free_form_inference_follows_the_gradient() -> None:
    """One step from the amortised posterior, against the difference quotient of the mean bound of the two draws."""
    net, images = model(free_steps=1, free_rate=1e-4, free_ascent="plain"), torch.rand(2, *SHAPE)
    made = probes.free_form(net, images, torch.tensor([0, 1]))
    inferred = net.infer(images)

    def bound(more: float) -> Tensor:
        logits = inferred.object_belief.logits.clone()
        logits[1, 2] += more
        moved = inferred._replace(object_belief=inferred.object_belief._replace(logits=logits))
        return torch.stack(
            [
                net.bound(
                    images,
                    moved._replace(
                        parts=net.draw(moved.part_belief, "free-form/parts", 0, sign),
                        objects=net.draw(moved.object_belief, "free-form/objects", 0, sign),
                    ),
                )["bound"][1]
                for sign in (1, -1)
            ]
        ).mean()

    slope = float((bound(0.05) - bound(-0.05)).detach()) / 0.1
    moved = float(made["presence_free"][1, 2] - made["presence"][1, 2])
    assert moved == pytest.approx(1e-4 * slope, rel=0.05)


def test_with_several_draws_the_objective_is_the_importance_weighted_bound() -> None:
    net, images = model(draws=3), torch.rand(2, *SHAPE)
    net.configure(Training(steps=5, batch_size=2))
    net.schedule(0)
    found = net.losses({"images": images})
    many = images.repeat(3, 1, 1, 1)
    net.schedule(0)
    bounds = net.bound(many, net.infer(many, "training", None))["bound"].double()
    weights = bounds.reshape(3, 2)
    assert weights.std(0).min() > 0, "draws of one image differ"
    top = weights.amax(0)
    expected = top + (weights - top).exp().mean(0).log()
    torch.testing.assert_close(-found["loss"], expected.mean().float())
    assert -found["loss"] > bounds.mean(), "tighter than with one draw"


def test_second_order_free_form_inference_climbs_the_bound_of_its_draws() -> None:
    """Five steps of L-BFGS climb further than five of plain ascent, by the bound of the draws that both use."""
    images, labels = torch.rand(2, *SHAPE), torch.tensor([0, 1])
    second = probes.free_form(model(free_steps=5, free_rate=1.0, free_ascent="lbfgs"), images, labels)
    plain = probes.free_form(model(free_steps=5, free_rate=1e-4, free_ascent="plain"), images, labels)
    assert second["gradients"][0] == plain["gradients"][0] == 0
    assert second["gradients"][-1] >= plain["gradients"][-1] == 5
    assert second["bound_along"][-1].mean() > plain["bound_along"][-1].mean() > plain["bound_along"][0].mean()


def test_the_second_order_method_goes_on_where_a_full_step_climbs_too_far() -> None:
    """On Rosenbrock's function, whose narrow valley needs line searches of more than one point."""
    place = torch.tensor([-1.5, 2.0], requires_grad=True)
    ascent = probes.METHODS["lbfgs"]([place], lr=1)

    def value() -> float:
        ascent.zero_grad()
        found = (1 - place[0]) ** 2 + 100 * (place[1] - place[0] ** 2) ** 2
        found.backward()
        return float(found.detach())

    for _ in range(60):
        ascent.step(value)
    assert value() < 1e-4


def test_the_antithetic_draw_is_the_mirrored_one() -> None:
    net = model(poses="gaussian")
    belief = net.infer(torch.rand(3, *SHAPE)).object_belief
    one, other, middle = net.draw(belief, "x", 4), net.draw(belief, "x", 4, -1), net.draw(belief, None)
    for name in ("logits", "poses"):
        torch.testing.assert_close((getattr(one, name) + getattr(other, name)) / 2, getattr(middle, name))
        assert not torch.allclose(getattr(one, name), getattr(other, name))


def test_free_form_inference_is_adam_on_pairs_at_a_falling_rate() -> None:
    """One pair and two steps, written out."""
    net, images = model(free_steps=2, free_rate=0.1, free_pairs=1), torch.rand(2, *SHAPE)
    made = probes.free_form(net, images, torch.tensor([0, 1]))
    inferred = net.infer(images)
    logits = inferred.object_belief.logits.detach().clone().requires_grad_()
    poses = inferred.object_belief.poses.detach().clone().requires_grad_()
    part_logits = inferred.part_belief.logits.detach().clone().requires_grad_()
    part_poses = inferred.part_belief.poses.detach().clone().requires_grad_()
    learned = [logits, poses, part_logits, part_poses]
    adam = torch.optim.Adam(learned, lr=0.1)
    for step, rate in enumerate((0.1, 0.05)):
        adam.param_groups[0]["lr"] = rate
        adam.zero_grad()
        for sign in (1, -1):
            objects, parts = Belief(logits, poses, None), Belief(part_logits, part_poses, None)
            drawn = Inferred(
                parts,
                net.draw(parts, "free-form/parts", step, sign),
                objects,
                net.draw(objects, "free-form/objects", step, sign),
            )
            (-net.bound(images, drawn)["bound"].sum() / 2).backward()
        adam.step()
    torch.testing.assert_close(made["presence_free"], logits.detach())
    torch.testing.assert_close(made["pose_free"], poses.detach().flatten(2))


def test_autocast_keeps_small_differences_of_log_odds() -> None:
    """Log odds between 2 and 4 that differ by less than bfloat16's step of 0.0156 there."""
    net = model()
    with torch.no_grad():
        last = net.object_encoder.presence[-1]
        last.weight.mul_(1e-3)
        last.bias.fill_(3.0)
    parts = net.infer(torch.rand(20, *SHAPE)).parts
    exact = net.object_encoder(parts).logits
    assert 0 < exact.std(0).max() < 0.005
    with torch.autocast("cpu", torch.bfloat16):
        found = net.object_encoder(parts).logits
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-6)


def test_few_steps_of_free_form_inference_are_all_noted() -> None:
    made = probes.free_form(model(free_steps=3), torch.rand(2, *SHAPE), torch.tensor([0, 1]))
    assert made["steps"].tolist() == [0, 1, 2, 3]
    assert made["bound_along"].shape == (4, 2)


@pytest.mark.parametrize(("labels", "shown"), [([1, 2, 0, 2], 1), ([5, 4, 3, 3], 0)])
def test_free_form_rotations_show_the_first_two(labels: list[int], shown: int) -> None:
    images = torch.rand(4, *SHAPE)
    made = probes.free_form_rotations(model(), images, torch.tensor(labels))
    assert made["angles"].tolist() == [0, 30, 60, 90, 120, 150, 180]
    torch.testing.assert_close(made["images"][0], images[shown])
    torch.testing.assert_close(made["images"][3:4], rotated(images[shown : shown + 1], 90.0))
    assert made["bound_along"].shape == (7, 7)
    assert made["presence_free"].shape == (7, 3)


# Runs


def test_it_learns_digits(tmp_path: Path) -> None:
    images = torch.tensor(read(resuming.digits(tmp_path, 300)).images).float() / 255
    torch.manual_seed(0)
    net = build(GenerativeOptions(width=32, layers=1, points=8), (1, 28, 28), 10)
    net.configure(Training(steps=200, learning_rate=2e-3))
    history = [net.training_step({"images": images[torch.randint(250, (32,))]}, step) for step in range(200)]
    assert history[-1]["loss"] < history[0]["loss"] - 300
    mean = (images[:250].mean(0) - images[250:]).square().sum((1, 2, 3)).mean()
    latents = net.latents(images[250:])
    assert latents["reconstruction_error"].mean() < 0.7 * mean
    assert latents["presence"].std(0).mean() > 1e-2


@pytest.mark.parametrize("poses", ["delta", "gaussian"])
def test_a_run_that_was_cut_ends_with_the_same_bits(
    poses: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**SMALL, "family": "generative", "poses": poses}
    settings = {"model": options, "training": {"steps": 12, "batch_size": 8, "log_every": 5}}
    resuming.check(settings, tmp_path, [3, 7], monkeypatch)
