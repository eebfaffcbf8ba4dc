"""The estimators, against scikit-learn's own checks and on real digits; trained models from results."""

from __future__ import annotations

import contextlib
import doctest
import pickle
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
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
from recaps.nn.routing.dynamic import DynamicRouting
from recaps.nn.routing.em import EMRouting
from recaps.nn.routing.interface import Routed, VoteRouting
from recaps.nn.routing.options import VoteOptions
from recaps.nn.squash import squash
from recaps.npz import Array
from recaps.training.run import train

pytestmark = pytest.mark.unit

TINY: dict[str, Any] = {"conv_channels": 8, "primary_types": 2, "decoder": [16]}
FEW: dict[str, Any] = {"batch_size": 16, "threads": 1, "random_state": 0}
#: scikit-learn's checks that no training on random batches can pass: it is not the same for images that are there
#: twice and for a weight of 2.
RANDOM = {"check_sample_weight_equivalence_on_dense_data": "the batches are random"}
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
    check_estimator(classifier(**fast), on_skip=None, expected_failed_checks=RANDOM)


def test_scikit_learns_checks_pass_for_the_encoder() -> None:
    check_estimator(encoder(), on_skip=None, expected_failed_checks=RANDOM)


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


class MeanRouting(VoteRouting):
    """All votes count alike."""

    class Options(VoteOptions):
        factor: float = 1
        """Factor on the mean."""

    def forward(self, votes: torch.Tensor, bias: torch.Tensor) -> Routed:
        coupling = votes.new_full(votes.shape[:3], 1 / votes.shape[1])
        return Routed(squash(self.options.factor * votes.mean(1) + bias), coupling)


def test_a_routing_of_the_users_is_taken_as_a_class(digits: tuple[Array, Array]) -> None:
    images, labels = digits
    for routing, factor in ((MeanRouting, 1), (f"{__name__}:MeanRouting", 1), ({"name": MeanRouting, "factor": 2}, 2)):
        found = pickle.loads(pickle.dumps(classifier(routing=routing).fit(images, labels)))
        assert isinstance(found.model_.routing, MeanRouting)
        assert found.model_.routing.options.factor == factor
        assert found.predict(images).shape == (60,)
    ours = classifier(routing=DynamicRouting).fit(images, labels)
    assert np.array_equal(ours.predict_proba(images), classifier().fit(images, labels).predict_proba(images))
    assert classifier(routing=EMRouting, options=MATRIX).fit(images, labels).settings_["family"] == "matrixcaps"


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
        ("pixels", {}, 24 * 24, False),
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
    assert found.get_feature_names_out().tolist() == [f"capsuleencoder{place}" for place in range(codes.shape[1])]
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
    assert not hasattr(encoder(latent="support").fit(images), "inverse_transform"), "the decoder reads capsules"
    with pytest.raises(ValueError, match=r"latent='suport': the model has .*did you mean 'support'"):
        encoder(latent="suport", steps=10**6).fit(images)


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
    message = "is expecting 50 features" if len(shape) == 1 else "but fit saw images"
    with one_line(message, ValueError):
        found.transform(images[:, :-1])


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

    def error(self: CapsuleClassifier, *_: Any) -> list[float]:
        seen.append(self.model_.get_parameter("bias").detach().clone())
        return [next(errors)]

    monkeypatch.setattr(CapsuleClassifier, "_errors", error)
    found = classifier(steps=100, validation_fraction=0.5, evaluate_every=2, patience=2).fit(images, labels)
    assert found.n_steps_ == 8
    assert [row["validation"] for row in found.history_] == [50, 30, 40, 40]
    assert torch.equal(found.model_.get_parameter("bias"), seen[1])
    assert not torch.equal(found.model_.get_parameter("bias"), seen[-1])


