"""Metrics, tables and figures of the paper `experts`, from made results; and its judge."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import made_results
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
from made_results import CONFIG, values
from scipy.linalg import sqrtm

from recaps import arrays, io
from recaps.config.families import families
from recaps.config.load import Project, load
from recaps.errors import UserError
from recaps.evaluation.record import metric_rows
from recaps.models import build
from recaps.npz import Array
from recaps.papers.experts import figures, probes, record, tables
from recaps.papers.experts import judge as judge_module
from recaps.papers.experts.judge import (
    Judge,
    agreement,
    blank,
    bootstrap_error,
    border_error,
    coverage,
    frechet_distance,
    negatives,
    resembles_one,
    slant,
    spread_within,
    stroke_mass,
)
from recaps.papers.experts.metrics import _specificity
from recaps.report.claims import Number, check_variants
from recaps.report.metrics import correlation, selectivity, usage
from recaps.report.results import Results

CLAIMS = made_results.claims("experts")
SHAPE = (1, 28, 28)
JUDGE = {"family": "convnet", "channels": [2, 3], "hidden": 5}
#: Samples of each of the capsules, and images of a test set.
SAMPLES, CAPSULES, IMAGES = 6, 4, 40
#: The class for which each capsule has its largest mean length.
LIKED = np.array([5, 9, 1, 7])
#: Half a level of brightness, of the 256 that pictures of a record have.
BYTE = 0.501 / 255


def config(*without: str, added: dict[str, Any] | None = None, **models: dict[str, Any]) -> Project:
    """The scale `desk` without some data sets, with changed options of some models and with added variants."""
    options = {"judge": JUDGE, "experts": {"autoencoder": 0.5, "encoder": 0.25}}
    training = {"judge": {}, "experts": {"steps": 20_000, "log_every": 50}, "rbm": {}, "vae": {}}
    variants = {
        f"{dataset.partition('-')[0]}-{kind}": {"training": training[kind], "model": options.get(kind, {})}
        for dataset in {"mnist", "fashion-mnist"} - set(without)
        for kind in training
    }
    for name, changed in models.items():
        variants[name]["model"] = variants[name]["model"] | changed
    chosen = {"scale": "desk", "papers": ["experts"], "without": list(without)}
    changes = made_results.without_own_seeds("experts", variants | (added or {}))
    return load(chosen | {"overrides": {"experts": {"variants": changes}}}, CONFIG)


@pytest.fixture(scope="module")
def project() -> Project:
    return config()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, project: Project) -> Results:
    return make(tmp_path_factory.mktemp("results"), project, seeds=(0, 1))


@pytest.fixture(scope="module")
def table(results: Results) -> pd.DataFrame:
    """All metrics of the results."""
    return results.metrics


def make(folder: Path, project: Project, seeds: tuple[int, ...]) -> Results:
    """Measured results in which seed s has every error s higher."""
    results = made_results.frame(folder, project, "experts", seeds, _run)
    for name in sorted({name for variant in results.paper.variants.values() for name in variant.images}):
        arrays.save(_split(40 if name.endswith("test") else 50), made_results.datasets(results) / name)
    return made_results.measured(results)


def _run(results: Results, variant: str, model: dict[str, Any], seed: int) -> None:
    settings, run = results.paper.variants[variant], results.run(variant, seed)
    for head, protocols in settings.heads.items():
        for protocol in protocols:
            made_results.add_head(run, head, protocol, {"accuracy": 0.9 - seed / 100, "n": IMAGES})
    save_model(run, model, settings.training.model_dump(mode="json"), seed, weights=variant.endswith("judge"))
    io.write_json(run / "record.json", {"wall_seconds": 600 + 60 * seed})
    if variant.endswith("judge"):
        return
    images = _split(IMAGES).images[:12].astype(np.float32) / 255
    chain = {"images": images, "chain": images / 2, "labels": np.arange(12) % 10}
    if variant.endswith("experts"):
        chain["autoencoder"] = 0.9 * images
    made_results.add_probe(run, "chain", chain)
    made_results.add_probe(run, "samples", _samples(seed) if variant.endswith("experts") else {"samples": _pictures(8)})
    made_results.add_latents(run, settings.test, _latents(seed))
    rows = [(k, 90 - k / 1000, k / 1e4, k / 1e5) for k in range(1000, 20001, 1000)]
    columns = ["step", "reconstruction_error", "length", "mixed_activation"]
    io.write_text(run / "history.csv", pd.DataFrame(rows, columns=columns).to_csv(index=False))


def save_model(run: Path, model: dict[str, Any], training: dict[str, Any], seed: int, weights: bool = True) -> Any:
    """A run's settings and, as training saves them, the weights of an untrained model."""
    config = {"model": model, "image_shape": SHAPE, "classes": 10, "training": training}
    io.write_json(run / "config.json", config)
    if weights:
        torch.manual_seed(seed)
        net = build(families()[model["family"]].model_validate(model), SHAPE, 10).eval()
        io.write_bytes(run / "model.safetensors", safetensors.torch.save(net.state_dict()))
        return net
    return None


def _split(n: int) -> arrays.Arrays:
    """A bright bar for each class; in every tenth image it is lower, and its lower half is shorter on the left."""
    labels = np.arange(n) % 10
    images = np.zeros((n, *SHAPE), np.uint8)
    for place, (image, label) in enumerate(zip(images, labels, strict=True)):
        top, left = 2 * label + place // 10, 4 + place // 10
        image[0, top : top + 2, 4:24] = 200
        image[0, top + 2 : top + 4, left:24] = 200
    return arrays.Arrays(images, labels, {}, {"name": "made", "classes": 10})


def _pictures(n: int) -> Array:
    """Images with noise, in 0..1."""
    noise = np.random.default_rng(n).uniform(0, 0.1, (n, *SHAPE))
    return (_split(n).images / 255 + noise).astype(np.float32)


