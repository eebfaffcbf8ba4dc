"""Measured times of training steps, in a file that `python -m recaps.bench --save` adds to and `recaps.estimate` reads.

A step's time depends on its work and on the machine, not on paper, variant and seed. Rows are therefore found by what
the work is made of: the model's settings, the shape of the images and of their labels, the size of the batch, the phase
of learning, and the precision.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from io import StringIO
from pathlib import Path
from typing import Any

from recaps import io
from recaps.config.variant import Variant
from recaps.datasets.catalogue import defaults, describe
from recaps.errors import UserError
from recaps.training.batches import view_shape

FILE = Path("docs/step-times.csv")

#: As a variant is trained on the machine that was measured.
OWN = "own"
#: In tensor operations, as on a GPU, where the machine that was measured has compiled code of its own.
TENSORS = "tensors"


@dataclass(frozen=True)
class StepTime:
    """The time of one kind of training step on one machine."""

    device: str
    """As PyTorch names it; of a CPU with the number of threads."""
    work: str
    """What the step does: `work_of` its variant."""
    phase: str
    """Of the model's learning; most have one, without a name."""
    precision: str
    code: str
    """`own`, or `tensors`."""
    batch_size: int
    """Images of a training step."""
    images: int
    """Images of the timed step; fewer than `batch_size` where that many have no room."""
    seconds: float
    """Median time of a step of `batch_size` images; in proportion where fewer were timed."""
    gflop: float
    """Billions of operations that such a step needs. Routing of matrix capsules is not counted."""
    calls: int
    """Tensor operations that compute something, forward and backward."""
    gib: float
    """Memory that such a step needs beside the process itself."""
    bf16: float
    """GFLOP/s of bfloat16 matrix products on the machine."""
    float32: float
    """The same in float32."""
    bandwidth: float
    """GB/s of a large copy on the machine, read and written bytes together."""
    scale: str
    paper: str
    variant: str
    """The first variant that does this work, for the reader; rows are not found by it."""
    date: str
    torch: str

    @property
    def key(self) -> tuple[str, ...]:
        return (self.device, self.work, self.phase, self.precision, self.code)


def image_shape(variant: Variant) -> tuple[int, int, int]:
    """Shape (C, H, W) of the images that a variant's model sees."""
    about = describe(_set(variant))
    return view_shape((about["channels"], about["height"], about["width"]), variant.training)


def work_of(variant: Variant) -> str:
    """Equal for variants whose steps do the same work: one network on images of one shape, in batches of one size."""
    work = {
        "model": variant.model.model_dump(mode="json"),
        "image": image_shape(variant),
        "pairs": "pairs" in defaults(_set(variant)),
        "batch_size": variant.training.batch_size,
    }
    return hashlib.sha256(json.dumps(work, sort_keys=True).encode()).hexdigest()[:12]


def read(file: Path) -> list[StepTime]:
    """The rows of a file, none where there is no file.

    Raises:
        UserError: a file that was not written by `save`.
    """
    if not Path(file).is_file():
        return []
    kinds = {field.name: _KINDS[str(field.type)] for field in fields(StepTime)}
    try:
        with open(file, encoding="utf-8", newline="") as lines:
            table = csv.DictReader(lines)
            return [StepTime(**{name: kind(row[name]) for name, kind in kinds.items()}) for row in table]
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{file}: not a file of step times ({error}); `python -m recaps.bench --save` writes one"
        ) from error


def save(file: Path, rows: Iterable[StepTime]) -> None:
    """Add rows to a file; a row for the same work on the same device is replaced."""
    kept = {row.key: row for row in (*read(file), *rows)}
    text = StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(StepTime)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(_rounded(asdict(row)) for row in kept.values())
    io.write_text(file, text.getvalue())


_KINDS: dict[str, Any] = {"str": str, "int": int, "float": float}


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    return {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in values.items()}


def _set(variant: Variant) -> str:
    return variant.data.split("/")[0]
