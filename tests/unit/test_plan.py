"""The plan: which files there are, and what each depends on."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from messages import one_line

from recaps.config.load import Project, load
from recaps.datasets import catalogue
from recaps.errors import UserError
from recaps.identity import differences
from recaps.layout import DATASET_FILES, READ_FILES, RECORD_FILES, RUN_FILES
from recaps.plan import jobs
from recaps.plan.plan import Plan, growing, start

VARIANTS = ("dense", "convnet")


@pytest.fixture
def plan(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(root)

    def make(**values: Any) -> Plan:
        return Plan(load({"scale": "smoke", **values}, Path("config")))

    return make


def wildcards(**values: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"scale": "smoke", "paper": "sparse", "variant": "dense", "seed": "0", **values})


def discriminative(**values: Any) -> SimpleNamespace:
    return wildcards(**{"scale": "desk", "paper": "discriminative", "variant": "mnist-dr", **values})


def sparse(variant: str, **settings: Any) -> dict[str, Any]:
    return {"overrides": {"sparse": {"variants": {variant: settings}}}}


def dense(**settings: Any) -> dict[str, Any]:
    return sparse("dense", **settings)


def test_names_with_dashes_are_told_apart(plan: Any) -> None:
    smoke = plan()
    latents = re.compile(f"({smoke.patterns()['dataset']})-({smoke.patterns()['split']})")
    assert latents.fullmatch("mnist-40-shifted-test").groups() == ("mnist-40-shifted", "test")
    assert re.fullmatch(smoke.patterns()["scale"], "smoke")
    assert not re.fullmatch(smoke.patterns()["scale"], "desk")


def timed(networks: str | None = None, **output: Any) -> dict[str, Any]:
    """Overrides that give `sparse` a timing, and its figure 3 what is asked for."""
    timing = {"variants": ["dense", "convnet"], "rounds": 3, "batch_size": 32, "networks": networks}
    return {"overrides": {"sparse": {"timings": {"steps": timing}, "figures": {"figure-3": output}}}}


def test_every_paper_table_and_figure_is_in_the_report(plan: Any) -> None:
    smoke = plan(papers=["sparse"])
    assert "results/smoke/papers/sparse/figure-3.png" in smoke.figures()
    assert "results/smoke/papers/sparse/table-1.tex" in smoke.tables()
    measured = {file for run in smoke.runs() for file in smoke.of_run(*run)["measured"]}
    behind = {*smoke.heads(), *smoke.timings(), *smoke.records(), *measured}
    assert {*smoke.tables(), *smoke.figures(), *smoke.metrics(), *behind} <= set(smoke.papers(["sparse"]))
    assert {*smoke.models(), *smoke.latents()} <= set(smoke.papers(["sparse"])), "a lost model is made again"
    assert {*smoke.papers(["sparse"]), *smoke.prepared(), *smoke.scorecard(), smoke.report()} == set(smoke.everything())


def test_the_scorecard_needs_no_other_run_than_the_target_papers(plan: Any) -> None:
    """A stage of `dvc.yaml` owns a folder, so the stages after it must not write there."""
    desk = plan(scale="desk", studies={"rates": {"of": "sparse/dense", "vary": {"training.learning_rate": [0.1, 0.2]}}})
    assert "sparse.rates" in desk.needed()
    claimed = [study for study in desk.with_claims() if study not in desk.project.papers]
    assert "discriminative.margins" in claimed
    behind = {*desk.metrics(), *desk.behind_report()} - {*desk.scorecard()}
    beside_figures = {str(desk.files.shown(name)) for name in desk.needed()}
    assert behind <= {*desk.papers(desk.needed()), *desk.prepared(), *beside_figures}
    sets = {name for study in claimed for name in desk.sets([study])}
    assert {file for name in sets for file in desk.dataset_files(name)} <= set(desk.prepared())


def test_one_run_per_variant_and_seed(plan: Any) -> None:
    variants = sum(len(paper.variants) for paper in plan().project.papers.values())
    assert len(plan().models()) == variants
    assert len(plan(seeds=[3, 5]).models()) == 2 * variants
    assert "results/smoke/runs/sparse/dense/seed-5/model.safetensors" in plan(seeds=[3, 5]).models()


def test_only_trainings_that_evaluate_read_the_test_set(plan: Any) -> None:
    assert plan().training_inputs(wildcards())["test"] == []
    supcaps = plan(**sparse("supcaps-28", training={"evaluate_every": 5}), papers=["sparse"])
    assert supcaps.training_inputs(wildcards(variant="supcaps-28"))["test"] == [
        f"results/smoke/datasets/mnist/test/{file}" for file in DATASET_FILES
    ]
    every = plan(**sparse("dense", training={"evaluate_every": 5}, data="mnist-rotated/train"), papers=["sparse"])
    assert "results/smoke/datasets/mnist-rotated/test/record.json" in every.prepared()


def test_a_timing_reads_the_training_set_of_each_variant(plan: Any) -> None:
    smoke, names = plan(**timed()), wildcards(timing="steps")
    assert re.fullmatch(smoke.patterns()["timing"], "steps")
    assert list(smoke.timing_sets(names)) == ["convnet", "dense"]
    assert smoke.timing_sets(names)["dense"] == smoke.training_inputs(wildcards())["dataset"]
    timing = smoke.timing(names)
    assert timing["variants"]["dense"] == smoke.training(wildcards())
    assert timing == {"variants": timing["variants"], "rounds": 3, "steps": 5, "batch_size": 32}
    families = {"recaps.models.convnet", "recaps.papers.sparse.sparsecaps"}
    made = smoke.identity("time_steps")(names)
    assert {"recaps.training.timing", "recaps.training.step", *families} <= made["modules"].keys()
    assert made["settings"] == timing


def test_a_timing_may_take_the_networks_of_another_scale(plan: Any) -> None:
    smoke = plan(**timed(networks="paper"))
    of_paper = plan(scale="paper", **timed())
    timing = smoke.timing(wildcards(timing="steps"))
    made = timing["variants"]["dense"]
    assert made["model"] == of_paper.training(wildcards())["model"] != smoke.training(wildcards())["model"]
    assert made["training"] == smoke.training(wildcards())["training"]
    assert "networks" not in timing


def test_what_metrics_and_drawings_read(plan: Any) -> None:
    """The records of runs, with the results of heads, and timings."""
    smoke = plan(**timed(timings=["steps"]))
    timing = "results/smoke/papers/sparse/timings/steps.json"
    runs = {f"results/smoke/runs/sparse/{variant}/seed-0/{file}" for variant in VARIANTS for file in RECORD_FILES}
    heads = "results/smoke/runs/sparse/dense/seed-0/heads.json"
    figures = smoke.shown("sparse", smoke.project.papers["sparse"].figures.values())
    assert {timing, heads, *runs, *smoke.metrics()} - set(figures) == {
        file for file in smoke.metrics() if "/sparse/" not in file
    }
    metrics = smoke.metrics_inputs(wildcards())
    assert {timing, heads, *runs} <= set(metrics)
    assert not [file for file in (*metrics, *figures) if file.endswith((".safetensors", "latents.npz", "probes.npz"))]
    assert timing in smoke.timings()
    assert timing not in smoke.shown("sparse", smoke.project.papers["sparse"].tables.values())


def test_what_the_record_of_a_run_reads(plan: Any) -> None:
    """Its own files, the images of its sets, and the runs beside it."""
    more = dense(images=["affnist/test"], beside=["supcaps"])
    smoke = plan(**more, datasets={"affnist": "affnist-generated"}, papers=["sparse"])
    read = set(smoke.measured_inputs(wildcards()))
    files = {
        f"results/smoke/runs/sparse/{variant}/seed-0/{file}"
        for variant in ("dense", "supcaps")
        for file in (*RUN_FILES, *READ_FILES)
    }
    assert read >= files
    assert read - files == {
        "results/smoke/runs/sparse/dense/seed-0/heads.json",
        *smoke.dataset_files("affnist-generated/test"),
    }
    settings = smoke.identity("record_run")(wildcards())["settings"]
    assert list(settings["variants"]) == ["dense", "supcaps"]
    assert settings["beside"] == {"supcaps": 0}
    titled = dense(images=["affnist/test"], beside=["supcaps"], title="Other words")
    other = plan(**titled, datasets={"affnist": "affnist-generated"}, papers=["sparse"])
    assert other.identity("record_run")(wildcards())["settings"] == settings, "titles are none of them"
    alone = plan(papers=["sparse"], seeds=[0, 1], datasets={"affnist": "affnist-generated"})
    assert alone.identity("record_run")(wildcards(variant="convnet")) == smoke.identity("record_run")(
        wildcards(variant="convnet")
    )


def test_a_run_beside_another_has_the_same_seed_or_its_first(plan: Any) -> None:
    own = {"dense": {"beside": ["supcaps", "convnet"]}, "convnet": {"seeds": [0, 7]}, "supcaps": {"seeds": [0, 5]}}
    other = plan(overrides={"sparse": {"variants": own}}, papers=["sparse"])
    assert other.beside(wildcards(seed=5)) == {"supcaps": 5, "convnet": 0}
    assert other.beside(wildcards(variant="supcaps", seed=5)) == {}


def test_stand_ins_need_no_raw_files(plan: Any) -> None:
    mnist = wildcards(dataset="mnist", split="train")
    assert plan().raw_files(mnist) == []
    files = plan(scale="desk", data="elsewhere").raw_files(mnist)
    assert files == ["elsewhere/mnist/train-images-idx3-ubyte.gz", "elsewhere/mnist/train-labels-idx1-ubyte.gz"]


def test_replaced_sets_keep_their_own_names_on_disk(plan: Any) -> None:
    desk = plan(scale="desk")
    assert "results/desk/datasets/affnist-generated/test/record.json" in desk.prepared()
    assert not [file for file in desk.prepared() if "/affnist/" in file]
    protocol = desk.fitted_heads(wildcards())["svm"]["affnist-b"]["protocol"]
    assert (protocol["fit"]["set"], protocol["test"]["set"]) == ("mnist-40/train", "affnist-generated/test")
    wanted = desk.reading(wildcards())["latents"]
    assert (wanted["affnist-generated/test"], wanted["mnist-40/test"]) == (70000, None)
    assert "results/desk/datasets/affnist-generated/test/images.npy" in desk.read_sets(wildcards())


@pytest.mark.parametrize("copy", ["smallnorb-parquet", "smallnorb-zip"])
def test_what_is_derived_from_smallnorb_follows_its_copy(plan: Any, copy: str) -> None:
    desk = plan(scale="desk", datasets={"smallnorb": copy})
    prepared = {file.split("/")[3] for file in desk.prepared() if "smallnorb" in file}
    assert prepared == {f"{copy}-48", f"{copy}-48-azimuth", f"{copy}-48-elevation"}
    files = desk.raw_files(wildcards(dataset=f"{copy}-48-azimuth", split="novel"))
    assert files == [f"data/{copy}/test.{copy.removeprefix('smallnorb-')}"]
    assert desk.project.dataset("mnist-40") == "mnist-40"
    smoke = plan(datasets={"smallnorb": copy})
    options = smoke.preparation(wildcards(dataset=f"{copy}-48", split="train"))["options"]
    assert options == {"limit": 300, "average": 0}, "those of smallnorb-48 at this scale"
    without = plan(scale="desk", datasets={"smallnorb": copy}, without=[copy])
    assert not [file for file in without.prepared() if "smallnorb" in file]


def test_the_largest_number_of_images_counts_where_two_sets_have_the_same_replacement(plan: Any) -> None:
    sets = {"mnist-40/test": 50, "affnist/test": 70, "mnist-40/train": None}
    same = {"affnist": "mnist-40"}
    assert plan(**dense(latents=sets, heads={}), datasets=same).reading(wildcards())["latents"]["mnist-40/test"] == 70
    sets["mnist-40/test"] = None
    assert plan(**dense(latents=sets, heads={}), datasets=same).reading(wildcards())["latents"]["mnist-40/test"] is None


def test_heads_that_are_not_fitted_are_evaluated_when_the_model_is_read(plan: Any) -> None:
    smoke, supcaps = plan(), wildcards(variant="supcaps")
    assert smoke.reading(supcaps)["heads"]["argmax"]["mnist"]["protocol"]["fit"] is None
    assert smoke.fitted_heads(supcaps) == {}
    assert smoke.of_run("sparse", "supcaps", 0)["heads"] == []
    assert smoke.reading(wildcards())["heads"] == {}
    assert smoke.of_run("sparse", "dense", 0)["heads"] == ["results/smoke/runs/sparse/dense/seed-0/heads.json"]


def test_titles_and_descriptions_make_nothing_again(plan: Any) -> None:
    other = plan(overrides={"sparse": {"protocols": {"mnist": {"title": "Other words"}}}})
    assert other.fitted_heads(wildcards()) == plan().fitted_heads(wildcards())
    described = Plan(plan().project.model_copy(deep=True))
    described.project.scale.__dict__["description"] = "Other words"
    assert described.settings() != plan().settings()
    assert described.measured(wildcards()) == plan().measured(wildcards())
    assert Project.model_validate(described.measured(wildcards())).papers["sparse"].variants


def test_probes_read_the_test_set_of_the_training_data(plan: Any) -> None:
    assert plan().reading(wildcards())["test"] == "mnist-40/test"
    other = plan(**dense(data="mnist/train"))
    assert set(other.dataset_files("mnist/test")) <= set(other.read_sets(wildcards()))


def test_probes_are_shown_as_many_images_as_the_variant_says(plan: Any) -> None:
    assert plan().reading(wildcards())["probes"]["single-capsules"] == 32
    other = plan(**dense(probes={"single-capsules": 7}))
    assert other.reading(wildcards())["probes"] == {"single-capsules": 7}
    assert "results/smoke/runs/sparse/dense/seed-0/probes.npz" in other.measured_inputs(wildcards())


def test_a_probe_is_no_reason_to_extract_latents_again(plan: Any) -> None:
    """The code of a paper's probes counts for the probes only."""
    modules = plan().identity("read_model")(wildcards())["modules"]
    own = "recaps.papers.sparse.probes"
    assert {"recaps.evaluation.latents", "recaps.evaluation.probes", "recaps.evaluation.heads", own} <= modules.keys()
    assert own not in plan(**dense(probes={})).identity("read_model")(wildcards())["modules"]
    codes = plan().identities.read_model_codes(wildcards())
    assert codes["latents"] == plan(**dense(probes={})).identities.read_model_codes(wildcards())["latents"]
    assert codes["probes"] != plan(**dense(probes={})).identities.read_model_codes(wildcards())["probes"]


