"""Metrics, tables and figures of the comparison, from made results."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import made_results
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from made_results import CONFIG, values
from scipy import stats

from recaps import io
from recaps.config.load import load
from recaps.npz import Array
from recaps.papers.comparison import figures, metrics, tables
from recaps.report.plots import style
from recaps.report.results import Results

IMAGES, SHAPE = 20, (1, 12, 12)
#: Number of images of every test.
TESTED = 500


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return make(tmp_path_factory.mktemp("results"), seeds=(0, 1, 2))


def make(folder: Path, seeds: tuple[int, ...], added: dict[str, Any] | None = None) -> Results:
    """Measured results in which the k-th variant is k points worse than the first, with a spread over seeds."""
    chosen: dict[str, Any] = {"scale": "desk", "papers": ["comparison"]}
    changes = made_results.without_own_seeds("comparison", {"pixels": {"seeds": [0]}} | (added or {}))
    project = load(chosen | {"overrides": {"comparison": {"variants": changes}}}, CONFIG)
    results = made_results.frame(folder, project, "comparison", seeds, _run)
    variants = results.paper.variants
    place = {name: k for k, name in enumerate(variants)}
    trained = {name: float(name != "pixels") for name in variants}
    io.write_json(
        results.files.timing("comparison", "cost"),
        {
            "batch_size": {name: settings.training.batch_size for name, settings in variants.items()},
            "seconds_per_step": {name: [0.1 + place[name] / 100, 0.3 + place[name] / 100] for name in variants},
            "seconds_per_batch_of_inference": {name: [0.5, 0.5] for name in variants},
            "operations_per_image": {name: 2.5e6 * trained[name] for name in variants},
            "parameters": {name: 1234567 * trained[name] for name in variants},
        },
    )
    return made_results.measured(results)


def accuracy(results: Results, variant: str, head: str, protocol: str, seed: int) -> float:
    """The made accuracy in percent."""
    place = list(results.paper.variants).index(variant)
    kind = {"argmax": 2, "svm": 1, "linear": 0}[results.paper.heads[head].kind]
    test = list(results.paper.protocols).index(protocol)
    return 92 - place - 1.5 * test + kind + (0.5 + place / 20) * seed * (variant != "pixels")


def _run(results: Results, variant: str, model: dict[str, Any], seed: int) -> None:
    settings, run = results.paper.variants[variant], results.run(variant, seed)
    for head, protocols in settings.heads.items():
        for protocol in protocols:
            found = accuracy(results, variant, head, protocol, seed) / 100
            made_results.add_head(run, head, protocol, {"accuracy": found, "n": TESTED})
    if settings.probes:
        made_results.add_probe(run, "reconstructions", _pictures(variant, seed))


def _pictures(variant: str, seed: int) -> dict[str, Array]:
    """The classes in turn, from the third on; decoded pictures are darker by an amount that depends on the variant."""
    draw = np.random.default_rng(0)
    images = draw.random((IMAGES, *SHAPE), np.float32)
    factor = 1 - len(variant) / 100 - seed / 1000
    return {"images": images, "decoded": images * np.float32(factor), "labels": (np.arange(IMAGES) + 3) % 10}


def test_costs_are_those_of_the_timing(results: Results) -> None:
    table = results.metrics
    assert values(table, "convnet", "seconds-equal-images") == pytest.approx([500 * 0.2])
    assert values(table, "convnet", "seconds-equal-time") == pytest.approx([810 * 0.2])
    assert values(table, "em", "images-equal-images") == [64_000] == values(table, "scae", "images-equal-images")
    assert values(table, "em", "images-equal-time") == [700 * 32]
    assert values(table, "em", "images-per-second") == pytest.approx([64])
    assert values(table, "em", "operations-per-image") == [2.5e6]
    assert values(table, "pixels", "parameters") == [0]


def test_seconds_of_a_snapshot_are_those_of_its_phases() -> None:
    phases = {"a": [[0, 200, [1.0, 2.0]], [200, 800, [3.0, 5.0]]]}
    timing = {"seconds_per_step_by_phase": phases, "seconds_per_step": {"a": [2.5, 4.25]}}
    for step, seconds in ((100, [100, 200]), (250, [350, 650]), (800, [2000, 3400])):
        assert metrics.seconds_until(step, timing, "a").tolist() == seconds
    del timing["seconds_per_step_by_phase"]  # as in timings of earlier versions
    assert metrics.seconds_until(100, timing, "a").tolist() == [250, 425]


def test_all_models_see_as_many_images(results: Results) -> None:
    seen = {
        name: settings.training.batch_size * settings.training.snapshots["equal-images"]
        for name, settings in results.paper.variants.items()
        if name != "pixels"
    }
    assert set(seen.values()) == {64_000}
    paper = load({"scale": "paper", "papers": ["comparison"]}, CONFIG).papers["comparison"].variants
    assert {
        settings.training.batch_size * settings.training.snapshots["equal-images"]
        for name, settings in paper.items()
        if name != "pixels"
    } == {60 * 64_000}
    assert set(paper) - set(seen) == {"pixels"}


def test_every_head_is_tested_after_the_same_images_and_the_same_time(results: Results) -> None:
    for protocol in metrics.TESTS:
        sets = []
        for name, snapshot in ((protocol, "equal-images"), (f"{protocol}-time", "equal-time")):
            each = results.paper.protocols[name]
            pairs = [part.set.split("@") for part in (each.fit, each.test) if part]
            assert pairs
            assert {kept for _, kept in pairs} == {snapshot}
            sets.append([stem for stem, _ in pairs])
        assert sets[0] == sets[1]


def test_table_a_has_a_row_for_each_head_with_its_interval(results: Results) -> None:
    table = tables.same_images(results)
    assert list(table["model"][:4]) == ["ConvNet", "ConvNet", "SUPCAPS", "SUPCAPS"]
    assert list(table["head"][:2]) == ["none", "linear"]
    row = table[(table["model"] == "EM") & (table["head"] == "linear")].iloc[0]
    found = [accuracy(results, "em", "linear", "scaled", seed) for seed in range(3)]
    half = stats.t.ppf(0.975, 2) * np.std(found, ddof=1) / np.sqrt(3)
    assert row["scaled"] == f"{np.mean(found):.1f} ± {half:.1f}"
    assert (row["on"], row["seeds"]) == ("capsules", "3")
    pixels = table[table["model"] == "Pixels"].iloc[0]
    assert pixels["MNIST"] == f"{accuracy(results, 'pixels', 'linear', 'mnist', 0):.1f}"
    two = table[table["model"] == "Generative capsules"]
    assert list(two["on"]) == ["presence", "presence, pose"]
    assert len(table) == 2 * 7 + 9


def test_table_b_tells_images_and_seconds(results: Results) -> None:
    table = tables.same_time(results)
    row = table[table["model"] == "EM"].iloc[0]
    assert (row["images"], row["seconds"]) == ("22,400", f"{700 * 0.24:,.0f}")
    found = [accuracy(results, "em", "argmax", "noisy-time", seed) for seed in range(3)]
    assert row["noisy"].startswith(f"{np.mean(found):.1f} ±")
    assert "noisy-time" not in table


def test_few_labels_and_kernels_are_in_the_table_of_heads(results: Results) -> None:
    table = tables.heads(results).set_index(["model", "on"])
    row = table.loc[("SCAE", "presence")]
    for column, (head, protocol) in {
        "10 labels": ("linear-presence", "labels-10"),
        "1,000 labels": ("linear-presence", "labels-1000"),
        "all labels, RBF": ("rbf-presence", "mnist"),
        "affNIST, RBF": ("rbf-presence", "affnist"),
    }.items():
        found = np.mean([accuracy(results, "scae", head, protocol, seed) for seed in range(3)])
        assert row[column].startswith(f"{found:.1f} ±")
    both = table.loc[("Generative capsules", "presence, pose")]
    found = np.mean([accuracy(results, "generative", "rbf-presence-pose", "mnist", seed) for seed in range(3)])
    assert both["all labels, RBF"].startswith(f"{found:.1f} ±")


def test_the_table_of_costs(results: Results) -> None:
    row = tables.cost(results).set_index("model").loc["RBM"]
    place = list(results.paper.variants).index("rbm")
    assert row["parameters"] == "1,234,567"
    assert row["MFLOP per training image"] == 2.5
    assert row["seconds of training"] == pytest.approx(500 * (0.2 + place / 100))
    assert row["images/s in inference"] == "256"


def test_differences_are_welchs_corrected_by_holms_method(results: Results) -> None:
    table = tables.differences(results)
    minus = dict(zip(table["model"], table["minus"], strict=True))
    assert set(minus) == {settings.title for settings in results.paper.variants.values()} - {"ConvNet", "Pixels"}
    assert minus["L2"] == "ConvNet"
    assert minus["RBM"] == "Pixels"
    variants = {settings.title: name for name, settings in results.paper.variants.items()}
    found, cells = [], []
    for model, on, reference, *shown in table.itertuples(index=False):
        for test, cell in zip(tables.COMPARED, shown, strict=True):
            features = {"presence": "-presence", "presence, pose": "-presence-pose"}
            head = f"linear{features.get(on, '')}"
            ours = [accuracy(results, variants[model], head, test, seed) for seed in range(3)]
            if reference == "ConvNet":
                theirs = [accuracy(results, "convnet", "linear-hidden", test, seed) for seed in range(3)]
                found.append(stats.ttest_ind(ours, theirs, equal_var=False))
            else:  # pixels have no spread
                floor = accuracy(results, "pixels", "linear", test, 0)
                found.append(stats.ttest_1samp([each - floor for each in ours], 0))
            cells.append(cell)
    order = sorted(range(len(found)), key=lambda k: found[k].pvalue)
    corrected, largest = {}, 0.0
    for place, k in enumerate(order):
        largest = max(largest, min(1.0, (len(found) - place) * found[k].pvalue))
        corrected[k] = largest
    assert len({*corrected.values()}) >= 3  # at least two small enough not to be 1
    for k, cell in enumerate(cells):
        gap, half, p = re.fullmatch(r"([+-][\d.]+) ± ([\d.]+), p (= [\d.]+|< 0\.001)", cell).groups()  # type: ignore[union-attr]
        low, high = found[k].confidence_interval(0.95)
        assert float(gap) == pytest.approx((low + high) / 2, abs=0.051)
        assert float(half) == pytest.approx((high - low) / 2, abs=0.051)
        assert p == ("< 0.001" if corrected[k] < 0.001 else f"= {corrected[k]:.3f}")


@pytest.mark.parametrize(("lost", "left"), [("pixels", "ConvNet"), ("convnet", "Pixels")])
def test_models_without_their_reference_have_no_difference(tmp_path: Path, lost: str, left: str) -> None:
    results = make(tmp_path, (0,))
    kept = {name: settings for name, settings in results.paper.variants.items() if name != lost}
    assert len(tables.differences(results)) > len(
        table := tables.differences(replace(results, paper=results.paper.model_copy(update={"variants": kept})))
    )
    assert set(table["minus"]) == {left}


def test_one_seed_has_no_p_value(tmp_path: Path) -> None:
    table = tables.differences(make(tmp_path, seeds=(0,)))
    assert not table.map(lambda cell: "p " in str(cell) or "±" in str(cell)).any(axis=None)
    assert re.fullmatch(r"[+-]\d+\.\d", table.loc[0, "MNIST"])


def test_lines_of_the_angles_are_the_main_heads(results: Results) -> None:
    drawing, data = figures.accuracy_by_angle(results)
    assert [axis.get_title() for axis in drawing.axes] == [
        "With labels: class scores",
        "Without labels: linear heads (1)",
        "Without labels: linear heads (2)",
    ]
    line = drawing.axes[0].lines[4]
    assert line.get_label() == "EM"
    assert line.get_xdata().tolist() == [0, 45, 90, 180]
    found = np.mean([accuracy(results, "em", "argmax", "rotated-90", seed) for seed in range(3)])
    assert line.get_ydata()[2] == pytest.approx(found)
    assert len(data) == 3 * 4 * (7 + 8) + 4
    shown = [line.get_label() for axis in drawing.axes for line in axis.lines]
    assert {"Generative capsules: presence", "Generative capsules: presence, pose", "Pixels"} <= set(shown)
    for axis in drawing.axes:
        looks = [(line.get_color(), line.get_linestyle(), line.get_marker()) for line in axis.lines]
        assert len({*looks}) == len(looks)
    plt.close(drawing)


def test_points_against_seconds(results: Results) -> None:
    drawing, data = figures.affnist_by_seconds(results)
    axis = drawing.axes[0]
    filled, hollow = axis.lines[2:4]
    assert filled.get_label() == "SUPCAPS"
    assert filled.get_xdata().tolist() == pytest.approx([500 * 0.21, 480 * 0.21])
    assert hollow.get_markerfacecolor() == "white"
    assert hollow.get_xdata()[0] == pytest.approx(480 * 0.21)
    row = data[(data["variant"] == "supcaps") & (data["snapshot"] == "equal-time") & (data["seed"] == 2)].iloc[0]
    assert row["accuracy"] == pytest.approx(accuracy(results, "supcaps", "argmax", "affnist-time", 2))
    floor = drawing.axes[-1].lines[-1]
    assert floor.get_label() == "Pixels"
    assert set(floor.get_ydata()) == {accuracy(results, "pixels", "linear", "affnist", 0)}
    assert (
        floor.get_color()
        == style(len([line for line in drawing.axes[-1].lines if line.get_label()[0] != "_"]) - 1)["color"]
    )
    plt.close(drawing)


def test_the_same_pictures_of_every_model_that_decodes(results: Results) -> None:
    drawing, data = figures.reconstructions(results)
    labels = [label.get_text() for label in drawing.axes[0].get_yticklabels()]
    decoding = [name for name, settings in results.paper.variants.items() if settings.probes]
    assert labels == ["test image", *(results.paper.variants[name].title for name in decoding)]
    assert "EM" not in labels
    assert set(results.paper.figures["reconstructions"].needs) == set(decoding)
    rows = data[data["variant"] == "vae"].set_index("label")["squared_error"]
    assert sorted(rows.index) == list(range(10))
    made = _pictures("vae", 0)
    place = list(made["labels"]).index(3)
    expected = np.square(made["images"][place] - made["decoded"][place]).sum()
    assert rows[3] == pytest.approx(expected, rel=1e-5)
    plt.close(drawing)


def test_everything_is_drawn_also_with_one_seed(results: Results, tmp_path: Path) -> None:
    made_results.drawn(results, tmp_path / "three")
    made_results.drawn(make(tmp_path, seeds=(0,)), tmp_path / "one")


def test_an_added_variant_has_its_rows_and_line_without_code(tmp_path: Path) -> None:
    mine = load({"scale": "desk", "papers": ["comparison"]}, CONFIG).papers["comparison"].variants["attention"]
    mine = mine.model_copy(update={"title": "My routing", "seeds": None}).model_dump(mode="json")
    results = make(tmp_path, (0,), {"mine": mine})
    for table in (tables.same_images, tables.same_time, tables.heads, tables.cost, tables.differences):
        assert "My routing" in set(table(results)["model"])
    for figure in (figures.accuracy_by_angle, figures.affnist_by_seconds, figures.reconstructions):
        drawing, data = figure(results)
        assert "mine" in set(data["variant"])
        plt.close(drawing)


def test_columns_of_costs_have_a_unit(results: Results) -> None:
    units: pd.Series[Any] = results.metrics.groupby("metric")["unit"].agg(set)
    assert units["seconds-equal-images"] == {"seconds"}
    assert units["images-per-second"] == {"images/s"}
    assert units["parameters"] == {"count"}
