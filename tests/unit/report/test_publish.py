"""Publishing a finished run, and comparing another with it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from places import CONFIG

from recaps import npz
from recaps.cli import main
from recaps.errors import UserError
from recaps.papers import FOLDER
from recaps.report import collect, compare, draw, publish, scorecard
from recaps.report.claims import read
from recaps.report.results import Results
from recaps.report.verdicts import NOT_RUN

pytestmark = pytest.mark.unit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
#: The figures of `tree` that read no arrays.
PLAIN = ("figure-1", "accuracy-along-training", "accuracy-at-accuracy")


@pytest.fixture(autouse=True)
def drawings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw small tables and figures in place of the papers' own, which need more than `tree` has."""

    def table(results: Results) -> pd.DataFrame:
        rows = results.metrics[results.metrics["metric"] == "loss-last-fifth"]
        return rows[["variant", "seed", "value"]].reset_index(drop=True)

    def figure(name: str, results: Results) -> tuple[Figure, pd.DataFrame]:
        variants = () if name in PLAIN else results.paper.matching(results.paper.figures[name].needs)
        values = [results.arrays(variant, "values")["values"].mean() for variant in variants]
        return plt.figure(figsize=(0.2, 0.2)), pd.DataFrame({"variant": variants, "value": values})

    def function(paper: str, kind: str, name: str) -> Callable[[Results], Any]:
        return table if kind == "tables" else partial(figure, name)

    monkeypatch.setattr(draw, "_function", function)
    monkeypatch.setattr(collect, "_combined", lambda results: [])


def published(results: Any) -> Path:
    return results.root.parent / "published" / results.scale


def manifest_of(results: Any) -> Any:
    return json.loads((published(results) / "MANIFEST.json").read_text())


def page_of(results: Any) -> str:
    return (published(results) / "index.html").read_text(encoding="utf-8")


def run_publish(results: Any, *options: str) -> int:
    folders = ["--results", str(results.root.parent), "--config", str(CONFIG)]
    return publish.main(["--scale", results.scale, *folders, *options])


def try_publish(results: Any, **options: Any) -> None:
    publish.publish(results.root, published(results), CONFIG, **options)


def run_compare(results: Any) -> int:
    return main(["compare", str(results.root), str(published(results))])