def _samples(seed: int) -> dict[str, Array]:
    """Capsule j shows class j; every fourth picture from the complete domain is a negative."""
    shown = np.stack([_pictures(CAPSULES)] * SAMPLES) + 0.01 * np.arange(SAMPLES)[:, None, None, None, None]
    restricted = shown.astype(np.float32)
    turned = (np.arange(SAMPLES * CAPSULES) % 4 == seed).reshape(SAMPLES, CAPSULES, 1, 1, 1)
    complete = np.where(turned, 1 - restricted, restricted)
    opposite = (0.8 - 0.5 * complete).astype(np.float32)
    opposite[0, 0] = complete[0, 0]
    return {"complete": complete, "restricted": restricted, "opposite": opposite, "labels": np.arange(12) % 10}


def _latents(seed: int) -> dict[str, Array]:
    draw, labels = np.random.default_rng(seed), np.arange(IMAGES) % 10
    lengths = draw.uniform(0, 0.1, (IMAGES, CAPSULES)) + (labels[:, None] == LIKED)
    units = draw.normal(size=(IMAGES, 7))
    return {
        "labels": labels,
        "lengths": lengths,
        "capsules": np.abs(units),
        "mean": units,
        "reconstruction_error": draw.uniform(20, 30, IMAGES) + seed,
        "autoencoder_error": draw.uniform(2, 3, IMAGES) + seed,
    }


# The judge


@pytest.fixture
def judged(tmp_path: Path) -> tuple[Judge, Any]:
    """A judge, and the model that it loads."""
    net = save_model(tmp_path / "judge", JUDGE, {"shift": 2}, seed=3)
    return Judge(tmp_path / "judge"), net


def test_the_judge_is_the_saved_model_whatever_the_batch(
    judged: tuple[Judge, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, net = judged
    pictures = _pictures(13)
    with torch.no_grad():
        features = net.features(torch.from_numpy(pictures))
        scores = net.scores(features)
    for batch in (500, 5):
        monkeypatch.setattr(judge_module, "BATCH", batch)
        seen = judge(pictures)
        np.testing.assert_allclose(seen.features, features, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(seen.probabilities, scores.softmax(1), rtol=1e-5)
        assert seen.decisions.tolist() == scores.argmax(1).tolist()


def test_the_judge_sees_pictures_as_it_was_trained_to(tmp_path: Path) -> None:
    net = save_model(tmp_path, JUDGE, {"standardise": "last"}, seed=0)
    pictures = _pictures(3)
    centred = pictures - pictures.mean((1, 2, 3), keepdims=True)
    expected = net.features(torch.from_numpy(centred / centred.std((1, 2, 3), keepdims=True)))
    np.testing.assert_allclose(Judge(tmp_path)(pictures).features, expected.detach(), rtol=1e-3, atol=1e-5)


def test_only_a_convnet_judges_and_only_its_shape(judged: tuple[Judge, Any], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"trained on \(1, 28, 28\), but the pictures are \(1, 20, 28\)"):
        judged[0](np.zeros((2, 1, 20, 28), np.float32))
    save_model(tmp_path / "vae", {"family": "vae", "hidden": [3], "latent_dim": 2}, {}, seed=0)
    with pytest.raises(UserError, match="the judge of samples must be a ConvNet"):
        Judge(tmp_path / "vae")


def test_confidence_and_coverage() -> None:
    every, one = np.eye(10)[np.arange(50) % 10], np.eye(10)[np.full(50, 7)]
    assert coverage(every) == pytest.approx(10)
    assert coverage(one) == pytest.approx(1)
    three = np.eye(4)[[0, 0, 1, 3]]
    assert coverage(three) == pytest.approx(math.exp(0.5 * math.log(2) + 2 * 0.25 * math.log(4)))
    soft = np.array([[0.2, 0.5, 0.3], [0.9, 0.1, 0.0]])
    assert judge_module.Judged(soft, soft).confidence.tolist() == [0.5, 0.9]
    assert coverage(soft) == pytest.approx(2), "of decisions, however sure"


def _spread(mean: tuple[float, float], variances: tuple[float, float]) -> Array:
    """Four points with this mean and, with n - 1, these variances and no covariance."""
    signs = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]])
    return np.array(mean) + signs * np.sqrt(0.75 * np.array(variances))


def test_the_frechet_distance_of_known_gaussians() -> None:
    a, b = _spread((0, 0), (1, 4)), _spread((3, -1), (9, 0.25))
    assert frechet_distance(a, b) == pytest.approx(9 + 1 + (1 - 3) ** 2 + (2 - 0.5) ** 2)
    assert frechet_distance(b, a) == pytest.approx(frechet_distance(a, b))
    assert frechet_distance(a, a + 2) == pytest.approx(8)


def test_the_frechet_distance_is_its_formula() -> None:
    draw = np.random.default_rng(0)
    a = draw.normal(size=(60, 5)) @ draw.normal(size=(5, 5))
    b = draw.normal(size=(40, 5)) @ draw.normal(size=(5, 5)) + draw.normal(size=5)
    ca, cb = np.cov(a.T), np.cov(b.T)
    expected = np.square(a.mean(0) - b.mean(0)).sum() + np.trace(ca + cb - 2 * sqrtm(ca @ cb).real)
    assert frechet_distance(a, b) == pytest.approx(expected, rel=1e-6)


def test_the_frechet_distance_bears_dead_units_and_few_rows() -> None:
    draw = np.random.default_rng(1)
    a = np.maximum(draw.normal(size=(30, 40)), 0).astype(np.float32)
    a[:, ::2] = 0
    assert frechet_distance(a, a[::-1]) == pytest.approx(0, abs=1e-5)
    assert frechet_distance(a, a * 1.0001) == pytest.approx(0, abs=1e-5)
    alone = a.copy()
    alone[:, 0] = 2
    assert frechet_distance(a, alone) == pytest.approx(4, rel=1e-5)


def test_negatives_are_counted_as_loops_do() -> None:
    images = _split(30).images / 255
    pictures = np.concatenate([_pictures(12), 1 - _pictures(12), np.random.default_rng(0).random((12, *SHAPE))])
    near = [
        min(((1 - each - image) ** 2).sum() for image in images) < min(((each - image) ** 2).sum() for image in images)
        for each in pictures
    ]
    assert near[:24] == [False] * 12 + [True] * 12
    assert negatives(pictures, images).tolist() == near


