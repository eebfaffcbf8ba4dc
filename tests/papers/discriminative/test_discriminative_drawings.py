"""Metrics, tables and figures of the paper `discriminative`, from made results."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import made_results
import numpy as np
import pandas as pd
import pytest
from made_results import CONFIG, run_of, values
from safetensors.numpy import save_file

from recaps import arrays, io, layout
from recaps.config.load import Project, load
from recaps.config.training import Training
from recaps.errors import UserError
from recaps.evaluation.record import Run, mean_row, metric_rows
from recaps.npz import Array
from recaps.papers.discriminative import figures, metrics, record, tables
from recaps.report import draw, plots
from recaps.report.claims import Bound, Number, Ordering
from recaps.report.metrics import (
    beyond_class_mean,
    bin_edges,
    early_mean,
    first_of_each,
    histogram,
    last_fifth,
    steps_to_reach,
    travel,
)
from recaps.report.results import Results, time_ratio_row

CLAIMS = made_results.claims("discriminative")

LABELS = np.array([0, 1, 0, 1, 2, 2])
#: The classes that L2/FC predicts for the six images: the fourth is wrong.
PREDICTED = np.array([0, 1, 0, 2, 2, 2])
SHAPES = {
    "mnist": [1, 28, 28],
    "fashion": [1, 28, 28],
    "cifar": [3, 24, 24],
    "multimnist": [1, 36, 36],
    "letters": [1, 28, 28],
}
#: Test errors at steps 10, 50 and 100.
CURVES = {"dr": (50, 20, 8), "l2": (40, 6, 7), "l1": (30, 8, 6), "l2-fc": (30, 9, 5), "l1-fc": (20, 7, 6.5)}


@pytest.fixture(scope="module")
def project() -> Project:
    return config()


def config(*without: str, **added: dict[str, Any]) -> Project:
    """The scale `desk`, with longer training, CIFAR-10 from JPEG files, further variants, and without others."""
    names = [f"{name}-{each}" for name in ("fashion", "multimnist") for each in ("l2", "l1")]
    longer = {"training": {"steps": 10_000, "lr_decay": 1}}
    changes = dict.fromkeys((*names, "cifar-l2-fc", "cifar-l1-fc"), longer) | added
    values: dict[str, Any] = {"scale": "desk", "papers": ["discriminative"]}
    values |= {"datasets": {"cifar10": "cifar10-jpeg"}, "without": [f"discriminative/{name}" for name in without]}
    variants = made_results.without_own_seeds("discriminative", changes)
    return load(values | {"overrides": {"discriminative": {"variants": variants}}}, CONFIG)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, project: Project) -> Results:
    return make(tmp_path_factory.mktemp("results"), project, seeds=(0, 1))


@pytest.fixture
def table(results: Results) -> pd.DataFrame:
    """All metrics of the results."""
    return results.metrics


def make(folder: Path, project: Project, seeds: tuple[int, ...]) -> Results:
    """Measured results in which seed s has every error s points higher."""
    results = made_results.frame(folder, project, "discriminative", seeds, _run)
    images = np.zeros((6, 1, 28, 28), np.uint8)
    images[:, 0, :, :14] = np.array([0, 50, 100, 150, 200, 255], np.uint8)[:, None, None]
    shown = arrays.Arrays(images, LABELS, {}, {"name": "fashion-mnist", "classes": 3})
    arrays.save(shown, made_results.datasets(results) / "fashion-mnist" / "test")
    for timing in results.paper.timings.values():
        timed = results.paper.matching(timing.variants)
        seconds = {each: [1.0, 2.0] if each.endswith("-dr") else [0.5, 1.4] for each in timed}
        made_results.timed(results, seconds, batch_size=128)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "_reconstruct", reconstruct)
        return made_results.measured(results)


def _run(results: Results, variant: str, model: dict[str, Any], seed: int) -> None:
    dataset, _, algorithm = variant.partition("-")
    run = results.run(variant, seed)
    errors = CURVES.get(algorithm, (20, 7, 3))
    rows = zip((10, 50, 100), errors, strict=True)
    lines = [f"{step},1,{error + seed}\n{step + 5},1,\n" for step, error in rows]
    io.write_text(run / "history.csv", "step,loss,test_error\n" + "".join(lines)[: -len("105,1,\n")])
    error = errors[-1] + seed
    (protocol,) = results.paper.variants[variant].heads["argmax"]
    made_results.add_head(run, "argmax", protocol, {"accuracy": 1 - error / 100, "n": 10_000})
    io.write_json(run / "config.json", {"model": model, "image_shape": SHAPES[dataset], "classes": 10})
    io.write_json(run / "record.json", {"parameters": 1000 + len(algorithm)})
    coefficients = np.array([[-0.5, 0.005], [0.02, 1.0]] if "l2" in algorithm else [[0.0, -0.001], [0.001, 1.0]])
    save_file({"coefficients": coefficients.astype(np.float32)}, run / "model.safetensors")
    if variant in ("fashion-dr", "fashion-l2-fc"):
        capsules = np.full((6, 3, 16), 0.5 if algorithm == "dr" else 0.25, np.float32)
        scores = np.eye(3, dtype=np.float32)[PREDICTED]
        arrays = {"capsules": capsules, "scores": scores, "labels": LABELS}
        made_results.add_latents(run, "fashion-mnist/test", arrays)


def reconstruct(decoder: Run, capsules: Array, labels: Array) -> Array:
    """A decoder that sets the left half of the picture to the capsule's first number."""
    assert decoder.variant == "fashion-dr"
    pictures = np.zeros((len(labels), 28, 28), np.float32)
    pictures[:, :, :14] = capsules[np.arange(len(labels)), labels, 0][:, None, None]
    return pictures


