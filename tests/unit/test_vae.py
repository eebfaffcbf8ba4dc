"""The variational autoencoder: its bound, its latents, training and resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import resuming
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Normal, kl_divergence

from recaps.arrays import read
from recaps.config.training import Training
from recaps.models import build
from recaps.models.options import VAEOptions
from recaps.models.vae import VAE, divergence_from_prior

pytestmark = pytest.mark.unit

SMALL: dict[str, Any] = {"latent_dim": 3, "hidden": (12, 8), "samples": 5}


def model(shape: tuple[int, int, int] = (2, 4, 5), **options: Any) -> VAE:
    torch.manual_seed(0)
    built = build(VAEOptions(**(SMALL | options)), shape, 10)
    assert isinstance(built, VAE)
    return built


def test_the_divergence_is_pytorchs() -> None:
    mean, log_variance = torch.randn(4, 3), torch.randn(4, 3)
    posterior = Normal(mean, (0.5 * log_variance).exp())
    expected = kl_divergence(posterior, Normal(torch.zeros(3), torch.ones(3))).sum(1)
    torch.testing.assert_close(divergence_from_prior(mean, log_variance), expected)


def test_the_loss_is_the_bound_with_one_sample() -> None:
    """In nats per image, from densities: log p(x|z) + log p(z) - log q(z|x), but for the divergence in closed form."""
    net, images = model(), torch.randint(2, (6, 2, 4, 5)).float()
    losses = net.losses({"images": images})
    mean, log_variance = net.encode(images)
    latents = mean + (0.5 * log_variance).exp() * net.noise.normal(
        6, 3, device=images.device, purpose="latents", step=0
    )
    likelihood = Bernoulli(logits=net.logits(latents)).log_prob(images).sum((1, 2, 3))
    bound = likelihood - divergence_from_prior(mean, log_variance)
    torch.testing.assert_close(losses["loss"], -bound.mean())
    torch.testing.assert_close(losses["loss"], losses["cross_entropy"] + losses["divergence"])


def test_every_step_draws_anew() -> None:
    net, data = model(), {"images": torch.rand(6, 2, 4, 5)}
    found: list[Tensor] = []
    for step in (0, 1, 0):
        net.noise.schedule(step)
        found.append(net.losses(data)["cross_entropy"])
    assert found[0] == found[2] != found[1]


def test_latents_are_means_and_on_request_deviations() -> None:
    images = torch.rand(6, 2, 4, 5)
    plain, both = (model(features=features).latents(images) for features in ("mean", "mean_and_deviation"))
    assert torch.equal(plain["capsules"], plain["mean"])
    assert torch.equal(both["capsules"], torch.cat([both["mean"], both["deviation"]], 1))
    assert plain["mean"].shape == plain["deviation"].shape == (6, 3)
    assert (plain["deviation"] > 0).all()
    error = (model().reconstruct(images) - images).square().sum((1, 2, 3))
    torch.testing.assert_close(plain["reconstruction_error"], error)


def test_samples_are_probabilities_and_the_same_each_time() -> None:
    net = model()
    one, other = (net.sample()["samples"] for _ in range(2))
    assert one.shape == (5, 2, 4, 5)
    assert torch.equal(one, other)
    assert ((one > 0) & (one < 1)).all()
    assert not torch.equal(one[0], one[1])


def test_the_papers_baseline_has_over_100_000_parameters_in_its_decoder() -> None:
    net = model((1, 28, 28), latent_dim=10, hidden=(128,))
    assert sum(p.numel() for p in net.decoder.parameters()) == 10 * 128 + 128 + 128 * 784 + 784 == 102_544


def test_it_learns_digits(tmp_path: Path) -> None:
    images = torch.tensor(read(resuming.digits(tmp_path, 300)).images).float() / 255
    net = model((1, 28, 28), hidden=(64,), latent_dim=8)
    net.configure(Training(learning_rate=3e-3))
    history = [net.training_step({"images": images[torch.randint(250, (32,))]}, step) for step in range(200)]
    assert history[-1]["loss"] < 0.5 * history[0]["loss"]
    mean = (images[:250].mean(0) - images[250:]).square().sum((1, 2, 3)).mean()
    assert net.latents(images[250:])["reconstruction_error"].mean() < 0.8 * mean


def test_a_run_that_was_cut_ends_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"model": {**SMALL, "family": "vae"}, "training": {"steps": 12, "batch_size": 8, "log_every": 5}}
    resuming.check(settings, tmp_path, [3, 7], monkeypatch)
