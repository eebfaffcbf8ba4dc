"""A restricted Boltzmann machine (RBM): scikit-learn's `BernoulliRBM`, trained step by step like the other models.

The model holds the weights, so that checkpoints include them. Scikit-learn updates them on a CPU in double precision,
with the learning rate of the training.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import torch
from sklearn.neural_network import BernoulliRBM
from torch import Tensor, nn

from recaps.config.training import Training
from recaps.models.model import Batch, Model
from recaps.models.schedule import learning_rate
from recaps.nn.losses.squares import summed_squared_error
from recaps.nn.noise import Noise
from recaps.nn.precision import float32
from recaps.papers.experts.options import RBMOptions


class RBM(Model):
    """Visible units are the pixels of images [B, C, H, W], taken as probabilities; there are n hidden units."""

    recordable = False  # scikit-learn runs on the host
    chains: Tensor

    def __init__(self, options: RBMOptions, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.options, self.image_shape = options, image_shape
        pixels = image_shape[0] * image_shape[1] * image_shape[2]
        self.weight = _fixed(0.01 * torch.randn(options.hidden, pixels, dtype=torch.float64))
        self.bias_hidden = _fixed(torch.zeros(options.hidden, dtype=torch.float64))
        self.bias_visible = _fixed(torch.zeros(pixels, dtype=torch.float64))
        self.noise = Noise()
        # Hidden units of the persistent Gibbs chains, one chain per image of a batch; none before training.
        self.register_buffer("chains", torch.zeros(0, options.hidden, dtype=torch.float64))

    def configure(self, training: Training) -> None:
        self.training_options = training
        self.chains = self.chains.new_zeros(training.batch_size, self.options.hidden)

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {}

    def schedule(self, step: int) -> Hashable:
        self.rate, self.gibbs_seed = learning_rate(self.training_options, step), self.noise.seed("gibbs", step)
        return None

    def work(self, batch: Batch) -> dict[str, Tensor]:
        """Learn from one mini-batch by stochastic maximum likelihood (persistent contrastive divergence).

        Returns:
            `loss`: the summed squared error of mean-field reconstructions. Nothing minimises it.
        """
        images = batch["images"]
        loss = summed_squared_error(self.reconstruct(images), images).mean()
        machine = self._machine()
        machine.learning_rate = self.rate
        machine.random_state_ = np.random.RandomState(self.gibbs_seed % 2**32)
        machine.partial_fit(images.flatten(1).cpu().numpy())
        learned = {
            "weight": machine.components_,
            "bias_hidden": machine.intercept_hidden_,
            "bias_visible": machine.intercept_visible_,
            "chains": machine.h_samples_,
        }
        for name, values in learned.items():
            getattr(self, name).copy_(torch.from_numpy(values))
        return {"loss": loss}

    def own_operations(self, images: int) -> int:
        """Scikit-learn's five products: the hidden units of the images, the chains' visible and hidden units, and both
        halves of the gradient."""
        return 5 * 2 * images * self.weight.numel()

    def reconstruct(self, images: Tensor) -> Tensor:
        """Mean-field reconstruction: pixel probabilities given the probabilities of the hidden units."""
        return self.visible(self.hidden(images.flatten(1))).float().unflatten(1, self.image_shape)

    def hidden(self, visible: Tensor) -> Tensor:
        """P(h = 1 | v): [B, pixels] to [B, n], double precision."""
        return (visible.double() @ self.weight.t() + self.bias_hidden).sigmoid()

    def visible(self, hidden: Tensor) -> Tensor:
        """P(v = 1 | h): [B, n] to [B, pixels], double precision."""
        return (hidden.double() @ self.weight + self.bias_visible).sigmoid()

    def latents(self, images: Tensor) -> dict[str, Tensor]:
        """Return P(h = 1 | v) as `capsules` [B, n], the name that heads read, and the summed squared
        `reconstruction_error` [B] of the mean field."""
        hidden = self.hidden(images.flatten(1))
        error = summed_squared_error(self.reconstruct(images), images)
        return {"capsules": hidden, "reconstruction_error": error}

    def sample(self) -> dict[str, Tensor]:
        """Generate `options.samples` pictures by Gibbs chains that start from pixels drawn with probability 1/2.

        Returns:
            `samples`: pixel probabilities [n, C, H, W] after `options.gibbs_steps` steps.
        """
        weight, bias_hidden, bias_visible = (
            each.float() for each in (self.weight, self.bias_hidden, self.bias_visible)
        )
        generator = self.noise.generator(weight.device, "samples", 0)
        drawn = lambda probabilities: torch.bernoulli(probabilities, generator=generator)  # noqa: E731
        visible = drawn(torch.full((self.options.samples, weight.shape[1]), 0.5, device=weight.device))
        with float32(weight):
            for _ in range(self.options.gibbs_steps):
                hidden = drawn((visible @ weight.t() + bias_hidden).sigmoid())
                probabilities = (hidden @ weight + bias_visible).sigmoid()
                visible = drawn(probabilities)
        return {"samples": probabilities.unflatten(1, self.image_shape)}

    def _machine(self) -> BernoulliRBM:
        machine = BernoulliRBM(self.options.hidden, batch_size=len(self.chains))
        machine.components_, machine.intercept_hidden_, machine.intercept_visible_, machine.h_samples_ = (
            values.cpu().numpy() for values in (self.weight, self.bias_hidden, self.bias_visible, self.chains)
        )
        return machine

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Resize the chains to the saved number, because a trained model is loaded without its batch size."""
        self.chains = torch.empty_like(state_dict[f"{prefix}chains"], device=self.chains.device)
        super()._load_from_state_dict(state_dict, prefix, *arguments)


def _fixed(values: Tensor) -> nn.Parameter:
    """A parameter without gradients: it counts as a parameter, but no optimiser updates it."""
    return nn.Parameter(values, requires_grad=False)


def build(options: RBMOptions, image_shape: tuple[int, int, int], classes: int) -> RBM:
    return RBM(options, image_shape)