# Tables


def test_table_1_sets_what_was_built_beside_what_is_printed(results: Results) -> None:
    table = tables.table_1(results).set_index("layer")
    assert list(table["MNIST published"].dropna()) == [256, 32, 10, 512, 1024, 784]
    assert list(table["CIFAR-10 published"].dropna()) == [256, 64, 10]
    assert list(table["MNIST ours"][:6]) == [64, 8, 10, 512, 1024, 784]  # the scale `desk` narrows both
    assert table.loc["FC3", "MultiMNIST ours"] == 36 * 36
    assert pd.isna(table.loc["FC1", "CIFAR-10 ours"])
    assert "LeakyReLU 0.2 (CIFAR-10)" in str(table.loc["Conv1", "activation ours"])
    assert str(table.loc["Cap2", "activation ours"]).startswith("squash (DR), squash of votes (L2, L1,")
    assert table.loc["parameters, L2/FC and L1/FC", "CIFAR-10 ours"] == 1005
    assert pd.isna(table.loc["parameters, L2 and L1", "CIFAR-10 ours"])


def test_table_1_names_the_squash_over_classes(tmp_path: Path) -> None:
    results = make(tmp_path, config(**{"mnist-l2": {"model": {"squash_votes": "classes"}}}), seeds=(0,))
    table = tables.table_1(results).set_index("layer")
    assert "squash of votes over classes (L2), squash of votes (L1," in str(table.loc["Cap2", "activation ours"])


def test_table_2_has_every_published_number_beside_ours(results: Results) -> None:
    table = tables.table_2(results)
    assert len(table) == 5 + 5 + 4 + 3 + 3
    assert list(table.loc[table["error % published"].isna(), "algorithm"]) == ["L1/FC, ReLU (ours)", "L1"]
    rows = table.set_index(["benchmark", "algorithm"])
    fashion = rows.loc[("Fashion-MNIST", "L1")]
    assert fashion["error % ours"] == pytest.approx(6.5)  # seeds 6 and 7
    assert fashion["sd"] == pytest.approx(math.sqrt(0.5))
    assert fashion["error % published"] == 6.76
    assert rows.loc[("CIFAR-10", "L2/FC"), "tested on"] == "cifar10-jpeg/test"
    assert rows.loc[("Average of the three", "L1/FC"), "error % ours"] == pytest.approx(7)
    assert rows.loc[("MultiMNIST", "L2"), "error % published"] == 7.54
    assert rows.loc[("MNIST", "L2"), "lowest % ours"] == pytest.approx(6.5)  # seeds 6 and 7, after step 50
    assert rows.loc[("MNIST", "L2"), "lowest n"] == 2000
    assert pd.isna(rows.loc[("Average of the three", "L2/FC"), "lowest % ours"])