def test_held_out_images_are_not_trained_on(digits: tuple[Array, Array], monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = digits
    parts: dict[str, list[int]] = {}
    seen: dict[str, set[bytes]] = {}
    given, errors = estimators._Given.__init__, CapsuleClassifier._errors

    def note(part: str, some: torch.Tensor, target: torch.Tensor) -> None:
        parts[part], seen[part] = target.tolist(), {each.numpy().tobytes() for each in some.cpu()}

    monkeypatch.setattr(
        estimators._Given,
        "__init__",
        lambda self, some, target, weights: note("fit", some, target) or given(self, some, target, weights),
    )
    monkeypatch.setattr(
        CapsuleClassifier,
        "_errors",
        lambda self, some, target: note("held", some, target) or errors(self, some, target),
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
        (
            {"routing": {"name": "dynamic", "iteration": 2}},
            r"unknown key 'routing.iteration' \(did you mean 'iterations'",
        ),
        ({"routing": {"iterations": 2}}, "no such routing"),
        ({"routing": dict}, "'builtins:dict' is no subclass of VoteRouting or PoseRouting"),
        ({"routing": {"name": MeanRouting, "facto": 2}}, r"MeanRouting: unknown key 'facto' \(did you mean 'factor'"),
        ({"model": "vae", "options": {}}, "model='vae' learns without labels; use CapsuleEncoder"),
        ({"options": {"conv_chanels": 8}}, r"options: unknown key 'conv_chanels' \(did you mean 'conv_channels'"),
        ({"steps": 0}, "steps: Input should be greater than or equal to 1"),
        ({"device": "cuda"}, "PyTorch finds no GPU that it can use"),
        ({"device": "cuda:0"}, "device: there is no device 'cuda:0'; use auto, cpu or cuda"),
        ({"threads": -1}, "threads: -1 is too few; use at least 1"),
        ({"device": torch.device("cuda")}, "PyTorch finds no GPU that it can use"),
        ({"evaluate_every": 0}, "evaluate_every: Input should be greater than or equal to 1, not 0"),
        ({"patience": 0.5}, "patience: Input should be a valid integer"),
        ({"validation_fraction": 10}, "validation_fraction: Input should be less than 1, not 10"),
        ({"steps": "many"}, "steps: Input should be a valid integer"),
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
        (images[:, :, :0], "images without pixels"),
        (images[:0], "0 sample"),
    ):
        with one_line(message, ValueError):
            classifier().fit(bad, labels[: len(bad)])
    with one_line("is not fitted yet", NotFittedError):
        classifier().predict(images)


def test_images_of_another_shape_get_one_line(digits: tuple[Array, Array]) -> None:
    images, labels = digits
    found = classifier().fit(images, labels)
    for bad, message in (
        (np.zeros((3, 9, 9)), r"X has the shape \[N, 9, 9\], but fit saw images \[N, 8, 8\]"),
        (np.zeros((3, 64)), r"X has the shape \[N, 64\], but fit saw images \[N, 8, 8\]"),
        (images[0], r"fit saw images \[N, 8, 8\]: use X\[None\] for one image"),
    ):
        with one_line(message, ValueError):
            found.predict(bad)
    codes = encoder().fit(images)
    with one_line("X has 7 features, but transform returns 256", ValueError):
        codes.inverse_transform(np.zeros((2, 7)))


@pytest.mark.parametrize("kind", [classifier, lambda: encoder(model="supcaps"), lambda: encoder(model="scae")])
def test_wrong_labels_get_one_line(kind: Callable[[], Any], digits: tuple[Array, Array]) -> None:
    images, labels = digits
    for bad, message in (
        (np.eye(10)[labels], r"y has the shape \[60, 10\]; labels are \[N\]: use numpy.argmax\(y, 1\)"),
        (np.where(labels == 0, np.nan, labels), "NaN"),
        (np.linspace(0, 1, 60), "Unknown label type: continuous"),
        (np.array(["a", None] * 30, dtype=object), "y has labels that cannot be ordered .* only numbers or only text"),
        (labels[:-1], "inconsistent numbers of samples"),
    ):
        with one_line(message, ValueError):
            kind().fit(images, bad)
    with one_line("only one class", ValueError):
        classifier().fit(images, np.zeros(60))


def test_an_encoder_that_learns_without_labels_does_not_look_at_them(digits: tuple[Array, Array]) -> None:
    """The last step of a pipeline may predict a number."""
    images, _ = digits
    found, same = encoder().fit(images, np.linspace(0, 1, 60)), encoder().fit(images)
    assert np.array_equal(found.transform(images), same.transform(images))


@pytest.mark.parametrize(
    ("fit", "given", "message"),
    [
        (np.array([0, 255], np.uint8), [0.0, 1.0], "X has values from 0 to 1, but those of fit range from 0 to 255"),
        ([0.0, 1.0], np.array([0, 255], np.uint8), "X has values from 0 to 255, but those of fit range from 0 to 1"),
        ([0.0, 255.0], [-1.0, 1.0], "X has values from -1 to 1, but those of fit range from 0 to 255"),
        (
            np.array([0, 16], np.uint8),
            np.array([0, 16], np.uint8),
            "X has values from 0 to 16, but bytes are divided by 255",
        ),
        (np.array([0, 255], np.uint8), np.array([3, 9], np.uint8), None),
        (np.array([0, 255], np.uint8), [20.0, 230.0], None),
        ([0.0, 1.0], [-0.05, 1.05], None),
        ([0.0, 1.0], [0.0, 0.0], None),
    ],
)
def test_another_range_of_values_gets_a_warning_once(fit: Any, given: Any, message: str | None) -> None:
    def images(values: Any) -> Array:
        return np.tile(np.array(values), (20, 10, 5))

    found = encoder()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found.fit(images(fit))
        for _ in range(2):
            found.transform(images(given))
    assert [message in str(each.message) for each in seen if message] == [True] * len(seen)
    assert len(seen) == (message is not None)


def test_large_images_get_a_warning_with_the_size_of_the_network() -> None:
    """The warning comes before the network is built."""
    images = np.random.default_rng(0).random((4, 41, 40))
    with pytest.warns(UserWarning, match="41x40") as seen:
        found = encoder(steps=1).fit(images)
    number = sum(each.numel() for each in found.model_.parameters())
    advice = "if that is too slow, shrink them to 40x40 or less or set a smaller primary_types in options"
    (told,) = {str(each.message) for each in seen}
    assert told == f"images of 41x40 make a network of {number / 1e6:.1f} million parameters; {advice}"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoder(steps=1).fit(images[:, :40])
        with pytest.raises(UserWarning, match=r"images of 5000x5000 make a network of \d+"):
            encoder(steps=1).fit(np.zeros((2, 5000, 5000), np.uint8))


def test_an_interrupted_fit_leaves_a_model_that_predicts(digits: tuple[Array, Array]) -> None:
    images, _ = digits
    rows: list[dict[str, float]] = []

    def stop(row: dict[str, float]) -> None:
        rows.append(row)
        if len(rows) == 2:
            raise KeyboardInterrupt

    found = encoder(model="vae", options={}, steps=100, evaluate_every=2)
    with pytest.raises(KeyboardInterrupt):
        found.fit(images, callback=stop)
    assert rows == found.history_
    assert [row["step"] for row in rows] == [2, 4]
    assert found.n_steps_ == 4
    assert not found.model_.training
    whole = encoder(model="vae", options={}, steps=4, evaluate_every=2).fit(images)
    assert np.array_equal(found.transform(images), whole.transform(images)), "the weights of step 4"


def test_a_refused_fit_leaves_no_model(digits: tuple[Array, Array]) -> None:
    """Neither the one that diverged, nor one of an earlier fit, whose classes are no longer known."""
    images, labels = digits
    found = classifier().fit(images, labels)
    for bad in ({"learning_rate": 1e30}, {"model": "supcap"}):
        with pytest.raises(ValueError, match=r"learning_rate|no such family"):
            found.set_params(**bad).fit(images, labels)
        with one_line("is not fitted yet", NotFittedError):
            found.predict(images)


@contextlib.contextmanager
def float64() -> Any:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        assert torch.get_default_dtype() == torch.float64, "the caller's mode is left alone"
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "mode",
    [torch.no_grad, torch.inference_mode, float64, lambda: torch.autocast("cpu"), lambda: torch.device("meta")],
    ids=["no_grad", "inference_mode", "float64", "autocast", "device"],
)
def test_modes_of_pytorch_change_nothing(mode: Callable[[], Any], digits: tuple[Array, Array]) -> None:
    images, labels = digits

    def everything() -> list[Array]:
        found = pickle.loads(pickle.dumps(classifier().fit(images, labels)))
        coded = encoder().fit(images)
        return [found.predict_proba(images), coded.inverse_transform(coded.transform(images))]

    usual = everything()
    with mode():
        changed = everything()
    assert all(map(np.array_equal, changed, usual))