def test_a_negative_of_an_object_is_no_white_picture_with_a_black_spot() -> None:
    """Six bars of four rows, alone and all together."""
    images = np.zeros((6, *SHAPE))
    for place, image in enumerate(images):
        image[0, 2 + 4 * place : 6 + 4 * place, 8:20] = 1
    spot = images.max(0, keepdims=True)
    grey, white = np.full((1, *SHAPE), 0.5), np.ones((1, *SHAPE))
    shown = np.concatenate([1 - images, 1 - 0.6 * images[:1], 1 - spot, white])
    assert negatives(shown, images).all()
    assert resembles_one(1 - shown, images).tolist() == [True] * 7 + [False] * 2
    assert resembles_one(grey, images).tolist() == [False]


def test_a_blank_picture_has_less_contrast_than_images() -> None:
    images = np.zeros((200, *SHAPE))
    images[:, 0, :14, :14] = np.linspace(0.101, 0.3, 200)[:, None, None]  # the third is the first that counts
    pictures = np.zeros((4, *SHAPE))
    pictures[0, 0, -1], pictures[0, 0, :, -1] = 1, 1  # the border has no part in it
    pictures[1] = 0.7
    pictures[2, 0, :14, :14], pictures[3, 0, :14, :14] = 0.1019, 0.1031
    assert blank(pictures, images).tolist() == [True, True, True, False]
    assert blank(images, images).sum() == 2


def test_the_border_is_the_last_row_and_the_last_column() -> None:
    images = np.zeros((3, *SHAPE), np.float32)
    pictures = np.stack([images[0] + 0.5, images[1], images[2]])
    pictures[1, 0, 27, 27], pictures[1, 0, 26, 26], pictures[2, 0, 0, 27] = 1, 1, 0.5
    assert border_error(pictures, images).tolist() == [13.75, 1, 0.25]


def test_mass_and_slant_of_known_strokes() -> None:
    pictures = np.full((6, 2, 10, 10), 0.5)
    pictures[0, :, 2:8, 4] = 0.6  # upright
    pictures[1, :, range(2, 8), range(7, 1, -1)] = 1  # like /
    pictures[2, :, range(2, 8), range(2, 8)] = 0.9  # like its mirror image
    pictures[3, :, 1:9, 3] = pictures[3, :, 0, 3] = pictures[3, :, 9, 3] = 1
    pictures[4, :, 5, 2:6] = 1  # one row
    assert stroke_mass(pictures).tolist() == pytest.approx([0.06, 0.06, 0.06, 0.1, 0.04, 0])
    assert slant(pictures).tolist() == pytest.approx([0, 1, -1, 0, 0, 0])


def test_the_spread_within_a_class_does_not_see_their_means() -> None:
    values, labels = np.array([0.0, 10, 2, 14, 6]), np.array([0, 1, 0, 1, 2])
    assert spread_within(values, labels) == pytest.approx((1 + 2 + 0) / 3)


def test_the_bootstrap_knows_the_error_of_a_mean() -> None:
    sample = np.random.default_rng(0).normal(size=400)
    error = bootstrap_error(np.mean, sample, resamples=400)
    assert error == pytest.approx(sample.std() / 20, rel=0.15)
    assert bootstrap_error(np.mean, sample) == bootstrap_error(np.mean, sample)
    assert bootstrap_error(lambda a, b: a.mean() - b.mean(), np.ones(9), np.zeros(5)) == 0


# Measures


def test_usage() -> None:
    assert usage(np.full((3, 5), 0.2)) == pytest.approx(1)
    assert usage(np.eye(5)[[2, 2, 2]]) == pytest.approx(1 / 5)
    assert usage(np.zeros((3, 5))) == 0
    activity = np.random.default_rng(0).random((8, 6))
    shares = [sum(row[unit] for row in activity) / activity.sum() for unit in range(6)]
    assert usage(activity) == pytest.approx(math.exp(-sum(p * math.log(p) for p in shares)) / 6)


def test_selectivity_is_what_loops_give() -> None:
    labels = np.array([0, 0, 0, 0, 2, 2, 5])
    activity = np.random.default_rng(0).random((7, 5))
    activity[:, 3], activity[:, 4] = 0, (labels == 2)
    expected = []
    for unit in range(5):
        means = [activity[labels == label, unit].mean() for label in (0, 2, 5)]
        best = means.pop(int(np.argmax(means)))
        others = sum(means) / len(means)
        expected.append((best - others) / (best + others) if best else 0.0)
    assert expected[3:] == [0, 1]
    np.testing.assert_allclose(selectivity(activity, labels), expected)


def test_correlation_of_pictures() -> None:
    draw = np.random.default_rng(0)
    a, b = draw.random((4, 1, 5, 6), np.float32), draw.random((4, 1, 5, 6), np.float32)
    b[1] = 1 - a[1]
    b[2], a[3] = 0.1, 0.7
    expected = [np.corrcoef(a[0].ravel(), b[0].ravel())[0, 1], -1, 0, 0]
    np.testing.assert_allclose(correlation(a, b), expected, atol=1e-6)
    assert correlation(a, b)[2:].tolist() == [0, 0], "not the rounding of a mean"


def test_agreement_does_not_count_what_it_chose() -> None:
    first = np.array([[3, 1, 0], [3, 2, 0], [3, 1, 1]])
    second = np.array([[3, 1, 4], [3, 2, 4], [3, 2, 0]])
    # Of capsule 1 the first half says 1, which the second has once, and the second 2, which the first has once.
    np.testing.assert_allclose(agreement(first, second), [1, 1 / 3, (1 / 3 + 0) / 2])
    chance = np.random.default_rng(0).integers(0, 10, (2, 10, 2000))
    assert agreement(*chance).mean() == pytest.approx(0.1, abs=0.01)


# Table 1