def test_counts_are_written_without_decimals(results: Results, tmp_path: Path) -> None:
    draw.table("table-1", results, tmp_path)
    text = (tmp_path / "table-1.md").read_text()
    assert "| FC3 |  |  | sigmoid | sigmoid | 784 | 784 | 784 | 784 |  |  | 1296 |" in text
    assert "| parameters, DR |  |  |  |  |  | 1002 |  | 1002 |  | 1002 | 1002 |" in text


def test_one_seed_has_no_standard_deviation(tmp_path: Path, project: Project) -> None:
    table = tables.table_2(make(tmp_path, project, seeds=(0,)))
    assert table["sd"].isna().all()


# Metrics


def test_errors_and_their_average(table: pd.DataFrame) -> None:
    assert values(table, "mnist-l2-fc", "error") == pytest.approx([5, 6])
    assert values(table, "cifar-l1-fc", "average-error") == pytest.approx([6.5, 7.5])
    assert not values(table, "mnist-l2-fc", "average-error")
    row = table[(table["variant"] == "cifar-dr") & (table["metric"] == "average-error")].iloc[0]
    assert row["n"] == 30_000
    assert row["measured_on"] == "mnist/test and fashion-mnist/test and cifar10-jpeg/test"


def test_convergence_is_measured_on_a_runs_own_curve(table: pd.DataFrame) -> None:
    assert values(table, "mnist-l2", "lowest-error") == [6, 7]
    # The scale `desk` watches training with 2,000 of the 10,000 test images.
    assert set(table[table["metric"] == "lowest-error"]["n"]) == {2000}


def test_algorithms_are_compared_at_the_same_steps(table: pd.DataFrame) -> None:
    assert values(table, "mnist-l2", "steps-to-dr") == [50, 50]  # 6 % is below DR's 8
    assert values(table, "mnist-dr", "steps-to-dr") == [100, 100]
    assert values(table, "mnist-l2", "mean-error") == pytest.approx([53 / 3, 56 / 3])
    assert values(table, "mnist-l2", "early-mean-error") == [40, 41]  # step 10 of 100
    assert set(table[table["metric"] == "mean-error"]["n"]) == {2000}


def test_errors_along_training_end_with_the_shortest_training(tmp_path: Path, project: Project) -> None:
    results = make(tmp_path, project, seeds=(0,))
    io.write_text(results.run("mnist-l1") / "history.csv", "step,loss,test_error\n10,1,30\n50,1,8\n")
    table = metric_rows(metrics.metrics(results))
    assert values(table, "mnist-l2", "mean-error") == [23]  # steps 10 and 50
    assert values(table, "fashion-l2", "mean-error") == pytest.approx([53 / 3])


def test_coefficients_are_counted_where_they_learn_for_long_enough(table: pd.DataFrame) -> None:
    assert values(table, "fashion-l2", "coefficients-negative") == [0.25, 0.25]
    assert values(table, "fashion-l2", "coefficients-near-zero") == [0.25, 0.25]
    assert values(table, "fashion-l1", "coefficients-near-zero") == [0.75, 0.75]
    assert not values(table, "fashion-dr", "coefficients-negative")
    assert not values(table, "fashion-l2-fc", "coefficients-negative"), "its rate decays too fast to go from 1 to 0"


def test_times_are_compared_by_their_medians(table: pd.DataFrame) -> None:
    row = table[(table["variant"] == "cifar-l2-fc") & (table["metric"] == "time-ratio")]
    assert list(row["value"]) == pytest.approx([0.95 / 1.5])  # rounds of 0.5 and 1.4 s, and of 1 and 2 s; once for all
    # Resampled, the two rounds give 0.5, 0.95 / 1.5 twice, and 0.7.
    assert list(row["se"]) == pytest.approx([np.std([0.5, 0.95 / 1.5, 0.95 / 1.5, 0.7])], rel=0.05)
    assert list(row["n"]) == [2]
    assert not values(table, "cifar-dr", "time-ratio")


