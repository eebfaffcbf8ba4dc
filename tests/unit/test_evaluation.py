"""Latents, probes and heads, on small runs and on synthetic latents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recaps import npz
from recaps.config.heads import Head
from recaps.datasets.preparation import prepare
from recaps.errors import UserError
from recaps.evaluation.heads import evaluate, features, highest_are_labels
from recaps.evaluation.latents import extract
from recaps.evaluation.probes import function, probe
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
        probe(run, datasets / "mnist/test", tmp_path / "no.npz", name="single-capsule", images=3, device="cpu")


def test_a_probe_gets_all_its_images_in_one_batch(
    run: Path, datasets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[int] = []

    def count(model: Any, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        shown.append(len(images))
        return {"sums": images.sum((1, 2, 3))}

    monkeypatch.setattr("recaps.evaluation.probes.function", lambda paper, name: count)
    probe(run, datasets / "mnist/test", tmp_path / "probe.npz", name="count", images=1000, device="cpu")
    assert shown == [23]
    made = npz.read(tmp_path / "probe.npz")
    images = np.load(datasets / "mnist/test/images.npy").astype(np.float32)
    np.testing.assert_allclose(made["sums"], images.sum((1, 2, 3)) / 255, rtol=1e-5)
    assert len(made["labels"]) == 23


def test_a_paper_without_the_probe_is_reported() -> None:
    with pytest.raises(UserError, match="discriminative: there is no probe 'count'"):
        function("discriminative", "count")


def test_padded_images_are_padded_in_training_latents_and_probes(datasets: Path, tmp_path: Path) -> None:
    """A model that pads 28x28 images to 40x40 accepts 28x28 images and no others."""
    settings = SETTINGS | {"training": SETTINGS["training"] | {"pad": 6, "shift": 6}}
    identity = {"paper": "sparse", "variant": "padded", "scale": "test"}
    train(
        settings, identity=identity, seed=0, dataset=datasets / "mnist/test", out=tmp_path,
        checkpoints=tmp_path / "ckpt", device="cpu", threads=1,
    )  # fmt: skip
    model, config = load_model(tmp_path, torch.device("cpu"))
    assert config["image_shape"] == [1, 40, 40]
    extract(tmp_path, datasets / "mnist/test", tmp_path / "latents.npz", limit=5, device="cpu")
    padded = torch.tensor(np.load(datasets / "mnist-40/test/images.npy")[:5]).float() / 255
    with torch.no_grad():
        expected = model.latents(padded)["capsules"].numpy()
    np.testing.assert_allclose(npz.read(tmp_path / "latents.npz")["capsules"], expected, atol=1e-5)
    probe(tmp_path, datasets / "mnist/test", tmp_path / "probe.npz", name="single-capsules", images=5, device="cpu")
    np.testing.assert_allclose(npz.read(tmp_path / "probe.npz")["images"], padded, atol=1e-6)
    with pytest.raises(UserError, match=r"shape \[1, 52, 52\], padded by 6, but .* was trained on \[1, 40, 40\]"):
        extract(tmp_path, datasets / "mnist-40/test", tmp_path / "no.npz", device="cpu")


def test_a_run_without_its_weights_is_reported_in_one_line(run: Path, datasets: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((run / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"short")
    with pytest.raises(UserError, match=r"cannot be read .*delete the run and train again"):
        load_model(tmp_path, torch.device("cpu"))


def made_up(file: Path, n: int, versions: int = 1, seed: int = 0) -> Path:
    """Write latents that cluster by class, with `versions` images of each original."""
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


def several(file: Path, n: int, seed: int) -> Path:
    """Write latents in which two arrays together determine the class, and neither alone."""
    draw = np.random.default_rng(seed)
    one, other = draw.integers(0, 2, (2, n))
    pose = np.zeros((n, 2, 3), np.float32)
    pose[:, 1, 2] = other
    presence = np.stack([one, 1 - one], 1).astype(np.float32)
    arrays = {"presence": presence, "pose": pose, "ranks": other[:, None], "labels": one + 2 * other}
    npz.save(file, arrays | {"stand_in": np.asarray(False)})
    return file


def test_several_arrays_are_put_side_by_side(tmp_path: Path) -> None:
    latents = {"a/train": several(tmp_path / "a.npz", 80, 0), "a/test": several(tmp_path / "b.npz", 80, 1)}
    protocol = {"fit": {"set": "a/train"}, "test": {"set": "a/test"}}

    def accuracy(*names: str) -> float:
        return float(result(latents, {"kind": "linear", "features": names}, protocol, tmp_path)["accuracy"])

    assert accuracy("presence", "pose") == 1
    assert accuracy("presence", "ranks") == 1
    assert max(accuracy("presence"), accuracy("pose")) < 0.75
    arrays = npz.read(latents["a/test"])
    made = features(arrays, Head(kind="linear", features=("pose", "presence")))
    assert made.dtype == np.float32
    np.testing.assert_array_equal(made, np.concatenate([arrays["pose"].reshape(80, 6), arrays["presence"]], 1))


@pytest.mark.parametrize("kind", ["svm", "linear"])
def test_a_standardised_head_does_not_depend_on_the_features_scale(kind: str, tmp_path: Path) -> None:
    latents = {"a/train": made_up(tmp_path / "a.npz", 90), "a/test": made_up(tmp_path / "b.npz", 60, seed=1)}
    for file in latents.values():
        arrays = npz.read(file)
        npz.save(file, arrays | {"tiny": 7 + 1e-3 * arrays["capsules"]})
    protocol = {"fit": {"set": "a/train"}, "test": {"set": "a/test"}}

    def accuracy(features: str, standardise: bool) -> float:
        head = {"kind": kind, "features": features, "C": 1, "standardise": standardise}
        return float(result(latents, head, protocol, tmp_path)["accuracy"])

    assert accuracy("tiny", True) == accuracy("capsules", True) > 0.95
    assert accuracy("tiny", False) < 0.7


def test_masked_is_computed_from_capsules_and_mask(tmp_path: Path) -> None:
    arrays = npz.read(made_up(tmp_path / "a.npz", 6))
    arrays["mask"] = np.random.default_rng(0).random((6, 3)).astype(np.float32)
    made = features(arrays, Head(kind="svm", features=("masked", "scores")))
    pairs = zip(arrays["capsules"], arrays["mask"], strict=True)
    expected = [[c * m for c, m in zip(*each, strict=True)] for each in pairs]
    np.testing.assert_allclose(made[:, :3], np.reshape(expected, (6, 3)), rtol=1e-6)
    np.testing.assert_array_equal(made[:, 3:], arrays["scores"])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["presence", "poses"], "has no 'poses', which the head or its protocol needs (did you mean 'pose'?)"),
        ("capsules", "has no 'capsules', which the head or its protocol needs"),
        ("masked", "has no 'capsules', which the head or its protocol needs"),
    ],
)
def test_an_array_that_the_latents_lack_is_reported_in_one_line(names: Any, message: str, tmp_path: Path) -> None:
    file = several(tmp_path / "a.npz", 8, 0)
    with pytest.raises(UserError) as raised:
        result({"a/test": file}, {"kind": "argmax", "features": names}, {"test": {"set": "a/test"}}, tmp_path)
    assert str(raised.value).startswith(f"{file}: {message}")
    assert "\n" not in str(raised.value)


def test_disjoint_digits_share_no_original_and_positions_do(tmp_path: Path) -> None:
    latents = {"a/test": made_up(tmp_path / "a.npz", 70, versions=3)}
    disjoint = {"fit": {"set": "a/test", "digits": "fit"}, "test": {"set": "a/test", "digits": "test"}}
    values = result(latents, {"kind": "svm"}, disjoint, tmp_path)
    assert (values["n_fit"], values["n"]) == (180, 30)
    assert values["test_images_whose_original_was_fitted"] == 0
    position = {"fit": {"set": "a/test", "count": 140}, "test": {"set": "a/test", "start": 140}}
    assert result(latents, {"kind": "svm"}, position, tmp_path)["test_images_whose_original_was_fitted"] == 70


def test_a_part_beyond_the_latents_is_reported_in_one_line(tmp_path: Path) -> None:
    latents = {"a/test": made_up(tmp_path / "a.npz", 10)}
    with pytest.raises(UserError, match="needs all images from number 60000 on, but there are 10"):
        result(latents, {"kind": "argmax", "features": "scores"}, {"test": {"set": "a/test", "start": 60000}}, tmp_path)


def test_too_few_images_for_a_part_are_reported_in_one_line(tmp_path: Path) -> None:
    latents = {"a/test": made_up(tmp_path / "a.npz", 10)}
    protocol = {"test": {"set": "a/test", "start": 5, "count": 6}}
    with pytest.raises(UserError, match="needs 6 images from number 5 on, but there are 10"):
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


def test_missing_and_damaged_arrays_are_reported_in_one_line(tmp_path: Path) -> None:
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
