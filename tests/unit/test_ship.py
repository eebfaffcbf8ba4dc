"""Trained models that come with the package: shipped from a run, loaded by name, and refused if something differs."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch

import recaps
from recaps import npz, ship, trained
from recaps.datasets.preparation import prepare
from recaps.errors import UserError
from recaps.io import digest_of, read_json, write_json
from recaps.training.run import train

TINY = {"conv_channels": 4, "primary_types": 2, "capsule_dim": 2, "decoder": [8]}
MODELS = {"supcaps-28": {"family": "supcaps", **TINY}, "sparsecaps-28": {"family": "sparsecaps", **TINY}}


@pytest.fixture(scope="module", params=MODELS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results") / "smoke"
    for split in ("train", "test"):
        prepare("mnist", split, folder / "raw", folder / "datasets", stand_in=True, options={"limit": 100})
    train(
        {"model": MODELS[request.param], "training": {"steps": 2, "batch_size": 8}},
        identity={"paper": "sparse", "variant": request.param, "scale": "smoke"},
        seed=0,
        dataset=folder / "datasets/mnist/train",
        out=folder / "runs/sparse" / request.param / "seed-0",
        checkpoints=folder / "checkpoints",
    )
    record = folder / "runs/sparse" / request.param / "seed-0/record.json"
    write_json(record, read_json(record) | {"git": {"commit": "0" * 40, "dirty": False}})
    return record.parent


@pytest.fixture
def shipped(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(trained, "WEIGHTS", tmp_path / "weights")
    return ship.ship(run, tmp_path / "weights")


def test_a_shipped_run_is_loaded_by_name(run: Path, shipped: Path) -> None:
    name = f"sparse/{run.parent.name}"
    assert recaps.list_models() == [name]
    model, settings, record = recaps.load(name, device="cpu")
    before = recaps.load(run, device="cpu").model
    assert all(value.dtype == before.state_dict()[key].dtype for key, value in model.state_dict().items())
    images, labels = recaps.examples(name)
    assert (images.shape, images.dtype, labels.tolist()) == ((8, 1, 28, 28), np.uint8, [*range(8)])
    for key, values in trained.outputs(before, settings, images).items():
        np.testing.assert_allclose(trained.outputs(model, settings, images)[key], values, atol=0.01)
    assert record["shipped"]["precision"] == "half precision"
    card = (shipped / "README.md").read_text(encoding="utf-8")
    assert ship.card(record) == card
    assert f'recaps.load("{name}")' in card
    assert "stand-in data, so the numbers mean nothing" in card


def test_damage_and_other_outputs_are_refused(shipped: Path) -> None:
    name = "/".join(shipped.parts[-2:])
    record = read_json(shipped / "record.json")
    for file in ("model.safetensors", "config.json", "examples.npz"):
        content = (shipped / file).read_bytes()
        (shipped / file).write_bytes(content + b" ")
        with pytest.raises(UserError, match=rf"{file}: damaged, SHA-256 \w+ instead of \w+; install it again\Z"):
            recaps.load(name)
        (shipped / file).write_bytes(content)
    stored = npz.read(shipped / "examples.npz")
    output = next(key for key in stored if key not in ("images", "labels"))
    npz.save(shipped / "examples.npz", stored | {output: stored[output] * 1.01})
    record["shipped"]["sha256"]["examples.npz"] = digest_of(shipped / "examples.npz")
    write_json(shipped / "record.json", record)
    with pytest.raises(UserError, match=rf"'{output}' of its eight images differ by up to .* use commit 00000000\Z"):
        recaps.load(name, device="cpu")


def test_names(shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "/".join(shipped.parts[-2:])
    for find in (recaps.load, recaps.examples):
        with pytest.raises(UserError, match=rf"{name}x: .*\(did you mean '{name}'\?\)\Z"):
            find(f"{name}x")
    monkeypatch.chdir(tmp_path)
    Path(name).mkdir(parents=True)  # an existing folder wins
    with pytest.raises(UserError, match="no trained run"):
        recaps.load(name)


def test_what_is_not_shipped(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as limits:
        limits.setattr(ship, "MOST_BYTES", 1000)
        with pytest.raises(UserError, match=r"the weights have 0\.\d MB, but at most 0 MB may; leave it out\Z"):
            ship.ship(run, tmp_path)
    monkeypatch.setattr(ship, "POINTS", -1)
    folder = ship.ship(run, tmp_path)
    assert read_json(folder / "record.json")["shipped"]["precision"] == "float32"
    assert safetensors.torch.load_file(folder / "model.safetensors")["bias"].dtype.itemsize == 4
    copied = tmp_path / "a/b/c/d"
    shutil.copytree(run, copied)
    write_json(copied / "record.json", read_json(run / "record.json") | {"git": {"commit": "0", "dirty": True}})
    with pytest.raises(UserError, match="trained with uncommitted code; commit, and train it again"):
        ship.ship(copied, tmp_path)


def test_stand_ins_are_not_shipped_with_the_package(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ship.main([str(run)]) == 1
    assert "trained on stand-in data; ship a run of official data" in capsys.readouterr().err


@pytest.mark.parametrize("name", recaps.list_models())
def test_the_models_of_the_package_compute_what_they_did(name: str) -> None:
    _, settings, record = recaps.load(name, device="cpu")
    assert (settings["seed"], record["dataset"]["stand_in"]) == (0, False)
    assert (trained.WEIGHTS / name / "README.md").read_text(encoding="utf-8") == ship.card(record)


def test_the_models_of_the_package_are_small() -> None:
    sizes = [file.stat().st_size for file in trained.WEIGHTS.glob("*/*/model.safetensors")]
    assert max(sizes, default=0) <= ship.MOST_BYTES
    assert sum(sizes) <= ship.MOST_BYTES_OF_ALL