def test_a_device_of_pytorch_is_taken(digits: tuple[Array, Array]) -> None:
    found = pickle.loads(pickle.dumps(clone(classifier(device=torch.device("cpu"))).fit(*digits)))
    assert found.model_.get_parameter("bias").device == torch.device("cpu")


def test_codes_become_data_frames(digits: tuple[Array, Array]) -> None:
    frame = encoder(latent="support").set_output(transform="pandas").fit_transform(digits[0])
    assert list(frame.columns[:2]) == ["capsuleencoder0", "capsuleencoder1"]
    assert frame.shape == (60, 16)


@pytest.mark.parametrize("first", [0, 10**7], ids=["first passes", "late passes"])
def test_a_pass_takes_images_in_proportion_to_their_weights(first: int) -> None:
    weights = np.array([0.5, 3, 1, 0.25, 2.25])
    given = estimators._Given(torch.zeros(5, 1, 1, 1), torch.arange(5), weights)
    places = torch.arange(5) + 5 * torch.arange(first, first + 400).unsqueeze(1)
    passes = torch.stack([labels.bincount(minlength=5) for labels in given(places)["labels"]])
    share = 5 * weights / weights.sum()
    assert (passes >= torch.tensor(share).floor()).all()
    assert (passes <= torch.tensor(share).ceil()).all()
    np.testing.assert_allclose(passes.double().mean(0), share, atol=0.01)