def test_a_step_without_decoder_is_compared_in_batches_of_the_same_size(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    timing = results.timing("steps")
    timing |= {"seconds_per_step": timing["seconds_per_step"] | {"fashion-l2-fc": [0.3, 0.5]}}
    monkeypatch.setattr(Results, "timing", lambda self, name: timing)
    table = metric_rows(metrics.metrics(results))
    assert values(table, "fashion-l2-fc", "time-without-decoder") == pytest.approx([0.4 / 0.95])
    assert not values(table, "fashion-l2", "time-without-decoder")
    timing |= {"batch_size": timing["batch_size"] | {"fashion-l2-fc": 32}}
    assert not values(metric_rows(metrics.metrics(results)), "fashion-l2-fc", "time-without-decoder")


def test_decoded_images_are_those_that_are_classified_right(results: Results) -> None:
    brightness = np.array([0, 50, 100, 200, 255]) / 255  # without the fourth image
    own, other, short = (28 * 14 * (brightness - shade) ** 2 for shade in (0.5, 0.25, 0.125))
    table = results.metrics
    assert values(table, "fashion-dr", "decoded-error") == pytest.approx([own.mean()] * 2)
    assert values(table, "fashion-l2-fc", "decoded-error") == pytest.approx([other.mean()] * 2)
    # Class means: 50 of 0 and 100, 50 of itself, 227.5 of 200 and 255.
    means = 28 * 14 * ((np.array([0, 50, 100, 200, 255]) - np.array([50, 50, 50, 227.5, 227.5])) / 255) ** 2
    assert values(table, "fashion-l2-fc", "poorly-decoded") == pytest.approx([(other > means).mean()] * 2)
    # The 16 numbers of 0.25 have length 1, which squash halves.
    assert values(table, "fashion-l2-fc", "squashed-decoded-error") == pytest.approx([short.mean()] * 2)
    assert values(table, "fashion-l2-fc", "squashed-poorly-decoded") == pytest.approx([(short > means).mean()] * 2)
    # All capsules of DR are equal, so those of L2/FC are mapped onto them; the class with one image keeps its capsule.
    onto = np.where(np.array([0, 1, 0, 2, 2]) == 1, other, own)
    assert values(table, "fashion-l2-fc", "mapped-decoded-error") == pytest.approx([onto.mean()] * 2)
    assert values(table, "fashion-l2-fc", "mapped-poorly-decoded") == pytest.approx([(onto > means).mean()] * 2)


def test_only_a_decoder_of_the_same_seed_decodes(tmp_path: Path) -> None:
    results = make(tmp_path, config(**{"fashion-l2-fc": {"seeds": [0, 1]}}), seeds=(0,))
    rows = results.metrics[results.metrics["metric"].str.endswith("decoded-error")]
    assert list(zip(rows["variant"], rows["seed"], strict=True)) == [
        ("fashion-dr", 0),
        ("fashion-l2-fc", 0),
        ("fashion-l2-fc", 0),
        ("fashion-l2-fc", 0),
    ]
    assert set(results.arrays("fashion-l2-fc", "coefficients", 1)) == {"values", "negative", "near-zero"}


def test_squashed_capsules_keep_their_direction() -> None:
    capsules = np.array([[[3.0, 4.0], [0.0, 0.0]]])
    np.testing.assert_allclose(record.squashed(capsules), [[[15 / 26, 20 / 26], [0, 0]]])  # length 25 / 26


def test_capsules_are_mapped_by_what_was_learned_from_other_images() -> None:
    generator = np.random.default_rng(0)
    capsules, labels = generator.normal(size=(40, 2, 3)), np.repeat([0, 1], 20)
    turns, offsets = generator.normal(size=(2, 3, 3)), generator.normal(size=(2, 1, 3))
    targets = np.einsum("nld,lde->nle", capsules, turns) + offsets.transpose(1, 0, 2)
    found = record.mapped(capsules, targets, labels)
    assert found[:20, 0] == pytest.approx(targets[:20, 0])
    assert found[20:, 1] == pytest.approx(targets[20:, 1])
    assert found[:20, 1] == pytest.approx(capsules[:20, 1]), "only the label's capsule is mapped"
    noise = generator.normal(size=capsules.shape)
    errors = np.square(record.mapped(capsules, noise, labels) - noise)[np.arange(40), labels].mean()
    assert errors > np.square(noise - noise.mean(0))[np.arange(40), labels].mean(), "noise cannot be predicted"


def test_every_claim_finds_what_it_measures(tmp_path: Path) -> None:
    table = make(tmp_path, config(), seeds=(0, 1)).metrics
    assert set(made_results.verdicts("discriminative", table)) == {claim.id for claim in CLAIMS}


def test_the_claims_hold_every_printed_number() -> None:
    numbers = sorted(claim.published for claim in CLAIMS if isinstance(claim, Number))
    table_2 = [0.34, 0.35, 0.32, 0.35, 0.44, 7.21, 7.01, 6.76, 6.75, 6.77, 15.3, 14.52, 14.04, 7.62, 7.21, 7.08]
    assert numbers == sorted([*table_2, 7.47, 7.54])
    gains = {claim.published for claim in CLAIMS if isinstance(claim, Bound) and "gain" in claim.id}
    assert gains == {0.78, 1.26}
    savings = [claim for claim in CLAIMS if isinstance(claim, Bound) and "/saves-" in claim.id]
    assert len(savings) == 4
    assert {claim.at_most for claim in savings} == {0.8}
    assert any(isinstance(claim, Ordering) and "/faster-cifar" in claim.id for claim in CLAIMS)


# Measures


def curve(*errors: float) -> pd.DataFrame:
    return pd.DataFrame({"step": range(10, 10 * len(errors) + 10, 10), "test_error": errors})


def test_a_curve_reaches_an_error_once_or_never() -> None:
    curves = curve(50, 11, 10), curve(50, 11.1, 10), curve(9, 50, 10), curve(50, 40, 30)
    assert [steps_to_reach(each, 11) for each in curves] == [20, 30, 10, 30]


def test_the_early_mean_is_over_a_tenth() -> None:
    curve = pd.DataFrame({"step": range(5, 205, 5), "test_error": range(40)})
    assert early_mean(curve, 200) == 1.5  # steps 5 to 20
    assert early_mean(curve, 100) == 0.5  # steps 5 and 10
    assert early_mean(curve.iloc[5:6], 200) == 5


def test_the_last_fifth_is_compared_with_the_fifth_before() -> None:
    history = pd.DataFrame({"step": range(10, 110, 10), "loss": [9.0] * 6 + [5.0, 3.0, 3.5, 3.7]})
    assert last_fifth(history) == pytest.approx(10)  # means 4 and 3.6
    assert last_fifth(history.drop(6)) == pytest.approx(-20)


def test_travel_is_the_sum_of_the_rates() -> None:
    training = Training(steps=2, learning_rate=0.1, lr_decay=0.5, lr_decay_steps=1, lr_floor=0.03)
    assert travel(training, 0.5) == pytest.approx(0.05 + 0.03)


def test_many_coefficients_are_kept_by_some_at_even_distances() -> None:
    few = np.random.default_rng(0).normal(size=(70, 10))
    assert list(record.spread(few)) == sorted(few.ravel())
    many = np.random.default_rng(1).normal(size=(9_216, 10))
    kept, edges = record.spread(many), bin_edges([many])
    assert len(kept) == record.COEFFICIENTS
    np.testing.assert_allclose(histogram(kept, edges), histogram(many, edges), atol=1 / record.COEFFICIENTS)


@pytest.mark.parametrize("numbers", [np.linspace(-0.3, 1.2, 999), np.ones(5), np.array([0.0])])
def test_bins_hold_everything_and_one_is_centred_on_zero(numbers: Array) -> None:
    edges = bin_edges([numbers])
    assert histogram(numbers, edges).sum() == pytest.approx(1)
    assert edges[0] <= np.quantile(numbers, 0.001)
    assert edges[-1] >= np.quantile(numbers, 0.999)
    assert len(edges) <= 64
    places = edges / (edges[1] - edges[0]) - 0.5
    np.testing.assert_allclose(places, np.round(places), atol=1e-6)


def test_outliers_count_in_the_outermost_bins() -> None:
    assert list(histogram(np.array([-9.0, 0.5, 9.0, 9.0]), np.array([0.0, 1.0, 2.0]))) == [0.5, 0.5]


def test_the_first_of_each_class_in_file_order() -> None:
    assert list(first_of_each(np.array([2, 0, 2, 0, 0, 2]), 2)) == [1, 3, 0, 2]
    assert not len(first_of_each(np.array([], int), 2))


def test_beyond_the_class_mean() -> None:
    images = np.zeros((3, 1, 2))
    images[1] = 1.0  # the mean of class 0 is at a squared distance of 1/2 from both
    found = beyond_class_mean(np.array([0.4, 0.6, 0.0]), images, np.array([0, 0, 1]))
    assert list(found) == [False, True, False]


def test_one_round_tells_no_error() -> None:
    timing = {"seconds_per_step": {"a": [0.7], "b": [1.0]}, "device": ""}
    assert time_ratio_row("a", 0, "time-ratio", timing, "b")[3:6] == (0.7, pytest.approx(math.nan, nan_ok=True), 1)
    assert math.isnan(mean_row("a", 0, "error", np.array([0.7]), "percent", "")[4])


def test_one_slow_round_changes_no_ratio() -> None:
    timing = {"seconds_per_step": {"a": [0.8, 0.8, 0.8], "b": [1.0, 1.0, 5.0]}, "device": ""}
    assert time_ratio_row("a", 0, "time-ratio", timing, "b")[3] == 0.8


# Figures


@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)])
def test_every_figure_is_drawn_with_its_data(tmp_path: Path, project: Project, seeds: tuple[int, ...]) -> None:
    results = make(tmp_path, project, seeds)
    assert set(made_results.drawn(results, tmp_path)) == set(results.paper.outputs)


