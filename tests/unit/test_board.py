"""TensorBoard shows the rows of a history and reconstructions, and changes nothing."""

from __future__ import annotations

import csv
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from recaps.config.training import Training
from recaps.datasets.preparation import prepare
from recaps.errors import UserError
from recaps.identity import differences
from recaps.training.run import train

MODELS = {
    "decoder": {"family": "supcaps", "conv_channels": 4, "primary_types": 2, "capsule_dim": 2, "decoder": [8]},
    "none": {"family": "discriminative", "conv_channels": 4, "primary_types": 2, "capsule_dim": 2, "decoder": None},
}


def run(folder: Path, model: str = "decoder", **training: Any) -> Path:
    """Train for 6 steps with a row of the history at every second one; return the run's folder."""
    data = prepare("mnist", "train", folder, folder / "data", stand_in=True, options={"limit": 40})
    train(
        {"model": MODELS[model], "training": {"steps": 6, "batch_size": 8, "log_every": 2, **training}},
        identity={"paper": "sparse", "variant": "tiny", "scale": "test"},
        seed=0,
        dataset=data,
        out=folder / "run",
        checkpoints=folder / "checkpoints",
        device="cpu",
    )
    return folder / "run"


@pytest.mark.parametrize("model", MODELS)
def test_events_are_the_history_and_pictures(tmp_path: Path, model: str) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    plain, watched = run(tmp_path / "a", model), run(tmp_path / "b", model, tensorboard=True)
    assert (plain / "model.safetensors").read_bytes() == (watched / "model.safetensors").read_bytes()

    def shown() -> Any:
        (folder,) = (tmp_path / "b/checkpoints").glob("*/tensorboard")
        return events.EventAccumulator(str(folder)).Reload()

    with open(watched / "history.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    scalars = shown().Scalars("loss")
    assert [each.step for each in scalars] == [2, 4, 6]
    assert [each.value for each in scalars] == pytest.approx([float(row["loss"]) for row in rows])
    if model == "decoder":
        pictures = shown().Images("reconstructions")
        assert [(each.step, each.width, each.height) for each in pictures] == [(n, 8 * 28, 2 * 28) for n in (2, 4, 6)]
    else:
        assert not shown().Tags()["images"]
    shutil.rmtree(watched)  # so that it is written again from the checkpoint
    run(tmp_path / "b", model, tensorboard=True)
    assert [each.step for each in shown().Scalars("loss")] == [2, 4, 6]


def test_it_makes_no_run_new() -> None:
    settings = [{"training": Training(tensorboard=each).model_dump()} for each in (False, True)]
    plain, watched = ({"settings": each | {"variants": {"supcaps": each}}} for each in settings)
    assert differences(plain, watched) == differences(watched, plain) == []


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match=r"\Atraining\.tensorboard: needs the package tensorboard; pip install"):
        run(tmp_path, tensorboard=True)