def test_table_1_has_a_row_for_each_kind_of_picture(results: Results) -> None:
    table = tables.table_1(results)
    models = ["Expert capsules (complete domain)", "Expert capsules (restricted domain)", "RBM", "VAE", "test images"]
    assert list(table["model"]) == models * 2
    assert list(table["data set"]) == ["MNIST"] * 5 + ["Fashion-MNIST"] * 5
    assert set(table["seeds"]) == {2}
    complete, restricted, rbm, _, images = (row for _, row in table[table["data set"] == "MNIST"].iterrows())
    errors = [_latents(seed)["reconstruction_error"].mean() for seed in (0, 1)]
    assert complete["chain error"] == pytest.approx(np.mean(errors))
    assert complete["linear %"] == pytest.approx(89.5)
    assert complete["negatives %"] == pytest.approx(25)
    own = ["chain error", "autoencoder error", "usage", "selectivity", "linear %"]
    assert restricted[own].isna().all()
    assert images[own].isna().all()
    assert rbm[own].isna().tolist() == [False, True, False, False, False]
    assert table[["confidence", "classes", "Fréchet distance", "negatives %"]].notna().all(axis=None)


def test_samples_of_the_compared_rows() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (2, 2, 3, 8, 8), dtype=np.uint8) / 255
    samples = {"pictures": pictures, "mean": pictures.mean((3, 4)), "sd": pictures.std((3, 4))}
    seen = list[str]()
    results: Any = SimpleNamespace(arrays=lambda variant, name: seen.append(f"{variant} {name}") or samples)
    drawing, data = figures.samples_of_rows(results)
    assert seen == [f"mnist-experts-{row} samples" for row in figures.COMPARED]
    assert [axis.get_title() for axis in drawing.axes] == list(figures.COMPARED)
    assert data["mean"].tolist() == samples["mean"][:, 1].ravel().tolist() * 5  # of the restricted domain
    results.paper = load({"scale": "desk"}, CONFIG).studies["experts.spaces"]
    drawing, data = figures.complete_samples_of_rows(results)
    names = ["sphere", "product", "flat", "biases"]
    assert seen[5:] == [f"fashion-experts-{name} samples" for name in names]
    assert [axis.get_title() for axis in drawing.axes] == names
    assert data["mean"].tolist() == samples["mean"][:, 0].ravel().tolist() * 4
    drawing, data = figures.restricted_samples_of_rows(results)
    assert seen[9:] == seen[5:9]
    assert data["mean"].tolist() == samples["mean"][:, 1].ravel().tolist() * 4


def test_table_1_shows_means_of_the_metrics(results: Results, table: pd.DataFrame) -> None:
    shown = tables.table_1(results)
    names = {"usage": "usage", "selectivity": "selectivity", "confidence": "samples-confidence"}
    names |= {"classes": "samples-coverage", "Fréchet distance": "samples-frechet"}
    row = shown[(shown["model"] == "VAE") & (shown["data set"] == "Fashion-MNIST")].iloc[0]
    for column, metric in names.items():
        assert row[column] == pytest.approx(np.mean(values(table, "fashion-vae", metric)), rel=1e-12), column


# Metrics


def test_every_variant_has_its_metrics(table: pd.DataFrame) -> None:
    judged = ("confidence", "coverage", "frechet", "negatives", "negative-objects", "blank")
    common = {"chain-error", "border-error", "border-share", "usage", "selectivity", "linear-mnist"}
    expected = {
        "mnist-experts": common
        | {f"{domain}-{name}" for domain in ("complete", "restricted") for name in judged}
        | {"autoencoder-error", "opposite-correlation", "capsule-agreement", "overall-agreement", "training-minutes"}
        | {"capsule-specificity", "specific-capsules", "mass-within-capsules", "slant-within-capsules"}
        | {"frechet-beside-vae", "input-capsules", "input-dim", "output-capsules", "output-dim"},
        "mnist-rbm": common | {f"samples-{name}" for name in judged},
        "mnist-vae": common | {f"samples-{name}" for name in judged},
        "mnist-judge": {"argmax-mnist"} | {f"images-{name}" for name in judged},
    }
    for variant, names in expected.items():
        rows = table[table["variant"] == variant]
        assert set(rows["metric"]) == names
        assert not rows.duplicated(["seed", "metric"]).any()
        fashion = table[table["variant"] == variant.replace("mnist", "fashion")]
        assert {name.replace("fashion-mnist", "mnist") for name in fashion["metric"]} == names
    assert table["value"].map(math.isfinite).all()
    on = table.set_index(["variant", "metric"])["measured_on"]
    assert set(on["fashion-experts", "complete-frechet"]) == {"fashion-mnist/test"}
    assert set(on["fashion-experts", "training-minutes"]) == {"fashion-mnist/train"}


def test_errors_and_use_of_the_capsules(table: pd.DataFrame) -> None:
    for seed in (0, 1):
        latents = _latents(seed)
        error = latents["autoencoder_error"]
        row = table[(table["variant"] == "mnist-experts") & (table["metric"] == "autoencoder-error")].iloc[seed]
        assert row["value"] == pytest.approx(error.mean())
        assert row["se"] == pytest.approx(error.std(ddof=1) / math.sqrt(IMAGES))
        for kind, activity in (("experts", "lengths"), ("rbm", "capsules"), ("vae", "mean")):
            active = np.abs(latents[activity])
            assert values(table, f"mnist-{kind}", "usage")[seed] == pytest.approx(usage(active))
            chosen = selectivity(active, latents["labels"]).mean()
            assert values(table, f"mnist-{kind}", "selectivity")[seed] == pytest.approx(chosen)


def test_samples_are_judged_by_the_judge_of_their_seed(results: Results, table: pd.DataFrame) -> None:
    test, train = (_split(n).images.astype(np.float32) / 255 for n in (40, 50))
    for seed in (0, 1):
        judge = Judge(results.run("mnist-judge", seed))
        complete = _samples(seed)["complete"].reshape(-1, *SHAPE)
        seen, real = judge(complete), judge(test)
        found = {name: values(table, "mnist-experts", f"complete-{name}")[seed] for name in ("confidence", "coverage")}
        assert found["confidence"] == pytest.approx(seen.probabilities.max(1).mean())
        assert found["coverage"] == pytest.approx(coverage(seen.probabilities))
        distance = frechet_distance(seen.features, real.features[: SAMPLES * CAPSULES])
        assert values(table, "mnist-experts", "complete-frechet")[seed] == pytest.approx(distance)
        distance = frechet_distance(real.features, judge(train).features[:40])
        assert values(table, "mnist-judge", "images-frechet")[seed] == pytest.approx(distance)
    frechet = table[table["metric"] == "complete-frechet"]
    assert (frechet["se"] > 0).all()
    assert set(frechet["n"]) == {SAMPLES * CAPSULES}