def test_what_a_training_depends_on(plan: Any) -> None:
    """Its model and training settings; neither titles nor what is evaluated afterwards, nor the machine."""
    before = plan().training(wildcards())
    assert set(before) == {"model", "training"}
    assert plan(device="cpu", mirror="elsewhere").training(wildcards()) == before
    assert plan(**dense(title="Other", probes=["single-capsules", "traversals"])).training(wildcards()) == before
    assert plan(**dense(training={"steps": 13})).training(wildcards()) != before


def test_a_run_has_one_folder_of_checkpoints_and_an_identity_for_its_settings(plan: Any) -> None:
    changes = ({}, {"device": "cpu"}, dense(training={"steps": 13}))
    assert {plan(**values).checkpoints(wildcards()) for values in changes} == {
        "results/smoke/checkpoints/sparse/dense/seed-0"
    }
    one, device, steps = (plan(**values).identity("train_variant")(wildcards()) for values in changes)
    assert one == device
    assert one["settings"] == plan().training(wildcards()) | {"seed": 0}
    assert differences(one, steps) == ["training.steps: 30 -> 13"]
    assert differences(one, plan().identity("train_variant")(wildcards(seed="1"))) == ["seed: 0 -> 1"]


def test_other_own_data_are_prepared_again(plan: Any, tmp_path: Path) -> None:
    def prepared(seed: int = 0) -> Any:
        mine = {"path": str(tmp_path / "mine.npz"), "seed": seed}
        made = plan(datasets={"mine": mine, "mnist": "mine"})
        return made.identity("prepare_dataset")(wildcards(dataset="mnist-mine", split="train"))

    arrays = {"images": np.zeros((6, 28, 28), np.uint8), "labels": np.arange(6) % 2}
    np.savez(tmp_path / "mine.npz", **arrays)
    before = prepared()
    assert differences(before, prepared()) == []
    assert differences(before, prepared(seed=1)) == ["own.seed: 0 -> 1"]
    np.savez(tmp_path / "mine.npz", **arrays, more=np.zeros(1))
    assert [line.partition(":")[0] for line in differences(before, prepared())] == ["own.state"]


