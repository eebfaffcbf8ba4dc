"""Latents, probes and heads, on small runs and on synthetic latents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from messages import one_line

from recaps import npz
from recaps.config.heads import Head, Protocol
from recaps.datasets.preparation import prepare
from recaps.errors import UserError
from recaps.evaluation import heads, inference
from recaps.evaluation.heads import classifier, evaluate, evaluate_all, features, highest_are_labels
from recaps.evaluation.inference import read_model
from recaps.evaluation.latents import extract
from recaps.evaluation.probes import function, probe
from recaps.layout import RUN_FILES
from recaps.nn.losses.classes import correct
from recaps.training.run import train
from recaps.training.saved import load_model

pytestmark = pytest.mark.unit

SETTINGS: dict[str, Any] = {
    "model": {"family": "sparsecaps", "learning": "sparse", "conv_channels": 4, "primary_types": 2, "capsules": 4},
    "training": {"steps": 3, "batch_size": 4, "precision": "float32", "snapshots": [2]},
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
        device="cpu", threads=1
    )  # fmt: skip
    return folder


CPU = torch.device("cpu")


def test_latents_are_the_models_whatever_the_batch(run: Path, datasets: Path) -> None:
    model, config = load_model(run, CPU)
    arrays = extract(model, config, datasets / "mnist/test", CPU, batch_size=7)
    assert arrays["capsules"].shape == (23, 4, 16)
    assert arrays["capsules"].dtype == np.float32
    assert arrays["original"].tolist() == list(range(23))
    assert bool(arrays["stand_in"])
    images = torch.tensor(np.load(datasets / "mnist/test/images.npy")).float() / 255
    with torch.no_grad():
        expected = model.latents(images)["capsules"].numpy()
    np.testing.assert_allclose(arrays["capsules"], expected, atol=1e-5)


def test_latents_stop_at_the_limit(run: Path, datasets: Path) -> None:
    arrays = extract(*load_model(run, CPU), datasets / "mnist/test", CPU, limit=9, batch_size=4)
    assert len(arrays["labels"]) == 9


def test_images_of_another_shape_are_refused(run: Path, datasets: Path) -> None:
    with pytest.raises(UserError, match=r"images of shape \[1, 40, 40\], but .* was trained on \[1, 28, 28\]"):
        extract(*load_model(run, CPU), datasets / "mnist-40/test", CPU)


def test_a_probe_is_computed_and_a_misspelt_one_named(run: Path, datasets: Path) -> None:
    trained = load_model(run, CPU)
    made = probe(*trained, datasets / "mnist/test", CPU, name="single-capsules", images=3)
    assert made["single"].shape == (3, 4, 1, 28, 28)
    with pytest.raises(UserError, match="did you mean 'single-capsules'"):
        probe(*trained, datasets / "mnist/test", CPU, name="single-capsule", images=3)


def test_a_probe_gets_all_its_images_in_one_batch(run: Path, datasets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[int] = []

    def count(model: Any, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        shown.append(len(images))
        return {"sums": images.sum((1, 2, 3))}

    monkeypatch.setattr("recaps.evaluation.probes.function", lambda paper, name: count)
    made = probe(*load_model(run, CPU), datasets / "mnist/test", CPU, name="count", images=1000)
    assert shown == [23]
    images = np.load(datasets / "mnist/test/images.npy").astype(np.float32)
    np.testing.assert_allclose(made["sums"], images.sum((1, 2, 3)) / 255, rtol=1e-5)
    assert len(made["labels"]) == 23


def test_a_model_is_read_into_two_files_with_a_part_for_each_set_and_probe(
    run: Path, datasets: Path, tmp_path: Path
) -> None:
    copied = copy_of(run, tmp_path)
    read(copied, datasets, {"mnist/test": None}, {"single-capsules": 5})
    trained = load_model(run, CPU)
    for file, part, expected in (
        ("latents.npz", "mnist/test", extract(*trained, datasets / "mnist/test", CPU)),
        (
            "probes.npz",
            "single-capsules",
            probe(*trained, datasets / "mnist/test", CPU, name="single-capsules", images=5),
        ),
    ):
        made = npz.read(copied / file, part=part)
        assert made.keys() == expected.keys() | {"key"}
        for name, each in expected.items():
            np.testing.assert_array_equal(made[name], each)


def test_latents_of_a_snapshot_are_those_of_its_weights(run: Path, datasets: Path, tmp_path: Path) -> None:
    copied = copy_of(run, tmp_path)
    read(copied, datasets, {"mnist/test": None, "mnist/test@2": 7}, {})
    early, last = (npz.read(copied / "latents.npz", part=name) for name in ("mnist/test@2", "mnist/test"))
    expected = extract(*load_model(run, CPU, 2), datasets / "mnist/test", CPU, limit=7)
    np.testing.assert_array_equal(early["capsules"], expected["capsules"])
    assert not np.array_equal(early["capsules"], last["capsules"][:7])


def test_only_what_has_changed_is_read_again(
    run: Path, datasets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of an existing file are kept if model, data, settings and code are the same."""
    copied, computed = copy_of(run, tmp_path), list[str]()

    def noted(function: Any) -> Any:
        def compute(model: Any, config: Any, folder: Path, *others: Any, **named: Any) -> Any:
            computed.append(named.get("name", f"{folder.parent.name}/{folder.name}"))
            return function(model, config, folder, *others, **named)

        return compute

    monkeypatch.setattr(inference, "extract", noted(extract))
    monkeypatch.setattr(inference, "probe", noted(probe))
    wanted: dict[str, Any] = {"latents": {"mnist/test": 9}, "probes": {"single-capsules": 3}}
    changes: list[tuple[dict[str, Any], list[str]]] = [
        ({}, ["mnist/test", "single-capsules"]),
        ({}, []),
        ({"latents": {"mnist/test": 9, "other/test": 9}}, ["other/test"]),
        ({"latents": {"mnist/test": 8, "other/test": 9}}, ["mnist/test"]),
        ({"probes": {"single-capsules": 3, "traversals": 2}}, ["traversals"]),
        ({"codes": {"latents": "a", "probes": "c"}}, ["single-capsules", "traversals"]),
        ({"latents": {"mnist/test": 8}}, []),
        ({"latents": {"mnist/test": 8, "other/test": 9}}, ["other/test"]),
    ]
    if not (datasets / "other").exists():
        (datasets / "other").symlink_to("mnist")
    for change, expected in changes:
        wanted |= change
        computed.clear()
        read(copied, datasets, **wanted)
        assert computed == expected, change
        assert {name.rpartition("/")[0] for name in npz.read(copied / "latents.npz")} == wanted["latents"].keys()
    weights = bytearray((copied / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copied / "model.safetensors").write_bytes(weights)
    (copied / "probes.npz").write_bytes(b"damaged")
    computed.clear()
    read(copied, datasets, **wanted)
    assert computed == ["mnist/test", "other/test", "single-capsules", "traversals"]


def copy_of(run: Path, folder: Path) -> Path:
    """Copy a trained run."""
    for name in RUN_FILES:
        (folder / name).write_bytes((run / name).read_bytes())
    return folder


def read(
    run: Path,
    datasets: Path,
    latents: dict[str, int | None],
    probes: dict[str, int],
    codes: dict[str, str] | None = None,
) -> None:
    read_model(
        run,
        latents={name: (datasets / name.split("@")[0], limit) for name, limit in latents.items()},
        probes={name: (datasets / "mnist/test", images) for name, images in probes.items()},
        codes=codes or {"latents": "a", "probes": "b"},
        device="cpu",
        threads=1,
    )


def test_a_paper_without_the_probe_is_reported() -> None:
    with pytest.raises(UserError, match="discriminative: there is no probe 'count'"):
        function("discriminative", "count")


def test_padded_images_are_padded_in_training_latents_and_probes(datasets: Path, tmp_path: Path) -> None:
    """A model that pads 28x28 images to 40x40 accepts 28x28 images and no others."""
    settings = SETTINGS | {"training": SETTINGS["training"] | {"pad": 6, "shift": 6}}
    identity = {"paper": "sparse", "variant": "padded", "scale": "test"}
    train(
        settings, identity=identity, seed=0, dataset=datasets / "mnist/test", out=tmp_path,
        checkpoints=tmp_path / "ckpt", device="cpu", threads=1
    )  # fmt: skip
    model, config = load_model(tmp_path, CPU)
    assert config["image_shape"] == [1, 40, 40]
    made = extract(model, config, datasets / "mnist/test", CPU, limit=5)
    padded = torch.tensor(np.load(datasets / "mnist-40/test/images.npy")[:5]).float() / 255
    with torch.no_grad():
        expected = model.latents(padded)["capsules"].numpy()
    np.testing.assert_allclose(made["capsules"], expected, atol=1e-5)
    made = probe(model, config, datasets / "mnist/test", CPU, name="single-capsules", images=5)
    np.testing.assert_allclose(made["images"], padded, atol=1e-6)
    with pytest.raises(UserError, match=r"shape \[1, 52, 52\], padded by 6, but .* was trained on \[1, 40, 40\]"):
        extract(model, config, datasets / "mnist-40/test", CPU)


def test_damaged_weights_are_reported_in_one_line(run: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((run / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"short")
    with one_line(r"cannot be read .*delete the run and train again"):
        load_model(tmp_path, CPU)


@pytest.mark.parametrize(
    ("change", "problem"),
    [({"family": "gone"}, "there is no family 'gone'"), ({"removed": 1}, "removed: Extra inputs are not permitted")],
)
def test_a_run_of_another_version_is_reported_in_one_line(
    run: Path, tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    config = json.loads((run / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model": config["model"] | change}))
    with one_line(f"config.json: model: {problem}; the run was made by another version"):
        load_model(tmp_path, CPU)


Latents = dict[str, npz.Array]


def made_up(n: int, versions: int = 1, seed: int = 0) -> Latents:
    """Return latents that cluster by class, with `versions` images of each original."""
    draw = np.random.default_rng(seed)
    labels = np.tile(draw.integers(0, 3, n), versions)
    capsules = np.eye(3)[labels][:, :, None] + 0.1 * draw.normal(size=(n * versions, 3, 1))
    mask = np.ones((n * versions, 3))
    return {
        "capsules": capsules.astype(np.float32),
        "scores": capsules[..., 0].astype(np.float32),
        "mask": mask.astype(np.float32),
        "labels": labels,
        "original": np.tile(np.arange(n), versions),
        "stand_in": np.asarray(False),
        "key": np.asarray(f"{n} {versions} {seed}"),
    }


def result(latents: dict[str, Latents], head: dict[str, Any], protocol: dict[str, Any], folder: Path) -> dict[str, Any]:
    npz.save_parts(folder / "latents.npz", latents)
    return evaluate(folder / "latents.npz", head, {"title": "t"} | protocol)


@pytest.mark.parametrize("kind", ["svm", "linear"])
def test_heads_classify_what_can_be_classified(kind: str, tmp_path: Path) -> None:
    latents = {"a/train": made_up(90), "a/test": made_up(60, seed=1)}
    protocol = {"fit": {"set": "a/train"}, "test": {"set": "a/test", "start": 10}}
    values = result(latents, {"kind": kind}, protocol, tmp_path)
    assert values["accuracy"] > 0.95
    assert (values["n"], values["n_fit"]) == (50, 90)
    assert values["stand_in"] is False


@pytest.mark.parametrize("gamma", [0.1, "scale"])
@pytest.mark.parametrize("C", [0.1, 100])
def test_the_svm_predicts_as_scikit_learns(gamma: float | str, C: float) -> None:
    from sklearn.datasets import load_digits
    from sklearn.svm import SVC

    from recaps.evaluation.svm import CHUNK

    images, labels = load_digits(return_X_y=True)
    # Noise, so that classes overlap and pairs disagree.
    images = (images / 16 + np.random.default_rng(0).normal(0, 0.3, images.shape)).astype(np.float32)
    tested = images[900:]
    assert len(tested) > CHUNK
    svc = SVC(C=C, gamma=gamma).fit(images[:900], labels[:900])
    ours, parallel = (
        classifier(Head(kind="svm", C=C, gamma=gamma), threads).fit(images[:900], labels[:900]) for threads in (1, 2)
    )
    assert 0.3 < svc.score(tested, labels[900:]) < 0.97
    np.testing.assert_array_equal(ours.predict(tested), svc.predict(tested))
    assert ours.support_vectors_.shape == svc.support_vectors_.shape
    np.testing.assert_allclose(ours.intercepts_, -svc.intercept_, atol=1e-3)
    for name in ("support_vectors_", "coefficients_", "intercepts_"):
        np.testing.assert_array_equal(getattr(parallel, name), getattr(ours, name))
    np.testing.assert_array_equal(parallel.predict(tested), svc.predict(tested))


def test_the_svm_accepts_features_that_do_not_vary_and_refuses_a_single_class() -> None:
    svm = classifier(Head(kind="svm", gamma="scale"))
    constant = np.zeros((6, 3), np.float32)
    assert list(svm.fit(constant, np.array([0, 0, 0, 0, 7, 7])).predict(constant)) == [0] * 6
    with pytest.raises(ValueError, match="all labels are 7"):
        svm.fit(constant, np.full(6, 7))


def test_argmax_needs_no_fit(tmp_path: Path) -> None:
    latents = {"a/test": made_up(40)}
    head, protocol = {"kind": "argmax", "features": "scores"}, {"test": {"set": "a/test"}}
    assert result(latents, head, protocol, tmp_path)["accuracy"] == 1


def test_masked_features_are_the_capsules_under_the_mask(tmp_path: Path) -> None:
    arrays = made_up(60)
    arrays["mask"][:] = 0
    protocol = {"fit": {"set": "a/test"}, "test": {"set": "a/test"}}
    blind = result({"a/test": arrays}, {"kind": "svm", "features": "masked"}, protocol, tmp_path)["accuracy"]
    assert blind == pytest.approx(np.bincount(arrays["labels"]).max() / 60)


def several(n: int, seed: int) -> Latents:
    """Return latents in which two arrays together determine the class, and neither alone."""
    draw = np.random.default_rng(seed)
    one, other = draw.integers(0, 2, (2, n))
    pose = np.zeros((n, 2, 3), np.float32)
    pose[:, 1, 2] = other
    presence = np.stack([one, 1 - one], 1).astype(np.float32)
    arrays = {"presence": presence, "pose": pose, "ranks": other[:, None], "labels": one + 2 * other}
    return arrays | {"stand_in": np.asarray(False)}


def test_several_arrays_are_put_side_by_side(tmp_path: Path) -> None:
    latents = {"a/train": several(80, 0), "a/test": several(80, 1)}
    protocol = {"fit": {"set": "a/train"}, "test": {"set": "a/test"}}

    def accuracy(*names: str) -> float:
        return float(result(latents, {"kind": "linear", "features": names}, protocol, tmp_path)["accuracy"])

    assert accuracy("presence", "pose") == 1
    assert accuracy("presence", "ranks") == 1
    assert max(accuracy("presence"), accuracy("pose")) < 0.75
    arrays = latents["a/test"]
    made = features(arrays, Head(kind="linear", features=("pose", "presence")))
    assert made.dtype == np.float32
    np.testing.assert_array_equal(made, np.concatenate([arrays["pose"].reshape(80, 6), arrays["presence"]], 1))


@pytest.mark.parametrize("kind", ["svm", "linear"])
def test_a_standardised_head_does_not_depend_on_the_features_scale(kind: str, tmp_path: Path) -> None:
    latents = {"a/train": made_up(90), "a/test": made_up(60, seed=1)}
    for arrays in latents.values():
        arrays["tiny"] = 7 + 1e-3 * arrays["capsules"]
    protocol = {"fit": {"set": "a/train"}, "test": {"set": "a/test"}}

    def accuracy(features: str, standardise: bool) -> float:
        head = {"kind": kind, "features": features, "C": 1, "standardise": standardise}
        return float(result(latents, head, protocol, tmp_path)["accuracy"])

    assert accuracy("tiny", True) == accuracy("capsules", True) > 0.95
    assert accuracy("tiny", False) < 0.7


def test_masked_is_computed_from_capsules_and_mask() -> None:
    arrays = made_up(6)
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
    with pytest.raises(UserError) as raised:
        result({"a/test": several(8, 0)}, {"kind": "argmax", "features": names}, {"test": {"set": "a/test"}}, tmp_path)
    assert str(raised.value).startswith(f"{tmp_path / 'latents.npz'}, a/test: {message}")
    assert "\n" not in str(raised.value)


def test_disjoint_digits_share_no_original_and_positions_do(tmp_path: Path) -> None:
    latents = {"a/test": made_up(70, versions=3)}
    disjoint = {"fit": {"set": "a/test", "digits": "fit"}, "test": {"set": "a/test", "digits": "test"}}
    values = result(latents, {"kind": "svm"}, disjoint, tmp_path)
    assert (values["n_fit"], values["n"]) == (180, 30)
    assert values["test_images_whose_original_was_fitted"] == 0
    position = {"fit": {"set": "a/test", "count": 140}, "test": {"set": "a/test", "start": 140}}
    assert result(latents, {"kind": "svm"}, position, tmp_path)["test_images_whose_original_was_fitted"] == 70


def test_another_set_of_the_same_split_may_share_originals(tmp_path: Path) -> None:
    latents = {"a/train": made_up(40), "a/test": made_up(40), "b/test": made_up(40)}
    for fitted, shared in (("a/train", 0), ("a/test", None)):
        values = result(latents, {"kind": "svm"}, {"fit": {"set": fitted}, "test": {"set": "b/test"}}, tmp_path)
        assert values["test_images_whose_original_was_fitted"] == shared


def test_a_part_beyond_the_latents_is_reported_in_one_line(tmp_path: Path) -> None:
    latents = {"a/test": made_up(10)}
    with one_line("needs all images from number 60000 on, but there are 10"):
        result(latents, {"kind": "argmax", "features": "scores"}, {"test": {"set": "a/test", "start": 60000}}, tmp_path)


def test_too_few_images_for_a_part_are_reported_in_one_line(tmp_path: Path) -> None:
    latents = {"a/test": made_up(10)}
    protocol = {"test": {"set": "a/test", "start": 5, "count": 6}}
    with one_line("needs 6 images from number 5 on, but there are 10"):
        result(latents, {"kind": "argmax", "features": "scores"}, protocol, tmp_path)


def test_disjoint_digits_need_known_originals(tmp_path: Path) -> None:
    arrays = made_up(20)
    del arrays["original"]
    protocol = {"fit": {"set": "a/test", "digits": "fit"}, "test": {"set": "a/test", "digits": "test"}}
    with pytest.raises(UserError, match="has no 'original'"):
        result({"a/test": arrays}, {"kind": "svm"}, protocol, tmp_path)
    position = {"fit": {"set": "a/test", "count": 15}, "test": {"set": "a/test", "start": 15}}
    values = result({"a/test": arrays}, {"kind": "svm"}, position, tmp_path)
    assert values["test_images_whose_original_was_fitted"] is None


def test_missing_and_damaged_arrays_are_reported_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "latents.npz"
    npz.save_parts(file, {"a/test": made_up(10), "a/train": made_up(20)})
    with one_line("has no array 'a/test/pose'"):
        npz.read(file, ("pose",), part="a/test")
    with one_line(r"has no 'b/test' \(has: a/test, a/train\)"):
        npz.read(file, part="b/test")
    file.write_bytes(file.read_bytes()[:300])
    with one_line("truncated or damaged"):
        npz.read(file)
    with one_line("no such file"):
        npz.read(tmp_path / "none.npz")


def test_a_fitted_head_survives_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second attempt fits what is missing, and what has changed."""
    file, out, kept = tmp_path / "latents.npz", tmp_path / "heads.json", tmp_path / "kept"
    npz.save_parts(file, {"a/train": made_up(90), "a/test": made_up(60, seed=1), "b/test": made_up(30, seed=2)})
    fitted: list[str] = []

    def fit(latents: Path, head: dict[str, Any], protocol: dict[str, Any], **fits: Any) -> dict[str, Any]:
        fitted.append(protocol["title"])
        if protocol["title"] == "broken":
            raise KeyboardInterrupt
        return evaluate(latents, head, protocol, **fits)

    monkeypatch.setattr(heads, "evaluate", fit)

    def wanted(*titles: str, sets: tuple[str, ...] = ("a/test",), C: float = 1.0) -> dict[str, Any]:
        protocols = {
            f"{title}-{name[0]}": {"title": title, "fit": {"set": "a/train"}, "test": {"set": name}}
            for title in titles
            for name in sets
        }
        head = {"kind": "linear", "C": C}
        return {"linear": {name: {"head": head, "protocol": each} for name, each in protocols.items()}}

    with pytest.raises(KeyboardInterrupt):
        evaluate_all(file, wanted("one", "two", "broken", "four"), out, kept=kept, code="c")
    assert fitted == ["one", "two", "broken"]
    assert not out.exists()
    fitted.clear()
    evaluate_all(file, wanted("one", "two", "four"), out, kept=kept, code="c")
    assert fitted == ["four"]
    made = json.loads(out.read_text())
    assert list(made["linear"]) == ["four-a", "one-a", "two-a"]
    assert {each["accuracy"] for each in made["linear"].values()} == {made["linear"]["one-a"]["accuracy"]}
    for arguments, code, expected in (
        ({"sets": ("a/test", "b/test")}, "c", ["one"]),
        ({"sets": ("a/test", "b/test"), "C": 2.0}, "c", ["one", "one"]),
        ({"sets": ("a/test", "b/test"), "C": 2.0}, "d", ["one", "one"]),
        ({"sets": ("a/test", "b/test"), "C": 2.0}, "d", []),
    ):
        fitted.clear()
        evaluate_all(file, wanted("one", **arguments), out, kept=kept, code=code)  # type: ignore[arg-type]
        assert fitted == expected
    npz.save_parts(file, {"a/train": made_up(90), "a/test": made_up(60, seed=3), "b/test": made_up(30, seed=2)})
    fitted.clear()
    evaluate_all(file, wanted("one", sets=("a/test", "b/test"), C=2.0), out, kept=kept, code="d")
    assert fitted == ["one"]


def test_a_head_is_fitted_once_for_all_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, out = tmp_path / "latents.npz", tmp_path / "heads.json"
    npz.save_parts(file, {"a/train": made_up(90), "a/test": made_up(60, seed=1), "b/test": made_up(30, seed=2)})
    made: list[Head] = []
    monkeypatch.setattr(heads, "classifier", lambda head, threads: made.append(head) or classifier(head))
    head = {"kind": "svm"}
    protocols = {name: {"title": name, "fit": {"set": "a/train"}, "test": {"set": f"{name}/test"}} for name in "ab"}
    protocols["first"] = {"title": "first", "fit": {"set": "a/train", "count": 50}, "test": {"set": "a/test"}}
    evaluate_all(file, {"svm": {name: {"head": head, "protocol": each} for name, each in protocols.items()}}, out)
    assert len(made) == 2
    together = json.loads(out.read_text())["svm"]
    for name, protocol in protocols.items():
        alone = json.loads(json.dumps(evaluate(file, head, protocol)))
        assert {**alone, "seconds": 0} == {**together[name], "seconds": 0}


def test_a_few_images_of_each_class_are_drawn(tmp_path: Path) -> None:
    """The accuracy is the mean over the draws; the draws are the same for every head."""
    latents = {"a/train": made_up(90), "a/test": made_up(60, seed=1)}
    latents["a/train"]["capsules"] += 0.5 * np.random.default_rng(1).normal(size=(90, 3, 1)).astype(np.float32)
    labels, seen = latents["a/train"]["labels"], latents["a/train"]["capsules"].reshape(90, -1)
    expected = []
    for draw in range(4):
        random = np.random.default_rng(draw)
        rows = [row for k in range(3) for row in random.choice(np.flatnonzero(labels == k), 2, replace=False)]
        fitted = classifier(Head(kind="linear")).fit(seen[sorted(rows)], labels[sorted(rows)])
        test = latents["a/test"]
        expected.append(fitted.score(test["capsules"].reshape(60, -1), test["labels"]))
    protocol = {"fit": {"set": "a/train", "per_class": 2, "draws": 4}, "test": {"set": "a/test"}}
    made = result(latents, {"kind": "linear"}, protocol, tmp_path)
    assert made["accuracy"] == pytest.approx(np.mean(expected))
    assert len(set(expected)) > 1
    assert (made["n"], made["n_fit"]) == (60, 6)
    with pytest.raises(UserError, match=r"a/train: per_class is 80, but there are \d+ images of class 0"):
        result(latents, {"kind": "linear"}, {**protocol, "fit": {"set": "a/train", "per_class": 80}}, tmp_path)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"fit": {"set": "a/train", "draws": 3}, "test": {"set": "a/test"}}, "fit.draws: nothing is drawn"),
        ({"fit": {"set": "a/train"}, "test": {"set": "a/test", "per_class": 3}}, "test.per_class: only images to fit"),
    ],
)
def test_only_images_to_fit_on_are_drawn(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Protocol.model_validate({"title": "t", **parts})


def test_the_heads_rule_is_the_one_of_training() -> None:
    random = np.random.default_rng(0)
    scores = random.normal(size=(200, 5)).astype(np.float32)
    pairs = np.array([random.permutation(5)[:2] for _ in range(200)])
    for labels in (pairs[:, 0], pairs):
        ours = highest_are_labels(scores, labels)
        assert ours.tolist() == correct(torch.tensor(scores), torch.tensor(labels)).tolist()
        assert 0 < ours.mean() < 1