def test_samples_are_compared_with_those_of_the_vae(table: pd.DataFrame) -> None:
    for seed in (0, 1):
        own, vae = (
            values(table, *each)[seed]
            for each in (("mnist-experts", "restricted-frechet"), ("mnist-vae", "samples-frechet"))
        )
        assert values(table, "mnist-experts", "frechet-beside-vae")[seed] == pytest.approx(own / vae)
    assert (table.loc[table["metric"] == "frechet-beside-vae", "se"] > 0).all()


def test_negatives_and_opposites(table: pd.DataFrame) -> None:
    assert values(table, "mnist-experts", "complete-negatives") == [0.25, 0.25]
    assert values(table, "mnist-experts", "restricted-negatives") == [0, 0]
    assert values(table, "mnist-judge", "images-negatives") == [0, 0]
    assert values(table, "mnist-experts", "complete-negative-objects") == [0.25, 0.25]
    assert values(table, "mnist-experts", "restricted-negative-objects") == [0, 0]
    rows = table[(table["variant"] == "mnist-experts") & (table["metric"] == "opposite-correlation")]
    pairs = [-1] * (SAMPLES * CAPSULES - 1) + [1]
    assert list(rows["value"]) == pytest.approx([np.mean(pairs)] * 2)
    assert list(rows["se"]) == pytest.approx([np.std(pairs, ddof=1) / math.sqrt(len(pairs))] * 2)


