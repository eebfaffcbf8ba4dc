"""The restricted Boltzmann machine: scikit-learn's own update, its probabilities, and the same run when cut."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import resuming
import torch
from sklearn.neural_network import BernoulliRBM
from torch import Tensor

from recaps.arrays import read
from recaps.config.training import Training
from recaps.models import build
from recaps.models.schedule import learning_rate
from recaps.papers.experts.options import RBMOptions
from recaps.papers.experts.rbm import RBM
from recaps.training.saved import load_model

pytestmark = pytest.mark.unit

SMALL: dict[str, Any] = {"hidden": 4, "samples": 50, "gibbs_steps": 20}
TRAINING = Training(batch_size=8, learning_rate=0.1, lr_decay=0.5, lr_decay_steps=2)


def model(shape: tuple[int, int, int] = (1, 2, 3), **options: Any) -> RBM:
    torch.manual_seed(0)
    built = build(RBMOptions(**(SMALL | options)), shape, 10)
    assert isinstance(built, RBM)
    return built


def batches(n: int = 3) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.rand(8, 1, 2, 3) for _ in range(n)]


def test_a_step_is_scikit_learns() -> None:
    net = model()
    net.configure(TRAINING)
    theirs = BernoulliRBM(4, batch_size=8)
    theirs.components_ = net.weight.numpy().copy()
    theirs.intercept_hidden_, theirs.intercept_visible_ = np.zeros(4), np.zeros(6)
    for step, images in enumerate(batches()):
        theirs.learning_rate = learning_rate(TRAINING, step)
        theirs.random_state_ = np.random.RandomState(net.noise.seed("gibbs", step) % 2**32)
        theirs.partial_fit(images.flatten(1).numpy())
        net.training_step({"images": images}, step)
    for ours, values in (
        (net.weight, theirs.components_),
        (net.bias_hidden, theirs.intercept_hidden_),
        (net.bias_visible, theirs.intercept_visible_),
        (net.chains, theirs.h_samples_),
    ):
        assert torch.equal(ours, torch.from_numpy(values))
    hidden = net.hidden(images.flatten(1))
    torch.testing.assert_close(hidden, torch.from_numpy(theirs.transform(images.flatten(1).numpy())))
    torch.testing.assert_close(net.latents(images)["capsules"], hidden)


def test_pixels_given_hidden_units_are_a_sum_over_all_states() -> None:
    """exp(v W h + b v + c h), by brute force over v."""
    net = model()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn_like(parameter))
    hidden = torch.tensor([1.0, 0.0, 1.0, 1.0]).double()
    every = torch.tensor(list(itertools.product([0.0, 1.0], repeat=6))).double()
    weights = (every @ net.weight.t() @ hidden + every @ net.bias_visible).exp()
    expected = (weights.unsqueeze(1) * every).sum(0) / weights.sum()
    torch.testing.assert_close(net.visible(hidden[None])[0], expected)


def test_chains_end_in_the_models_distribution() -> None:
    """Mean pixels, by brute force over v and h."""
    net = model(samples=4000, gibbs_steps=50)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn_like(parameter))
    one, other = (net.sample()["samples"] for _ in range(2))
    assert one.shape == (4000, 1, 2, 3)
    assert torch.equal(one, other)
    v, h = (torch.tensor(list(itertools.product([0.0, 1.0], repeat=units))).double() for units in (6, 4))
    weights = (v @ net.weight.t() @ h.t() + (v @ net.bias_visible).unsqueeze(1) + h @ net.bias_hidden).exp()
    expected = weights.sum(1) @ v / weights.sum()
    torch.testing.assert_close(one.mean(0).flatten().double(), expected, rtol=0, atol=0.03)


def test_it_learns_digits(tmp_path: Path) -> None:
    images = torch.tensor(read(resuming.digits(tmp_path, 300)).images).float() / 255
    net = model((1, 28, 28), hidden=64, gibbs_steps=50)
    net.configure(Training(batch_size=25, learning_rate=0.1))
    losses = [net.training_step({"images": images[25 * (s % 10) :][:25]}, s)["loss"] for s in range(400)]
    assert losses[-1] < 0.4 * losses[0]
    mean = (images[:250].mean(0) - images[250:]).square().sum((1, 2, 3)).mean()
    assert net.latents(images[250:])["reconstruction_error"].mean() < mean


def test_a_run_that_was_cut_ends_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"model": {**SMALL, "family": "rbm"}, "training": {"steps": 12, "batch_size": 8, "log_every": 5}}
    whole = resuming.check(settings, tmp_path, [3, 7], monkeypatch)
    loaded, _ = load_model(whole, torch.device("cpu"))
    assert isinstance(loaded, RBM)
    assert loaded.chains.shape == (8, 4)
    assert loaded.weight.dtype == torch.float64
    assert json.loads((whole / "record.json").read_text())["parameters"] == 4 * 784 + 4 + 784