def test_the_code_of_other_formats_prepares_nothing_again(plan: Any) -> None:
    def modules(name: str, **values: Any) -> set[str]:
        found = plan(**values).identity("prepare_dataset")(wildcards(dataset=name, split="train"))["modules"]
        return {each.removeprefix("recaps.datasets.") for each in found}

    assert "standin" in modules("mnist")
    assert "formats.idx" not in modules("mnist")
    assert {"formats.idx", "preparation"} <= modules("mnist", scale="desk")
    assert not {"standin", "formats.smallnorb", "derived"} & modules("mnist", scale="desk")
    assert "derived" in modules("mnist-40", scale="desk")


def test_official_files_count_by_their_digests(plan: Any) -> None:
    files = plan(scale="desk").identity("prepare_dataset")(wildcards(dataset="mnist", split="train"))["settings"][
        "files"
    ]
    assert list(files) == ["mnist/train-images-idx3-ubyte.gz", "mnist/train-labels-idx1-ubyte.gz"]
    assert all(re.fullmatch("[0-9a-f]{32,64}", digest) for digest in files.values())


def test_each_job_comes_after_those_that_make_its_inputs(plan: Any) -> None:
    smoke = plan()
    made: set[str] = set()
    for job in smoke.jobs:
        own = {file for file in job.inputs if file.startswith("src/")}
        assert set(job.inputs) - own <= made, job
        assert not made & set(job.outputs), job
        made |= set(job.outputs)
    assert set(smoke.everything()) <= made
    assert len({str(job) for job in smoke.jobs}) == len(smoke.jobs)


