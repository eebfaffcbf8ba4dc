"""What training and evaluation know of a model."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from recaps.config.training import Training

Batch = dict[str, Tensor]
"""`images`: float32, [B, C, H, W], in 0..1 unless standardised; `labels`: int64, [B], or [B, n] where an image shows n
classes at once, which then are also there one by one: `parts`, [B, n, C, H, W]."""


class Model(nn.Module):
    """A model that knows how it learns.

    Subclasses define `losses`, and override `training_step` where learning is not plain back-propagation.
    """

    training_options: Training
    optimizer: torch.optim.Optimizer
    adam_epsilon = 1e-8

    def place(self, device: torch.device) -> Self:
        """Move to a device, with convolutions in the memory order that is fastest there."""
        self.to(device)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return self

    def configure(self, training: Training) -> None:
        """Make ready for training: optimisers and their schedules."""
        self.training_options = training
        self.optimizer = torch.optim.Adam(
            self.parameters(), lr=training.learning_rate, eps=self.adam_epsilon, fused=True
        )

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """All optimisers by name: their state belongs into a checkpoint."""
        return {"adam": self.optimizer}

    def phases(self) -> dict[str, int]:
        """The first step of each kind of step that training takes, by name, when `configure` was called."""
        return {"": 0}

    def losses(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """The scalar `loss` to be minimised in a training step, and other scalars worth a column in the history."""
        raise NotImplementedError

    def training_step(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Learn from one batch; return its scalars, without gradients."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.training_options, step) * group.get("factor", 1.0)
        losses = self.losses(batch, step)
        self.optimizer.zero_grad(set_to_none=True)
        losses["loss"].backward()
        self.optimizer.step()
        return {name: value.detach() for name, value in losses.items()}

    def routing_operations(self, images: int) -> int:
        """Floating-point operations that votes and routing need in a training step, by their equations (0: none)."""
        return 0

    def class_scores(self, images: Tensor) -> Tensor:
        """Class scores [B, classes] of images [B, C, H, W]; models that are trained without labels have none."""
        raise NotImplementedError

    def latents(self, images: Tensor) -> dict[str, Tensor]:
        """Arrays of interest for each image, the first axis being the image's."""
        raise NotImplementedError


def learning_rate(training: Training, step: int) -> float:
    """Exponential decay without a staircase, down to a floor."""
    decayed = training.learning_rate * training.lr_decay ** (step / training.lr_decay_steps)
    return max(decayed, training.lr_floor)
