"""Latents, probes and heads on small real runs and on made-up latents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recaps import npz
from recaps.datasets.preparation import prepare
from recaps.errors import UserError
from recaps.evaluation.heads import evaluate, highest_are_labels
from recaps.evaluation.latents import extract
from recaps.evaluation.probes import probe
from recaps.nn.losses import right
from recaps.training.run import load_model, train

pytestmark = pytest.mark.unit

SETTINGS: dict[str, Any] = {
    "model": {"family": "sparsecaps", "learning": "sparse", "conv_channels": 4, "primary_types": 2, "capsules": 4},
    "training": {"steps": 3, "batch_size": 4, "precision": "float32"},
}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("datasets")
    for name in ("mnist", "mnist-40"):
        prepare(name, "test", root, root, stand_in=True, options={"limit": 23})
    return root


@pytest.fixture(scope="module")
def run(datasets: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    identity = {"paper": "sparse", "variant": "tiny", "scale": "test"}
    train(
        SETTINGS, identity=identity, seed=0, dataset=datasets / "mnist/test", out=folder, checkpoints=folder / "ckpt",
        device="cpu", threads=1,
    )  # fmt: skip
    return folder


def test_latents_are_the_models_whatever_the_batch(run: Path, datasets: Path, tmp_path: Path) -> None:
    out = tmp_path / "latents.npz"
    extract(run, datasets / "mnist/test", out, batch_size=7, device="cpu")
    arrays = npz.read(out)
    assert arrays["capsules"].shape == (23, 4, 16)
    assert arrays["capsules"].dtype == np.float32
    assert arrays["original"].tolist() == list(range(23))
    assert bool(arrays["stand_in"])
    model, _ = load_model(run, torch.device("cpu"))
    images = torch.tensor(np.load(datasets / "mnist/test/images.npy")).float() / 255
    with torch.no_grad():
        expected = model.latents(images)["capsules"].numpy()
    np.testing.assert_allclose(arrays["capsules"], expected, atol=1e-5)


def test_latents_stop_at_the_limit(run: Path, datasets: Path, tmp_path: Path) -> None:
    extract(run, datasets / "mnist/test", tmp_path / "latents.npz", limit=9, batch_size=4, device="cpu")
    assert len(npz.read(tmp_path / "latents.npz")["labels"]) == 9


def test_images_of_another_shape_are_refused(run: Path, datasets: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"images of shape \[1, 40, 40\], but .* was trained on \[1, 28, 28\]"):
        extract(run, datasets / "mnist-40/test", tmp_path / "latents.npz", device="cpu")


def test_a_probe_is_written_and_a_misspelt_one_named(run: Path, datasets: Path, tmp_path: Path) -> None:
    probe(run, datasets / "mnist/test", tmp_path / "probe.npz", name="single-capsules", images=3, device="cpu")
    assert npz.read(tmp_path / "probe.npz")["single"].shape == (3, 4, 1, 28, 28)
    with pytest.raises(UserError, match="did you mean 'single-capsules'"):
        probe(run, datasets / "mnist/test", tmp_path / "no.npz", name="single-capsule", device="cpu")


def test_a_run_without_its_weights_is_told_in_one_line(run: Path, datasets: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((run / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"short")
    with pytest.raises(UserError, match=r"cannot be read .*delete the run and train again"):
        load_model(tmp_path, torch.device("cpu"))


def made_up(file: Path, n: int, versions: int = 1, seed: int = 0) -> Path:
    """Latents in which the class is told by the nearest corner, with `versions` images of each original."""
    draw = np.random.default_rng(seed)
    labels = np.tile(draw.integers(0, 3, n), versions)
    capsules = np.eye(3)[labels][:, :, None] + 0.1 * draw.normal(size=(n * versions, 3, 1))
    mask = np.ones((n * versions, 3))
    arrays = {
        "capsules": capsules.astype(np.float32),
        "scores": capsules[..., 0].astype(np.float32),
        "mask": mask.astype(np.float32),
        "labels": labels,
        "original": np.tile(np.arange(n), versions),
        "stand_in": np.asarray(False),
    }
    npz.save(file, arrays)
    return file


def result(latents: dict[str, Path], head: dict[str, Any], protocol: dict[str, Any], folder: Path) -> dict[str, Any]:
    evaluate(latents, head, {"title": "t"} | protocol, folder / "head.json")
    return dict(json.loads((folder / "head.json").read_text()))


@pytest.mark.parametrize("kind", ["svm", "linear"])
def test_heads_classify_what_can_be_classified(kind: str, tmp_path: Path) -> None:
    latents = {"a/train": made_up(tmp_path / "a.npz", 90), "a/test": made_up(tmp_path / "b.npz", 60, seed=1)}
    protocol = {"fit": {"set": "a/train"}, "test": {"set": "a/test", "start": 10}}
    values = result(latents, {"kind": kind}, protocol, tmp_path)
    assert values["accuracy"] > 0.95
    assert (values["n"], values["n_fit"]) == (50, 90)
    assert values["stand_in"] is False


def test_the_svm_is_scikit_learns_with_the_papers_settings(tmp_path: Path) -> None:
    from sklearn.svm import SVC

    latents = {"a/train": made_up(tmp_path / "a.npz", 50), "a/test": made_up(tmp_path / "b.npz", 50, seed=1)}
    protocol = {"fit": {"set": "a/train"}, "test": {"set": "a/test"}}
    ours = result(latents, {"kind": "svm", "C": 100, "gamma": 0.1}, protocol, tmp_path)
    fit, test = (npz.read(file) for file in latents.values())
    svc = SVC(C=100, gamma=0.1).fit(fit["capsules"].reshape(50, -1), fit["labels"])
    assert ours["accuracy"] == svc.score(test["capsules"].reshape(50, -1), test["labels"])


def test_argmax_needs_no_fit(tmp_path: Path) -> None:
    latents = {"a/test": made_up(tmp_path / "a.npz", 40)}
    head, protocol = {"kind": "argmax", "features": "scores"}, {"test": {"set": "a/test"}}
    assert result(latents, head, protocol, tmp_path)["accuracy"] == 1


def test_masked_features_are_the_capsules_under_the_mask(tmp_path: Path) -> None:
    file = made_up(tmp_path / "a.npz", 60)
    arrays = npz.read(file)
    arrays["mask"][:] = 0
    npz.save(file, arrays)
    protocol = {"fit": {"set": "a/test"}, "test": {"set": "a/test"}}
    blind = result({"a/test": file}, {"kind": "svm", "features": "masked"}, protocol, tmp_path)["accuracy"]
    assert blind == pytest.approx(np.bincount(arrays["labels"]).max() / 60)


def test_disjoint_digits_share_no_original_and_positions_do(tmp_path: Path) -> None:
    latents = {"a/test": made_up(tmp_path / "a.npz", 70, versions=3)}
    disjoint = {"fit": {"set": "a/test", "digits": "fit"}, "test": {"set": "a/test", "digits": "test"}}
    values = result(latents, {"kind": "svm"}, disjoint, tmp_path)
    assert (values["n_fit"], values["n"]) == (180, 30)
    assert values["test_images_whose_original_was_fitted"] == 0
    position = {"fit": {"set": "a/test", "count": 140}, "test": {"set": "a/test", "start": 140}}
    assert result(latents, {"kind": "svm"}, position, tmp_path)["test_images_whose_original_was_fitted"] == 70


def test_a_part_beyond_the_latents_is_told_in_one_line(tmp_path: Path) -> None:
    latents = {"a/test": made_up(tmp_path / "a.npz", 10)}
    with pytest.raises(UserError, match="asks for all images from number 60000 on, but there are 10"):
        result(latents, {"kind": "argmax", "features": "scores"}, {"test": {"set": "a/test", "start": 60000}}, tmp_path)


def test_too_few_images_for_a_part_are_told_in_one_line(tmp_path: Path) -> None:
    latents = {"a/test": made_up(tmp_path / "a.npz", 10)}
    protocol = {"test": {"set": "a/test", "start": 5, "count": 6}}
    with pytest.raises(UserError, match="asks for 6 images from number 5 on, but there are 10"):
        result(latents, {"kind": "argmax", "features": "scores"}, protocol, tmp_path)


def test_disjoint_digits_need_known_originals(tmp_path: Path) -> None:
    file = made_up(tmp_path / "a.npz", 20)
    arrays = npz.read(file)
    del arrays["original"]
    npz.save(file, arrays)
    protocol = {"fit": {"set": "a/test", "digits": "fit"}, "test": {"set": "a/test", "digits": "test"}}
    with pytest.raises(UserError, match="has no 'original'"):
        result({"a/test": file}, {"kind": "svm"}, protocol, tmp_path)
    position = {"fit": {"set": "a/test", "count": 15}, "test": {"set": "a/test", "start": 15}}
    values = result({"a/test": file}, {"kind": "svm"}, position, tmp_path)
    assert values["test_images_whose_original_was_fitted"] is None


def test_missing_and_damaged_arrays_are_told_in_one_line(tmp_path: Path) -> None:
    file = made_up(tmp_path / "a.npz", 10)
    with pytest.raises(UserError, match="has no array 'pose'"):
        npz.read(file, ("pose",))
    file.write_bytes(file.read_bytes()[:300])
    with pytest.raises(UserError, match="truncated or damaged"):
        npz.read(file)
    with pytest.raises(UserError, match="no such file"):
        npz.read(tmp_path / "none.npz")


def test_the_heads_rule_is_the_one_of_training() -> None:
    random = np.random.default_rng(0)
    scores = random.normal(size=(200, 5)).astype(np.float32)
    pairs = np.array([random.permutation(5)[:2] for _ in range(200)])
    for labels in (pairs[:, 0], pairs):
        ours = highest_are_labels(scores, labels)
        assert ours.tolist() == right(torch.tensor(scores), torch.tensor(labels)).tolist()
        assert 0 < ours.mean() < 1
