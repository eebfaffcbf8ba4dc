"""What TensorBoard shows of a training: the rows of its history, and reconstructions."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from recaps.errors import UserError
from recaps.models.model import Model
from recaps.training.batches import Batches, view

#: Images in a grid, the first of the training set.
IMAGES = 8


class Board:
    """Writes events to a folder. Those of earlier starts of the run are written again, as the history has them.

    Raises:
        UserError: the package `tensorboard` is not installed.
    """

    def __init__(self, folder: Path, model: Model, batches: Batches) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UserError("training.tensorboard: needs the package tensorboard; pip install tensorboard") from error
        shutil.rmtree(folder, ignore_errors=True)
        self.events = SummaryWriter(folder, flush_secs=10)
        some = torch.arange(min(IMAGES, len(batches.images.labels)), device=batches.device)
        self.model, self.images = model, view(batches.images(some)["images"], batches.training)

    def add(self, row: Mapping[str, float], *, pictures: bool) -> None:
        """Add the numbers of a row of the history, and with `pictures` images above their reconstructions."""
        step = int(row["step"])
        for name, number in row.items():
            if name != "step":
                self.events.add_scalar(name, number, step)
        made = self._reconstructed() if pictures else None
        if made is not None:
            grid = torch.cat([torch.cat(list(each), 2) for each in (self.images, made)], 1).clamp(0, 1)
            self.events.add_image("reconstructions", grid, step)
        self.events.flush()

    def _reconstructed(self) -> Tensor | None:
        """Return the reconstructions of the images, or None if the model has no decoder."""
        if type(self.model).reconstruct is Model.reconstruct or getattr(self.model, "decoder", self) is None:
            return None
        was_training = self.model.training
        self.model.eval()
        with torch.inference_mode():
            made = self.model.reconstruct(self.images)
        self.model.train(was_training)
        return made.float()
