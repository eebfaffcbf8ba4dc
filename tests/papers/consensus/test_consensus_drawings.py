"""Tables, figures and metrics of the paper `consensus`, from a small tree of made results."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import made_results
import numpy as np
import pandas as pd
import pytest
import torch
from made_results import CONFIG, measured, run_of, values
from safetensors.numpy import save_file

from recaps import arrays, io
from recaps.config.load import Project, load
from recaps.config.variant import Variant
from recaps.evaluation.record import metric_rows
from recaps.models.options import ConvNetOptions
from recaps.npz import Array
from recaps.papers.consensus import architecture, figures, metrics, probes, record, tables
from recaps.report import draw
from recaps.report.claims import Bound, Number, Ordering, check_variants
from recaps.report.results import Results
from recaps.report.scorecard import scorecard

CLAIMS = made_results.claims("consensus")
ROUTINGS = ("connectionist", "em", "similarity")
OF_TABLE_3 = tuple(f"consensus/{dataset}-{each}" for dataset in ("mnist", "norb") for each in ROUTINGS)
SHAPES = {"mnist": ([1, 28, 28], 10), "norb": ([1, 32, 32], 5)}
SIDES = {"mnist": 3, "norb": 4}
#: Errors by routing on MNIST and smallNORB, and at familiar and novel viewpoints.
ERRORS = {"em": (0.9, 6.3), "similarity": (1.0, 8.2), "connectionist": (0.5, 6.7)}
VIEWS = {"em": (5.0, 13.0), "similarity": (6.0, 18.0), "connectionist": (4.0, 11.0)}
#: Test errors at steps 10, 50 and 100.
CURVES = {"em": (50, 20, 8), "similarity": (90, 30, 12), "connectionist": (40, 6, 4)}


def config(*without: str, **overrides: Any) -> Project:
    """The configuration, without the CNN, which routes nothing; `with_cnn` adds it to results."""
    values = {"scale": "desk", "papers": ["consensus"], "without": ["consensus/mnist-cnn", *without]}
    changes = {"consensus": {"variants": made_results.without_own_seeds("consensus", overrides)}}
    return load(values | {"overrides": changes}, CONFIG)


@pytest.fixture(scope="module")
def project() -> Project:
    return config()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, project: Project) -> Results:
    return make(tmp_path_factory.mktemp("results"), project, seeds=(0, 1))


def make(folder: Path, project: Project, seeds: tuple[int, ...]) -> Results:
    """Measured results in which seed s has every error s points higher."""
    results = made_results.frame(folder, project, "consensus", seeds, _run)
    for name in {name for variant in results.paper.variants.values() for name in variant.images}:
        arrays.save(_norb() if name.startswith("smallnorb") else _digits(), made_results.datasets(results) / name)
    seconds = {f"mnist-{each}": [k, 2 * k] for each, k in (("em", 1.0), ("similarity", 0.5), ("connectionist", 3.0))}
    seconds["mnist-em"] = [2.0, 1.0]
    made_results.timed(results, seconds, batch_size=100)
    return measured(results)


def _run(results: Results, variant: str, model: dict[str, Any], seed: int) -> None:
    dataset, routing = variant.split("-")[:2]
    run = results.run(variant, seed)
    shape, classes = SHAPES.get(dataset, SHAPES["norb"])
    io.write_json(run / "config.json", {"model": model, "image_shape": shape, "classes": classes})
    if dataset not in SHAPES:
        for part, error in zip(("familiar", "novel"), VIEWS[routing], strict=True):
            head = {"accuracy": 1 - (error + seed) / 100, "n": 16_200 if part == "familiar" else 32_400}
            made_results.add_head(run, "argmax", f"{dataset}-{part}", head)
        return
    error = ERRORS[routing][dataset == "norb"] + seed
    head = {"accuracy": 1 - error / 100, "n": 10_000 if dataset == "mnist" else 48_600}
    made_results.add_head(run, "argmax", dataset, head)
    rows = [f"{step},0.1,{each + seed}\n" for step, each in zip((10, 50, 100), CURVES[routing], strict=True)]
    io.write_text(run / "history.csv", "step,loss,test_error\n" + "".join(rows))
    made_results.add_probe(run, "routing", _probe(routing, SIDES[dataset], classes))
    if routing == "similarity":
        tensors = {}
        for layer, (gaussians, types) in enumerate(((4, 16), (4, 16), (10, classes))):
            spread = np.random.default_rng(layer).normal(1 + layer, 0.2, (gaussians, types))
            tensors[f"layers.{layer}.routing.widths"] = spread.astype(np.float32)
            tensors[f"layers.{layer}.routing.mixture"] = np.arange(gaussians, dtype=np.float32)
        save_file(tensors, run / "model.safetensors")


def _probe(routing: str, side: int, classes: int) -> dict[str, Array]:
    """Assignments of 32 images: half of what comes from the right class's own corner goes there."""
    draw, labels = np.random.default_rng(len(routing)), np.arange(32) % classes
    coupling = draw.random((32, side, side, 16, classes)) + 0.2
    for image, label in enumerate(labels):
        coupling[image, label % side, label // side % side, :, label] += 3
    coupling /= coupling.sum(4 if routing == "em" else (1, 2, 3), keepdims=True)
    low = {"em": 0.05, "similarity": 0.9, "connectionist": 0.3}[routing]
    effective = {f"effective-{k}": draw.uniform(low, low + 0.1, (32, (25, 9, 1)[k], 10)) for k in range(3)}
    images = draw.normal(size=(32, 1, 32, 32)).astype(np.float32)
    return {"images": images, "coupling": coupling.astype(np.float32), "labels": labels, **effective}


def _digits() -> arrays.Arrays:
    """Forty images, a bright row for each class."""
    labels = np.arange(40) % 10
    images = np.zeros((40, 1, 28, 28), np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[0, 2 * label + 4 : 2 * label + 7, 4:24] = 200
    return arrays.Arrays(images, labels, {}, {"name": "mnist", "classes": 10})


def _norb() -> arrays.Arrays:
    """Twenty scenes of two pictures each, the right camera's first in the file."""
    scenes = np.repeat(np.arange(20), 2)
    camera = np.tile([1, 0], 20)
    images = np.full((40, 1, 48, 48), 190, np.uint8)
    for image, scene, side in zip(images, scenes, camera, strict=True):
        image[0, 8 + 6 * (scene % 5) : 16 + 6 * (scene % 5), 14 + 6 * side : 34 + 6 * side] = 40
    factors = {"camera": camera, "original": scenes, "azimuth": 2 * (scenes % 18)}
    return arrays.Arrays(images, scenes % 5, factors, {"name": "smallnorb-48", "classes": 5})


# Tables


def test_table_1_measures_shapes_and_counts_weights(results: Results) -> None:
    table = tables.table_1(results)
    paper = table[table["geometry"] == "smallNORB, the paper's setting"].set_index("layer")
    assert list(paper["output"])[:-1] == ["32x32x1", "14x14x64", "14x14x64", "14x14x8", "6x6x16", "4x4x16", "1x1x5"]
    assert list(paper["details ours"]) == list(paper["details published"])
    assert list(paper["weights"].dropna()) == [1664, 128, 8320 + 520, 18_432, 36_864, 20_480, 86_280]
    total = paper.loc["Total without BatchNorm"]
    assert total["weights"] == paper["weights"].dropna().iloc[[0, 2, 3, 4, 5]].sum()
    assert total["weights published"] == 86_000
    # A pair of costs for each type; Q logits and per type Q widths, two penalties and three coefficients.
    assert list(paper["EM routing"].dropna()) == [32, 32, 10, 74]
    own = [4 + 16 * (4 + 5), 4 + 16 * (4 + 5), 10 + 5 * (10 + 5)]
    assert list(paper["Similarity learning routing"].dropna()) == [*own, sum(own)]
    mnist = table[table["geometry"] == "MNIST, as run"].set_index("layer")
    assert mnist.loc["Capsule Class Layer", "output"] == "1x1x10"
    assert mnist.loc["Total without BatchNorm", "weights"] == 86_280 + 160 * (3 * 3 * 16 - 4 * 4 * 8)
    assert mnist["weights published"].isna().all()


def test_a_narrower_run_is_listed_as_it_is(tmp_path: Path) -> None:
    narrow = {f"mnist-{each}": {"model": {"conv_channels": 8, "types": [4, 4, 4]}} for each in ROUTINGS}
    narrow["mnist-connectionist"]["model"]["routing"] = {"lstm_units": 4, "activation_layers": [[], [8], [16]]}
    project = config("smallnorb", **narrow)
    results = make(tmp_path, project, seeds=(0,))
    table = tables.table_1(results).set_index(["geometry", "layer"])
    assert table.loc[("MNIST, as run", "Convolutional Capsule Layer 1"), "details ours"] == "K=3, S=2, Ch=4"
    assert table.loc[("MNIST, as run", "Primary Capsules"), "weights"] == 8 * 4 * 17 + 4 * 17
    assert "smallNORB, as run" not in table.index
    assert table.loc[("smallNORB, the paper's setting", "Total without BatchNorm"), "weights"] == 86_280
    second = tables.table_2(results).iloc[1]
    assert second["activation ours"] == "[8]"
    assert second["activation published"] == "[64, 64]"
    assert second["units ours"] == 4
    assert second["parameters: cell"] == (34 + 4) * 16 + 16
    assert second["parameters: activation"] == 4 * 8 + 8 + 8 + 1
    rows = results.metrics
    assert values(rows, "mnist-em", "paper-weights") == [86_280]
    assert values(rows, "mnist-em", "weights") == [208 + 612 + 9 * 4 * 4 * 16 * 2 + 9 * 4 * 10 * 16]


def test_table_2_counts_every_network(results: Results) -> None:
    table = tables.table_2(results)
    assert list(table["compatibility published"]) == list(table["compatibility ours"]) == ["[]", "[32, 32]", "[64, 64]"]
    assert list(table["parameters: cell"]) == [(34 + 16) * 64 + 64] * 3
    assert list(table["parameters: activation"]) == [17, 16 * 64 + 64 + 64 * 64 + 64 + 65, 2108 + 124 * 125 + 125]
    assert list(table["all"]) == list(table["all, the paper's widths"]) == [3298, 10_210, 26_310]


def test_table_3_has_every_published_row(results: Results) -> None:
    table = tables.table_3(results)
    assert len(table) == 3 + 5
    assert list(table["routing"])[:3] == ["Connectionist", "EM (www0wwwjs1)", "Similarity learning"]
    assert list(table["error % published"].dropna()) == [0.53, 0.9, 1, 6.7, 6.3, 8.2, 2.2, 8.19]
    norb = table[table["benchmark"] == "smallNORB"].set_index("routing")
    assert norb.loc["EM (Gritzman)", "error % ours"] == pytest.approx(6.8)  # seeds 6.3 and 7.3
    assert norb.loc["EM (original authors)", "error % ours"] == pytest.approx(6.8)
    assert norb.loc["Similarity learning", "sd"] == pytest.approx(math.sqrt(0.5))
    assert norb.loc["Connectionist", "tested on"] == "smallnorb-48/test"
    assert norb.loc["Connectionist", "n"] == 48_600


def test_table_4_has_the_gap_and_its_own_deviation(results: Results) -> None:
    rows = tables.table_4(results).set_index(["viewpoint", "routing"])
    assert len(rows) == 6
    row = rows.loc[("elevation", "Similarity learning")]
    assert row["familiar %"] == pytest.approx(6.5)
    assert row["novel %"] == pytest.approx(18.5)
    assert row["novel sd"] == pytest.approx(math.sqrt(0.5))
    assert row["gap %"] == pytest.approx(12)
    assert row["gap sd"] == pytest.approx(0, abs=1e-9)
    assert (row["tested on"], row["n familiar"], row["n novel"]) == ("smallnorb-48-elevation", 16_200, 32_400)


def test_one_seed_has_no_deviation(tmp_path: Path, project: Project) -> None:
    results = make(tmp_path, project, seeds=(0,))
    assert tables.table_3(results)["sd"].isna().all()
    assert tables.table_4(results)["gap sd"].isna().all()


# Metrics


def test_errors_and_gaps(results: Results) -> None:
    table = results.metrics
    assert values(table, "norb-connectionist", "error") == pytest.approx([6.7, 7.7])
    assert values(table, "azimuth-em", "error-novel") == pytest.approx([13, 14])
    assert values(table, "azimuth-em", "gap") == pytest.approx([8, 8])
    row = table[(table["variant"] == "azimuth-em") & (table["metric"] == "gap")].iloc[0]
    assert row["se"] == pytest.approx(math.sqrt(5 * 95 / 16_200 + 13 * 87 / 32_400))
    assert row["measured_on"] == "smallnorb-48-azimuth"


def test_shares_are_means_over_images(results: Results) -> None:
    table = results.metrics
    rows = table[(table["variant"] == "norb-em") & (table["metric"] == "effective-share-class")]
    expected = run_of(results, "norb-em", 0).probe("routing")["effective-2"].mean((1, 2))
    assert rows["value"].iloc[0] == pytest.approx(expected.mean())
    assert rows["se"].iloc[0] == pytest.approx(expected.std(ddof=1) / math.sqrt(32))
    assert set(rows["measured_on"]) == {"smallnorb-48/test"}
    assert not values(table, "azimuth-em", "effective-share-class")


def test_times_are_compared_by_their_medians(results: Results) -> None:
    """EM's second round is the faster one, so that ratios within the rounds are others."""
    table = results.metrics
    assert values(table, "mnist-connectionist", "time-ratio") == pytest.approx([3.0])
    assert values(table, "mnist-similarity", "time-ratio") == pytest.approx([0.5])
    assert not values(table, "mnist-em", "time-ratio")


def equally_trained() -> dict[str, dict[str, Any]]:
    """Changes with which connectionist routing is trained as the others are, but watched on as few images as before."""
    training = {"steps": 18750, "lr_decay_steps": 18750}
    return {f"{dataset}-connectionist": {"training": training} for dataset in ("mnist", "norb")}


def with_cnn(results: Results) -> Results:
    """The same results with a CNN of MNIST in the timing, as a variant of this name that was trained with seed 0."""
    timing = results.timing("steps")
    timing["seconds_per_step"]["mnist-cnn"], timing["batch_size"]["mnist-cnn"] = [0.25, 0.75], 100
    others = {"mnist-connectionist": 60.0, "mnist-similarity": 3.0}
    timing["operations_per_image"] = {"mnist-cnn": 6.0, "mnist-em": 1.5, **others}
    timing["bytes_kept_per_image"] = {"mnist-cnn": 8.0, "mnist-em": 32.0, **others}
    timing["parameters"] = {"mnist-cnn": 100, "mnist-em": 50, **others}
    io.write_json(results.files.timing("consensus", "steps"), timing)
    cnn = Variant(title="CNN", model=ConvNetOptions(), data="mnist/train")
    paper = results.paper.model_copy(update={"variants": {**results.paper.variants, "mnist-cnn": cnn}})
    return replace(results, paper=paper, own_seeds={**results.own_seeds, "mnist-cnn": (0,)})


def test_every_claim_finds_what_it_measures(tmp_path: Path, project: Project) -> None:
    check_variants(CLAIMS, project.papers)
    results = make(tmp_path, config(**equally_trained()), seeds=(0, 1))
    beside_cnn = metric_rows(metrics.metrics(with_cnn(results)))
    every = pd.concat([results.metrics, beside_cnn[beside_cnn["metric"].str.endswith("-cnn")]])
    verdicts = made_results.verdicts("consensus", every)
    assert verdicts["consensus/section-5/weights"] == "check passed"


def test_costs_are_relative_to_the_cnn(tmp_path: Path) -> None:
    results = make(tmp_path, config(), seeds=(0,))
    assert not results.metrics["metric"].str.endswith("-cnn").any(), "there is no CNN"
    table = metric_rows(metrics.metrics(with_cnn(results)))
    assert values(table, "mnist-em", "time-ratio-cnn") == pytest.approx([1.5 / 0.5])
    assert values(table, "mnist-em", "operations-ratio-cnn") == [0.25]
    assert values(table, "mnist-em", "parameters-ratio-cnn") == [0.5]
    assert values(table, "mnist-em", "memory-ratio-cnn") == [4]
    assert values(table, "mnist-connectionist", "memory-ratio-cnn") == [7.5]
    assert not values(table, "mnist-cnn", "time-ratio-cnn")


def test_only_equal_trainings_are_compared(results: Results, tmp_path: Path) -> None:
    """At scale `desk`, connectionist routing has fewer steps."""
    of_connectionist = [claim.id for claim in CLAIMS if "error-equal-training" in str(claim.measures)]
    assert len(of_connectionist) == 4
    card = scorecard(CLAIMS, results.metrics).set_index("id")
    assert set(card.loc[of_connectionist, "verdict"]) == {"not run at this scale"}
    equal = make(tmp_path, config(**equally_trained()), seeds=(0, 1))
    for variant in ("mnist-em", "norb-similarity", "mnist-connectionist"):
        rows = equal.measured(variant, "error-equal-training")
        assert list(rows["value"]) == values(equal.metrics, variant, "error")
        assert list(rows["n"]) == list(equal.measured(variant, "error")["n"])
        assert not values(results.metrics, variant, "error-equal-training")


def test_without_smallnorb_its_claims_are_not_judged(tmp_path: Path) -> None:
    results = make(tmp_path, config("smallnorb", **equally_trained()), seeds=(0,))
    card = scorecard(CLAIMS, results.metrics)
    lacking = card[card["verdict"] == "not run at this scale"]["id"]
    assert list(lacking) == [claim.id for claim in CLAIMS if "norb" in claim.id or "-cnn" in claim.id]


def test_the_claims_hold_every_printed_number() -> None:
    numbers = [claim for claim in CLAIMS if isinstance(claim, Number)]
    references = [value for *_, value in tables.REFERENCES]
    assert sorted(claim.published for claim in numbers) == [0.53, 0.9, 1, 6.3, 6.7, 8.19, 86_000]
    assert sorted(references) == [2.2, 8.2]
    assert {claim.published for claim in numbers if claim.quoted} == {0.9, 6.3}
    assert sum(isinstance(claim, Ordering) for claim in CLAIMS) == 5
    limits = {
        claim.at_most if claim.at_least is None else claim.at_least for claim in CLAIMS if isinstance(claim, Bound)
    }
    assert limits == {0.8, 2.2, 2, 1}


# What figures are made of


def test_the_toy_clustering_is_equation_11_and_stands_still() -> None:
    votes, activations = figures.toy_votes()
    pairs = [(one, two) for one in figures.LAMBDA_1 for two in figures.LAMBDA_2]
    shares, poses = figures.cluster(votes, activations, pairs, figures.TOY_WIDTH)
    np.testing.assert_allclose(shares.sum(1), 1)
    for (one, two), share, pose in zip(pairs, shares, poses, strict=True):
        similarity = np.exp(-np.square(votes - pose).sum(1) / (2 * figures.TOY_WIDTH**2))
        expected = activations ** (two / (one + two)) * np.exp(similarity / (one + two))
        np.testing.assert_allclose(share, expected / expected.sum(), rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(pose, share @ votes, atol=1e-9)


def test_the_toy_shows_what_its_caption_says() -> None:
    votes, activations = figures.toy_votes()
    assert activations[:30].max() < activations[30:50].min()
    shares, poses = figures.cluster(votes, activations, [(0.05, 0), (0.05, 10), (12, 1)], figures.TOY_WIDTH)
    assert poses[0, 0] < -1, "the larger cluster"
    assert poses[1, 0] > 0, "towards the active one"
    assert shares[2].max() / shares[2].min() < 1.5, "all but even"


def test_the_kernel_is_equation_15() -> None:
    distances, mixture, widths = np.array([0.0, 0.5, 2.0]), np.array([0.0, 1.0]), np.array([[1.0, 0.2], [0.5, 3.0]])
    weights = np.exp(mixture) / np.exp(mixture).sum()
    expected = np.einsum("q,nqj->nj", weights, np.exp(-(distances[:, None, None] ** 2) / (2 * widths**2)))
    np.testing.assert_allclose(figures.kernel(distances, mixture, widths), expected, rtol=1e-4)


def test_scenes_have_their_cameras_in_order() -> None:
    split = _norb()
    places = record._scenes(split)
    assert places.shape == (5, 2)
    assert split.factors["camera"][places].tolist() == [[0, 1]] * 5
    assert split.factors["original"][places].tolist() == [[k, k] for k in range(5)]
    assert record._scenes(_digits()).tolist() == [[k] for k in range(10)]


def test_the_network_sees_crops_of_smallnorb_and_mnist_as_it_is(project: Project) -> None:
    split, variants = _norb(), project.papers["consensus"].variants
    views = record._views(split, np.array([0, 3]), variants["norb-em"].training, seed=0)
    assert [len(pictures) for pictures in views.values()] == [2, 2, 6]
    whole = split.images[3, 0] / 255.0
    centre = ((whole - whole.mean()) / whole.std())[8:40, 8:40]
    np.testing.assert_allclose(views["as tested"][1], centre, atol=1e-5)
    assert len({picture.tobytes() for picture in views["as trained on"]}) == 6
    assert {picture.shape for picture in views["as trained on"]} == {(32, 32)}
    assert list(record._views(_digits(), np.array([0]), variants["mnist-em"].training, seed=0)) == ["as prepared"]


@pytest.mark.parametrize("routing", ROUTINGS)
def test_shares_of_the_right_class(routing: str) -> None:
    probe = _probe(routing, 3, 10)
    shares = record.class_shares(probe["coupling"], probe["labels"], routing == "em")
    assert shares.shape == (32, 3, 3)
    assert all(np.unravel_index(shares[k].argmax(), (3, 3)) == (k % 3, k // 3) for k in range(9))
    if routing == "em":
        every = [record.class_shares(probe["coupling"], np.full(32, label), em=True) for label in range(10)]
        np.testing.assert_allclose(np.sum(every, 0), 1, rtol=1e-5)
    else:
        np.testing.assert_allclose(shares.sum((1, 2)), 1, rtol=1e-5)


# Figures


@pytest.mark.parametrize(
    ("seeds", "without", "missing"),
    [
        ((0,), (), set()),
        ((0, 1, 2), (), set()),
        ((0,), ("smallnorb",), {"table-4"}),
        ((0, 1), ("mnist",), {"figure-8"}),
        ((0,), OF_TABLE_3, {"table-1", "table-2", "table-3", *(f"figure-{k}" for k in (1, 3, 4, 5, 6, 7, 8))}),
    ],
)
def test_everything_is_drawn_with_its_data(
    tmp_path: Path, seeds: tuple[int, ...], without: tuple[str, ...], missing: set[str]
) -> None:
    results = make(tmp_path, config(*without), seeds)
    made_results.drawn(results, tmp_path)
    assert set(config().papers["consensus"].outputs) == set(results.paper.outputs) | missing


def test_a_variant_may_have_seeds_of_its_own(tmp_path: Path) -> None:
    results = make(tmp_path, config(**{"mnist-em": {"seeds": [0, 1]}}), seeds=(0,))
    assert [len(results.metric(name, "error")) for name in ("mnist-em", "mnist-similarity")] == [2, 1]
    assert {1, 2} <= set(tables.table_3(results)["seeds"].dropna())
    assert set(figures.figure_7(results)[1]["seed"]) == {0, 1}


def test_counts_are_written_without_decimals(results: Results, tmp_path: Path) -> None:
    draw.table("table-1", results, tmp_path)
    text = (tmp_path / "table-1.md").read_text()
    assert "| Total without BatchNorm |  |  |  | 86280 | 86000 | 39818 | 74 | 381 |" in text


def test_hours_of_the_papers_training(results: Results) -> None:
    """100 epochs are 60,000 steps of 100 images; the mean step took 4.5 seconds."""
    assert list(results.metric("mnist-connectionist", "hours")) == [pytest.approx(60_000 * 4.5 / 3600)]
    assert not len(results.metric("norb-connectionist", "hours"))


def test_figure_1_shows_the_fields_of_the_first_capsule_layer(results: Results) -> None:
    """On MNIST, six positions in a row have eight types each; fields of three begin at every other one."""
    _, data = figures.figure_1(results)
    fields = data.groupby("output")["input"].agg(list).to_dict()
    assert fields == {0: [0, 1, 2], 1: [2, 3, 4], 2: [4, 5, 6]}
    assert set(data["matrix"]) == {0, 1, 2}
    assert set(data[["types", "outputs"]].itertuples(index=False, name=None)) == {(8, 16)}


def test_figure_3_counts_what_enters_the_cell(results: Results) -> None:
    drawing, data = figures.figure_3(results)
    sizes = dict(zip(data["part"], data["size"], strict=True))
    assert sizes["pose of the output"] == sizes["vote"] == 16
    assert sizes["compatibility"] == sizes["activation of the input"] == 1
    routing = architecture.network(results.config("mnist-connectionist")).layers[1].routing
    assert sizes["cell state"] == sizes["hidden state"] == routing.units
    assert dict(zip(data["part"], data["hidden"], strict=True))["compatibility network"] == "none; 32, 32; 64, 64"
    texts = " ".join(text.get_text() for text in drawing.axes[0].texts)
    assert "50 numbers" in texts
    assert "none; 64, 64; 124, 124" in texts


def test_figure_2_saves_every_panel(results: Results) -> None:
    _, data = figures.figure_2(results)
    panels = data.groupby(["lambda_1", "lambda_2"])
    assert len(panels) == 12
    np.testing.assert_allclose(panels["compatibility"].sum(), 1)


def test_figure_4_lists_its_images(results: Results) -> None:
    _, data = figures.figure_4(results)
    counts = data.groupby(["set", "view"]).size()
    assert counts.to_dict() == {
        ("smallnorb-48/train", "as prepared"): 10,
        ("smallnorb-48/train", "as tested"): 10,
        ("smallnorb-48/train", "as trained on"): 30,
        ("mnist/train", "as prepared"): 10,
    }
    tested = data[(data["view"] == "as tested") & (data["label"] == 2)]
    assert list(tested["camera"]) == [0, 1]
    assert set(tested["side"]) == {32}


def test_figure_4_shows_what_the_network_sees(results: Results) -> None:
    """From black to white as prepared, from -4 to 4 standard deviations as tested."""
    drawing, _ = figures.figure_4(results)
    prepared, tested, _, digits = (made_results.canvas(axis) for axis in drawing.axes)
    split, training = _norb(), results.paper.variants["norb-connectionist"].training
    place = record._scenes(split)[:1].ravel()
    views = record._views(split, place, training, seed=0)
    np.testing.assert_allclose(prepared[:48, :48], split.images[place[0], 0] / 255, atol=1e-6)
    np.testing.assert_allclose(tested[:32, :32], np.clip((views["as tested"][0] + 4) / 8, 0, 1), atol=0.5 / 255 + 1e-6)
    np.testing.assert_allclose(digits[:28, :28], _digits().images[0, 0] / 255, atol=1e-6)


def test_figure_4_shows_another_routing_if_the_first_is_left_out(tmp_path: Path) -> None:
    results = make(tmp_path, config("consensus/mnist-connectionist", "consensus/norb-connectionist"), seeds=(0,))
    assert set(figures.figure_4(results)[1]["set"]) == {"smallnorb-48/train", "mnist/train"}
    assert results.shown == {("mnist-em", 0), ("norb-em", 0)}


def test_figure_5_begins_with_the_initial_width(results: Results) -> None:
    drawing, data = figures.figure_5(results)
    assert [len(axis.lines) for axis in drawing.axes] == [17, 17, 11, 17, 17, 6]
    initial = data[(data["kernel"] == "initial") & (data["variant"] == "norb-similarity")]
    width = results.config("norb-similarity")["model"]["routing"]["kernel_width"]
    np.testing.assert_allclose(initial["K"], np.exp(-(initial["distance"] ** 2) / (2 * width**2)), rtol=1e-3, atol=1e-9)


def test_figure_6_gives_maps_and_quantiles(results: Results) -> None:
    _, data = figures.figure_6(results)
    maps = data[(data["quantity"] == "share of the right class") & (data["variant"] == "mnist-similarity")]
    np.testing.assert_allclose(maps.groupby("image")["value"].sum(), 1, rtol=1e-5)
    shares = data[(data["quantity"] == "effective share") & (data["variant"] == "norb-em")]
    median = shares[(shares["level"] == 0.5) & (shares["layer"] == "class")]["value"]
    assert list(median) == [pytest.approx(np.median(run_of(results, "norb-em", 0).probe("routing")["effective-2"]))]


def test_figure_7_keeps_every_evaluation(results: Results) -> None:
    drawing, data = figures.figure_7(results)
    assert list(data.columns) == ["dataset", "variant", "seed", "step", "test_error"]
    assert len(data) == 2 * 3 * 2 * 3
    lines = {str(line.get_label()): line for line in drawing.axes[0].lines}
    assert list(lines) == [
        "Connectionist\n1,000 test images",
        "EM\n2,000 test images",
        "Similarity learning\n2,000 test images",
    ]
    assert [text.get_text() for text in drawing.legends[0].get_texts()] == list(lines)
    assert list(np.asarray(lines["Connectionist\n1,000 test images"].get_ydata())) == [
        40.5,
        6.5,
        4.5,
    ]  # means over seeds


def test_figure_8_draws_medians_and_rounds(results: Results) -> None:
    drawing, data = figures.figure_8(results)
    assert [patch.get_height() for patch in drawing.axes[0].patches] == pytest.approx([450, 150, 75])
    assert len(data) == 6
    labels = [label.get_text() for label in drawing.axes[0].get_xticklabels()]
    assert labels == ["Connectionist\n100", "EM\n100", "Similarity learning\n100"]
    assert len(drawing.axes) == 1, "memory was not counted"
    drawing, data = figures.figure_8(with_cnn(results))
    assert [patch.get_height() for patch in drawing.axes[1].patches] == pytest.approx([6e-5, 3.2e-5, 3e-6, 8e-6])
    assert data[data["variant"] == "mnist-cnn"]["megabytes_per_image"].tolist() == [8e-6, 8e-6]


@pytest.mark.parametrize("routing", ROUTINGS)
def test_the_real_probe_can_be_drawn(tmp_path: Path, routing: str) -> None:
    torch.manual_seed(0)
    project = config("smallnorb")
    results = make(tmp_path, project, seeds=(0,))
    model = architecture.network(results.config(f"mnist-{routing}") | {"image_shape": (1, 28, 28)}).eval()
    labels = torch.arange(12) % 10
    with torch.inference_mode():
        made = probes.routing(model, torch.rand(12, 1, 28, 28), labels) | {"labels": labels}
    arrays = {name: each.numpy() for name, each in made.items()}
    made_results.add_probe(results.run(f"mnist-{routing}"), "routing", arrays)
    _, data = figures.figure_6(measured(results))
    maps = data[(data["quantity"] == "share of the right class") & (data["variant"] == f"mnist-{routing}")]
    assert len(maps) == 8 * 9
    if routing != "em":
        np.testing.assert_allclose(maps.groupby("image")["value"].sum(), 1, rtol=1e-4)
    assert data["value"].between(0, 1.0001).all()


# Variants that a reader adds


def test_an_added_variant_has_its_row_and_its_lines(tmp_path: Path) -> None:
    added = config().papers["consensus"].variants["mnist-em"].model_dump(mode="json") | {"title": "EM, 2 iterations"}
    added["model"]["routing"]["iterations"] = 2
    results = make(tmp_path, config("smallnorb", **{"mnist-em-2": added}), seeds=(0,))
    row = tables.table_3(results).set_index("routing").loc["EM, 2 iterations"]
    assert (row["benchmark"], row["error % ours"], row["n"]) == ("MNIST", pytest.approx(0.9), 10_000)
    assert math.isnan(row["error % published"])
    weights = tables.table_1(results).set_index(["geometry", "layer"])["EM, 2 iterations routing"]
    assert list(weights.loc["MNIST, as run"].dropna()) == [32, 32, 20, 84]
    for figure in (figures.figure_6, figures.figure_7):
        drawing, data = figure(results)
        assert "mnist-em-2" in set(data["variant"])
        assert len({line.get_color() for line in drawing.axes[-1].lines}) == 4
    made_results.drawn(results, tmp_path)
