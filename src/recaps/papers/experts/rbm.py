"""A restricted Boltzmann machine: scikit-learn's, trained step by step as the other models are.

Its weights are this model's, so that checkpoints and saved models hold them; scikit-learn works on the same memory,
on a CPU and in double precision. The learning rate is the training's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.neural_network import BernoulliRBM
from torch import Tensor, nn

from recaps.config.training import Training
from recaps.models.model import Batch, Model, learning_rate
from recaps.nn.losses import summed_squared_error
from recaps.nn.noise import Noise
from recaps.nn.precision import float32
from recaps.papers.experts.options import RBMOptions


class RBM(Model):
    """Images [B, C, H, W], each pixel the probability of a visible unit, and n hidden units."""

    chains: Tensor

    def __init__(self, options: RBMOptions, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.options, self.image_shape = options, image_shape
        pixels = image_shape[0] * image_shape[1] * image_shape[2]
        self.weight = _fixed(0.01 * torch.randn(options.hidden, pixels, dtype=torch.float64))
        self.bias_hidden = _fixed(torch.zeros(options.hidden, dtype=torch.float64))
        self.bias_visible = _fixed(torch.zeros(pixels, dtype=torch.float64))
        self.noise = Noise()
        # Hidden units of the model's own chains, one for each image of a batch; none before training.
        self.register_buffer("chains", torch.zeros(0, options.hidden, dtype=torch.float64))

    def configure(self, training: Training) -> None:
        self.training_options = training
        self.chains = self.chains.new_zeros(training.batch_size, self.options.hidden)

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {}

    def training_step(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """One mini-batch of stochastic maximum likelihood.

        Returns:
            `loss`: the summed squared error of mean-field reconstructions, which nothing minimises.
        """
        images = batch["images"]
        loss = summed_squared_error(self.reconstruct(images), images).mean()
        machine = self._machine()
        machine.learning_rate = learning_rate(self.training_options, step)
        machine.random_state_ = np.random.RandomState(self.noise.seed("gibbs", step) % 2**32)
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

    def reconstruct(self, images: Tensor) -> Tensor:
        """Probabilities of the pixels, given those of the hidden units that they give: mean field."""
        return self.visible(self.hidden(images.flatten(1))).float().unflatten(1, self.image_shape)

    def hidden(self, visible: Tensor) -> Tensor:
        """P(h = 1 | v): [B, pixels] to [B, n], double precision."""
        return (visible.double() @ self.weight.t() + self.bias_hidden).sigmoid()

    def visible(self, hidden: Tensor) -> Tensor:
        """P(v = 1 | h): [B, n] to [B, pixels], double precision."""
        return (hidden.double() @ self.weight + self.bias_visible).sigmoid()

    def latents(self, images: Tensor) -> dict[str, Tensor]:
        """`capsules`, by the name that heads know: P(h = 1 | v) [B, n]; the summed squared `reconstruction_error` [B]
        of the mean field."""
        hidden = self.hidden(images.flatten(1))
        error = summed_squared_error(self.reconstruct(images), images)
        return {"capsules": hidden, "reconstruction_error": error}

    def probes(self) -> dict[str, Any]:
        return {"samples": self.samples, "chain": self.chain}

    def samples(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """`samples` [n, C, H, W]: probabilities of the pixels at the end of Gibbs chains that start from fair coins."""
        weight, bias_hidden, bias_visible = (
            each.float() for each in (self.weight, self.bias_hidden, self.bias_visible)
        )
        generator = self.noise.generator(weight.device, "samples")
        drawn = lambda probabilities: torch.bernoulli(probabilities, generator=generator)  # noqa: E731
        visible = drawn(torch.full((self.options.samples, weight.shape[1]), 0.5, device=weight.device))
        with float32(weight):
            for _ in range(self.options.gibbs_steps):
                hidden = drawn((visible @ weight.t() + bias_hidden).sigmoid())
                probabilities = (hidden @ weight + bias_visible).sigmoid()
                visible = drawn(probabilities)
        return {"samples": probabilities.unflatten(1, self.image_shape)}

    def chain(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """`images` and their mean-field reconstructions (`chain`), both [B, C, H, W]."""
        return {"images": images, "chain": self.reconstruct(images)}

    def _machine(self) -> BernoulliRBM:
        machine = BernoulliRBM(self.options.hidden, batch_size=len(self.chains))
        machine.components_, machine.intercept_hidden_, machine.intercept_visible_, machine.h_samples_ = (
            values.cpu().numpy() for values in (self.weight, self.bias_hidden, self.bias_visible, self.chains)
        )
        return machine

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Take as many chains as were saved: a trained model is loaded without its batch size."""
        self.chains = torch.empty_like(state_dict[f"{prefix}chains"], device=self.chains.device)
        super()._load_from_state_dict(state_dict, prefix, *arguments)


def _fixed(values: Tensor) -> nn.Parameter:
    """A parameter without gradients: it counts as one, and no optimiser moves it."""
    return nn.Parameter(values, requires_grad=False)


def build(options: RBMOptions, image_shape: tuple[int, int, int], classes: int) -> RBM:
    return RBM(options, image_shape)
