"""The estimators, against scikit-learn's own checks and on real digits; trained models from results."""

from __future__ import annotations

import doctest
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from messages import one_line
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

import recaps
from recaps import CapsuleClassifier, CapsuleEncoder, estimators
from recaps.datasets.preparation import prepare
from recaps.errors import UserError
from recaps.npz import Array
from recaps.training.run import train

pytestmark = pytest.mark.unit

TINY: dict[str, Any] = {"conv_channels": 8, "primary_types": 2, "decoder": [16]}
FEW: dict[str, Any] = {"batch_size": 16, "threads": 1, "random_state": 0}
MATRIX: dict[str, Any] = {"conv_channels": 8, "types": [2, 2, 2], "compiled": False}


def classifier(**changes: Any) -> CapsuleClassifier:
    given: dict[str, Any] = {"options": TINY, "steps": 3} | FEW | changes
    return CapsuleClassifier(**given)


def encoder(**changes: Any) -> CapsuleEncoder:
    given: dict[str, Any] = {"options": TINY, "steps": 3} | FEW | changes
    return CapsuleEncoder(**given)


@pytest.fixture(scope="module")
def digits() -> tuple[Array, Array]:
    """60 images, 8x8 with values from 0 to 16, and their labels."""
    bunch = load_digits()
    return bunch.images[:60], bunch.target[:60]


def test_scikit_learns_checks_pass_for_the_classifier() -> None:
    fast = {"options": TINY | {"decoder": None}, "steps": 60, "learning_rate": 0.01, "batch_size": 32}
    check_estimator(classifier(**fast), on_skip=None)


def test_scikit_learns_checks_pass_for_the_encoder() -> None:
    check_estimator(encoder(), on_skip=None)


def test_a_classifier_learns_digits() -> None:
    images, labels = load_digits().images, load_digits().target
    found = classifier(options=TINY | {"conv_channels": 16, "primary_types": 4}, steps=80, batch_size=64)
    found.set_params(evaluate_every=20).fit(images[:1000], labels[:1000])
    assert found.score(images[1000:], labels[1000:]) > 0.6
    assert [row["step"] for row in found.history_] == [20, 40, 60, 80]
    assert found.history_[-1]["loss"] < found.history_[0]["loss"]


@pytest.mark.parametrize(
    ("changes", "family"),
    [
        ({}, "supcaps"),
        ({"routing": "cosine"}, "supcaps"),
        ({"routing": "attention"}, "supcaps"),
        ({"routing": {"name": "dynamic", "iterations": 2}}, "supcaps"),
        ({"model": "discriminative"}, "discriminative"),
        ({"model": "convnet", "options": {"channels": [4, 4], "hidden": 8}}, "convnet"),
        ({"routing": "em", "options": MATRIX}, "matrixcaps"),
        ({"routing": "similarity", "options": MATRIX}, "matrixcaps"),
        ({"routing": "connectionist", "options": MATRIX}, "matrixcaps"),
    ],
)
def test_every_routing_and_family_classifies(changes: dict[str, Any], family: str, digits: tuple[Array, Array]) -> None:
    images, labels = digits
    names = np.array([f"digit {label}" for label in labels])
    found = classifier(**changes).fit(images, names)
    assert found.settings_["family"] == family
    shares = found.predict_proba(images[:5])
    assert shares.shape == (5, 10)
    np.testing.assert_allclose(shares.sum(1), 1)
    assert (shares >= 0).all()
    assert found.predict(images[:5]).tolist() == found.classes_[shares.argmax(1)].tolist()


@pytest.mark.parametrize(("loss", "positive"), [("spread", True), ("cross_entropy", False)])
@pytest.mark.parametrize("routing", ["em", "similarity"])
def test_logits_become_shares_by_a_softmax(
    routing: str, loss: str, positive: bool, digits: tuple[Array, Array]
) -> None:
    images, labels = digits
    found = classifier(routing=routing, options={**MATRIX, "loss": loss}).fit(images, labels)
    scores = found._scores(images[:5])
    expected = scores / scores.sum(1, keepdim=True) if positive else scores.softmax(1)
    np.testing.assert_allclose(found.predict_proba(images[:5]), expected.numpy())


