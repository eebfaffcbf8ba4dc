"""The base class of all models: the interface that training and evaluation use."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from recaps.config.training import Training
from recaps.models.schedule import learning_rate
from recaps.nn.noise import Noise
from recaps.nn.precision import backward
from recaps.npz import Array

Batch = dict[str, Tensor]
"""A mini-batch. `images`: float32 [B, C, H, W], in 0..1 unless standardised. `labels`: int64 [B]. If every image shows
n objects, `labels` is [B, n], and `parts` [B, n, C, H, W] holds each object alone."""


class Model(nn.Module):
    """A model with its training step.

    A step has two parts. `schedule` runs on the host and sets all that changes with the step. `work` runs on the device
    and never waits for it, so that it can be recorded and replayed. Subclasses define `losses` and `latents`. They
    override `work` if training is more than back-propagation.
    """

    training_options: Training
    optimizer: torch.optim.Optimizer
    adam_epsilon = 1e-8
    #: Whether `work` runs on the device alone.
    recordable = True

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

    def schedule(self, step: int) -> Hashable:
        """Prepare training step number `step`, from 0: set learning rates and all else that depends on it.

        Returns:
            The kind of step. `work` runs the same operations in all steps of a kind.
        """
        for group in self.optimizer.param_groups:
            set_rate(group, learning_rate(self.training_options, step, group.get("factor", 1.0)))
        if isinstance(noise := getattr(self, "noise", None), Noise):
            noise.schedule(step)
        return None

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the scalar `loss` of a batch, to minimise, and other scalars for the history, each a column."""
        raise NotImplementedError

    def work(self, batch: Batch) -> dict[str, Tensor]:
        """Update the weights on one batch, as scheduled. Return the scalars of `losses`, detached."""
        losses = self.losses(batch)
        self.optimizer.zero_grad(set_to_none=True)
        backward(losses["loss"])
        self.optimizer.step()
        return {name: value.detach() for name, value in losses.items()}

    def training_step(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Take a whole step: `schedule` and `work`."""
        self.schedule(step)
        return self.work(batch)

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


def set_rate(group: dict[str, Any], rate: float) -> None:
    """Set the learning rate of a group of an optimiser. A tensor keeps its memory, which recorded steps read."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
