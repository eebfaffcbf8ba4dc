"""Studies: rows that vary options of a paper's variants, beside the paper's own runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
from matplotlib.figure import Figure

from recaps import io, papers
from recaps.config.load import Project, load
from recaps.config.studies import Studied, _word, held_out
from recaps.config.training import Training
from recaps.config.variant import Paper
from recaps.datasets import catalogue, preparation
from recaps.errors import UserError
from recaps.evaluation.record import MetricRow, metric_rows
from recaps.layout import Layout
from recaps.models.model import Model
from recaps.plan.jobs import Names
from recaps.plan.plan import Plan
from recaps.report import collect, draw
from recaps.report.results import Results, of_project
from recaps.training import run, saved
from recaps.training.step import fresh_model

pytestmark = pytest.mark.unit

CONFIG = papers.FOLDER.parents[2] / "config"


def project(study: dict[str, Any] | None = None, **values: Any) -> Project:
    """The project with a study `mine` at scale `smoke`."""
    studies = {} if study is None else {"mine": study}
    return load({"scale": "smoke", "papers": ["sparse"], "studies": studies, **values}, CONFIG)


def mine(study: dict[str, Any], **values: Any) -> Studied:
    return project(study, **values).studies["sparse.mine"]


# ---- Rows -----------------------------------------------------------------------------------------------------------


def test_there_is_a_row_for_each_combination() -> None:
    vary = {"training.learning_rate": [0.001, 0.0003], "model.routing.iterations": [1, 3]}
    made = mine({"of": "sparse/sparsecaps", "vary": vary})
    assert list(made.changes) == [
        f"sparsecaps-learning-rate-{rate}-iterations-{n}" for rate in ("0.001", "0.0003") for n in (1, 3)
    ]
    last = made.variants["sparsecaps-learning-rate-0.0003-iterations-3"]
    assert (last.training.learning_rate, last.model.routing.iterations) == (0.0003, 3)
    assert made.changes["sparsecaps-learning-rate-0.0003-iterations-3"] == {"learning_rate": 0.0003, "iterations": 3}
    own = project().papers["sparse"].variants["sparsecaps"]
    assert last.training == own.training.model_copy(update={"learning_rate": 0.0003})


def test_named_rows_have_their_own_variants_and_options() -> None:
    rows = {"plain": {}, "narrow": {"of": "sparse/dense", "model.conv_channels": 8, "vary": {"training.shift": [0, 1]}}}
    made = mine({"of": "sparse/sparsecaps", "rows": rows, "fixed": {"training.steps": 11}})
    assert list(made.changes) == ["sparsecaps-plain", "dense-narrow-shift-0", "dense-narrow-shift-1"]
    assert {row.training.steps for row in made.variants.values()} == {11}
    assert made.variants["dense-narrow-shift-1"].model.conv_channels == 8
    assert made.changes["dense-narrow-shift-1"] == {"variant": "Unmasked SPARSECAPS", "row": "narrow", "shift": 1}


def test_heads_latents_and_probes_are_replaced_and_their_options_merged() -> None:
    fixed = {"heads": {"svm": ["mnist"]}, "probes": {}, "latents": {"mnist-40/train": 10}}
    row = mine({"of": "sparse/sparsecaps", "fixed": {**fixed, "heads.svm.C": 3}}).variants["sparsecaps"]
    assert row.heads == {"svm": ("mnist",)}
    assert row.probes == {}
    assert row.latents == {"mnist-40/learn": 10, "mnist-40/held_out": None}
    assert row.own_heads["svm"].C == 3
    assert row.own_heads["svm"].gamma == 0.1


@pytest.mark.parametrize(
    ("study", "message"),
    [
        ({"of": "sparsecaps"}, "config: studies.mine.of: 'sparsecaps' is no paper/variant"),
        ({"of": "sparce/sparsecaps"}, "is no paper/variant (did you mean 'sparse'?)"),
        ({"of": "sparse/sparscaps"}, "studies.mine.of: there is no variant 'sparscaps' (did you mean 'sparsecaps'?)"),
        ({"of": "sparse/dense", "vary": {"training.stepps": [1]}}, "dense-stepps-1: unknown key 'training.stepps'"),
        ({"of": "sparse/dense", "vary": {"training.steps": ["many"]}}, "should be a valid integer"),
        ({"of": "sparse/dense", "vary": {"training.steps": [15, 15]}}, "two rows would be called dense-steps-15"),
        (
            {"of": "sparse/dense", "rows": {"a": {"start": "b"}, "b": {}}},
            "there is no row 'dense-b' above to start from",
        ),
        ({"of": "sparse/dense", "fixed": {"heads.smv.C": 1}}, "'dense' has no head 'smv' (did you mean 'svm'?)"),
        ({"of": "sparse/supcaps", "fixed": {"heads.svm.C": 1}}, "'supcaps' has no head 'svm'"),
        (
            {"of": "sparse/dense", "vary": {"training.steps": 11}},
            "studies.mine.vary.training.steps: Input should be a list",
        ),
        ({"of": "sparse/dense", "vary": {"training.steps": []}}, "studies.mine.vary.training.steps: "),
        ({"of": "sparse/dense", "rows": {"a": {"vary": {"training.steps": 11}}}}, "rows.a.vary.training.steps: Input"),
        ({"of": "sparse/dense", "rows": {"a": {"of": 5}}}, "studies.mine.rows.a.of"),
        ({"of": "sparse/dense", "rows": {"a": {"start": "a"}}}, "there is no row 'dense-a' above to start from"),
        ({"of": "sparse/dense", "vary": {"data": ["mnist-40"]}}, "studies.mine: dense-data-mnist-40: data: "),
        ({"of": "sparse/dense", "vary": {"latents": [5]}}, "latents: Input should be a mapping, not 5"),
        ({"of": "sparse/dense", "fixed": {"data": "mnist-40/test"}}, "data: mnist-40/test is no training split"),
        (
            {"of": "sparse/dense", "fixed": {"beside": ["dens"]}},
            "beside: there is no variant 'dens' (did you mean 'dense'?)",
        ),
        ({"of": "sparse/dense", "rows": {"a": {"seeds": "x"}}}, "studies.mine.rows.a.seeds"),
        ({"of": "sparse/dense", "vary": {"seeds": [[1], [2]]}}, "seeds is no option of a row; set the study's `seeds`"),
        (
            {"of": "sparse/dense", "rows": {"a": {"training.shift": 3}}, "vary": {"training.shift": [1, 2]}},
            "rows.a: training.shift is both set and varied",
        ),
        ({"of": "sparse/dense", "rows": {"28": {}}}, "a row would be called dense-28, as a variant is"),
        ({"of": "sparse/dense", "vary": {"model.decoder": [[9] * 200]}}, "is too long for a folder"),
        ({"of": "experts/mnist-vae"}, "studies.mine.of: the paper 'experts' is not in `papers`"),
        ({"of": "sparse/dense", "judged": "tests"}, "studies.mine.judged"),
    ],
)
def test_a_mistake_is_one_line(study: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        project(study)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_study_has_the_name_of_no_other() -> None:
    with pytest.raises(UserError, match="the paper 'sparse' has a study of this name"):
        load({"scale": "smoke", "studies": {"svm": {"of": "sparse/dense"}}}, CONFIG)


def trained(project: Project, study: str, seed: int = 0) -> dict[str, str]:
    """The run of which each row has the trained model; empty for rows that are trained."""
    plan = Plan(project)
    return {name: plan.has_model_of(names(study, name, seed)) for name in project.studies[study].variants}


def test_rows_with_the_same_training_share_its_model() -> None:
    vary = {"heads.svm.C": [1, 100], "training.shift": [6, 5]}
    assert trained(project({"of": "sparse/dense", "judged": "test", "vary": vary}), "sparse.mine") == {
        "dense-c-1-shift-6": "sparse/dense",
        "dense-c-1-shift-5": "",
        "dense-c-100-shift-6": "sparse/dense",
        "dense-c-100-shift-5": "sparse.mine/dense-c-1-shift-5",
    }
    # On held-out images, the paper's own run is another training.
    assert trained(project({"of": "sparse/dense"}), "sparse.mine") == {"dense": ""}
    # A seed that the paper's own run does not have is trained.
    both = project({"of": "sparse/dense", "judged": "test", "seeds": [0, 4]})
    assert [trained(both, "sparse.mine", seed)["dense"] for seed in (0, 4)] == ["sparse/dense", ""]
    assert Plan(both).training_inputs(names("sparse.mine", "dense", 4))["start"] == []
    # What is left out is not made, so it has no model to share.
    alone = project({"of": "sparse/dense", "judged": "test"}, only=["supcaps"])
    assert trained(alone, "sparse.mine") == {"dense": ""}


def test_studies_share_models_seed_by_seed() -> None:
    few, more = {"of": "sparse/dense", "seeds": [0]}, {"of": "sparse/dense", "seeds": [0, 1]}
    both = load({"scale": "smoke", "papers": ["sparse"], "studies": {"few": few, "more": more, "most": more}}, CONFIG)
    assert trained(both, "sparse.few") == {"dense": ""}
    assert [trained(both, "sparse.more", seed)["dense"] for seed in (0, 1)] == ["sparse.few/dense", ""]
    assert [trained(both, "sparse.most", seed)["dense"] for seed in (0, 1)] == ["sparse.few/dense", "sparse.more/dense"]
    start = {"of": "sparse/dense", "rows": {"a": {}, "b": {"start": "a"}}}
    apart = load({"scale": "smoke", "papers": ["sparse"], "studies": {"one": start, "two": start}}, CONFIG)
    assert trained(apart, "sparse.two") == {"dense-a": "sparse.one/dense-a", "dense-b": ""}


def test_a_row_may_have_its_own_seeds() -> None:
    rows = {"often": {"seeds": [0, 1, 2]}, "once": {"training.shift": 3}}
    made = project({"of": "sparse/dense", "rows": rows, "seeds": [4]})
    assert [made.seeds_of(row) for row in made.studies["sparse.mine"].variants.values()] == [(0, 1, 2), (4,)]


def test_options_of_sampling_need_no_other_training() -> None:
    vary = {"model.gaussian": ["standard", "visited"], "model.momentum": [0.9, 0.5]}
    study = {"of": "experts/mnist-experts", "judged": "test", "vary": vary}
    made = trained(load({"scale": "smoke", "studies": {"mine": study}}, CONFIG), "experts.mine")
    assert [name for name, owner in made.items() if not owner] == ["mnist-experts-gaussian-standard-momentum-0.5"]
    assert made["mnist-judge"] == "experts/mnist-judge"


def test_a_variant_beside_a_row_is_trained_on_the_same_part() -> None:
    made = load({"scale": "smoke", "studies": {"mine": {"of": "experts/mnist-vae"}}}, CONFIG).studies["experts.mine"]
    assert made.variants["mnist-judge"].data == "mnist/learn"
    assert list(made.changes) == ["mnist-vae"]


# ---- Held-out images ------------------------------------------------------------------------------------------------


def test_parts_take_the_place_of_splits() -> None:
    assert held_out("mnist/train") == "mnist/learn"
    assert held_out("mnist-40-shifted/test@early") == "mnist-40-shifted/held_out@early"
    assert held_out("affnist/test") == "affnist-generated/held_out"
    assert held_out("mnist/held_out") == "mnist/held_out"
    with pytest.raises(UserError, match="no held-out images take the place of smallnorb-48-azimuth/novel; set"):
        held_out("smallnorb-48-azimuth/novel")


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_the_parts_make_the_train_split(name: str, tmp_path: Path) -> None:
    whole, first, last = (
        preparation.build(name, split, tmp_path, stand_in=True) for split in ("train", "learn", "held_out")
    )
    assert np.array_equal(np.concatenate([first.images, last.images]), whole.images)
    assert np.array_equal(np.concatenate([first.labels, last.labels]), whole.labels)
    assert len(last) == catalogue.part_size(len(whole), "held_out") == len(whole) // 6


def test_derived_sets_are_made_of_the_parts(tmp_path: Path) -> None:
    base = preparation.build("mnist", "held_out", tmp_path, stand_in=True)
    padded = preparation.build("mnist-40", "held_out", tmp_path, stand_in=True)
    assert np.array_equal(padded.images[:, :, 6:-6, 6:-6], base.images)
    generated = preparation.build("affnist-generated", "held_out", tmp_path, stand_in=True, options={"versions": 2})
    assert np.array_equal(generated.labels, np.tile(base.labels, 2))
    assert "learn" not in catalogue.splits("affnist-generated")


def test_own_images_in_order_are_held_out_at_random(tmp_path: Path) -> None:
    labels = np.repeat(np.arange(4), 30)
    images = np.zeros((120, 28, 28), np.uint8) + labels[:, None, None].astype(np.uint8)
    np.savez(tmp_path / "mine.npz", images=images, labels=labels, test_images=images[::9], test_labels=labels[::9])
    own = {"name": "mine", "path": str(tmp_path / "mine.npz"), "size": None, "grey": False}
    own |= {"background": "white", "test_fraction": 0.2, "seed": 0}
    first, last = (
        preparation.build("mnist", split, tmp_path, stand_in=False, own=own) for split in ("learn", "held_out")
    )
    assert (len(first), len(last)) == (100, 20)
    assert len(set(last.labels.tolist())) == 4
    assert np.array_equal(last.images[:, 0, 0, 0], last.labels)


def test_protocols_and_records_read_held_out_images() -> None:
    made = project({"of": "sparse/dense"})
    resolve = made.resolver("sparse.mine")
    assert resolve("mnist-40/test") == "mnist-40/held_out"
    assert made.resolver("sparse")("mnist-40/test") == "mnist-40/test"
    plan = Plan(made)
    heads = plan.fitted_heads(names("sparse.mine", "dense"))
    assert heads["svm"]["mnist"]["protocol"]["fit"]["set"] == "mnist-40/learn"
    # 239 held-out digits in place of 360: ranges shrink with them.
    part = heads["svm"]["affnist-b"]["protocol"]["test"]
    assert (part["set"], part["start"], part["count"]) == ("affnist-generated/held_out", 478, 239)


# ---- The plan -------------------------------------------------------------------------------------------------------


def names(paper: str, variant: str, seed: int = 0) -> Any:
    return Names(scale="smoke", paper=paper, variant=variant, seed=seed)


def test_studies_of_papers_are_targets_of_their_own() -> None:
    plan = Plan(project())
    assert "sparse.svm" in plan.project.studies
    assert not [file for file in plan.everything() if "sparse.svm" in file]
    assert "results/smoke/papers/sparse.svm/table.csv" in plan.papers(plan.project.studies)
    assert "sparse.svm" in plan.patterns()["paper"].replace("\\", "").split("|")


def test_own_studies_are_made_with_everything() -> None:
    plan = Plan(project({"of": "sparse/dense", "figure": "svm-mnist"}))
    for file in ("runs/sparse.mine/dense/seed-0/numbers.csv", "papers/sparse.mine/table.md"):
        assert f"results/smoke/{file}" in plan.everything()
    assert "results/smoke/papers/sparse.mine/figure.png" in plan.figures("sparse.mine")
    assert "results/smoke/datasets/mnist-40/learn/images.npy" in plan.prepared()


def test_a_study_changes_nothing_of_its_paper() -> None:
    without, with_study = (Plan(made) for made in (project(), project({"of": "sparse/dense"})))
    for stage in ("train_variant", "read_model", "record_run", "collect_metrics", "draw_tables"):
        of_run = names("sparse", "dense")
        assert without.identity(stage)(of_run) == with_study.identity(stage)(of_run)


def test_a_row_with_the_model_of_another_needs_its_files() -> None:
    plan = Plan(project({"of": "sparse/dense", "judged": "test", "vary": {"heads.svm.C": [1, 2]}}))
    row = names("sparse.mine", "dense-c-2")
    assert plan.has_model_of(row) == "sparse/dense"
    assert plan.training_inputs(row)["start"] == plan.of_run("sparse", "dense", 0)["trained"]
    assert plan.fitted_heads(row)["svm"]["mnist"]["head"]["C"] == 2
    assert plan.training_inputs(names("sparse", "dense"))["start"] == []


def test_only_is_the_counterpart_of_without() -> None:
    made = load({"scale": "smoke", "only": ["sparse/dense", "mnist-e*"]}, CONFIG)
    assert {name: list(paper.variants) for name, paper in made.papers.items()} == {
        "consensus": ["mnist-em"],
        "experts": ["mnist-experts", "mnist-judge"],
        "sparse": ["dense"],
    }
    assert made.left_out["sparse"].reason("supcaps") == "supcaps was left out (config: without or only)"
    assert "figure-1" not in made.papers["sparse"].figures
    assert "Left out: supcaps" in made.papers["sparse"].figures["figure-3"].caption
    # Own studies are made of all that is not left out by `without`.
    both = project({"of": "sparse/convnet"}, only=["dense"])
    assert list(both.studies["sparse.mine"].variants) == ["convnet"]


@pytest.mark.parametrize("scale", ["smoke", "desk", "paper"])
def test_the_studies_of_the_papers_are_valid(scale: str) -> None:
    made = load({"scale": scale}, CONFIG)
    Plan(made)
    assert len({papers.of(name) for name in made.studies}) >= 4
    for name, study in made.studies.items():
        for variant, row in study.variants.items():
            for head, protocols in row.heads.items():
                assert study.head(variant, head)
                assert set(protocols) <= set(study.protocols), name


# ---- Training -------------------------------------------------------------------------------------------------------


def test_minutes_become_steps_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model with two phases, of 600 and 400 steps; a step takes 1/8 and 1/4 of a second."""
    clock = [0.0]

    def take_steps(model: Any, batches: Any, numbers: range) -> Iterator[None]:
        for step in numbers:
            clock[0] += 0.125 if step < 600 else 0.25
            yield

    monkeypatch.setattr(run.time, "process_time", lambda: clock[0])
    monkeypatch.setattr(run, "take_steps", take_steps)
    training = Training(steps=1000, lr_decay_steps=100, snapshots={"a": 300, "b": 900})
    file, net = tmp_path / "steps.json", SimpleNamespace(phases=lambda: {"one": 0, "two": 600})
    made = run.affordable(training, 7, lambda training: (net, None), file)  # type: ignore[arg-type, return-value]
    assert made.steps == round(60 * 7 / (0.6 * 0.125 + 0.4 * 0.25)) == 2400
    assert made.lr_decay_steps == 240
    assert made.snapshots == {"a": 720, "b": 2160}
    monkeypatch.setattr(run, "take_steps", lambda *_: pytest.fail("timed again"))
    assert run.affordable(training, 7, lambda training: (net, None), file) == made  # type: ignore[arg-type, return-value]