def test_agreement_of_capsules_and_of_all(results: Results) -> None:
    decisions = np.random.default_rng(1).integers(0, 3, (SAMPLES, CAPSULES))

    def share(first: Array, second: Array) -> float:
        classes, counts = np.unique(first, return_counts=True)
        return float(np.mean(second == classes[counts.argmax()]))

    halves = decisions[: SAMPLES // 2], decisions[SAMPLES // 2 :]
    columns = [(halves[0][:, j], halves[1][:, j]) for j in range(CAPSULES)]
    each = np.array([(share(a, b) + share(b, a)) / 2 for a, b in columns])
    capsule, overall = record._agreement(made_results.run_of(results, "mnist-experts", 0), decisions, "mnist/test")
    assert capsule[3] == pytest.approx(each.mean())
    assert capsule[4] == pytest.approx(math.sqrt((each * (1 - each)).sum() / SAMPLES) / CAPSULES)
    a, b = (half.ravel() for half in halves)
    assert overall[3] == pytest.approx((share(a, b) + share(b, a)) / 2)
    assert capsule[5] == overall[5] == SAMPLES * CAPSULES


def test_specificity_is_a_share_of_the_largest_possible_gap(results: Results) -> None:
    run = made_results.run_of(results, "mnist-experts", 0)
    alike = np.tile([[3], [5], [3], [3], [5], [3]], CAPSULES)
    each = np.tile(LIKED, (SAMPLES, 1))
    found = []
    for decisions in (alike, each, np.zeros_like(each)):
        numbers = metric_rows(record._agreement(run, decisions, "mnist/test"))
        ((*_, value, error, n, unit, on),) = _specificity(numbers, "mnist-experts", 0)
        found.append(value)
        assert (n, unit, on) == (SAMPLES * CAPSULES, "ratio", "mnist/test")
    assert found == pytest.approx([0, 1, 0])
    numbers = pd.DataFrame({"metric": ["capsule-agreement", "overall-agreement"], "value": [0.6, 0.2], "se": [0.04, 0]})
    ((*_, value, error, _, _, _),) = _specificity(numbers.assign(n=7, measured_on="mnist/test"), "mnist-experts", 0)
    assert (value, error) == (pytest.approx(0.5), pytest.approx(0.05))
    assert _specificity(numbers[:0], "mnist-experts", 0) == []


def test_a_specific_capsule_draws_one_class_and_looks_like_it(results: Results) -> None:
    run = made_results.run_of(results, "mnist-experts", 0)
    decisions = np.tile([3, 3, 5, 3], (10, 1))
    decisions[::2, 1] = 4  # half of the samples are of another class
    probabilities = np.zeros((40, 10))
    probabilities[:, 0] = 0.95
    probabilities[3::4, 0] = 0.85  # the last capsule is not sure enough
    seen = judge_module.Judged(probabilities=probabilities, features=np.zeros((40, 2)))
    row = record._specific(run, seen, decisions, "mnist/test")
    assert (*row[2:4], row[5]) == ("specific-capsules", 2, 40)


def test_strokes_of_a_capsule_vary_beside_those_of_a_class(results: Results) -> None:
    test, run = _split(IMAGES), made_results.run_of(results, "mnist-experts", 0)
    images = test.images / 255
    one, every = images[:1].repeat(4, 0), images[3::10]  # the four images of class 3
    samples = np.stack([one, every], 1)
    rows = record._variation(run, samples, images, test.labels, "mnist/test")
    assert [row[2] for row in rows] == ["mass-within-capsules", "slant-within-capsules"]
    assert [row[3] for row in rows] == pytest.approx([0.5, 0.5])  # of ratios 0 and 1
    assert [row[4] for row in rows] == pytest.approx([0.5, 0.5])
    assert {row[5] for row in rows} == {8}
    assert record._variation(run, samples, images[:10], test.labels[:10], "mnist/test") == [], "one image of each class"


def test_the_borders_share_of_the_error(results: Results, table: pd.DataFrame) -> None:
    images = np.zeros((2, *SHAPE), np.float32)
    chain = images.copy()
    chain[:, 0, -1] = chain[:, 0, :, -1] = 0.5
    chain[1, 0, 3, 4:9] = 1
    error, share = record._border_metrics(
        made_results.run_of(results, "mnist-experts", 0), {"images": images, "chain": chain}
    )
    assert error[2:6] == ("border-error", 13.75, 0, 2)
    assert share[2:4] == ("border-share", pytest.approx(27.5 / 32.5))
    assert values(table, "fashion-rbm", "border-share") == [0, 0], "the made chain errs inside only"


def test_agreement_is_that_of_the_restricted_domain(results: Results, table: pd.DataFrame) -> None:
    for seed in (0, 1):
        run = made_results.run_of(results, "mnist-experts", seed)
        restricted = _samples(seed)["restricted"].reshape(-1, *SHAPE)
        decisions = Judge(results.run("mnist-judge", seed))(restricted).decisions
        for row in record._agreement(run, decisions.reshape(SAMPLES, CAPSULES), "mnist/test"):
            assert values(table, "mnist-experts", row[2])[seed] == pytest.approx(row[3])


def test_samples_are_compared_with_training_images(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    beside: list[int] = []
    monkeypatch.setattr(record, "negatives", lambda a, b: (beside.append(len(b)), negatives(a, b))[1])
    for variant in ("mnist-experts", "mnist-vae", "mnist-judge"):
        record.record(made_results.run_of(results, variant, 0))
    assert beside == [50] * 4


def test_as_many_samples_of_each_capsule_are_judged(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "JUDGED", 10)
    rows = {
        (variant, row[2]): row
        for variant in ("mnist-experts", "mnist-vae", "mnist-judge")
        for row in record.record(made_results.run_of(results, variant, 0)).rows
    }
    assert rows["mnist-experts", "restricted-coverage"][5] == 8
    assert rows["mnist-vae", "samples-coverage"][5] == 8
    assert rows["mnist-judge", "images-coverage"][5] == 10
    judge, complete = Judge(results.run("mnist-judge")), _samples(0)["complete"]
    expected = judge(complete[:2].reshape(-1, *SHAPE)).probabilities.max(1).mean()
    assert rows["mnist-experts", "complete-confidence"][3] == pytest.approx(expected)


def test_sizes_are_those_that_were_built_and_minutes_those_it_took(tmp_path: Path) -> None:
    narrow = {"channels": [4, 6], "primary_dim": 3, "capsules": 5, "capsule_dim": 7}
    table = make(tmp_path, config("fashion-mnist", **{"mnist-experts": narrow}), (0, 1)).metrics
    found = {name: values(table, "mnist-experts", name) for name in ("input-capsules", "output-capsules")}
    assert found == {"input-capsules": [6 * 6 * 6 / 3], "output-capsules": [5]}
    assert values(table, "mnist-experts", "input-dim") == [3]
    assert values(table, "mnist-experts", "output-dim") == [7]
    assert values(table, "mnist-experts", "training-minutes") == [10, 11]


def test_every_claim_finds_what_it_measures(table: pd.DataFrame, project: Project) -> None:
    check_variants(CLAIMS, project.papers)
    verdicts = made_results.verdicts("experts", table)
    assert {verdicts[claim.id] for claim in CLAIMS if isinstance(claim, Number)} == {"check passed"}
    assert verdicts["experts/figure-2/restricted-mnist"] == "reproduced"
    assert verdicts["experts/section-4-2/opposite-fashion"] == "reproduced"


def test_the_claims_hold_every_printed_number() -> None:
    assert sorted(claim.published for claim in CLAIMS if isinstance(claim, Number)) == [8, 16, 20, 576]


# Figures


def test_a_variant_may_have_seeds_of_its_own(tmp_path: Path) -> None:
    results = make(tmp_path, config(added={name: {"seeds": [0, 1]} for name in ("mnist-experts", "mnist-vae")}), (0,))
    found = [
        results.metric("mnist-experts", name) for name in ("chain-error", "restricted-frechet", "opposite-correlation")
    ]
    assert [len(values) for values in found] == [2, 2, 2], "the judge has one seed"
    assert len(results.metric("fashion-experts", "chain-error")) == 1
    assert set(tables.table_1(results)["seeds"]) == {1, 2}


@pytest.mark.parametrize(("seeds", "without"), [((0, 1), ()), ((0,), ("mnist",)), ((0,), ("fashion-mnist",))])
def test_everything_is_drawn_with_its_data(tmp_path: Path, seeds: tuple[int, ...], without: tuple[str, ...]) -> None:
    results = make(tmp_path, config(*without), seeds)
    gone = {"mnist": "mnist-", "fashion-mnist": "fashion-"}.get("".join(without), "none")
    data = made_results.drawn(results, tmp_path)
    assert not any(data[name]["variant"].str.startswith(gone).any() for name in results.paper.figures)
    assert len(data["table-1"]) == (5 if without else 10)
    missing = {"figure-1"} if without == ("mnist",) else set()
    assert set(data) == {"table-1", *(f"figure-{k}" for k in range(1, 8))} - missing
    assert not results.metrics["variant"].str.startswith(gone).any()


@pytest.mark.parametrize(
    ("families", "missing"), [(("experts",), {1, 2, 3, 5, 6}), (("experts", "rbm", "vae"), {1, 2, 3, 4, 5, 6, 7})]
)
def test_figures_are_left_out_with_all_that_they_show(
    tmp_path: Path, families: tuple[str, ...], missing: set[int]
) -> None:
    names = (f"experts/{dataset}-{family}" for dataset in ("mnist", "fashion") for family in families)
    results = make(tmp_path, config(*names), seeds=(0,))
    data = made_results.drawn(results, tmp_path)
    assert set(data) == {"table-1", *(f"figure-{k}" for k in range(1, 8) if k not in missing)}


def test_figure_1_counts_every_weight_and_shows_real_shapes(results: Results) -> None:
    drawing, data = figures.figure_1(results)
    whole, capsules = ["28x28x1", "20x20x128", "6x6x128"], ["576 capsules of 8", "20 capsules of 16"]
    assert list(data["shape"]) == [*whole, *capsules, capsules[0], *reversed(whole)]
    model: Any = build(results.paper.variants["mnist-experts"].model, SHAPE, 10)
    assert data["weights"].sum() == sum(each.numel() for each in model.parameters())
    by_phase = data.groupby("learns")["weights"].sum()
    assert by_phase["autoencoder"] == sum(each.numel() for each in model.autoencoder.parameters())
    assert by_phase["encoder"] == by_phase["decoder"] == 576 * 8 * 20 * 16
    assert set(data["steps"]) == {"", "1 to 10,000", "10,001 to 15,000", "15,001 to 20,000"}
    texts = [text.get_text() for text in drawing.axes[0].texts]
    assert "output capsules\n20 capsules\nof 16" in texts
    assert "1,474,560\nweights" in texts


@pytest.mark.parametrize("bias", [False, True])
def test_figure_1_shows_what_was_built(tmp_path: Path, bias: bool) -> None:
    narrow = {"channels": [4, 6], "primary_dim": 3, "capsules": 5, "capsule_dim": 7, "bias": bias}
    _, data = figures.figure_1(make(tmp_path, config("fashion-mnist", **{"mnist-experts": narrow}), (0,)))
    assert list(data["shape"][:5]) == ["28x28x1", "20x20x4", "6x6x6", "72 capsules of 3", "5 capsules of 7"]
    weights = [4 * (81 + bias), 6 * (81 * 4 + bias), 72 * 3 * 35, 72 * 3 * 35, *([4, 1] if bias else [])]
    assert list(data["weights"].dropna()) == weights


def test_figure_2_shows_the_first_four_of_each_capsule(results: Results) -> None:
    drawing, data = figures.figure_2(results)
    titles = [axis.get_title(loc="left") or axis.get_title() for axis in drawing.axes]
    assert titles[0] == "(a) MNIST - sampled from complete domain"
    assert titles[3] == "(d) Fashion-MNIST - sampled from restricted domain"
    shown = _samples(0)["complete"]
    canvas = made_results.canvas(drawing.axes[2])
    assert canvas.shape == (4 * 30 - 2, CAPSULES * 30 - 2)
    np.testing.assert_allclose(canvas[30:58, 60:88], shown[1, 2, 0], rtol=0, atol=BYTE)
    rows = data[(data["variant"] == "fashion-experts") & (data["domain"] == "complete")]
    assert rows.groupby("capsule").size().tolist() == [4] * CAPSULES
    row = rows[(rows["sample"] == 1) & (rows["capsule"] == 2)].iloc[0]
    assert row["mean"] == pytest.approx(shown[1, 2].mean())
    assert row["sd"] == pytest.approx(shown[1, 2].std())


def test_figure_2_keeps_the_papers_letters(tmp_path: Path) -> None:
    drawing, _ = figures.figure_2(make(tmp_path, config("mnist"), (0,)))
    letters = [axis.get_title(loc="left")[:3] or axis.get_title()[:3] for axis in drawing.axes]
    assert letters == ["(c)", "(d)"]


def test_figure_3_sets_opposites_below_and_counts_all(results: Results) -> None:
    drawing, data = figures.figure_3(results)
    pairs, bars, *_ = drawing.axes
    probe = _samples(0)
    canvas = made_results.canvas(pairs)
    assert canvas.shape == (2 * 30 - 2, CAPSULES * 30 - 2)
    np.testing.assert_allclose(canvas[:28, 30:58], probe["complete"][0, 1, 0], rtol=0, atol=BYTE)
    np.testing.assert_allclose(canvas[30:, 30:58], probe["opposite"][0, 1, 0], rtol=0, atol=BYTE)
    heights = bars.patches[0].get_data().values
    assert heights[[0, -1]] == pytest.approx([100 * 23 / 24, 100 / 24])
    assert len(data) == 2 * SAMPLES * CAPSULES
    assert data[data["correlation"] > 0][["sample", "capsule"]].to_numpy().tolist() == [[0, 0]] * 2


def test_more_than_ten_capsules_take_several_rows() -> None:
    figure, axis = plt.subplots()
    pictures = np.random.default_rng(0).random((13, 28, 28))
    figures._draw_pairs(axis, pictures, 1 - pictures)
    canvas = made_results.canvas(axis)
    assert canvas.shape == (4 * 30 - 2, 10 * 30 - 2)
    np.testing.assert_allclose(canvas[60:88, 60:88], pictures[12])
    np.testing.assert_allclose(canvas[90:118, 60:88], 1 - pictures[12])
    assert np.isnan(canvas[60:, 90:]).all()
    assert [label.get_text() for label in axis.get_yticklabels()] == ["x", "−x"] * 2
    plt.close(figure)


def test_figure_4_has_an_image_of_each_class_and_a_row_for_each_model(results: Results) -> None:
    drawing, data = figures.figure_4(results)
    assert made_results.canvas(drawing.axes[1]).shape == (5 * 30 - 2, 10 * 30 - 2)
    labels = [label.get_text() for label in drawing.axes[0].get_yticklabels()]
    assert labels == ["test image", "autoencoder", "W and U", "RBM", "VAE"]
    rows = data[data["variant"] == "mnist-experts"].set_index(["row", "label"])["squared_error"]
    image = _split(IMAGES).images[3] / 255
    assert rows["test image", 3] == 0
    assert rows["autoencoder", 3] == pytest.approx(0.01 * np.square(image).sum(), rel=1e-4)
    assert rows["W and U", 3] == pytest.approx(0.25 * np.square(image).sum(), rel=1e-4)
    assert len(data) == 2 * 5 * 10


def test_figure_5_orders_capsules_by_the_class_that_they_like(results: Results) -> None:
    drawing, data = figures.figure_5(results)
    assert [label.get_text() for label in drawing.axes[0].get_xticklabels()] == ["2", "0", "3", "1"]
    classes = [[label.get_text() for label in drawing.axes[k].get_yticklabels()] for k in (0, 1)]
    assert [each[9] for each in classes] == ["9", "Ankle boot"]
    latents = _latents(0)
    expected = latents["lengths"][latents["labels"] == 7].mean(0)
    canvas = made_results.canvas(drawing.axes[0])
    np.testing.assert_allclose(canvas[7], expected[[2, 0, 3, 1]])
    row = data[(data["variant"] == "mnist-experts") & (data["class"] == 7) & (data["capsule"] == 1)].iloc[0]
    assert (row["mean_length"], row["column"]) == (pytest.approx(expected[1]), 3)


def test_figure_5_names_the_classes_of_own_data(tmp_path: Path, project: Project) -> None:
    results = make(tmp_path, project, (0,))
    split = _split(40)
    split.record["class_names"] = [f"class {k}" for k in range(10)]
    folder = made_results.datasets(results) / "fashion-mnist" / "test"
    shutil.rmtree(folder)
    arrays.save(split, folder)
    drawing, _ = figures.figure_5(made_results.measured(results))
    rows = [[text.get_text() for text in axis.get_yticklabels()] for axis in drawing.axes[:2]]
    assert rows == [[str(k) for k in range(10)], [f"class {k}" for k in range(10)]]


def test_figure_6_gives_each_phase_its_steps(results: Results) -> None:
    drawing, data = figures.figure_6(results)
    spans = data.groupby(["variant", "phase"])["step"].agg(["min", "max"]).loc["fashion-experts"]
    assert spans.loc["autoencoder"].tolist() == [1000, 10_000]
    assert spans.loc["encoder"].tolist() == [11_000, 15_000]
    assert spans.loc["decoder"].tolist() == [16_000, 20_000]
    encoder = drawing.axes[1].lines
    assert [line.get_label() for line in encoder] == ["output capsules' sums z", "reconstructed input capsules"]
    assert np.asarray(encoder[0].get_ydata()).tolist() == pytest.approx([k / 1e4 for k in range(11_000, 15_001, 1000)])
    assert len(data) == 2 * (10 + 2 * 5 + 5)


def test_a_phase_without_steps_is_an_empty_panel(tmp_path: Path) -> None:
    none = {"encoder": 0.5}
    drawing, data = figures.figure_6(make(tmp_path, config("fashion-mnist", **{"mnist-experts": none}), (0,)))
    assert set(data["phase"]) == {"autoencoder", "encoder"}
    assert [len(axis.lines) for axis in drawing.axes] == [1, 2, 0]


def test_figure_7_shows_as_many_of_each(results: Results) -> None:
    drawing, data = figures.figure_7(results)
    assert data.groupby("variant").size().to_dict() == {
        f"{dataset}-{kind}": 2 * CAPSULES for dataset in ("mnist", "fashion") for kind in ("experts", "rbm", "vae")
    }
    restricted = _samples(0)["restricted"]
    canvas = made_results.canvas(drawing.axes[0])
    np.testing.assert_allclose(canvas[:28, 120:148], restricted[1, 0, 0], rtol=0, atol=BYTE)


def test_real_probes_and_latents_can_be_drawn(tmp_path: Path) -> None:
    """The arrays that the three families really give have the names and shapes that are read here."""
    models = {
        "experts": {"channels": [4, 8], "capsules": 3, "capsule_dim": 5, "samples": 3},
        "rbm": {"hidden": 6, "samples": 9, "gibbs_steps": 2},
        "vae": {"hidden": [8], "latent_dim": 6, "samples": 9},
    }
    changed = {f"mnist-{kind}": options for kind, options in models.items()}
    results = make(tmp_path, config("fashion-mnist", **changed), (0,))
    images = torch.from_numpy(_split(IMAGES).images).float() / 255
    labels = torch.arange(IMAGES) % 10
    for kind in models:
        options = results.paper.variants[f"mnist-{kind}"].model
        net, run = build(options, SHAPE, 10).eval(), results.run(f"mnist-{kind}")
        with torch.inference_mode():
            made = {name: getattr(probes, name)(net, images[:12], labels[:12]) for name in ("samples", "chain")}
            latents = net.latents(images)
        for name, probe in made.items():
            arrays = {key: value.numpy() for key, value in {**probe, "labels": labels[:12]}.items()}
            made_results.add_probe(run, name, arrays)
        arrays = {key: value.numpy() for key, value in {**latents, "labels": labels}.items()}
        made_results.add_latents(run, "mnist/test", arrays)
    made_results.drawn(made_results.measured(results), tmp_path)
    assert results.metrics["value"].map(math.isfinite).all()
    assert len(tables.table_1(results)) == 5


def test_an_added_variant_has_its_rows_and_panels_without_code(tmp_path: Path) -> None:
    mine = config().papers["experts"].variants["mnist-experts"]
    mine = mine.model_copy(update={"title": "My experts"}).model_dump(mode="json")
    letters = config().papers["experts"].variants["mnist-vae"].model_dump(mode="json")
    other = config().papers["experts"].variants["mnist-judge"].model_copy(update={"images": ()}).model_dump(mode="json")
    added = {"mnist-myexperts": mine, "letters-vae": letters, "mnist-otherjudge": other}
    results = make(tmp_path, config(added=added), (0,))
    rows = tables.table_1(results)
    mnist = list(rows[rows["data set"] == "MNIST"]["model"])
    assert mnist[-3:] == ["My experts (complete domain)", "My experts (restricted domain)", "test images"]
    assert len(mnist) == 7, "a ConvNet without images is no judge"
    assert rows[rows["model"] == "My experts (complete domain)"].notna().all(axis=None)
    for figure in (figures.figure_2, figures.figure_3, figures.figure_4, figures.figure_5, figures.figure_6):
        drawing, data = figure(results)
        assert "mnist-myexperts" in set(data["variant"])
        plt.close(drawing)
    drawing, data = figures.figure_7(results)
    assert {"mnist-myexperts", "letters-vae"} <= set(data["variant"])
    titles = [axis.get_title(loc="left") or axis.get_title() for axis in figures.figure_2(results)[0].axes]
    assert titles[0] == "(a) MNIST, Expert capsules - sampled from complete domain"
    assert titles[-1] == "(f) MNIST, My experts - sampled from restricted domain"
