"""`make estimate`: numbers computed by hand, and hours from measurements."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import CONFIG
from timed_runs import publish

from recaps import bench, estimate, step_times
from recaps.config.load import Project, load
from recaps.config.workflow import Scale
from recaps.evaluation.latents import latents_of
from recaps.nn import kernels
from recaps.step_times import hours, step_name, work_of
from recaps.training.batches import Batches
from recaps.training.images import images_of
from recaps.training.step import take_steps

pytestmark = pytest.mark.unit


def project(**values: Any) -> Project:
    return load({"scale": "smoke", "papers": ["experts"], **values}, CONFIG)


def test_hours_are_the_steps_of_each_phase() -> None:
    variant = project().papers["experts"].variants["mnist-experts"]
    assert variant.training.steps == 60, "30 of the autoencoder, 5 of the encoder, 25 of the decoder"
    phases = estimate.untrained(variant).phases()
    seconds = {"autoencoder": 1.0, "encoder": 0.1, "decoder": 0.01}
    times = {step_name(variant, phase, "auto"): each for phase, each in seconds.items()}
    assert hours(variant, phases, times) == pytest.approx((30 * 1.0 + 5 * 0.1 + 25 * 0.01) / 3600)
    times.popitem()
    assert hours(variant, phases, times) is None
    mean = {step_name(variant, "", "auto"): 0.5}
    assert hours(variant, phases, times | mean) == pytest.approx(60 * 0.5 / 3600)
    assert hours(variant, phases, {}) is None


def test_sizes_of_an_autoencoder_by_hand() -> None:
    """784-64-640 and back from 320: weights and a key of noise, in the model and in the checkpoint; latents."""
    variant = project().papers["experts"].variants["mnist-vae"]
    found = estimate.sizes(variant, estimate.untrained(variant))
    parameters = (784 * 64 + 64) + (64 * 640 + 640) + (320 * 64 + 64) + (64 * 784 + 784)
    weights = 4 * parameters + 8
    assert found == {"models": weights, "checkpoints": weights, "latents": 4 * (3 * 320 + 1) + 8 + 8}


def test_sizes_are_those_of_trained_models() -> None:
    """Of each family, at scale smoke: after a step of each phase, with weights that were all drawn."""
    every = project(papers=None).papers.values()
    families = {each.model.family: each for paper in every for each in paper.variants.values()}
    assert len(families) > 8
    for variant in families.values():
        training = variant.training
        images = images_of(bench.random_split(variant.data.split("/")[0], training.batch_size), estimate.CPU)
        model = bench.untrained(variant, training, estimate.CPU)
        with kernels.off():
            for _ in take_steps(model, Batches(images, training, 0, estimate.CPU), model.phases().values()):
                pass
            latents = latents_of(model.eval(), images, range(2), training, estimate.CPU)
        weights = sum(each.nbytes for each in model.state_dict().values())
        found = estimate.sizes(variant, estimate.untrained(variant))
        assert found["models"] == found["checkpoints"] == weights, variant.title
        assert found["latents"] == sum(each.nbytes for each in latents.values()) // 2 + 8, variant.title


def test_storage_of_a_paper_by_hand() -> None:
    """Two seeds of eight variants on MNIST and Fashion-MNIST; the judges have latents of one split."""
    paper = project(seeds=[0, 1], scale="paper")
    variants = bench.variants_of(paper)
    known = {work_of(each): {"models": 100, "checkpoints": 300, "latents": 10} for each in variants.values()}
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
        ("smallnorb-zip/train", 24_300),
        ("smallnorb-zip-48/train", 48_600),
        ("smallnorb-parquet-48-elevation/novel", 32_400),
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
    monkeypatch.setattr(estimate, "sizes", lambda variant, model: {"models": 1, "checkpoints": 1, "latents": 1})
    shutil.copytree(CONFIG, tmp_path / "config")
    np.savez(tmp_path / "my.npz", images=np.zeros((4, 28, 28), np.uint8), labels=np.arange(4) % 2)
    printed = []
    for sets in ({}, {"mine": {"path": str(tmp_path / "my.npz")}, "mnist": "mine"}):
        (tmp_path / "config" / "config.yaml").write_text(json.dumps({"papers": ["experts"], "datasets": sets}))
        command = ["--config", str(tmp_path / "config"), "--scale", "paper", "--times", str(tmp_path / "none.json")]
        assert estimate.main(command) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


def test_what_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_times.published, "__defaults__", (tmp_path / "published",))
    variants = project().papers["experts"].variants
    file, vae = tmp_path / "times.json", variants["mnist-vae"]
    file.write_text(json.dumps({"A GPU": {step_name(vae, "", "auto"): {"seconds": 60.0}}}))
    for name, seconds in (("mnist-vae", 1.0), ("mnist-rbm", 36.0)):
        publish(tmp_path / "published", name, variants[name], "A GPU", seconds)
        publish(tmp_path / "published", name, variants[name], "A CPU, 2 threads", 2 * seconds)
    command = ["--config", str(CONFIG), "--scale", "smoke", "--papers", "experts", "--times", str(file)]
    assert estimate.main(command) == 0
    first, head, *rows, note, other = capsys.readouterr().out.splitlines()
    assert first == "Scale smoke, 1 seeds"
    assert head.split() == ["experts", "all"]
    assert [row.split()[-2:] for row in rows if "train_variant" in row] == [["8", "8"]]
    assert not [row for row in rows if "GB" in row], "stand-ins"
    steps, fewer = vae.training.steps, variants["mnist-rbm"].training.steps
    gpu, cpu = 2 * (steps * 60 + fewer * 36) / 3600, 2 * (steps * 2 + fewer * 72) / 3600
    assert [row.split("  ")[0] for row in rows if "hours" in row] == [
        "hours: A GPU",
        "hours: A CPU, 2 threads (published)",
    ]
    assert [row.split()[-1] for row in rows if "hours" in row] == [f"{gpu:.1f}", f"{cpu:.1f}"], "own times first"
    assert note == "A GPU: 4 of 8 variants were not measured; `make bench` there does so."
    assert other.startswith("A CPU, 2 threads (published): 4 of 8")
    assert estimate.main([*command, "--device", "A CPU, 2 threads"]) == 0
    assert "GPU" not in capsys.readouterr().out
    assert estimate.main([*command, "--device", "A GPV"]) == 1
    wrong = f"recaps: --device: no times of 'A GPV', neither in {file} nor published (did you mean 'A GPU'?)\n"
    assert capsys.readouterr().err == wrong
    monkeypatch.setattr(step_times.published, "__defaults__", (tmp_path / "none",))
    file.unlink()
    assert estimate.main(command) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "No hours: no variant was measured; run `make bench`."