def test_the_jobs_that_files_need(plan: Any) -> None:
    smoke = plan(papers=["sparse"])
    of_studies = [
        job
        for job in smoke.jobs
        if job.names.get("paper") in smoke.project.studies or job.names.get("split") in catalogue.PARTS
    ]
    assert of_studies
    assert jobs.needed(smoke.jobs, smoke.everything()) == [job for job in smoke.jobs if job not in of_studies]
    assert {job.stage for job in jobs.needed(smoke.jobs, smoke.prepared())} == {"prepare_dataset"}
    assert {job.stage for job in jobs.needed(smoke.jobs, smoke.models())} == {"prepare_dataset", "train_variant"}
    file = "results/smoke/runs/sparse/dense/seed-0/numbers.csv"
    assert [str(job) for job in jobs.needed(smoke.jobs, [file]) if job.stage != "prepare_dataset"] == [
        f"{what} of sparse/dense, seed 0" for what in ("training", "latents and probes", "heads", "record")
    ]


def test_a_job_without_snakemake_is_given_what_the_rule_gives(plan: Any) -> None:
    smoke = plan(**sparse("dense", training={"evaluate_every": 0}), papers=["sparse"])
    of_stage = {job.stage: job for job in smoke.jobs if job.names.get("variant", "dense") == "dense"}
    train = jobs.as_snakemake(smoke, of_stage["train_variant"], 3)
    assert train.params.identity == smoke.identity("train_variant")(wildcards())
    assert train.params.identity["settings"] == smoke.training(wildcards()) | {"seed": 0}
    assert train.params.checkpoints == smoke.checkpoints(wildcards())
    assert (train.input.dataset, train.input.test) == (smoke.training_inputs(wildcards())["dataset"], [])
    assert train.output.model == Path("results/smoke/runs/sparse/dense/seed-0/model.safetensors")
    assert train.threads == 3
    data = jobs.as_snakemake(smoke, of_stage["prepare_dataset"])
    assert not hasattr(data.params, "checkpoints"), "it locks no run"
    record = jobs.as_snakemake(smoke, of_stage["record_run"])
    assert list(record.input.every) == smoke.measured_inputs(wildcards())
    assert record.params.beside == smoke.beside(wildcards())