def test_a_model_starts_from_the_weights_that_it_shares(tmp_path: Path) -> None:
    def net(hidden: int, seed: int) -> Model:
        options = {"family": "convnet", "channels": [2, 2], "hidden": hidden}
        return fresh_model({"model": options}, (1, 28, 28), 10, seed)

    first, second = net(8, 0), net(4, 1)
    safetensors.torch.save_file(saved.weights(first), tmp_path / "model.safetensors")
    own = {name: each.clone() for name, each in second.state_dict().items()}
    saved.start_from(second, tmp_path / "model.safetensors")
    kinds = {
        name: "first" if torch.equal(each, first.state_dict().get(name, each + 1)) else "own"
        for name, each in second.state_dict().items()
        if each.shape == first.state_dict()[name].shape
    }
    assert set(kinds.values()) == {"first"}
    assert all(torch.equal(own[name], each) for name, each in second.state_dict().items() if name not in kinds)
    safetensors.torch.save_file({"other": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(UserError, match="no weights of this model"):
        saved.start_from(second, tmp_path / "other.safetensors")


def test_a_shared_model_has_the_settings_of_its_row(tmp_path: Path) -> None:
    source, out = (tmp_path / "runs" / each / "seed-0" for each in ("sparse/dense", "sparse.mine/dense-c-1"))
    for file in ("model.safetensors", "history.csv"):
        io.write_bytes(source / file, file.encode())
    io.write_json(source / "config.json", {"paper": "sparse", "variant": "dense", "model": {"samples": 1}, "seed": 0})
    io.write_json(source / "record.json", {"paper": "sparse", "variant": "dense", "steps": 3})
    run.take_over(source, {"model": {"samples": 2}}, {"paper": "sparse.mine", "variant": "dense-c-1"}, out)
    assert (out / "history.csv").read_bytes() == b"history.csv"
    record = io.read_json(out / "record.json")
    assert (record["paper"], record["variant"], record["steps"]) == ("sparse.mine", "dense-c-1", 3)
    assert record["trained"] == "sparse/dense"
    assert io.read_json(out / "config.json")["model"] == {"samples": 2}


# ---- Tables ---------------------------------------------------------------------------------------------------------


def drawn(study: dict[str, Any], rows: list[MetricRow], folder: Path) -> pd.DataFrame:
    """The table of a study whose runs have some numbers."""
    made = project(study)
    files, name = Layout(folder), "sparse.mine"
    for variant, settings in made.studies[name].variants.items():
        for seed in made.seeds_of(settings):
            place = files.run(name, variant, seed)
            own = [row for row in rows if row[:2] == (variant, seed)]
            io.write_text(place / "numbers.csv", metric_rows(own).to_csv(index=False))
            io.write_json(place / "record.json", {"steps": 30, "wall_seconds": 90 + 60 * seed})
    results = of_project(made, name, files, {})
    collect.metrics(results)
    draw.table("table", results, results.folder)
    if results.paper.figures:
        draw.figure("figure", results, results.folder, ("png",))
    return pd.read_csv(results.folder / "table.csv", dtype=str).fillna("")


def number(variant: str, metric: str, value: float, seed: int = 0, unit: str = "percent") -> MetricRow:
    return variant, seed, metric, value, float("nan"), 239, unit, "mnist-40/held_out"


def test_the_table_has_changes_means_and_costs(tmp_path: Path) -> None:
    study = {"of": "sparse/dense", "vary": {"training.shift": [6, 0]}, "seeds": [0, 1], "figure": "svm-mnist"}
    rows = [
        number("dense-shift-6", "svm-mnist", 90),
        number("dense-shift-6", "svm-mnist", 92, seed=1),
        number("dense-shift-0", "svm-mnist", 80),
        number("dense-shift-0", "svm-mnist", 80, seed=1),
        number("dense-shift-0", "support-slope", 1, unit="ratio"),
    ]
    table = drawn(study, rows, tmp_path)
    assert list(table.columns) == ["shift", "svm-mnist", "svm-mnist sd", "n", "seeds", "steps taken", "minutes taken"]
    assert table["shift"].tolist() == ["6", "0"]
    assert table["svm-mnist"].tolist() == ["91", "80"]
    assert table["svm-mnist sd"].tolist() == ["1.41421", "0"]
    assert set(table["minutes taken"]) == {"2"}
    assert set(table["n"]) == {"239"}
    points = pd.read_csv(tmp_path / "papers/sparse.mine/figure.csv")
    assert points["row"].tolist() == ["shift 6", "shift 6", "shift 0", "shift 0"]
    assert points["svm-mnist"].tolist() == [90, 92, 80, 80]


def test_a_function_of_the_paper_draws_the_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def own(results: Results) -> tuple[Figure, pd.DataFrame]:
        return Figure(), pd.DataFrame({"rows": list(results.paper.variants)})

    monkeypatch.setattr("recaps.papers.sparse.figures.own", own, raising=False)
    drawn({"of": "sparse/dense", "figure": "figures:own"}, [number("dense", "svm-mnist", 90)], tmp_path)
    assert (tmp_path / "papers/sparse.mine/figure.csv").read_text() == "rows\ndense\n"


def test_the_table_has_the_fewest_and_the_most_images(tmp_path: Path) -> None:
    few = ("dense", 0, "svm-affnist-a", 50.0, float("nan"), 102, "percent", "affnist-generated/held_out")
    assert drawn({"of": "sparse/dense"}, [number("dense", "svm-mnist", 90), few], tmp_path)["n"].tolist() == [
        "102 to 239"
    ]


def test_a_column_that_no_row_has_is_refused(tmp_path: Path) -> None:
    rows = [number("dense", "svm-mnist", 90)]
    with pytest.raises(
        UserError, match=r"sparse.mine: no row has the metric 'svm-mnits' \(did you mean 'svm-mnist'\?\)"
    ):
        drawn({"of": "sparse/dense", "columns": ["svm-mnits"]}, rows, tmp_path)


def test_variants_of_one_title_are_told_apart() -> None:
    studies = {"mine": {"of": ["consensus/mnist-em", "consensus/norb-em", "consensus/mnist-similarity"]}}
    rows = (
        load({"scale": "smoke", "papers": ["consensus"], "studies": studies}, CONFIG).studies["consensus.mine"].changes
    )
    assert [each["variant"] for each in rows.values()] == ["mnist-em", "Similarity learning", "norb-em"]


def test_values_as_parts_of_names() -> None:
    values = (-3, 3, 1e-05, None, [256, -1])
    assert [_word(value) for value in values] == ["minus-3", "3", "1e-05", "none", "256-minus-1"]


def test_studies_stay_if_a_variant_is_left_out_that_they_do_not_need() -> None:
    without = load({"scale": "smoke", "papers": ["consensus"], "without": ["consensus/norb-em"]}, CONFIG)
    assert "consensus.losses" in without.studies
    without = load({"scale": "smoke", "papers": ["consensus"], "without": ["consensus/mnist-em"]}, CONFIG)
    assert "consensus.losses" not in without.studies
    with pytest.raises(UserError, match=r"studies.mine.of: dense was left out"):
        project({"of": "sparse/dense"}, without=["sparse/dense"])
    assert list(project({"of": "sparse/dense"}, only=["supcaps"]).studies) == ["sparse.mine"]


def test_a_study_of_several_papers_becomes_one_of_each() -> None:
    study = {
        "of": ["sparse/dense", "experts/mnist-vae"],
        "rows": {"a": {}, "b": {"of": "experts/mnist-vae", "training.steps": 9}},
    }
    made = load({"scale": "smoke", "studies": {"mine": study}}, CONFIG).studies
    assert list(made["sparse.mine"].changes) == ["dense-a"]
    assert list(made["experts.mine"].changes) == ["mnist-vae-a", "mnist-vae-b"]


def test_a_paper_has_no_heads_of_its_own_for_a_variant() -> None:
    sparse: Paper = project().papers["sparse"]
    assert sparse.head("dense", "svm") == sparse.heads["svm"]


# ---- What follows from heads and protocols ---------------------------------------------------------------------------


def test_latents_are_those_that_heads_need_within_limits() -> None:
    sparse = project().papers["sparse"]
    assert sparse.variants["dense-28"].latents == {"mnist/train": 400, "mnist/test": None}
    assert sparse.variants["supcaps-28"].latents == {"mnist/test": None}, "its head is not fitted"
    part = sparse.protocols["affnist-b"].test
    assert part.end == part.start + part.count == 1080  # type: ignore[operator]
    assert sparse.protocols["affnist-a-disjoint"].fit.end is None, "digits are selected from all"  # type: ignore[union-attr]
    limited = project(overrides={"sparse": {"limits": {"*/train": 9, "mnist/train": 7}}}).papers["sparse"]
    assert limited.variants["dense-28"].latents["mnist/train"] == 7
    assert limited.variants["dense"].latents["mnist-40/train"] == 9
    more = {"variants": {"dense-28": {"latents": {"mnist/test": 5, "mnist-shifted/test": None}}}}
    own = project(overrides={"sparse": more}).papers["sparse"].variants["dense-28"].latents
    assert own == {"mnist/train": 400, "mnist/test": 5, "mnist-shifted/test": None}


def test_snapshots_are_tested_as_the_trained_model_is() -> None:
    steps = {"variants": {"dense": {"training": {"snapshots": {"early": 3, "20": 20}}}}}
    sparse = project(overrides={"sparse": steps}).papers["sparse"]
    dense = sparse.variants["dense"]
    assert {"affnist-a-early", "affnist-a-20"} <= set(dense.heads["svm"])
    early, trained = sparse.protocols["affnist-a-early"], sparse.protocols["affnist-a-trained"]
    assert early.title == f"{trained.title}, after 3 steps"
    assert early.test == trained.test.model_copy(update={"set": "affnist/test@early"})
    assert dense.latents["affnist/test@early"] == 1080
    # A row of a study may have other snapshots.
    row = mine({"of": "sparse/dense", "fixed": {"training.snapshots": [5]}}).variants["dense"]
    assert "affnist-a-5" in row.heads["svm"]
    assert "affnist-a-10" not in row.heads["svm"]


def test_a_pattern_changes_all_variants_that_match() -> None:
    changes = {"dense*": {"training": {"steps": 40}}, "dense-28": {"training": {"steps": 50}}, "*": {"seeds": [0, 3]}}
    sparse = project(overrides={"sparse": {"variants": changes}}).papers["sparse"].variants
    assert [sparse[name].training.steps for name in ("dense", "dense-queue", "dense-28", "convnet")] == [40, 40, 50, 30]
    assert {each.seeds for each in sparse.values()} == {(0, 3)}
    with pytest.raises(UserError, match=r"config: overrides.variants: no variant matches 'dens-\*'"):
        project(overrides={"sparse": {"variants": {"dens-*": {}}}})


def test_options_that_only_probes_read_are_options_of_a_family_with_such_probes() -> None:
    made = project(papers=["sparse", "probabilistic", "experts"])
    probes = {probe for paper in made.papers.values() for each in paper.variants.values() for probe in each.probes}
    for family in (type(variant.model) for paper in made.papers.values() for variant in paper.variants.values()):
        assert set(family.of_probes) <= probes
        assert {option for each in family.of_probes.values() for option in each} <= set(family.model_fields)
    capsules = made.papers["probabilistic"].variants["capsules"].model
    free = {option for option in type(capsules).model_fields if option.startswith("free_")}
    assert free | {"samples"} == capsules.unread() == capsules.unread(["templates"])
    assert capsules.unread(["templates", "free-form"]) == {"samples"}
    assert "free_rate" in capsules.unread(["samples"])
