"""`make estimate`: numbers computed by hand, and hours only from measurements on the device."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import CONFIG

from recaps import bench, estimate
from recaps.config.load import Project, load
from recaps.config.workflow import Scale

pytestmark = pytest.mark.unit


def project(**values: Any) -> Project:
    return load({"scale": "smoke", "papers": ["experts"], **values}, CONFIG)


def test_hours_are_the_steps_of_each_phase() -> None:
    variant = project().papers["experts"].variants["mnist-experts"]
    assert variant.training.steps == 60, "30 of the autoencoder, 5 of the encoder, 25 of the decoder"
    seconds = {"autoencoder": 1.0, "encoder": 0.1, "decoder": 0.01}
    times = {bench.step_name(variant, phase, "auto"): {"seconds": each} for phase, each in seconds.items()}
    assert estimate.hours(variant, times) == pytest.approx((30 * 1.0 + 5 * 0.1 + 25 * 0.01) / 3600)
    times.popitem()
    assert estimate.hours(variant, times) is None
    assert estimate.hours(variant, {}) is None


def test_sizes_of_an_autoencoder_by_hand() -> None:
    """784-64-640 and back from 320: weights and a key of noise, in the model and in the checkpoint; latents."""
    found = estimate.sizes(project().papers["experts"].variants["mnist-vae"])
    parameters = (784 * 64 + 64) + (64 * 640 + 640) + (320 * 64 + 64) + (64 * 784 + 784)
    weights = 4 * parameters + 8
    assert found == {"models": weights, "checkpoints": weights, "latents": 4 * (3 * 320 + 1) + 8 + 8}


def test_storage_of_a_paper_by_hand() -> None:
    """Two seeds of eight variants on MNIST and Fashion-MNIST; the judges have latents of one split."""
    paper = project(seeds=[0, 1], scale="paper")
    variants = estimate.variants(paper)
    known = {bench.work_of(each): {"models": 100, "checkpoints": 300, "latents": 10} for each in variants.values()}
    read = sum(limit or {"train": 60_000, "test": 10_000}[name.split("/")[1]]
               for each in variants.values() for name, limit in each.latents.items())  # fmt: skip
    found = estimate.storage(paper, known)
    assert found["models"] == pytest.approx(2 * 8 * 100 / 1e9)
    experts = paper.papers["experts"]
    judge = experts.variants["mnist-judge"]
    watched = judge.model_copy(update={"training": judge.training.model_copy(update={"snapshots": (1, 2, 3)})})
    more = experts.model_copy(update={"variants": {**experts.variants, "mnist-judge": watched}})
    with_snapshots = estimate.storage(paper.model_copy(update={"papers": {"experts": more}}), known)
    assert with_snapshots["models"] == pytest.approx(2 * (8 + 3) * 100 / 1e9)
    assert with_snapshots["checkpoints"] == pytest.approx(2 * (8 + 3) * 300 / 1e9)
    assert found["checkpoints"] == pytest.approx(2 * 8 * 300 / 1e9)
    assert found["latents"] == pytest.approx(2 * 10 * read / 1e9)
    assert found["data sets"] == pytest.approx(2 * 70_000 * (28 * 28 + 8) / 1e9)


@pytest.mark.parametrize(
    ("name", "images"),
    [
        ("mnist-40/train", 60_000),
        ("mnist-rotated-45/test", 10_000),
        ("affnist/test", 320_000),
        ("affnist-generated/test", 30_000),
        ("affnist-generated/validation", 30_000),
        ("smallnorb/train", 24_300),
        ("smallnorb-48/train", 48_600),
        ("smallnorb-48-azimuth/train", 16_200),
        ("smallnorb-48-elevation/novel", 32_400),
        ("multimnist/train", 60_000),
        ("cifar10/train", 700),
    ],
)
def test_images_of_official_sets(name: str, images: int) -> None:
    options = {"affnist-generated": {"versions": 3}, "cifar10": {"limit": 700}}
    assert estimate.images(name, Scale(description="", dataset_options=options)) == images


def test_pairs_are_counted_where_a_model_sees_them() -> None:
    assert estimate.images("multimnist/test", Scale(description=""), pairs=True) == 10_000 * 1000


def test_own_data_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "sizes", lambda variant: {"models": 1, "checkpoints": 1, "latents": 1})
    shutil.copytree(CONFIG, tmp_path / "config")
    np.savez(tmp_path / "my.npz", images=np.zeros((4, 28, 28), np.uint8), labels=np.arange(4) % 2)
    printed = []
    for sets in ({}, {"mine": {"path": str(tmp_path / "my.npz")}, "mnist": "mine"}):
        (tmp_path / "config" / "config.yaml").write_text(json.dumps({"papers": ["experts"], "datasets": sets}))
        command = ["--config", str(tmp_path / "config"), "--scale", "paper", "--times", str(tmp_path / "none.json")]
        assert estimate.main(command) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


def test_what_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "times.json"
    vae = project().papers["experts"].variants["mnist-vae"]
    file.write_text(json.dumps({"A GPU": {bench.step_name(vae, "", "auto"): {"seconds": 60.0}}}))
    command = ["--config", str(CONFIG), "--scale", "smoke", "--papers", "experts", "--times", str(file)]
    assert estimate.main([*command, "--device", "A GPU"]) == 0
    first, head, *rows, note = capsys.readouterr().out.splitlines()
    assert first == "Scale smoke, 1 seeds, A GPU"
    assert head.split() == ["experts", "all"]
    assert [row.split()[-2:] for row in rows if "train_variant" in row] == [["8", "8"]]
    assert [row.split()[-4:] for row in rows if "hours" in row] == [["not", "measured"] * 2]
    assert not [row for row in rows if "GB" in row], "stand-ins"
    assert note == "Not measured: 6 of 8 variants; run `make bench` on this device."
    assert estimate.main([*command, "--device", "A GPV"]) == 1
    assert capsys.readouterr().err == f"recaps: --device: no times of 'A GPV' in {file} (did you mean 'A GPU'?)\n"