def test_settings_of_a_drawing_leave_out_the_machine_and_other_papers(plan: Any) -> None:
    settings = plan(mirror="somewhere").settings("sparse")
    assert "somewhere" not in json.dumps(settings)
    assert list(settings["papers"]) == ["sparse"]
    every, one = plan(scale="desk"), plan(scale="desk", papers=["sparse"])
    assert every.project.elsewhere
    assert drawing(every, "sparse") == drawing(one, "sparse")
    assert every.measured(wildcards()) == one.measured(wildcards())


def test_what_is_left_out_is_neither_fetched_nor_made(plan: Any) -> None:
    desk = plan(scale="desk", papers=["sparse", "discriminative"], without=["cifar10"])
    files = [*desk.prepared(), *desk.models(), *desk.latents(), *desk.heads(), *desk.metrics_inputs(discriminative())]
    assert files
    assert not [file for file in files if "cifar" in file]
    assert "cifar-dr" not in desk.patterns()["variant"]
    assert not [
        file
        for file in desk.shown("discriminative", desk.project.papers["discriminative"].tables.values())
        if "cifar" in file
    ]
    assert "cifar-dr" not in desk.timing_sets(discriminative(timing="steps"))
    assert "mnist-dr" in desk.timing_sets(discriminative(timing="steps"))
    assert desk.judging(wildcards())["left_out"]["discriminative"]["variants"]["cifar-dr"] == ["cifar10"]