@pytest.mark.parametrize("without", [("fashion-dr",), ("fashion-l2-fc",), ("fashion-dr", "fashion-l2-fc")])
def test_figure_2_is_left_out_with_either_variant(tmp_path: Path, without: tuple[str, ...]) -> None:
    """It decodes the capsules of one with the decoder of the other."""
    results = make(tmp_path, config(*without), seeds=(0,))
    assert set(config().papers["discriminative"].outputs) == {*made_results.drawn(results, tmp_path), "figure-2"}


@pytest.mark.parametrize(
    ("kept", "missing"), [("mnist-dr", {"figure-2", "figure-5"}), ("cifar-l1-fc-relu", {"figure-2", "figure-4"})]
)
def test_a_variant_is_drawn_alone(tmp_path: Path, kept: str, missing: set[str]) -> None:
    """DR learns no coefficients, and L1/FC with ReLU is not timed."""
    whole = config().papers["discriminative"]
    results = make(tmp_path, config(*(set(whole.variants) - {kept})), seeds=(0,))
    assert set(whole.outputs) == {*made_results.drawn(results, tmp_path), *missing}


def test_a_variant_may_have_seeds_of_its_own(tmp_path: Path) -> None:
    results = make(tmp_path, config(**{"fashion-l2": {"seeds": [0, 1]}}), seeds=(0,))
    assert [len(results.metric(name, "error")) for name in ("fashion-l2", "fashion-dr")] == [2, 1]
    assert {1, 2} <= set(tables.table_2(results)["seeds"].dropna())
    assert set(figures.figure_3(results)[1]["seed"]) == {0, 1}