@pytest.mark.parametrize(
    ("model", "options", "width", "decodes"),
    [
        ("sparsecaps", TINY | {"capsules": 4, "capsule_dim": 3}, 12, True),
        ("sparsecaps", TINY | {"learning": "dense"}, 256, True),
        ("vae", {"latent_dim": 5}, 5, True),
        ("vae", {"latent_dim": 5, "features": "mean_and_deviation"}, 10, True),
        ("rbm", {"hidden": 7}, 7, True),
        ("experts", {"channels": [16, 16], "capsules": 3, "capsule_dim": 4}, 12, True),
        ("generative", {"parts": 4, "objects": 2, "channels": 8, "width": 8}, None, False),
        ("scae", {"parts": 4, "objects": 2, "channels": 8, "width": 8}, None, False),
    ],
)
def test_every_family_encodes(
    model: str, options: dict[str, Any], width: int | None, decodes: bool, digits: tuple[Array, Array]
) -> None:
    images, _ = digits
    found = encoder(model=model, options=options, steps=40 if model == "experts" else 3).fit(images)
    codes = found.transform(images[:5])
    assert len(codes) == 5
    assert width in (None, codes.shape[1])
    assert np.isfinite(codes).all()
    assert hasattr(found, "inverse_transform") == decodes
    if decodes:
        decoded = found.inverse_transform(codes)
        assert decoded.shape == (5, 8, 8)
        assert 0 <= decoded.min() <= decoded.max() <= 16, "the range of the training images"


def test_an_encoder_decodes_what_its_model_reconstructs(digits: tuple[Array, Array]) -> None:
    """The code is masked: decoding it is the reconstruction whose error the model reports."""
    images, _ = digits
    found = encoder().fit(images)
    decoded = found.inverse_transform(found.transform(images))
    errors = np.square((decoded - images) / 16).sum((1, 2))
    reported = found._evaluated(
        lambda model, some: model.latents(some)["reconstruction_error"], found._images(images, fitting=False)
    ).numpy()
    inside = found._images(images, fitting=False)[:, :, 8:16, 8:16]
    assert torch.equal(inside.double() * 16, torch.tensor(images).unsqueeze(1)), "the border surrounds the image"
    assert (errors <= reported * (1 + 1e-5)).all(), "the reported error includes the border"


def test_a_latent_is_chosen_by_its_name(digits: tuple[Array, Array]) -> None:
    images, _ = digits
    assert encoder(latent="support").fit(images).transform(images).shape == (60, 16)
    with pytest.raises(ValueError, match=r"latent='suport': the model has .*did you mean 'support'"):
        encoder(latent="suport").fit(images).transform(images)


def test_an_encoder_with_labels(digits: tuple[Array, Array]) -> None:
    images, labels = digits
    assert encoder(model="supcaps").fit(images, labels).transform(images).shape == (60, 160)
    with pytest.raises(ValueError, match=r"model='supcaps' learns from labels; use fit\(X, y\)"):
        encoder(model="supcaps").fit(images)


@pytest.mark.parametrize("shape", [(20, 30), (20, 30, 3), (50,)])
def test_shapes_and_bytes(shape: tuple[int, ...]) -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, *shape), dtype=np.uint8)
    found = encoder().fit(images)
    assert found.inverse_transform(found.transform(images)).shape == images.shape
    assert found.range_ == (0, 255)
    with pytest.raises(ValueError, match="is expecting"):
        found.transform(images[:, :-1])
    if len(shape) > 1:
        with pytest.raises(ValueError, match="but was fitted with"):
            found.transform(images[:, :, :-1])


def test_bytes_and_the_same_numbers_as_floats_give_the_same_model() -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 24, 24), dtype=np.uint8)
    images[0, 0, :2] = 0, 255
    labels = np.arange(20) % 2
    by_bytes, by_floats = classifier().fit(images, labels), classifier().fit(images.astype(float), labels)
    np.testing.assert_allclose(by_bytes.predict_proba(images), by_floats.predict_proba(images), rtol=1e-4)
    np.testing.assert_allclose(by_bytes.predict_proba(images.astype(float)), by_bytes.predict_proba(images), rtol=1e-4)


def test_pickles_hold_weights_and_settings(digits: tuple[Array, Array]) -> None:
    images, labels = digits
    found = classifier().fit(images, labels)
    stored = pickle.dumps(found)
    assert b"recaps.models" not in stored, "no class of a model"
    again = pickle.loads(stored)
    assert np.array_equal(again.predict_proba(images), found.predict_proba(images))
    assert not again.model_.training
    assert isinstance(found.model_, torch.nn.Module), "the original is unchanged"
    there = pickle.loads(pickle.dumps(found.set_params(device="cuda")))
    assert there.model_.get_parameter("bias").device.type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_a_fit_is_a_function_of_its_seed(digits: tuple[Array, Array]) -> None:
    images, labels = digits
    first, same, other = (classifier(random_state=seed).fit(images, labels) for seed in (0, 0, 1))
    assert np.array_equal(first.predict_proba(images), same.predict_proba(images))
    assert not np.array_equal(first.predict_proba(images), other.predict_proba(images))


