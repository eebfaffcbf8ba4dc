"""Tables, figures and metrics of the paper `sparse`, from a small tree of made results."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import made_results
import numpy as np
import pytest
from made_results import CONFIG, measured, run_of, values

from recaps import io
from recaps.config.load import Project, load
from recaps.papers.sparse import figures, metrics, record, tables
from recaps.report.claims import check_variants
from recaps.report.results import Results

#: Accuracy of every head and protocol of a variant, in percent.
ACCURACY = {"em": 85.0, "convnet": 70.0, "supcaps": 80.0, "dense": 60.0, "sparsecaps": 90.0}
#: Points that snapshots of networks with labels have less.
LOWER = {f"mnist-shifted-{step}": 10 * place for place, step in ((3, 1000), (2, 2000), (1, 4000))}
LOWER |= {f"affnist-{step}": 20 * place for place, step in ((3, 1000), (2, 2000), (1, 4000))}
IMAGES, CAPSULES = 12, 6


def config(*without: str, **overrides: Any) -> Project:
    overridden = {"sparse": {"variants": made_results.without_own_seeds("sparse", overrides)}}
    values = {"scale": "desk", "papers": ["sparse"], "without": [f"sparse/{name}" for name in without]}
    return load(values | {"overrides": overridden}, CONFIG)


def make(folder: Path, project: Project, seeds: tuple[int, ...]) -> Results:
    """Measured results in which seed s has every accuracy s points higher."""
    return measured(made_results.frame(folder, project, "sparse", seeds, lambda *run: _run(project, *run)))


def _run(project: Project, results: Results, variant: str, model: dict[str, Any], seed: int) -> None:
    settings, run, draw = project.papers["sparse"].variants[variant], results.run(variant, seed), _random(variant, seed)
    accuracy = (ACCURACY[variant.split("-")[0]] + seed) / 100
    io.write_text(
        run / "history.csv", "step,loss\n" + "".join(f"{step},{40 - step / 1000}\n" for step in range(1000, 9000, 1000))
    )
    for head, protocols in settings.heads.items():
        for protocol in protocols:
            shared = IMAGES if protocol == "affnist-a-position" else 0
            lower = LOWER.get(protocol, 0) if head == "argmax" else 0
            result = {"accuracy": accuracy - lower / 100, "n": IMAGES, "n_fit": 0 if head == "argmax" else 100}
            result |= {"test_images_whose_original_was_fitted": None if head == "argmax" else shared}
            made_results.add_head(run, head, protocol, result)
    for name in settings.latents:
        support = draw.random((IMAGES, CAPSULES)) + 0.5
        ranks = (-support).argsort(1).argsort(1)
        arrays = {"support": support, "ranks": ranks, "mask": np.exp(-2.4 * ranks)}
        arrays["reconstruction_error"] = draw.random(IMAGES)
        made_results.add_latents(run, results.resolve(name), arrays)
    probes = {
        "single-capsules": {"full": (), "single": (CAPSULES,), "without": (CAPSULES,), "mask": None},
        "traversals": {"decoded": (4, 11), "values": None, "capsule": None},
    }
    for probe in settings.probes:
        made = {
            name: draw.random((IMAGES, *shape, 1, 8, 8)) for name, shape in probes[probe].items() if shape is not None
        }
        made |= {"images": draw.random((IMAGES, 1, 8, 8)), "labels": np.arange(IMAGES) % 10}
        made |= {"mask": draw.random((IMAGES, CAPSULES)), "values": np.linspace(-1, 1, 11)}
        made_results.add_probe(run, probe, made | {"capsule": np.arange(IMAGES) % CAPSULES})


def _random(variant: str, seed: int) -> np.random.Generator:
    return np.random.default_rng([*variant.encode(), seed])


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return make(tmp_path_factory.mktemp("results"), config(), seeds=(0, 1))


# Tables


def test_table_1_has_a_row_for_every_condition(results: Results) -> None:
    table = tables.table_1(results).set_index("algorithm")
    boosted = ("SPARSECAPS", "SPARSECAPS without boosting", "SPARSECAPS, fine boosting")
    models = ("Unmasked SPARSECAPS", *boosted, "Unmasked SPARSECAPS, short queue", "SPARSECAPS, short queue")
    conditions = ("(a)", "(a), disjoint digits", "(b)")
    rows = [f"{model} + SVM {condition}" for model in models for condition in conditions]
    assert list(table.index) == ["Conventional ConvNet", "SUPCAPS", *rows]
    assert list(table["MNIST published"].dropna()) == [99.22, 99.23, *[97.37] * 3, *[99] * 3]
    assert list(table["affNIST published"].dropna()) == [66, 79, 60.63, 15.7, 90.12, 16.99]
    dense, sparse = [60.5] * 3, [90.5] * 3
    assert list(table["affNIST ours"]) == pytest.approx([70.5, 80.5, *dense, *sparse * 3, *dense, *sparse])
    assert list(table["affNIST sd"]) == pytest.approx([math.sqrt(0.5)] * 20)
    assert list(table["same digits %"].fillna(-1)) == [-1, -1, *[100, 0, 0] * 6]
    assert set(table["affNIST set"]) == {"affnist-generated"}
    assert set(table["seeds"]) == {2}


def test_table_2_compares_with_quoted_numbers(results: Results) -> None:
    table = tables.table_2(results).set_index("reference")
    assert list(table["MNIST published"]) == [97.82, 97.5, 99.25, 99.22, 99]
    assert list(table["affNIST published"]) == [86.79, 91.6, 87.55, 66, 90.12]
    assert list(table["affNIST ours"].dropna()) == pytest.approx([70.5, 90.5])


@pytest.mark.parametrize(("without", "kept"), [(("sparsecaps",), True), (("convnet", "sparsecaps"), False)])
def test_table_2_is_left_out_with_all_variants_that_it_shows(without: tuple[str, ...], kept: bool) -> None:
    assert ("table-2" in config(*without).papers["sparse"].tables) == kept


def test_everything_is_drawn_with_its_data(results: Results, tmp_path: Path) -> None:
    data = made_results.drawn(results, tmp_path)
    assert list(data["figure-2"]["variant"].unique()) == ["dense-28", "sparsecaps-28"]
    assert list(data["figure-3"]["variant"].unique()) == [
        *("supcaps", "dense", "sparsecaps", "sparsecaps-unboosted", "sparsecaps-fine"),
        *("dense-queue", "sparsecaps-queue"),
        *("supcaps-28", "dense-28", "sparsecaps-28"),
    ]


def test_figure_3_names_a_model_once_and_draws_it_alike_in_both_panels(tmp_path: Path) -> None:
    only_at_28 = config()
    del only_at_28.papers["sparse"].variants["supcaps"]
    results = make(tmp_path, only_at_28, seeds=(0,))
    drawing, _ = figures.figure_3(results)
    legend = drawing.axes[0].get_legend()
    titles = [each.get_text() for each in legend.get_texts()]
    assert sorted(titles) == [
        "SPARSECAPS",
        "SPARSECAPS without boosting",
        "SPARSECAPS, fine boosting",
        "SPARSECAPS, short queue",
        "SUPCAPS",
        "Unmasked SPARSECAPS",
        "Unmasked SPARSECAPS, short queue",
    ]
    assert [len(axis.get_lines()) for axis in drawing.axes] == [6, 3]
    routing = [each for each in results.paper.variants.values() if record.routes(each)]
    looks: dict[str, set[tuple[Any, ...]]] = {}
    for axis, dataset in zip(drawing.axes, ("mnist-40/test", "mnist/test"), strict=True):
        models = [each.title.removesuffix(" (28x28)") for each in routing if dataset in each.latents]
        for model, line in zip(models, axis.get_lines(), strict=True):
            looks.setdefault(model, set()).add((line.get_color(), line.get_linestyle(), line.get_marker()))
    assert looks.keys() == set(titles)
    assert all(len(each) == 1 for each in looks.values())
    assert len(set.union(*looks.values())) == 7


def test_an_added_variant_has_its_rows_and_its_lines(tmp_path: Path) -> None:
    variants = config().papers["sparse"].variants
    added = {
        f"sparsecaps-released{size}": variants[f"sparsecaps{size}"].model_dump(mode="json")
        | {"title": f"Released{size}"}
        for size in ("", "-28")
    }
    results = make(tmp_path, config(**added), seeds=(0,))
    table = tables.table_1(results)
    rows = table[table["algorithm"].str.startswith("Released")]
    assert list(rows["algorithm"]) == [f"Released + SVM {each}" for each in ("(a)", "(a), disjoint digits", "(b)")]
    assert list(rows["affNIST ours"]) == pytest.approx([90, 90, 90])
    assert rows["affNIST published"].isna().all()
    assert values(results.metrics, "sparsecaps-released", "svm-mnist") == pytest.approx([90])
    for figure, variant in (
        (figures.figure_2, "sparsecaps-released-28"),
        (figures.figure_3, "sparsecaps-released"),
        (figures.figure_4, "sparsecaps-released"),
    ):
        assert variant in set(figure(results)[1]["variant"])


def test_every_claim_finds_its_measure(results: Results) -> None:
    check_variants(made_results.claims("sparse"), {"sparse": results.paper})
    made_results.verdicts("sparse", results.metrics)


# Numbers behind the figures


def test_metrics_of_capsules_are_those_of_loops_over_images_and_capsules(results: Results) -> None:
    table = results.metrics
    for seed in (0, 1):
        run = run_of(results, "sparsecaps", seed)
        arrays = {name: run.latents(name) for name in ("mnist-40/test", "affnist/test")}
        support, mask = (arrays["mnist-40/test"][name] for name in ("support", "mask"))
        slope = [np.mean([value / max(row) for value in sorted(row)[:-1]]) for row in support]
        active = [sum(value >= 0.1 for value in row) for row in mask]
        winners = [row.tolist().index(0) for row in arrays["affnist/test"]["ranks"]]
        frequencies = [winners.count(capsule) / IMAGES for capsule in range(CAPSULES)]
        probe = run.probe("single-capsules")
        left_out = [
            max(np.square(without - whole).sum() for without in each) / np.square(whole).sum()
            for whole, each in zip(probe["full"], probe["without"], strict=True)
        ]
        decoded = run.probe("traversals")["decoded"]
        moved = [max(np.square(d[10] - d[0]).sum() / np.square(d[5]).sum() for d in each) for each in decoded]
        expected = {
            "support-slope": np.mean(slope),
            "mask-active": np.mean(active),
            "rank0-frequency-min": min(frequencies),
            "rank0-frequency-max": max(frequencies),
            "rank0-capsules": sum(frequency >= 0.02 for frequency in frequencies),
            "reconstruction-error-mnist": arrays["mnist-40/test"]["reconstruction_error"].mean(),
            "reconstruction-error-affnist": arrays["affnist/test"]["reconstruction_error"].mean(),
            "leave-one-out-change": np.mean(left_out),
            "contributing-share": record.contributing_share(probe).mean(),
            "change-autocorrelation": record.change_autocorrelation(probe).mean(),
            "parameter-change": np.mean(moved),
        }
        for metric, value in expected.items():
            assert values(table, "sparsecaps", metric)[seed] == pytest.approx(value), metric
    assert len({*expected.values()}) == len(expected)


def test_the_parameter_that_changes_most_counts() -> None:
    decoded = np.zeros((2, 3, 5, 1, 2, 2))
    decoded[:] = 0.5
    decoded[0, 1, 0], decoded[0, 1, -1] = 0, 1  # from black to white: 4 pixels, by 1 each, beside 4 * 0.25
    decoded[0, 2, -1] = 0.6
    assert record.largest_change(decoded) == pytest.approx([4.0, 0.0])


def test_relative_support_is_sorted_within_each_image() -> None:
    support = np.array([[1.0, 4.0, 2.0], [10.0, 5.0, 5.0]])
    np.testing.assert_allclose(record.relative_support(support), [[1, 0.5, 0.25], [1, 0.5, 0.5]])


def test_rank_frequencies_count_each_capsules_ranks() -> None:
    ranks = np.array([[0, 1, 2], [0, 2, 1], [1, 0, 2], [0, 1, 2]])
    expected = [[0.75, 0.25, 0], [0.25, 0.5, 0.25], [0, 0.25, 0.75]]
    np.testing.assert_allclose(record.rank_frequencies(ranks), expected)


def test_traversals_are_those_of_the_dimension_that_changes_an_image_most(results: Results) -> None:
    drawing, data = figures.figure_1(results)
    decoded = run_of(results, "supcaps-28", 0).probe("traversals")["decoded"]
    assert len(drawing.axes) == 6
    for image, rows in data.groupby("image"):
        changes = [np.square(each - each.mean(0)).sum() for each in decoded[image]]
        assert set(rows["dimension"]) == {np.argmax(changes)}
        np.testing.assert_allclose(rows["ink"], decoded[image, np.argmax(changes)].sum((1, 2, 3)))


def test_single_capsules_are_those_of_the_first_image(results: Results) -> None:
    drawing, data = figures.figure_2(results)
    probe = run_of(results, "dense-28", 0).probe("single-capsules")
    full, without = probe["full"][0, 0], probe["without"][0, :, 0]
    np.testing.assert_allclose(made_results.canvas(drawing.axes[0])[10:], full, atol=0.003)
    alone, left_out, change = (made_results.canvas(axis)[:8, 10:18] for axis in drawing.axes[1:4])
    np.testing.assert_allclose(alone, probe["single"][0, 1, 0], atol=0.003)
    np.testing.assert_allclose(left_out, without[1], atol=0.003)
    np.testing.assert_allclose(change, without[1] - full, atol=0.003)
    change = [np.square(each - full).sum() / np.square(full).sum() for each in without]
    np.testing.assert_allclose(data[data["variant"] == "dense-28"]["relative_change_without"], change)


def test_leave_one_out_change_takes_the_capsule_that_matters_most() -> None:
    full = np.full((1, 1, 2, 2), 0.5)
    without = np.stack([full, np.zeros_like(full)], axis=1)
    probe = {"full": full, "without": without}
    assert record.leave_one_out_change(probe) == pytest.approx([1.0])


def left_out(*changes: Any) -> dict[str, np.ndarray]:
    """The probe of one image that changes in these ways, one for each capsule."""
    full = np.full((1, 1, *np.shape(changes[0])), 0.5)
    return {"full": full, "without": full[:, None] + np.array(changes, float)[None, :, None]}


def test_as_many_capsules_contribute_as_have_even_contributions() -> None:
    stroke, other, none = np.eye(4), np.fliplr(np.eye(4)), np.zeros((4, 4))
    assert record.contributing_share(left_out(stroke, none, none, none)) == pytest.approx([1 / 4])
    assert record.contributing_share(left_out(stroke, -other, none, none)) == pytest.approx([1 / 2])
    assert record.contributing_share(left_out(stroke, -other, stroke, other)) == pytest.approx([1])
    mostly_one = record.contributing_share(left_out(3 * stroke, stroke, none, none))
    assert mostly_one == pytest.approx([0.9**-0.9 * 0.1**-0.1 / 4])


def test_scattered_changes_have_no_autocorrelation_and_smooth_ones_have_much() -> None:
    rows, columns = np.indices((40, 40))
    chessboard = (-1.0) ** (rows + columns)
    noise, ramp = np.random.default_rng(0).standard_normal((40, 40)), rows.astype(float)
    assert record.change_autocorrelation(left_out(chessboard)) == pytest.approx([-1])
    assert record.change_autocorrelation(left_out(noise)) == pytest.approx([0], abs=0.05)
    assert record.change_autocorrelation(left_out(ramp + 7))[0] > 0.95
    # Two columns of each pixel: neighbours in a row are alike or opposite in turn, those in a column opposite.
    stripes = (-1.0) ** (columns // 2 + rows)
    pairs = (20 - 19) * 40 - 39 * 40
    assert record.change_autocorrelation(left_out(stripes)) == pytest.approx([pairs / (2 * 39 * 40)])


def test_capsules_count_by_the_size_of_their_changes() -> None:
    chessboard, none = (-1.0) ** np.indices((4, 4)).sum(0), np.zeros((4, 4))
    halves = np.repeat([[-1.0, -1, 1, 1]], 4, axis=0)
    smooth = record.change_autocorrelation(left_out(halves))
    assert record.change_autocorrelation(left_out(halves, none)) == pytest.approx(smooth)
    both = record.change_autocorrelation(left_out(halves, 2 * chessboard, none))
    assert both == pytest.approx((smooth + 4 * -1) / 5)


def test_labels_of_near_points_are_piled_above_the_topmost() -> None:
    frequencies = np.array([[0.5, 0.1], [0.9, 0.0], [0.52, 0.2], [0.0, 0.53]])
    assert figures.label_piles(frequencies, 0.1) == [([2, 0], 0, 0.52), ([1], 0, 0.9), ([3], 1, 0.53)]


def test_a_pile_includes_the_points_that_its_labels_would_cover() -> None:
    frequencies = np.array([[0.5], [0.51], [0.65], [0.97]])
    assert figures.label_piles(frequencies, 0.1) == [([2, 1, 0], 0, 0.65), ([3], 0, 0.97)]


def test_snapshots_are_points_before_the_trained_model(results: Results) -> None:
    drawing, data = figures.accuracy_along_training(results)
    dense = data[data["variant"] == "dense"]
    assert sorted(dense["step"].unique()) == [1000, 2000, 4000, 8000]
    assert list(dense["seed"].unique()) == [0, 1]
    lines = {line.get_label(): line for line in drawing.axes[0].lines if not line.get_label().startswith("_")}
    assert list(lines) == ["Unmasked SPARSECAPS", "SPARSECAPS", "SPARSECAPS, fine boosting"]
    dotted = [line.get_ydata()[0] for line in drawing.axes[0].lines if line.get_linestyle() == ":"]
    assert dotted == [60.63, 90.12]


def test_networks_with_labels_are_compared_at_the_accuracy_that_both_reach(results: Results) -> None:
    """The ConvNet reaches 70 % (and 70 on affNIST) after training. SUPCAPS has 70 % (and 60) after 4,000 steps."""
    assert list(results.metric("convnet", "equal-accuracy")) == pytest.approx([70, 71])
    assert list(results.metric("supcaps", "equal-accuracy")) == pytest.approx([70, 71])
    assert list(results.metric("supcaps", "affnist-at-equal-accuracy")) == pytest.approx([60, 61])
    assert list(results.metric("convnet", "affnist-at-equal-accuracy")) == pytest.approx([70, 71])
    drawing, data = figures.accuracy_at_accuracy(results)
    assert list(data["step"].unique()) == [1000, 2000, 4000, 8000]
    labels = [line.get_label() for line in drawing.axes[0].lines if not line.get_label().startswith("_")]
    assert labels == ["Conventional ConvNet", "Conventional ConvNet, published", "SUPCAPS", "SUPCAPS, published"]


def test_accuracy_at_a_level_is_interpolated_where_it_is_first_reached() -> None:
    mnist, affnist = np.array([90.0, 94.0, 98.0, 97.0]), np.array([50.0, 60.0, 80.0, 10.0])
    assert metrics.at_accuracy(95, mnist, affnist) == 65
    assert metrics.at_accuracy(98, mnist, affnist) == 80
    assert metrics.at_accuracy(90, mnist, affnist) == 50
    assert math.isnan(metrics.at_accuracy(80, mnist, affnist)), "the first snapshot is above it"
    assert math.isnan(metrics.at_accuracy(99, mnist, affnist)), "no snapshot reaches it"


def test_one_network_with_labels_alone_is_not_compared(results: Results) -> None:
    own = {name: seeds for name, seeds in results.own_seeds.items() if name != "supcaps"}
    variants = {name: variant for name, variant in results.paper.variants.items() if name in own}
    alone = replace(results, own_seeds=own, paper=results.paper.model_copy(update={"variants": variants}))
    assert {variant for variant, *_ in metrics.metrics(results)} == {"convnet", "supcaps"}
    assert metrics.metrics(alone) == []


def test_a_variant_may_have_seeds_of_its_own(tmp_path: Path) -> None:
    results = make(tmp_path, config(sparsecaps={"seeds": [0, 1, 2]}), seeds=(0,))
    assert [len(results.metric(name, "svm-mnist")) for name in ("sparsecaps", "dense")] == [3, 1]
    assert list(tables.table_1(results)["seeds"].dropna().astype(int).unique()) == [1, 3]
    assert set(figures.accuracy_along_training(results)[1]["seed"]) == {0, 1, 2}