def test_figure_2_lists_its_images(results: Results) -> None:
    drawing, data = figures.figure_2(results)
    assert [each.get_text() for each in drawing.axes[0].get_yticklabels()] == ["T-shirt/top", "Trouser", "Pullover"]
    canvas = np.asarray(drawing.axes[0].images[0].get_array())
    assert canvas.shape == (3 * 30 - 2, 10 * 30 - 2)
    np.testing.assert_allclose(canvas[0, [0, 30]], np.array([0, 100]) / 255, atol=0.5 / record.GREYS + 0.5 / 255)
    assert np.isnan(canvas[30:58, 30:58]).all()  # of class 1 only one image is classified right
    errors = [f"squared_error_{each}" for each in ("dr", "l2_fc", "l2_fc_mapped", "l2_fc_squashed")]
    assert list(data.columns) == ["image", "label", *errors]
    assert list(data["image"]) == [0, 2, 1, 4, 5]
    assert list(data["label"]) == [0, 0, 1, 2, 2]
    assert data["squared_error_dr"][0] == pytest.approx(28 * 14 * 0.25)


def test_figure_3_keeps_every_evaluation(results: Results) -> None:
    drawing, data = figures.figure_3(results)
    assert list(data.columns) == ["dataset", "variant", "seed", "step", "test_error"]
    assert len(data) == 17 * 2 * 3
    assert drawing.axes[0].get_title("left") + drawing.axes[0].get_title() == "(a) MNIST: 2,000 test images"
    assert [len(axis.lines) for axis in drawing.axes] == [5, 5, 4, 3]
    line = drawing.axes[0].lines[1]
    assert list(np.asarray(line.get_ydata())) == [40.5, 6.5, 7.5]  # L2, means over seeds


