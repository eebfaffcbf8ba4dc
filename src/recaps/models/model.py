"""The base class of all models: the interface that training and evaluation use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor, nn

from recaps.config.training import Training
from recaps.nn.precision import backward
from recaps.npz import Array

Batch = dict[str, Tensor]
"""A mini-batch. `images`: float32 [B, C, H, W], in 0..1 unless standardised. `labels`: int64 [B]. If every image shows
n objects, `labels` is [B, n], and `parts` [B, n, C, H, W] holds each object alone."""


class Model(nn.Module):
    """A model with its training step.

    Subclasses define `losses` and `latents`. They override `training_step` if training is more than back-propagation.
    """

    training_options: Training
    optimizer: torch.optim.Optimizer
    adam_epsilon = 1e-8

    def place(self, device: torch.device) -> Self:
        """Move the model to a device, and its convolutions to channels-last memory format."""
        self.to(device)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return self

    def configure(self, training: Training) -> None:
        """Prepare for training: create the optimisers."""
        self.training_options = training
        self.optimizer = torch.optim.Adam(
            self.parameters(), lr=training.learning_rate, eps=self.adam_epsilon, fused=True
        )

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Return all optimisers by name. A checkpoint saves their state."""
        return {"adam": self.optimizer}

    def phases(self) -> dict[str, int]:
        """The first step of each kind of step that training takes, by name, when `configure` was called."""
        return {"": 0}

    def losses(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Compute the loss of a batch.

        Args:
            batch: the mini-batch.
            step: number of the training step, from 0. Schedules and random numbers depend on it.

        Returns:
            The scalar `loss` to minimise, and other scalars for the history, each a column.
        """
        raise NotImplementedError

    def training_step(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Update the weights on one batch. Return the scalars of `losses`, detached."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.training_options, step) * group.get("factor", 1.0)
        losses = self.losses(batch, step)
        self.optimizer.zero_grad(set_to_none=True)
        backward(losses["loss"])
        self.optimizer.step()
        return {name: value.detach() for name, value in losses.items()}

    def own_operations(self, images: int) -> int:
        """Floating-point operations of a training step that PyTorch does not count as the equations do (0: none).

        These are votes and routing, and what another library computes.
        """
        return 0

    def class_scores(self, images: Tensor) -> Tensor:
        """Class scores [B, classes] of images [B, C, H, W]. Models that are trained without labels have none."""
        raise NotImplementedError

    def reconstruct(self, images: Tensor) -> Tensor:
        """Encode images [B, C, H, W] and decode them, [B, C, H, W]. Models without a decoder have no pictures."""
        raise NotImplementedError

    def latents(self, images: Tensor) -> dict[str, Tensor]:
        """The model's output for images [B, C, H, W] as named arrays [B, ...]."""
        raise NotImplementedError

    def diagnosis(self, latents: Mapping[str, Array]) -> dict[str, float]:
        """Numbers that tell whether the model learns as it should, from the `latents` of many images, by name.

        The records of studies have them.
        """
        return {}


def learning_rate(training: Training, step: int) -> float:
    """Learning rate at a step: max(`learning_rate` * `lr_decay` ** (step / `lr_decay_steps`), `lr_floor`)."""
    decayed = training.learning_rate * training.lr_decay ** (step / training.lr_decay_steps)
    return max(decayed, training.lr_floor)
