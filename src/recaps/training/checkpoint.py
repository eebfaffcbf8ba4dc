"""Checkpoints of unfinished runs."""

from __future__ import annotations

import hashlib
import os
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from recaps import io
from recaps.errors import UserError
from recaps.identity import Identity, differences, key
from recaps.training import saved

FILE = "checkpoint.pt"
#: What a folder's checkpoints are of.
IDENTITY = "identity.json"
#: The checkpoint before the last, in case the last is damaged.
PREVIOUS = "checkpoint.previous.pt"
#: Bytes of the checksum at the start of a checkpoint.
DIGEST = hashlib.sha256().digest_size


def folder_of(run: Path, identity: Identity) -> Path:
    """Return the folder below `run` for the checkpoints of an identity; make it if it is new.

    Its name is the fingerprint that the checkpoints carry. Those of an identity without `differences` are continued, so
    that an option that was added since loses none.
    """
    for file in sorted(run.glob(f"*/{IDENTITY}")):
        if not differences(io.read_json(file), identity):
            return file.parent
    folder = run / key(identity)
    io.write_json(folder / IDENTITY, identity)
    return folder


def accept(run: Path, old: Identity, new: Identity) -> None:
    """Let checkpoints below `run` that are of the identity `old` count as those of `new`."""
    for file in run.glob(f"*/{IDENTITY}"):
        if not differences(known := io.read_json(file), old):
            io.write_json(file, {**known, **new})


def save(folder: Path, state: dict[str, Any]) -> None:
    """Save `state` (tensors, numbers, strings, lists and dicts), and keep the checkpoint before it."""
    buffer = BytesIO()
    torch.save({"fingerprint": folder.name, "state": state}, buffer)
    content = buffer.getvalue()
    # A full disk fails here, before either checkpoint is touched.
    written = folder / f"{FILE}.new"
    io.write_bytes(written, hashlib.sha256(content).digest() + content)
    if (folder / FILE).exists():
        os.replace(folder / FILE, folder / PREVIOUS)
    os.replace(written, folder / FILE)


def load(folder: Path) -> dict[str, Any] | None:
    """Return the last undamaged state, or None if there is none.

    A damaged checkpoint is reported and deleted, and the one before it is used, if there is one.

    Raises:
        UserError: the checkpoint belongs to a run with other settings, or on other data or another device.
    """
    files = [file for file in (folder / FILE, folder / PREVIOUS) if file.exists()]
    for file in files:
        saved = read(file)
        if saved is None:
            then = "training starts anew" if file == files[-1] else "using the checkpoint before it"
            print(f"{file}: damaged (truncated or modified) and deleted; {then}", file=sys.stderr, flush=True)
            file.unlink()
            continue
        if saved["fingerprint"] != folder.name:
            raise UserError(
                f"{file}: belongs to a run with other settings, other data or another device; delete {folder} to train"
                " from the start"
            )
        state: dict[str, Any] = saved["state"]
        return state
    return None


def read(file: Path) -> dict[str, Any] | None:
    """Return `fingerprint` and `state` of a checkpoint, or None if its checksum does not match."""
    content = file.read_bytes()
    if hashlib.sha256(content[DIGEST:]).digest() != content[:DIGEST]:
        return None
    return dict(torch.load(BytesIO(content[DIGEST:]), map_location="cpu", weights_only=True))


def snapshot(folder: Path, step: int) -> Path:
    """Return the file of the weights after a step."""
    return folder / f"step-{step}.safetensors"


def keep_snapshot(folder: Path, model: nn.Module, step: int) -> None:
    """Write the weights after a step. A run that is resumed writes the same bits again."""
    tensors = saved.weights(model, f"step-{step}/")
    io.write_bytes(snapshot(folder, step), safetensors.torch.save(tensors))