def test_weights_of_images(digits: tuple[Array, Array]) -> None:
    images, labels = digits
    plain = classifier().fit(images, labels).predict_proba(images)
    for same in (np.full(60, 0.1), 3.0):
        assert np.array_equal(classifier().fit(images, labels, same).predict_proba(images), plain)
    some = labels < 5
    found = classifier().fit(images, labels, sample_weight=some)
    assert found.classes_.tolist() == [0, 1, 2, 3, 4]
    assert np.array_equal(
        found.predict_proba(images), classifier().fit(images[some], labels[some]).predict_proba(images)
    ), "a weight of 0 leaves an image out"
    # Two images whose pixels do not tell them apart: the weights decide.
    equal = np.ones((2, 24, 24))
    equal[:, 0] = 0
    shares = [
        classifier(steps=60, learning_rate=0.01).fit(equal, [0, 1], weights).predict_proba(equal)[0, 0]
        for weights in ([9, 1], [1, 9])
    ]
    assert shares[0] > 0.7
    assert shares[1] < 0.3


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (-np.ones(60), "Negative values in data passed to `sample_weight`"),
        (np.zeros(60), "at least one non-zero number"),
        (np.ones(59), r"sample_weight.shape == \(59,\), expected \(60,\)"),
        (np.full(60, np.nan), "sample_weight contains NaN"),
    ],
)
def test_wrong_weights_get_one_line(weights: Array, message: str, digits: tuple[Array, Array]) -> None:
    with one_line(message, ValueError):
        classifier().fit(*digits, weights)


def test_held_out_errors_are_weighted(digits: tuple[Array, Array], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CapsuleClassifier, "_errors", lambda self, images, labels: 100.0 * (labels.numpy() == 0))
    images, labels = digits
    found = classifier(validation_fraction=0.5).fit(images, labels, np.where(labels == 0, 3, 1))
    zeros = 0.5 * (labels == 0).sum()
    assert found.history_[-1]["validation"] == pytest.approx(100 * 3 * zeros / (3 * zeros + 30 - zeros))


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
    settings = {"model": {"family": "supcaps", **TINY}, "training": {"steps": 3, "batch_size": 8, "snapshots": [2]}}
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