def test_a_set_left_out_changes_no_drawing_of_another_paper(plan: Any) -> None:
    both = {"scale": "desk", "papers": ["sparse", "discriminative"]}
    whole, partial = plan(**both), plan(**both, without=["cifar10"])
    assert drawing(partial, "sparse") == drawing(whole, "sparse")
    assert partial.settings("discriminative") != whole.settings("discriminative")
    assert list(partial.settings()["left_out"]) == ["discriminative"]
    captions = drawing(partial, "discriminative")["captions"]
    assert "Left out, as they need cifar10: cifar-dr" in captions["figure-4"]


def test_a_variant_is_left_out_by_its_name(plan: Any) -> None:
    named = ["discriminative/cifar-dr", "discriminative/mnist-l1", "sparse/supcaps-28"]
    some = plan(scale="desk", papers=["sparse", "discriminative"], without=named)
    assert not [file for file in some.models() if "cifar-dr/" in file or "/mnist-l1/" in file or "supcaps-28" in file]
    assert [file for file in some.models() if "cifar-l2-fc/" in file]
    captions = drawing(some, "discriminative")["captions"]
    assert captions["figure-4"].endswith(" Left out: mnist-l1, cifar-dr.")
    lost = some.project.left_out["discriminative"]
    assert str(lost) == "without discriminative/mnist-l1, discriminative/cifar-dr"
    assert lost.reason("cifar-dr") == "cifar-dr was left out (config: without or only)"
    assert lost.reason("mnist-dr") == ""
    both = plan(scale="desk", papers=["discriminative"], without=["cifar10", "discriminative/mnist-l1"])
    caption = drawing(both, "discriminative")["captions"]["figure-4"]
    assert "Left out, as they need cifar10: cifar-dr" in caption
    assert caption.endswith(" Left out: mnist-l1.")
    with pytest.raises(UserError, match=r"without: there is no variant 'sparse/dens' \(did you mean 'sparse/dense'"):
        plan(papers=["sparse"], without=["sparse/dens"])