def test_figure_4_draws_medians_and_rounds(results: Results) -> None:
    drawing, data = figures.figure_4(results)
    bars = [patch.get_height() for patch in drawing.axes[0].patches]
    assert bars[:2] == pytest.approx([1, 0.95 / 1.5])  # medians of 1.5 and 0.95 s
    assert list(data["seconds_per_100_steps"][:2]) == pytest.approx([100, 200])
    assert list(data["relative"][:2]) == pytest.approx([1 / 1.5, 2 / 1.5])
    labels = [text.get_text() for text in drawing.axes[0].texts]
    assert labels[0] == "MNIST\nDR: 150 s"
    assert len(bars) == 16
    assert len(data) == 32
    assert "a machine" in "".join(drawing.axes[0].get_title(loc) for loc in ("left", "center"))


def test_figure_5_gives_the_shares_that_it_names(results: Results) -> None:
    _, data = figures.figure_5(results)
    rows = data[data["variant"] == "cifar-l1-fc"]
    assert rows[rows["quantity"] == "bin"]["share"].sum() == pytest.approx(1)
    assert list(rows[rows["quantity"] == "near zero"]["share"]) == [0.75]
    assert set(data["dataset"]) == {"mnist", "fashion", "cifar", "multimnist"}
    assert not data["variant"].str.endswith("-dr").any()


def test_figure_5_names_its_seeds_where_some_are_missing(tmp_path: Path, project: Project) -> None:
    results = make(tmp_path, project, seeds=(0, 1))
    for variant in ("multimnist-l2", "multimnist-l1"):
        layout.arrays(results.run(variant, 1)).unlink()
    titles = [axis.get_title("left") + axis.get_title() for axis in figures.figure_5(results)[0].axes]
    assert [titles[0], titles[3]] == ["(a) MNIST", "(d) MultiMNIST: seed 0 only"]


def test_errors_of_zero_take_a_linear_scale() -> None:
    import matplotlib.pyplot as plt

    drawing, axes = plt.subplots(1, 2)
    for axis, lowest in zip(axes, (0.0, 0.1), strict=True):
        axis.plot([1, 2], [50, lowest])
        plots.plain_numbers(axis)
    assert [axis.get_yscale() for axis in axes] == ["linear", "log"]
    plt.close(drawing)


@pytest.mark.parametrize("lowest", [0.003, 7.2, 11, 40])
@pytest.mark.parametrize("ratio", [1, 1.3, 1.99, 2, 5, 20, 21, 300, 999, 1001, 1e5, 1e11])
def test_every_scale_has_two_labels(lowest: float, ratio: float) -> None:
    import matplotlib.pyplot as plt

    drawing, axis = plt.subplots(figsize=(3, 1.8))
    axis.plot([1, 2], [lowest, lowest * ratio])
    plots.plain_numbers(axis)
    bottom, top = axis.get_ylim()
    labels = [label.get_text() for label in axis.get_yticklabels() if bottom <= label.get_position()[1] <= top]
    assert len(list(filter(None, labels))) >= 2
    plt.close(drawing)


@pytest.mark.parametrize(
    ("steps", "rounds", "how"), [(1, 2, "1 step in each of 2 rounds"), (3, 1, "3 steps in each of 1 round")]
)
def test_what_was_timed_is_counted(steps: int, rounds: int, how: str) -> None:
    import matplotlib.pyplot as plt

    drawing, axis = plt.subplots()
    plots.timing_axis(axis, {0.0: "DR"}, {"device": "a machine", "steps": steps, "rounds": rounds})
    assert how in axis.get_title("left") + axis.get_title()
    plt.close(drawing)


