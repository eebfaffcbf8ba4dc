"""The finished smoke workflow: what it leaves, and what an edit makes again."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from conftest import SMOKE, Clone

NOTHING: dict[str, int] = {}


def test_everything_is_there_and_says_that_it_is_a_stand_in(finished: Clone) -> None:
    smoke = finished.folder / "results" / "smoke"
    for name in ("report.html", "scorecard.csv", "scorecard.md", "papers/sparse/metrics.csv"):
        assert (smoke / name).stat().st_size > 0
    for folder in smoke.glob("runs/sparse/*/seed-0"):
        files = {"model.safetensors", "config.json", "history.csv", "record.json"}
        assert files <= {file.name for file in folder.iterdir()}
        record = json.loads((folder / "record.json").read_text())
        assert record["dataset"]["stand_in"] is True
        assert record["scale"] == "smoke"
    for ending in ("pdf", "png", "csv"):
        assert len(list(smoke.glob(f"papers/sparse/figure-*.{ending}"))) == 5
    assert "stand-in" in (smoke / "papers" / "sparse" / "table-1.md").read_text().lower()
    assert "reproduced" not in (smoke / "scorecard.csv").read_text()
    report = (smoke / "report.html").read_text()
    assert "stand-in" in report.lower()
    assert 'src="http' not in report, "one self-contained page"


def test_nothing_half_written_is_left(finished: Clone) -> None:
    assert not list(finished.folder.rglob("*.part"))


def test_nothing_to_be_done(finished: Clone) -> None:
    started = time.process_time(), os.times().children_user
    done = finished.snakemake(*SMOKE)
    spent = os.times().children_user - started[1]
    assert done.status == 0, done.output
    assert "Nothing to be done" in done.output
    assert spent < 5, f"a no-op run took {spent:.1f} s of processor time"


def test_touched_files_make_nothing_again(finished: Clone) -> None:
    for pattern in ("results/smoke/datasets/**/*", "results/smoke/runs/**/model.safetensors", "workflow/scripts/*.py"):
        for file in finished.folder.glob(pattern):
            file.touch()
    assert finished.plan() == NOTHING


def test_comments_make_nothing_again(finished: Clone) -> None:
    with finished.edited("src/recaps/training/loop.py", "from __future__", "# A remark.\nfrom __future__"):
        assert finished.plan() == NOTHING


def test_machine_settings_make_nothing_again(finished: Clone) -> None:
    assert finished.plan("--config", "scale=smoke", "device=cpu", "mirror=elsewhere") == NOTHING


def test_figure_code_redraws_only(finished: Clone) -> None:
    with finished.edited("src/recaps/papers/sparse.py", "from __future__ import annotations", _CHANGE):
        assert set(finished.plan()) <= _DRAWING
        assert "draw_figure" in finished.plan("figures")


def test_style_sheet_redraws_only(finished: Clone) -> None:
    style = finished.folder / "src" / "recaps" / "papers" / "recaps.mplstyle"
    text = style.read_text()
    style.write_text(text + "\nlines.linewidth: 3\n")
    try:
        jobs = finished.plan()
    finally:
        style.write_text(text)
    assert set(jobs) <= _DRAWING
    assert "draw_figure" in jobs


def test_routing_code_retrains_the_capsule_models_only(finished: Clone) -> None:
    with finished.edited("src/recaps/nn/routing/dynamic.py", "from __future__ import annotations", _CHANGE):
        jobs = finished.plan("train")
    models = list((finished.folder / "results" / "smoke" / "runs" / "sparse").iterdir())
    assert jobs["train_variant"] == len([folder for folder in models if not folder.name.startswith("convnet")])


def test_a_variants_settings_retrain_it_alone(finished: Clone) -> None:
    override = "overrides={sparse: {variants: {dense-28: {training: {learning_rate: 0.002}}}}}"
    assert finished.plan("train", "--config", "scale=smoke", override) == {"train": 1, "train_variant": 1, "total": 2}


def test_a_title_trains_and_evaluates_nothing_again(finished: Clone) -> None:
    with finished.edited("config/papers/sparse.yaml", "title: SPARSECAPS (28x28)", "title: SPARSECAPS at 28x28"):
        assert set(finished.plan()) <= _DRAWING


def test_snakemakes_own_report(finished: Clone) -> None:
    done = finished.snakemake(*SMOKE, "--report", "report-of-snakemake.html")
    assert done.status == 0, done.output
    page = (finished.folder / "report-of-snakemake.html").read_text()
    for text in ("Scorecard", "Tables", "Figures", "Ranked routing support"):
        assert text in page


def test_a_mistake_in_a_job_ends_in_one_line(finished: Clone) -> None:
    labels = Path("results/smoke/datasets/mnist/test/labels.npy")
    whole = (finished.folder / labels).read_bytes()
    (finished.folder / labels).write_bytes(whole[:100])
    target = "results/smoke/runs/sparse/convnet-28/seed-0/latents/mnist-test.npz"
    try:
        done = finished.snakemake(*SMOKE, "--rerun-triggers", "mtime", "--force", target)
    finally:
        (finished.folder / labels).write_bytes(whole)
        again = finished.snakemake(*SMOKE)
    assert done.status == 1
    (line,) = [text for text in done.output.splitlines() if text.startswith("recaps: ")]
    assert str(labels) in line
    assert "Traceback" not in done.output
    assert again.status == 0, again.output


#: The rules that a change of tables, figures and their titles may run again.
_DRAWING = {"draw_table", "draw_figure", "collect_metrics", "score_claims", "build_report", "all", "total"}

_CHANGE = "from __future__ import annotations\n\nCHANGED = True"