def drawing(plan: Plan, paper: str, kind: str = "figures") -> dict[str, Any]:
    """The parameters of a drawing."""
    return {name: value(None) for name, value in plan.drawing(paper, kind).items()}


def test_captions_are_no_setting_of_the_metrics(plan: Any) -> None:
    changed = {"overrides": {"sparse": {"figures": {"figure-3": {"caption": "Another one."}}}}}
    assert plan().measured(wildcards()) == plan(**changed).measured(wildcards())
    assert drawing(plan(), "sparse") != drawing(plan(**changed), "sparse")
    assert drawing(plan(), "sparse", "tables") == drawing(plan(**changed), "sparse", "tables")


def test_an_incomplete_paper_is_refused_in_one_line(plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recaps.plan.checks.FOLDER", tmp_path)
    with one_line(r"claims.yaml: no such file, and the paper needs it"):
        plan(papers=["sparse"])


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("def figure_3(", "def figure_33(", r"no function figure_3 to draw 'figure-3' \(did you mean 'figure_33'\?\)"),
        ("def figure_3(", "def figure_3)", r"line \d+: "),
    ],
)
def test_a_figure_without_a_function_is_refused_in_one_line(
    plan: Any, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str, message: str
) -> None:
    shutil.copytree(root / "src/recaps/papers/sparse", tmp_path / "sparse")
    file = tmp_path / "sparse/figures.py"
    file.write_text(file.read_text().replace(before, after))
    monkeypatch.setattr("recaps.plan.checks.FOLDER", tmp_path)
    with one_line(rf"sparse/figures.py: {message}"):
        plan(papers=["sparse"])


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ("dnse", r"claims: sparse/table-1/a: there is no variant 'dnse' \(did you mean 'dense'\?\)"),
        ("supcaps", None),
        ("wide", None),
    ],
)
def test_claims_name_variants_of_the_paper(
    plan: Any, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str, message: str | None
) -> None:
    """Also those that are left out, or that there are at another scale."""
    shutil.copytree(root / "src/recaps/papers/sparse", tmp_path / "sparse")
    measure = f"measure: {{variant: {variant}, metric: b}}, published: 1, tolerance: 1"
    claim = f"  - {{id: sparse/table-1/a, kind: number, where: b, statement: c, reason: d, {measure}}}\n"
    file = tmp_path / "sparse/claims.yaml"
    file.write_text(file.read_text(encoding="utf-8").replace("\nclaims:\n", f"\nclaims:\n{claim}", 1), encoding="utf-8")
    scales = {"scales": {"paper": {"variants": {"wide": {}}}}, "variants": {"dense": {}}}
    (tmp_path / "sparse/paper.yaml").write_text(json.dumps(scales))
    monkeypatch.setattr("recaps.plan.checks.FOLDER", tmp_path)
    with pytest.raises(UserError, match=message) if message else nullcontext():
        plan(papers=["sparse"], without=["sparse/supcaps"])