def test_an_added_variant_has_its_rows_and_lines_without_code(tmp_path: Path) -> None:
    mnist = config().papers["discriminative"].variants["mnist-l1"]
    l3 = mnist.model_copy(update={"title": "L3"}).model_dump(mode="json")
    letters = l3 | {"title": "DR", "model": {"family": "supcaps"}}
    results = make(tmp_path, config(**{"mnist-l3": l3, "letters-dr": letters}), (0, 1))
    rows = tables.table_2(results).set_index(["benchmark", "algorithm"])
    assert rows.loc[("MNIST", "L3"), "error % ours"] == pytest.approx(3.5)
    assert rows.loc[("letters", "DR"), "error % ours"] == pytest.approx(8.5)
    assert rows["error % published"].isna().sum() == 2 + 2  # the added two, ReLU, and L1 on MultiMNIST
    layers = tables.table_1(results).set_index("layer")
    assert layers.loc["parameters, L3", "MNIST ours"] == 1002
    assert layers.loc["Conv1", "letters ours"] == 64
    for figure, titles in ((figures.figure_3, 5), (figures.figure_5, 5)):
        drawing, data = figure(results)
        assert "mnist-l3" in set(data["variant"])
        assert len(drawing.axes) == titles
    last = drawing.axes[-1]
    assert (last.get_title("left") or last.get_title()) == "(e) letters"
    assert "L3" in str([text.get_text() for text in drawing.axes[0].get_legend().get_texts()])


# Mistakes


def test_a_history_without_tests_is_refused(tmp_path: Path, project: Project) -> None:
    results = make(tmp_path, project, seeds=(0,))
    file = results.run("fashion-l1") / "history.csv"
    file.write_text("step,loss\n10,0.1\n")
    message = r"no test errors; set training\.evaluate_every of 'discriminative/fashion-l1' in paper\.yaml"
    with pytest.raises(UserError, match=message):
        figures.figure_3(results)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda results: results.history("mnist-dr", 9), "seed-9/history.csv: no such file"),
        (lambda results: results.timing("stepps"), "timings/stepps.json: no such file"),
        (lambda results: run_of(results, "mnist-dr", 0).weight("coefficient"), "cannot read tensor 'coefficient'"),
        (lambda results: run_of(results, "mnist-dr", 9).weight("coefficients"), "model.safetensors: no such file"),
        (lambda results: run_of(results, "mnist-dr", 0).split("mnist/test"), "no such file; prepare this split first"),
    ],
)
def test_what_is_missing_is_named(results: Results, ask: Callable[[Results], Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ask(results)


def test_the_real_decoder_is_that_of_the_run(tmp_path: Path, project: Project) -> None:
    import torch

    from recaps.models import build
    from recaps.training.saved import load_model

    options = project.papers["discriminative"].variants["fashion-dr"].model.model_copy(update={"decoder": (8, 8)})
    model: Any = build(options, (1, 28, 28), 10)
    save_file({name: value.numpy() for name, value in model.state_dict().items()}, tmp_path / "model.safetensors")
    config = {"model": options.model_dump(mode="json"), "image_shape": [1, 28, 28], "classes": 10}
    io.write_json(tmp_path / "config.json", config)
    paper = project.papers["discriminative"]
    decoder = Run(tmp_path, "discriminative", paper, "fashion-dr", 0, tmp_path, project.resolve)
    capsules = np.random.default_rng(0).normal(size=(2, 10, 16)).astype(np.float32)
    pictures = record._reconstruct(decoder, capsules, np.array([3, 7]))
    loaded: Any = load_model(tmp_path, torch.device("cpu"))[0]
    alone = np.zeros_like(capsules)
    alone[0, 3], alone[1, 7] = capsules[0, 3], capsules[1, 7]
    with torch.inference_mode():
        expected = loaded.decode(torch.from_numpy(alone), torch.ones(2, 10))[:, 0]
    assert pictures.shape == (2, 28, 28)
    np.testing.assert_allclose(pictures, expected, rtol=1e-5)


def test_a_run_that_is_not_tested_during_training_has_its_last_error_alone(tmp_path: Path) -> None:
    project = config(**{"mnist-l2-fc": {"training": {"evaluate_every": 0}}})
    results = made_results.frame(tmp_path, project, "discriminative", (0,), _run)
    file = results.run("mnist-l2-fc", 0) / "history.csv"
    pd.read_csv(file).drop(columns="test_error").to_csv(file, index=False)
    rows = {row[2]: row[3] for row in record.record(made_results.run_of(results, "mnist-l2-fc", 0)).rows}
    assert rows["error"] == pytest.approx(5)
    assert "lowest-error" not in rows