def test_what_is_kept(tree: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    results = tree()
    assert run_publish(results) == 0
    target = published(results)
    manifest = manifest_of(results)
    assert capsys.readouterr().out == f"{target}: sparse; {len(manifest['files'])} files\n"
    files = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    assert files - {"MANIFEST.json"} == set(manifest["files"])
    for name, digest in manifest["files"].items():
        assert hashlib.sha256((target / name).read_bytes()).hexdigest() == digest
    run = "runs/sparse/dense/seed-1"
    assert {
        "scorecard.csv",
        "scorecard.md",
        "scorecard.png",
        "papers/sparse/metrics.csv",
        "papers/sparse/table-1.md",
    } <= files
    assert {"papers/sparse/figure-3.png", "papers/sparse/figure-4.csv"} <= files
    assert {f"{run}/record.json", f"{run}/config.json", f"{run}/heads.json", f"{run}/numbers.csv"} <= files
    assert manifest["papers"] == {"sparse": {"commits": [COMMIT], "dirty": False}}
    assert not [name for name in files if name.endswith((".safetensors", ".pdf", ".tex"))]
    assert [path.name for path in target.parent.iterdir()] == [results.scale]


def test_the_metrics_are_those_of_the_run(tree: Callable[..., Any]) -> None:
    results = tree()
    assert run_publish(results) == 0
    made, kept = (
        pd.read_csv(folder / "papers/sparse/metrics.csv").sort_values(["variant", "seed", "metric"], ignore_index=True)
        for folder in (results.root, published(results))
    )
    pd.testing.assert_frame_equal(made, kept[list(made)])


def test_arrays_are_those_of_the_lowest_seed_that_has_them(tree: Callable[..., Any]) -> None:
    results = tree(seeds=(2, 10))
    (results.run("dense", 2) / "arrays.npz").unlink()
    with pytest.raises(UserError, match="dense/seed-2: in the metrics of sparse, but not a finished run"):
        try_publish(results)
    shutil.rmtree(results.root)
    results = tree(seeds=(2, 10))
    try_publish(results)
    arrays = {path.parent.name for path in published(results).rglob("arrays.npz")}
    assert arrays == {"seed-2"}
    (published(results) / "runs/sparse/dense/seed-2/arrays.npz").unlink()
    shutil.rmtree(results.root)
    results = tree(seeds=(10, 11))
    try_publish(results)
    dense = published(results) / "runs/sparse/dense"
    assert [path.parent.name for path in dense.rglob("arrays.npz")] == ["seed-10"]
    assert {path.parent.name for path in published(results).rglob("arrays.npz")} == {"seed-2", "seed-10"}


def test_a_caption_names_the_seeds_that_its_picture_shows(tree: Callable[..., Any]) -> None:
    results = tree(seeds=(0,))
    try_publish(results)
    for variant in ("dense", "sparsecaps"):
        (published(results) / f"runs/sparse/{variant}/seed-0/arrays.npz").unlink()
    shutil.rmtree(results.root)
    results = tree(seeds=(1,))
    try_publish(results)
    paper = results.project.papers["sparse"]
    (caption,) = re.findall(r'id="sparse-figure-3".*?<figcaption>(.*?)</figcaption>', page_of(results), re.DOTALL)
    titles = [paper.variants[variant].title for variant in paper.variants if variant in ("dense", "sparsecaps")]
    assert f" Shown: seed 0; {titles[0]} seed 1; {titles[1]} seed 1." in caption.replace("&gt;", ">")
    (other,) = re.findall(r'id="sparse-figure-1".*?<figcaption>(.*?)</figcaption>', page_of(results), re.DOTALL)
    assert "Shown" not in other
    data = pd.read_csv(published(results) / "papers/sparse/figure-3.csv").set_index("variant")["value"]
    assert data[["dense", "sparsecaps", "supcaps"]].tolist() == [1, 1, 0]


def test_a_picture_whose_runs_lack_arrays_is_kept_and_listed(
    tree: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    results = tree(seeds=(0,))
    try_publish(results)
    paper, target = results.project.papers["sparse"], published(results)
    having = [name for name, figure in paper.figures.items() if "supcaps" in paper.matching(figure.needs)]
    kept = sorted(set(having) - set(PLAIN))
    assert kept
    before = {name: (target / f"papers/sparse/{name}.png").read_bytes() for name in paper.figures}
    (target / f"papers/sparse/{kept[0]}.png").write_bytes(before[kept[0]] + b"marked")
    (target / "papers/sparse/figure-5.png").write_bytes(b"drawn again")
    (target / "runs/sparse/supcaps/seed-0/arrays.npz").unlink()
    assert run_publish(results, "--draw") == 0
    assert manifest_of(results)["papers"]["sparse"]["kept"] == kept
    assert (
        f"sparse: pictures that cannot be drawn again until their runs are made anew: {', '.join(kept)}\n"
        in capsys.readouterr().out
    )
    after = {name: (target / f"papers/sparse/{name}.png").read_bytes() for name in paper.figures}
    assert after == {**before, kept[0]: before[kept[0]] + b"marked"}
    page = page_of(results)
    assert page.count(publish.KEPT) == len(kept)
    (caption,) = re.findall(rf'id="sparse-{kept[0]}".*?<figcaption>(.*?)</figcaption>', page, re.DOTALL)
    assert f"{publish.KEPT} Shown: seed 0." in caption
    assert run_publish(results) == 0
    assert "kept" not in manifest_of(results)["papers"]["sparse"]
    assert publish.KEPT not in page_of(results)


def test_a_figure_that_cannot_be_drawn_and_never_was_is_missing(tree: Callable[..., Any]) -> None:
    results = tree(seeds=(0,))
    try_publish(results)
    for file in published(results).rglob("figure-3.*"):
        file.unlink()
    (published(results) / "runs/sparse/supcaps/seed-0/arrays.npz").unlink()
    assert run_publish(results, "--draw") == 0
    title = results.project.papers["sparse"].figures["figure-3"].title
    assert f"Not made in this run: {title}</p>" in page_of(results)


def test_new_seeds_join_those_that_are_there(tree: Callable[..., Any]) -> None:
    first = tree(seeds=(0, 1))
    try_publish(first)
    before = manifest_of(first)["files"]
    shutil.rmtree(first.root)
    second = tree(seeds=(2,))
    try_publish(second)
    files = manifest_of(second)["files"]
    of_runs = {name: digest for name, digest in before.items() if name.startswith("runs/")}
    assert of_runs.items() <= files.items()
    assert "runs/sparse/dense/seed-2/numbers.csv" in files
    metrics = pd.read_csv(published(second) / "papers/sparse/metrics.csv")
    assert len(metrics) == 3 * len(second.metrics())
    assert sorted(set(metrics["seed"])) == [0, 1, 2]
    card = scorecard.load(published(second) / "scorecard.csv").set_index("id")
    assert card.loc["sparse/table-1/sparsecaps-affnist-a", "seeds"] == 3
    assert '<a href="runs/sparse/dense/seed-2/record.json">2</a>' in page_of(second)


def test_a_run_that_is_published_again_replaces_the_old_one(tree: Callable[..., Any]) -> None:
    results = tree(seeds=(0, 1))
    try_publish(results)
    (published(results) / "runs/sparse/dense/seed-1/scores.json").write_text("{}")
    file = results.run("dense", 1) / "numbers.csv"
    file.write_text(file.read_text().replace("loss-last-fifth,2.", "loss-last-fifth,7."))
    assert "loss-last-fifth,7." in file.read_text()
    results.sign()
    try_publish(results)
    metrics = pd.read_csv(published(results) / "papers/sparse/metrics.csv").set_index(["variant", "seed", "metric"])
    assert 7.4 < metrics.loc[("dense", 1, "loss-last-fifth"), "value"] < 7.6
    assert 2.4 < metrics.loc[("dense", 0, "loss-last-fifth"), "value"] < 2.6
    assert not (published(results) / "runs/sparse/dense/seed-1/scores.json").exists()


def test_a_timing_is_replaced_by_one_of_all_its_variants(tree: Callable[..., Any]) -> None:
    results = tree(seeds=(0,), paper="discriminative")
    new = results.papers / "timings/steps.json"
    kept = published(results) / "papers/discriminative/timings/steps.json"
    timing = json.loads(new.read_text())
    for seconds, stays in (({"mnist-dr": [1], "mnist-l2": [2]}, False), ({"mnist-dr": [3]}, True)):
        new.write_text(json.dumps({**timing, "seconds_per_step": seconds}))
        try_publish(results)
        assert (kept.read_text() == new.read_text()) is not stays
    assert json.loads(kept.read_text())["seconds_per_step"] == {"mnist-dr": [1], "mnist-l2": [2]}


def _train_longer(folder: Path, variant: str = "dense", seed: int = 0) -> None:
    """Change the number of steps in the settings of a run."""
    file = folder / f"runs/sparse/{variant}/seed-{seed}/config.json"
    config = json.loads(file.read_text())
    config["training"]["steps"] += 1
    file.write_text(json.dumps(config))


@pytest.mark.parametrize("file", ["config.json", "record.json", "heads.json", "numbers.csv", "history.csv"])
def test_an_edited_run_is_refused(tree: Callable[..., Any], file: str) -> None:
    results = tree(seeds=(0,))
    path = results.run("dense", 0) / file
    path.write_text(path.read_text().replace("1", "2", 1))
    with pytest.raises(UserError, match=rf"{file}: changed since it was made"):
        try_publish(results)
    assert not published(results).exists()


@pytest.mark.parametrize(
    ("stage", "where", "what"),
    [
        ("config.json", ("settings", "training", "steps"), r"training of .*, seed 0: training.steps: 7 -> \d+"),
        ("config.json", ("modules", "recaps.nn.losses"), "training of sparse/dense, seed 0: recaps.nn.losses changed"),
        (
            "heads.json",
            ("settings", "svm", "mnist", "head", "C"),
            r"heads of sparse/dense, seed 0: svm.mnist.head.C: 7(\.0)? -> ",
        ),
        ("heads.json", ("data", "runs/sparse/dense/seed-0/latents.npz"), "latents.npz changed"),
    ],
)
def test_what_differs_from_the_plan_is_refused(
    tree: Callable[..., Any], stage: str, where: tuple[str, ...], what: str
) -> None:
    results = tree(seeds=(0,))
    receipt = results.run("dense", 0) / ".made" / f"{stage}.json"
    about = json.loads(receipt.read_text())
    part = about["identity"]
    for key in where[:-1]:
        part = part[key]
    assert where[-1] in part
    part[where[-1]] = 7 if where[0] == "settings" else "7" * 16
    receipt.write_text(json.dumps(about))
    with pytest.raises(UserError, match=rf"{what}.*; run it again, or move this folder away"):
        try_publish(results)
    shutil.rmtree(receipt.parent)
    with pytest.raises(UserError, match="nothing says what made it"):
        try_publish(results)
    assert not published(results).exists()


def test_published_runs_of_other_settings_stay_and_are_named(
    tree: Callable[..., Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tree(seeds=(0,))
    try_publish(results)
    before = (published(results) / "papers/sparse/metrics.csv").read_bytes()
    _train_longer(published(results))
    assert run_publish(results, "--draw") == 0
    assert (published(results) / "papers/sparse/metrics.csv").read_bytes() == before
    assert manifest_of(results)["papers"]["sparse"]["other_settings"] == ["runs/sparse/dense/seed-0"]
    sentence = "rained or measured with other settings than today: runs/sparse/dense/seed-0"
    assert f"sparse: t{sentence}\n" in capsys.readouterr().out
    assert f"<li>T{sentence}.</li>" in page_of(results)
    # An option that no probe of the variant reads does not count.
    sparsecaps = results.project.papers["sparse"].variants["sparsecaps"]
    config = published(results) / "runs/sparse/sparsecaps/seed-0/config.json"
    before_change = config.read_text()
    settings = json.loads(before_change)
    settings["model"]["mask_floor"] += 0.1
    config.write_text(json.dumps(settings))
    for probe, named in (("of no variant", 1), (next(iter(sparsecaps.probes)), 2)):
        monkeypatch.setattr(type(sparsecaps.model), "of_probes", {probe: ("mask_floor",)})
        assert run_publish(results, "--draw") == 0
        assert len(manifest_of(results)["papers"]["sparse"]["other_settings"]) == named
    config.write_text(before_change)
    shutil.rmtree(results.root)
    with pytest.raises(UserError, match="sparse/dense: the published seed-0 was trained with other settings"):
        try_publish(tree(seeds=(1,)))
    shutil.rmtree(results.root)
    try_publish(tree(seeds=(0,)))
    assert "other_settings" not in manifest_of(results)["papers"]["sparse"]


def test_runs_before_identities_are_counted(tree: Callable[..., Any]) -> None:
    results = tree(seeds=(0, 1))
    file = results.run("dense", 0) / "record.json"
    try_publish(results)
    assert "before identities" not in page_of(results)
    file.write_text(json.dumps({**json.loads(file.read_text()), "origin": "before identity"}))
    results.sign()
    try_publish(results)
    runs = 2 * len(results.project.papers["sparse"].variants)
    assert f"<li>1 of {runs} runs were made before identities were recorded.</li>" in page_of(results)


def test_the_page_links_to_the_files_beside_it(tree: Callable[..., Any]) -> None:
    results = tree()
    assert run_publish(results) == 0
    page = (published(results) / "index.html").read_text(encoding="utf-8")
    targets = {target for target in re.findall(r'(?:href|src)="([^"#]+)"', page) if not target.startswith("http")}
    assert targets
    missing = [each for each in targets if not each.startswith("..") and not (published(results) / each).is_file()]
    assert missing == []
    assert "../../../src/recaps/papers/sparse/README.md" in targets
    assert "papers/sparse/figure-3.png" in targets
    assert "runs/sparse/dense/seed-0/record.json" in targets
    assert "base64" not in page


def test_the_page_names_the_data_that_was_used(tree: Callable[..., Any]) -> None:
    """As the records have it: the configuration of the run is not known."""
    sentence = "The set affnist was replaced by affnist-generated, which the papers did not use"
    results = tree(seeds=(0,))
    assert run_publish(results) == 0
    assert sentence in page_of(results)
    shutil.rmtree(results.root)
    official = tree(seeds=(0,), datasets={"affnist": "affnist"})
    assert run_publish(official) == 0
    assert sentence not in page_of(official)
    assert "other_settings" not in manifest_of(official)["papers"]["sparse"]


def test_a_history_is_thinned(tree: Callable[..., Any]) -> None:
    results = tree(seeds=(0,))
    file = results.run("dense", 0) / "history.csv"
    pd.DataFrame({"step": range(1000), "loss": 1.0}).to_csv(file, index=False)
    results.sign()
    assert run_publish(results) == 0
    history = pd.read_csv(published(results) / file.relative_to(results.root))
    steps = history["step"].tolist()
    assert steps[:100] == list(range(100)), "the first tenth is whole"
    assert len(steps) == 100 + publish.MOST_ROWS
    assert steps[-1] == 999


def test_a_history_keeps_its_test_errors(tree: Callable[..., Any]) -> None:
    results = tree(seeds=(0,))
    file = results.run("dense", 0) / "history.csv"
    history = pd.DataFrame({"step": range(1, 1001), "loss": 1.0})
    history["test_error"] = [float(step) if step % 50 == 0 else None for step in history["step"]]
    history.to_csv(file, index=False)
    results.sign()
    assert run_publish(results) == 0
    kept = pd.read_csv(published(results) / file.relative_to(results.root))
    assert kept["test_error"].dropna().tolist() == list(range(50, 1001, 50))
    assert kept["step"].iloc[:100].tolist() == list(range(1, 101)), "the first tenth is whole"
    assert len(kept) == 100 + 18 + publish.MOST_ROWS
    assert kept["step"].is_monotonic_increasing
    shutil.copyfile(published(results) / file.relative_to(results.root), file)
    results.sign()
    assert run_publish(results) == 0
    assert pd.read_csv(published(results) / file.relative_to(results.root)).equals(kept), "thinned twice"


def test_a_history_has_six_digits(tree: Callable[..., Any]) -> None:
    results = tree(seeds=(0,))
    file = results.run("dense", 0) / "history.csv"
    file.write_text("step,loss,test_error\n12345678,0.123456789012345,\n12345679,1e-09,2.5\n")
    results.sign()
    assert run_publish(results) == 0
    kept = (published(results) / file.relative_to(results.root)).read_text()
    assert kept == "step,loss,test_error\n12345678,0.123457,\n12345679,1e-09,2.5\n"


def test_one_paper_leaves_the_others_as_they_are(tree: Callable[..., Any]) -> None:
    results = tree(seeds=(0,))
    assert run_publish(results) == 0
    before = manifest_of(results)["files"]
    (results.papers / "metrics.csv").write_text("spoilt\n")
    other = tree(seeds=(0,), paper="discriminative", dirty=True)
    assert run_publish(other, "--papers", "discriminative", "--allow-dirty") == 0
    manifest = manifest_of(other)
    assert manifest["papers"] == {
        "discriminative": {"commits": [COMMIT, "fedcba98"], "dirty": True},
        "sparse": {"commits": [COMMIT], "dirty": False},
    }
    sparse = {name: digest for name, digest in before.items() if not name.startswith(("scorecard", "index"))}
    assert sparse.items() <= manifest["files"].items()
    assert "papers/discriminative/timings/steps.json" in manifest["files"]


def test_a_study_is_published_beside_its_paper(tree: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    results = tree(seeds=(0,))
    assert run_publish(results) == 0
    before = manifest_of(results)["files"]
    study = tree(seeds=(0,), paper="sparse.convnets")
    assert run_publish(study, "--papers", "sparse.convnets") == 0
    assert "sparse, sparse.convnets" in capsys.readouterr().out
    files = manifest_of(study)["files"]
    assert "papers/sparse.convnets/table.csv" in files
    assert "runs/sparse.convnets/convnet-as-it-is/seed-0/record.json" in files
    assert {name: digest for name, digest in before.items() if not name.startswith(("index", "papers"))}.items() <= (
        files.items()
    ), "the scorecard and the paper's runs are as before"
    page = page_of(study)
    assert 'id="paper-sparse.convnets"' in page
    readmes = re.findall(r'href="../../../(src/[^"#]*README.md)"', page)
    assert readmes == ["src/recaps/papers/sparse/README.md"] * 2
    assert "without" not in manifest_of(study)["papers"]["sparse.convnets"]
    # A row that has not run yet is named.
    shutil.rmtree(published(study) / "runs/sparse.convnets/convnet-as-it-is")
    assert run_publish(study, "--draw") == 0
    assert "sparse.convnets (without sparse.convnets/convnet-as-it-is)" in capsys.readouterr().out
    assert "Made without sparse.convnets/convnet-as-it-is." in page_of(study)
    assert run_publish(study, "--papers", "sparse.convnets") == 0
    shutil.rmtree(published(study) / "runs/sparse.convnets")
    shutil.rmtree(study.run("convnet-as-it-is", 0))
    frame = study.metrics()
    frame[frame["variant"] != "convnet-as-it-is"].to_csv(study.papers / "metrics.csv", index=False)
    assert run_publish(study, "--papers", "sparse.convnets") == 0
    assert "sparse.convnets (without sparse.convnets/convnet-as-it-is)" in capsys.readouterr().out
    # A figure may compare rows, so it needs all.
    drawn = tree(seeds=(0,), paper="experts.axes")
    shutil.rmtree(drawn.run("mnist-experts-outputs", 0))
    frame = drawn.metrics()
    frame[frame["variant"] != "mnist-experts-outputs"].to_csv(drawn.papers / "metrics.csv", index=False)
    assert run_publish(drawn, "--papers", "experts.axes") == 1
    assert "no run of experts.axes/mnist-experts-outputs" in capsys.readouterr().err
    # Rows that are no more are refused when the record is drawn again.
    (published(study) / "runs/sparse.convnets").rename(published(study) / "runs/sparse.pools")
    assert run_publish(study, "--draw") == 1
    assert "sparse.pools: published, but there is no such study" in capsys.readouterr().err


def test_the_scorecard_is_that_of_all_published_papers(tree: Callable[..., Any]) -> None:
    """Each paper's rows are the same as when it was published alone."""
    first = tree(seeds=(0,))
    assert run_publish(first) == 0
    alone = scorecard.load(published(first) / "scorecard.csv")
    shutil.rmtree(first.root)
    other = tree(seeds=(0,), paper="discriminative")
    assert run_publish(other) == 0
    card = scorecard.load(published(other) / "scorecard.csv")
    pd.testing.assert_frame_equal(card[card["paper"] == "sparse"].reset_index(drop=True), alone)
    files = [FOLDER / paper / "claims.yaml" for paper in ("discriminative", "sparse")]
    claims = [claim.id for file in files for claim in read(file)]
    assert card["id"].tolist() == claims


def test_drawing_again_copies_nothing(tree: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    results = tree(seeds=(0,))
    assert run_publish(results, "--draw") == 1
    assert re.match(r"recaps: .*no published paper", capsys.readouterr().err)
    assert run_publish(results) == 0
    before = manifest_of(results)
    shutil.rmtree(results.root)
    card, metrics = published(results) / "scorecard.csv", published(results) / "papers/sparse/metrics.csv"
    card.write_text(card.read_text().replace("reproduced", "changed"))
    metrics.write_text("not read\n")
    for file in published(results).glob("papers/sparse/*.png"):
        file.write_bytes(b"not read")
    assert run_publish(results, "--draw") == 0
    assert manifest_of(results) == before
    for name, digest in before["files"].items():
        assert hashlib.sha256((published(results) / name).read_bytes()).hexdigest() == digest


def test_a_paper_that_is_not_there(tree: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    results = tree(seeds=(0,))
    assert run_publish(results, "--papers", "spars") == 1
    assert "no finished paper 'spars' (did you mean 'sparse'?)" in capsys.readouterr().err


def test_publishing_again_replaces_everything(tree: Callable[..., Any]) -> None:
    results = tree(seeds=(0,))
    assert run_publish(results) == 0
    stale = published(results) / "papers" / "sparse" / "stale.png"
    stale.write_bytes(b"old")
    first = (published(results) / "MANIFEST.json").read_text()
    assert run_publish(results) == 0
    assert not stale.exists()
    assert (published(results) / "MANIFEST.json").read_text() == first
    assert len(list(published(results).parent.iterdir())) == 1


@pytest.mark.parametrize("fails", ["copyfile", "replace"])
def test_a_record_that_cannot_be_written_is_unchanged(
    tree: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """Whether the disk is full while the new record is built, or when it takes the place of the old one."""
    results = tree(seeds=(0,))
    assert run_publish(results) == 0
    folder = published(results).parent
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    module = {"copyfile": shutil, "replace": os}[fails]
    plain, moved = getattr(module, fails), list[Path]()

    def full(source: Any, target: Any, **options: Any) -> Any:
        moved.append(Path(target))
        if fails == "copyfile" or (Path(target) == published(results) and moved.count(Path(target)) == 1):
            raise OSError(errno.ENOSPC, "No space left on device")
        return plain(source, target, **options)

    monkeypatch.setattr(module, fails, full)
    with pytest.raises(UserError, match=r"desk: cannot be written \(.*No space left.*\); it is unchanged"):
        try_publish(results)
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


def test_stand_ins_are_never_published(tree: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    results = tree("smoke", stand_in=True)
    assert run_publish(results, "--allow-dirty") == 1
    assert "stand-in data, which is never published" in capsys.readouterr().err
    assert not published(results).exists()


def test_dirty_runs_need_consent(tree: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    results = tree(dirty=True)
    assert run_publish(results) == 1
    assert "uncommitted changes" in capsys.readouterr().err
    assert run_publish(results, "--allow-dirty") == 0
    assert manifest_of(results)["papers"]["sparse"]["dirty"] is True


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("papers/sparse/metrics.csv", "no finished paper"),
        ("runs/sparse/dense/seed-0/record.json", "dense/seed-0: in the metrics of sparse, but not a finished run"),
        ("runs/sparse/dense/seed-0/numbers.csv", "dense/seed-0: in the metrics of sparse, but not a finished run"),
    ],
)
def test_unfinished_runs_are_refused(tree: Callable[..., Any], missing: str, message: str) -> None:
    results = tree(seeds=(0,))
    assert run_publish(results) == 0
    before = (published(results) / "MANIFEST.json").read_text()
    (results.root / missing).unlink()
    with pytest.raises(UserError, match=message):
        try_publish(results)
    assert (published(results) / "MANIFEST.json").read_text() == before


def test_a_run_in_training_is_left_for_later(tree: Callable[..., Any]) -> None:
    results = tree(seeds=(0, 1))
    frame = results.metrics()
    frame[frame["seed"] == 0].to_csv(results.papers / "metrics.csv", index=False)
    (results.run("dense", 1) / "numbers.csv").unlink()
    try_publish(results)
    runs = {path.parent.relative_to(published(results)).as_posix() for path in published(results).rglob("record.json")}
    assert "runs/sparse/dense/seed-1" not in runs
    assert {"runs/sparse/dense/seed-0", "runs/sparse/supcaps/seed-1"} <= runs


def test_a_variant_without_runs_is_refused(tree: Callable[..., Any]) -> None:
    results = tree(seeds=(0,), paper="discriminative")
    frame = results.metrics()
    frame[frame["variant"] != "fashion-l1"].to_csv(results.papers / "metrics.csv", index=False)
    shutil.rmtree(results.run("fashion-l1", 0))
    with pytest.raises(
        UserError, match="no run of discriminative/fashion-l1; if it was left out, name it or its data set"
    ):
        try_publish(results)


FASHION = ["fashion-dr", "fashion-l1", "fashion-l1-fc", "fashion-l2", "fashion-l2-fc"]


def test_a_paper_without_a_data_set(tree: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    results = tree(seeds=(0,), paper="discriminative", without=("fashion-mnist",))
    assert run_publish(results) == 1
    assert "no run of discriminative/fashion-dr" in capsys.readouterr().err
    assert run_publish(results, "--without", "fashion-mnist") == 0
    assert "discriminative (without fashion-mnist); " in capsys.readouterr().out
    manifest = manifest_of(results)
    without = manifest["papers"]["discriminative"]["without"]
    assert without["sets"] == ["fashion-mnist"]
    assert sorted(without["variants"]) == FASHION
    assert list(without["outputs"]) == ["figure-2"]
    card = scorecard.load(published(results) / "scorecard.csv")
    lost = card[card["how"].str.contains("fashion-dr was left out: it needs fashion-mnist")]
    assert set(lost["verdict"]) == {NOT_RUN}
    assert "Made without fashion-mnist" in (published(results) / "scorecard.md").read_text()


def test_a_paper_without_a_variant(tree: Callable[..., Any]) -> None:
    name = "discriminative/fashion-l1"
    first = tree(seeds=(0,), paper="discriminative", without=(name,))
    with pytest.raises(UserError, match="no run of discriminative/fashion-l1; if it was left out, name it"):
        try_publish(first)
    try_publish(first, without=[name])
    assert manifest_of(first)["papers"]["discriminative"]["without"]["named"] == [name]
    assert "fashion-l1 was left out (config: without or only)" in (published(first) / "scorecard.csv").read_text()


def test_what_an_earlier_run_left_behind_is_not_published(tree: Callable[..., Any]) -> None:
    results = tree(seeds=(0,), paper="discriminative")
    try_publish(results, without=["fashion-mnist"])
    assert (results.papers / "figure-2.png").exists()
    assert results.run("fashion-dr", 0).exists()
    files = manifest_of(results)["files"]
    assert "papers/discriminative/figure-3.png" in files
    assert not [name for name in files if "fashion" in name or "figure-2" in name]


def test_published_variants_cannot_be_left_out(tree: Callable[..., Any]) -> None:
    results = tree(seeds=(0,), paper="discriminative")
    try_publish(results)
    with pytest.raises(UserError, match="discriminative/fashion-dr is published; to keep it, remove it or its data"):
        try_publish(results, without=["fashion-mnist"])
    with pytest.raises(UserError, match="there is no variant 'discrimnative/fashion-dr'"):
        try_publish(results, without=["discrimnative/fashion-dr"])


def test_variants_that_are_newer_than_the_record_are_left_out(tree: Callable[..., Any]) -> None:
    results = tree(seeds=(0,), paper="discriminative")
    try_publish(results)
    shutil.rmtree(published(results) / "runs/discriminative/fashion-l1")
    assert run_publish(results, "--draw") == 0
    assert manifest_of(results)["papers"]["discriminative"]["without"]["named"] == ["discriminative/fashion-l1"]
    assert "fashion-l1 was left out" in (published(results) / "scorecard.csv").read_text()


def test_what_a_paper_goes_without_stays_in_the_record(tree: Callable[..., Any]) -> None:
    """It stays when another paper is published later."""
    first = tree(seeds=(0,), paper="discriminative", without=("fashion-mnist",))
    try_publish(first, without=["fashion-mnist"])
    before = manifest_of(first)["papers"]["discriminative"]
    alone = scorecard.load(published(first) / "scorecard.csv")
    paragraph = re.search("Made without.*", (published(first) / "scorecard.md").read_text())
    shutil.rmtree(first.root)
    other = tree(seeds=(0,))
    assert run_publish(other) == 0
    assert manifest_of(other)["papers"]["discriminative"] == before
    assert "without" not in manifest_of(other)["papers"]["sparse"]
    card = scorecard.load(published(other) / "scorecard.csv")
    kept = card[card["paper"] == "discriminative"].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, alone)
    assert paragraph
    assert paragraph[0] in (published(other) / "scorecard.md").read_text()


def test_a_whole_paper_takes_the_place_of_a_partial_one(tree: Callable[..., Any]) -> None:
    partial = tree(seeds=(0,), paper="discriminative", without=("fashion-mnist",))
    try_publish(partial, without=["fashion-mnist"])
    shutil.rmtree(partial.root)
    whole = tree(seeds=(0,), paper="discriminative")
    try_publish(whole)
    assert "without" not in manifest_of(whole)["papers"]["discriminative"]
    assert "Made without" not in (published(whole) / "scorecard.md").read_text()


@pytest.mark.parametrize("partial_side", ["yours", "published"])
def test_a_whole_run_beside_a_partial_one(tree: Callable[..., Any], partial_side: str) -> None:
    without = {"yours": (), "published": (), partial_side: ("fashion-mnist",)}
    theirs = tree(seeds=(0,), paper="discriminative", without=without["published"])
    try_publish(theirs, without=without["published"])
    shutil.rmtree(theirs.root)
    yours = tree(seeds=(0,), paper="discriminative", without=without["yours"])
    table = compare.compare(yours.root, published(yours)).set_index("metric")["finding"]
    only = compare.only(yours.root if partial_side == "published" else published(yours))
    of_fashion = table.index.str.contains("/fashion-")
    assert (table[of_fashion] == only).all()
    assert (table[~of_fashion] == compare.SAME).all()
    assert 0 < of_fashion.sum() < len(table)


def test_a_record_too_large_for_git_is_refused(tree: Callable[..., Any]) -> None:
    results = tree(seeds=(0,))
    noise = np.random.default_rng(0).bytes(publish.MOST_BYTES + 1)
    arrays = {"values": np.zeros(4), "noise": np.frombuffer(noise, np.uint8)}
    npz.save_parts(results.run("dense", 0) / "arrays.npz", {"values": arrays})
    results.sign()
    with pytest.raises(UserError, match=r"desk: 3.* MB, more than the limit of 30 MB"):
        try_publish(results)
    assert list(published(results).parent.iterdir()) == []


def _numbers(results: Any) -> int:
    """Return the number of metrics in the tree, whatever their seeds."""
    return len(results.metrics()[["variant", "metric"]].drop_duplicates())


def test_a_run_equals_its_own_record(tree: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    results = tree()
    assert run_publish(results) == 0
    assert run_compare(results) == 0
    output, numbers = capsys.readouterr().out, _numbers(results)
    assert f"0 of {numbers} numbers differ" in output
    assert f"{numbers} same" in output


def test_what_differs_is_told(tree: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    results = tree(seeds=(0, 1, 2))
    assert run_publish(results) == 0
    frame = results.metrics()
    frame.loc[(frame["variant"] == "dense") & (frame["metric"] == "svm-mnist"), "value"] -= 5
    frame.loc[(frame["variant"] == "supcaps") & (frame["metric"] == "argmax-mnist"), "value"] -= 0.1
    frame.loc[frame["metric"] == "svm-affnist-b", "measured_on"] = "affnist/test"
    frame = frame[frame["metric"] != "rank0-frequency-max"]
    frame.loc[frame["metric"] == "rank0-frequency-min", "metric"] = "something-new"
    frame.to_csv(results.papers / "metrics.csv", index=False)
    table = compare.compare(results.root, published(results)).set_index("metric")["finding"]
    assert table["sparse/dense/svm-mnist"] == compare.DIFFERS
    assert table["sparse/supcaps/argmax-mnist"] == compare.WITHIN
    assert table["sparse/sparsecaps/svm-affnist-b"] == compare.OTHER_DATA
    assert table["sparse/sparsecaps/rank0-frequency-max"] == compare.only(published(results))
    assert table["sparse/sparsecaps/something-new"] == compare.only(results.root)
    assert run_compare(results) == 0
    output = capsys.readouterr().out
    assert f"1 of {_numbers(results) + 1} numbers differ" in output
    assert f"; 1 {compare.only(results.root)}" in output
    assert "something-new" not in output, "what one side lacks is counted"


def test_folders_of_ones_own_are_compared(tree: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Also those that hold the folder of a scale."""
    results = tree(seeds=(0,))
    others = results.root.parents[1] / "others"
    shutil.copytree(results.root, others / "desk")
    assert main(["compare", str(results.root), str(others)]) == 0
    assert f"0 of {_numbers(results)} numbers differ" in capsys.readouterr().out


def test_other_settings_are_told(tree: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    results = tree(seeds=(0, 1))
    assert run_publish(results) == 0
    for seed, steps in ((0, 7), (1, 8)):
        file = results.root / "runs" / "sparse" / "dense" / f"seed-{seed}" / "config.json"
        config = json.loads(file.read_text())
        theirs, config["training"]["steps"] = config["training"]["steps"], steps
        file.write_text(json.dumps(config))
    capsys.readouterr()
    assert run_compare(results) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("made otherwise")]
    assert lines == [f"made otherwise than in {published(results)}: sparse/dense: training.steps: {theirs} -> 7"]


def test_one_seed_each_counts_the_test_set(tree: Callable[..., Any]) -> None:
    results = tree(seeds=(0,))
    assert run_publish(results) == 0
    frame = results.metrics()
    frame["value"] *= 0.999
    frame.to_csv(results.papers / "metrics.csv", index=False)
    table = compare.compare(results.root, published(results)).set_index("metric")
    assert table.loc["sparse/dense/svm-affnist-b", "finding"] == compare.WITHIN
    assert table.loc["sparse/dense/svm-affnist-b", "basis"] == "test images"
    assert table.loc["sparse/dense/support-slope", "finding"] == compare.UNKNOWN


def test_only_common_papers_are_compared(tree: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    results = tree(seeds=(0,))
    assert run_publish(results) == 0
    other = tree(seeds=(0,), paper="discriminative")
    capsys.readouterr()
    assert run_compare(other) == 0
    same = _numbers(results)
    assert f"{same} same\nnot compared, only in {other.root}: discriminative\n" in capsys.readouterr().out
    shutil.rmtree(results.papers)
    assert run_compare(other) == 1
    assert re.match(r"recaps: .*no paper in common", capsys.readouterr().err)


def test_comparing_needs_both_sides(tree: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    results = tree(seeds=(0,))
    assert run_compare(results) == 1
    assert "published/desk: no papers/*/metrics.csv" in capsys.readouterr().err