def test_captions_of_stand_ins_say_so(plan: Any) -> None:
    for kind in ("tables", "figures"):
        assert all("STAND-IN" in each for each in drawing(plan(), "sparse", kind)["captions"].values())
        assert not any("STAND-IN" in each for each in drawing(plan(scale="desk"), "sparse", kind)["captions"].values())


def test_jobs_ask_for_the_gpu_that_they_will_use(plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("recaps.plan.plan.DEVICES", tmp_path)
    assert plan().gpus(wildcards()) == 0
    assert plan(device="cuda").gpus(wildcards()) == 1
    (tmp_path / "nvidia0").touch()
    assert plan().gpus(wildcards()) == 1
    assert plan(device="cpu").gpus(wildcards()) == 0
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert plan().gpus(wildcards()) == 0


def test_svms_are_fitted_in_two_threads_where_that_takes_long(plan: Any) -> None:
    assert plan(scale="desk").head_threads(wildcards()) == 2
    assert plan(scale="desk").head_threads(discriminative()) == 1, "no head is fitted"
    assert plan().head_threads(wildcards()) == 1, "stand-ins"


def test_resources_grow_with_each_attempt() -> None:
    assert [growing(4000)(None, attempt) for attempt in (1, 2, 3)] == [4000, 8000, 12000]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            dense(data="mnits-40/train"),
            "src/recaps/papers/sparse/paper.yaml: no data set 'mnits-40' (did you mean 'mnist-40'?)",
        ),
        (
            {"datasets": {"affnist": "afnist"}, "papers": ["sparse"]},
            "config: datasets: no data set 'afnist' (did you mean 'affnist'?)",
        ),
        (
            {"datasets": {"mnist": "cifar10"}},
            "config: datasets: 'cifar10' has images of 3x32x32 in 10 classes, but 'mnist' has images of 1x28x28 in 10"
            " classes; name a data set of the same shape",
        ),
        (
            sparse("supcaps", model={"capsules": 7}),
            "src/recaps/papers/sparse/paper.yaml: variants.supcaps: model.capsules: 7, but the data has 10 classes;"
            " set one capsule per class",
        ),
        (
            sparse("convnet", model={"classes": 7}),
            "src/recaps/papers/sparse/paper.yaml: variants.convnet: model.classes: 7, but the data has 10 classes",
        ),
        (
            {"studies": {"attacks": {"of": "sparse/dense"}}},
            "config: studies.attacks: sparse has a study of this name; give yours another one",
        ),
        (
            {"studies": {"mine": {"of": "sparse/dense", "measure": "attack:robustness"}}},
            "src/recaps/papers/sparse/attack.py: no such file, and the paper needs it",
        ),
        (
            {"studies": {"mine": {"of": "sparse/dense", "measure": "attacks:robust"}}},
            "src/recaps/papers/sparse/attacks.py: no function robust to measure 'robust' (did you mean 'robustness'?)",
        ),
        (
            {"studies": {"mine": {"of": "sparse/dense", "figure": "figures:figure_11"}}},
            "src/recaps/papers/sparse/figures.py: no function figure_11 to draw 'figure_11' (did you mean 'figure_1'?)",
        ),
        ({"results": "README.md"}, "config: results: README.md is a file; name a folder"),
        ({"data": "README.md/data"}, "config: data: README.md is a file; name a folder"),
    ],
)
def test_mistakes_across_files(plan: Any, values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as raised:
        plan(**values)
    assert str(raised.value) == message


def test_unknown_variant(plan: Any) -> None:
    with pytest.raises(
        UserError, match=r"^src/recaps/papers/sparse/paper\.yaml: no variant 'dens' \(did you mean 'dense'\?\)"
    ):
        plan().training_inputs(wildcards(variant="dens"))


def test_mistake_ends_the_start_in_one_line(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    with pytest.raises(SystemExit) as raised:
        start({}, [{"scale": "dsek"}], root)
    assert raised.value.code == "recaps: config: scale: there is no scale 'dsek' (did you mean 'desk'?)"
