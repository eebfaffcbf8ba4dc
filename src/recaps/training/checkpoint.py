"""Checkpoints that a run continues from."""

from __future__ import annotations

import hashlib
import os
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from recaps import io
from recaps.errors import UserError

FILE = "checkpoint.pt"
#: The one before, for when the last is damaged.
PREVIOUS = "checkpoint.previous.pt"
#: Bytes of the checksum that a checkpoint begins with.
DIGEST = hashlib.sha256().digest_size


def save(folder: Path, state: dict[str, Any], fingerprint: str) -> None:
    """Write `state` (tensors, numbers, strings, lists and dicts) whole, and keep the checkpoint before it."""
    buffer = BytesIO()
    torch.save({"fingerprint": fingerprint, "state": state}, buffer)
    content = buffer.getvalue()
    # Written beside first: a full disk leaves both checkpoints as they are.
    written = folder / f"{FILE}.new"
    io.write_bytes(written, hashlib.sha256(content).digest() + content)
    if (folder / FILE).exists():
        os.replace(folder / FILE, folder / PREVIOUS)
    os.replace(written, folder / FILE)


def load(folder: Path, fingerprint: str) -> dict[str, Any] | None:
    """Return the last saved state that is whole, or None where there is none.

    A damaged checkpoint is deleted, with a line that says so, and the one before it counts.

    Raises:
        UserError: the checkpoint belongs to a run with other settings.
    """
    for file in (folder / FILE, folder / PREVIOUS):
        if not file.exists():
            continue
        saved = read(file)
        if saved is None:
            print(
                f"{file}: damaged (cut short or changed on disk) and deleted; going back", file=sys.stderr, flush=True
            )
            file.unlink()
            continue
        if saved["fingerprint"] != fingerprint:
            raise UserError(
                f"{file}: was made with other settings, code or data; delete {folder} to train from the start"
            )
        state: dict[str, Any] = saved["state"]
        return state
    return None


def read(file: Path) -> dict[str, Any] | None:
    """`fingerprint` and `state` of a checkpoint; None where its content is not what was written."""
    content = file.read_bytes()
    if hashlib.sha256(content[DIGEST:]).digest() != content[:DIGEST]:
        return None
    return dict(torch.load(BytesIO(content[DIGEST:]), map_location="cpu", weights_only=True))


def sweep(folder: Path) -> None:
    """Remove what a trainer that was killed has left half-written; only for the holder of the folder's lease."""
    for left in folder.glob(f".{FILE}.new.*.part"):
        left.unlink(missing_ok=True)