def test_an_early_stop_keeps_the_best_weights(digits: tuple[Array, Array], monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = digits
    errors = iter([50.0, 30.0, 40.0, 40.0])
    seen: list[torch.Tensor] = []

    def error(self: CapsuleClassifier, *_: Any) -> float:
        seen.append(self.model_.get_parameter("bias").detach().clone())
        return next(errors)

    monkeypatch.setattr(CapsuleClassifier, "_validation", error)
    found = classifier(steps=100, validation_fraction=0.5, evaluate_every=2, patience=2).fit(images, labels)
    assert found.n_steps_ == 8
    assert [row["validation"] for row in found.history_] == [50, 30, 40, 40]
    assert torch.equal(found.model_.get_parameter("bias"), seen[1])
    assert not torch.equal(found.model_.get_parameter("bias"), seen[-1])


def test_held_out_images_are_not_trained_on(digits: tuple[Array, Array], monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = digits
    parts: dict[str, list[int]] = {}
    seen: dict[str, set[bytes]] = {}
    given, validation = estimators._Given.__init__, CapsuleClassifier._validation

    def note(part: str, some: torch.Tensor, target: torch.Tensor) -> None:
        parts[part], seen[part] = target.tolist(), {each.numpy().tobytes() for each in some.cpu()}

    monkeypatch.setattr(
        estimators._Given,
        "__init__",
        lambda self, some, target: note("fit", some, target) or given(self, some, target),
    )
    monkeypatch.setattr(
        CapsuleClassifier,
        "_validation",
        lambda self, some, target: note("held", some, target) or validation(self, some, target),
    )
    classifier(validation_fraction=0.5).fit(images, labels)
    assert len(seen["fit"]) == len(seen["held"]) == 30
    assert not seen["fit"] & seen["held"]
    assert len(parts["fit"]) == len(parts["held"]) == 30
    assert set(parts["held"]) == set(range(10)), "stratified"
    assert sorted(parts["fit"] + parts["held"]) == sorted(labels.tolist())


def test_the_progress_is_shown_on_request(digits: tuple[Array, Array], capsys: pytest.CaptureFixture[str]) -> None:
    classifier().fit(*digits)
    assert capsys.readouterr().err == ""
    classifier(verbose=True, evaluate_every=2).fit(*digits)
    shown = capsys.readouterr().err.split("\r")
    assert [re.search(r"\] (\d/3) loss", line).group(1) for line in shown[1:]] == ["2/3", "3/3"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "supcap"}, "model='supcap': no such family.*did you mean 'supcaps'"),
        ({"routing": "emm"}, "routing='emm': no such routing.*did you mean 'em'"),
        ({"model": "convnet", "options": {}, "routing": "em"}, "the family 'convnet' has no choice of it"),
        ({"model": "vae", "options": {}}, "model='vae' learns without labels; use CapsuleEncoder"),
        ({"options": {"conv_chanels": 8}}, r"options: unknown key 'conv_chanels' \(did you mean 'conv_channels'"),
        ({"steps": 0}, "steps: Input should be greater than or equal to 1"),
        ({"device": "cuda"}, "PyTorch finds no GPU that it can use"),
        ({"device": "cuda:0"}, "device: there is no device 'cuda:0'; use auto, cpu or cuda"),
        ({"threads": -1}, "threads: -1 is too few; use at least 1"),
        ({"evaluate_every": 0}, "evaluate_every=0: use at least 1"),
        ({"options": {"capsules": 3}}, "3, but the data has 10 classes"),
        ({"learning_rate": 1e30}, "the loss is .* at step .*; try a smaller learning_rate"),
        ({"learning_rate": 1e39, "steps": 1}, "a weight is not finite after step 1; try a smaller learning_rate"),
    ],
)
def test_wrong_parameters_get_one_line(
    changes: dict[str, Any], message: str, digits: tuple[Array, Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with one_line(message, ValueError):
        classifier(**changes).fit(*digits)


@pytest.mark.parametrize(
    "changes", [{"model": "supcaps", "options": TINY | {"decoder": None}}, {"model": "matrixcaps", "options": MATRIX}]
)
def test_an_early_stop_needs_a_reconstruction(changes: dict[str, Any], digits: tuple[Array, Array]) -> None:
    early = encoder(validation_fraction=0.5, **changes)
    with pytest.raises(ValueError, match=r"reconstructs no images .*; set validation_fraction=0"):
        early.fit(*digits)
    assert early.history_ == []


def test_wrong_images_get_one_line(digits: tuple[Array, Array]) -> None:
    """Except for NaN: that message is scikit-learn's own."""
    images, labels = digits
    with pytest.raises(ValueError, match="NaN"):
        classifier().fit(np.full_like(images, np.nan), labels)
    for bad, message in (
        (images[..., None, None], "X has 5 axes"),
        (np.repeat(images[:, None], 3, 1), r"use numpy.moveaxis\(X, 1, -1\)"),
        (images[:0], "0 sample"),
    ):
        with one_line(message, ValueError):
            classifier().fit(bad, labels[: len(bad)])
    with one_line("inconsistent numbers of samples", ValueError):
        classifier().fit(images, labels[:-1])
    with one_line("only one class", ValueError):
        classifier().fit(images, np.zeros(60))
    with one_line("is not fitted yet", NotFittedError):
        classifier().predict(images)


def test_scikit_learns_tools_take_the_estimators(digits: tuple[Array, Array]) -> None:
    images, labels = digits
    flat = images.reshape(60, -1)
    assert clone(classifier(steps=7)).get_params()["steps"] == 7
    halves = make_pipeline(FunctionTransformer(lambda some: some / 2), classifier())
    assert len(cross_val_score(halves, flat, labels, cv=2)) == 2
    search = GridSearchCV(classifier(), {"steps": [1, 2], "options": [TINY, TINY | {"capsule_dim": 4}]}, cv=2)
    assert set(search.fit(images, labels).best_params_) == {"steps", "options"}


def test_the_examples_in_docstrings_run() -> None:
    found = doctest.testmod(estimators)
    assert found.attempted > 5
    assert found.failed == 0


def test_the_example_of_the_page_runs(root: Path, tmp_path: Path) -> None:
    text = (root / "docs/library.md").read_text(encoding="utf-8")
    program = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    assert len(program.splitlines()) <= 40
    program = re.sub(r"steps=\d00", "steps=20", program)
    file = tmp_path / "example.py"
    file.write_text(program)
    done = subprocess.run([sys.executable, file.name], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"accuracy \d+\.\d %", done.stdout)
    assert (tmp_path / "digits.png").stat().st_size > 1000


def test_import_loads_neither_pytorch_nor_scikit_learn() -> None:
    program = "import sys, recaps; sys.exit(str({'torch', 'sklearn', 'numpy', 'pydantic'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "set()"
    with pytest.raises(AttributeError, match="no attribute 'Capsule'"):
        recaps.Capsule  # noqa: B018


def test_trained_runs_are_loaded(tmp_path: Path) -> None:
    data = prepare("mnist", "train", tmp_path / "data", tmp_path / "data", stand_in=True, options={"limit": 40})
    settings = {
        "model": {"family": "supcaps", **TINY},
        "training": {"steps": 3, "batch_size": 8, "snapshots": [2]},
    }
    identity = {"paper": "sparse", "variant": "tiny", "scale": "test"}
    train(settings, identity=identity, seed=0, dataset=data, out=tmp_path / "run", checkpoints=tmp_path / "ckpt")
    found = recaps.load(tmp_path / "run", device="cpu")
    assert not found.model.training
    assert found.model.class_scores(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    assert (found.settings["model"]["family"], found.record["variant"]) == ("supcaps", "tiny")
    before = recaps.load(str(tmp_path / "run"), step=2, device="cpu").model
    assert not torch.equal(before.get_parameter("bias"), found.model.get_parameter("bias"))
    with pytest.raises(UserError, match=r"no trained run, as model\.safetensors is missing; train it first"):
        recaps.load(tmp_path)
    with pytest.raises(UserError, match=r"model\.safetensors: there is no snapshot of step 3; it has 2\Z"):
        recaps.load(tmp_path / "run", step=3)
    safetensors.torch.save_file({}, tmp_path / "run" / "model.safetensors")
    with pytest.raises(UserError, match=r"model\.safetensors: cannot be read .*Missing key"):
        recaps.load(tmp_path / "run")


def test_a_model_without_weights_is_loaded_at_any_step(tmp_path: Path) -> None:
    data = prepare("mnist", "train", tmp_path, tmp_path, stand_in=True, options={"limit": 12})
    settings = {"model": {"family": "pixels"}, "training": {"steps": 1, "batch_size": 8, "snapshots": [1]}}
    identity = {"paper": "comparison", "variant": "pixels", "scale": "test"}
    train(settings, identity=identity, seed=0, dataset=data, out=tmp_path / "run", checkpoints=tmp_path / "ckpt")
    for step in (None, 1):
        assert not recaps.load(tmp_path / "run", step=step, device="cpu").model.state_dict()
