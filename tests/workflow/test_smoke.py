"""The finished smoke workflow: its files, and what is made again after an edit."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from clones import SMOKE, Clone

from recaps import npz
from recaps.config.load import Project
from recaps.papers import FOLDER
from recaps.plan.plan import Plan
from recaps.plan.stages import saved_results
from recaps.report import draw
from recaps.report.claims import printed, read
from recaps.report.collect import metrics as write_metrics
from recaps.report.verdicts import DIRECTION, NOT_REPRODUCED, REPRODUCED

NOTHING: dict[str, int] = {}


def test_everything_is_there_and_says_that_it_is_a_stand_in(finished: Clone, project: Project) -> None:
    smoke = finished.folder / "results" / "smoke"
    for name in ("report.html", "scorecard.csv", "scorecard.md", "scorecard.png"):
        assert (smoke / name).stat().st_size > 0
    for folder in (
        smoke / "runs" / name / v / "seed-0" for name, paper in project.papers.items() for v in paper.variants
    ):
        files = {"model.safetensors", "config.json", "history.csv", "record.json"}
        assert files <= {file.name for file in folder.iterdir()}
        record = json.loads((folder / "record.json").read_text())
        assert record["dataset"]["stand_in"] is True
        assert record["scale"] == "smoke"
    for name, paper in project.papers.items():
        assert (smoke / "papers" / name / "metrics.csv").stat().st_size > 0
        for figure in paper.figures:
            assert all((smoke / "papers" / name / f"{figure}.{ending}").exists() for ending in ("pdf", "png", "csv"))
        for table in paper.tables:
            assert "stand-in" in (smoke / "papers" / name / f"{table}.md").read_text().lower()
        for timing in paper.timings:
            assert json.loads((smoke / "papers" / name / "timings" / f"{timing}.json").read_text())["stand_in"] is True
    assert not set(pd.read_csv(smoke / "scorecard.csv")["verdict"]) & {REPRODUCED, DIRECTION, NOT_REPRODUCED}
    report = (smoke / "report.html").read_text()
    assert "stand-in" in report.lower()
    assert 'src="http' not in report, "one self-contained page"


def test_outputs_are_drawn_from_what_they_declare(
    finished: Clone, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(finished.folder)
    monkeypatch.setattr(draw, "save", lambda drawing, path: None)
    plan = Plan(project)
    for paper, settings in project.papers.items():
        whole = plan.settings(paper) | {"printed": printed(read(FOLDER / paper / "claims.yaml"))}
        wanted = [
            *(("table", name, plan.shown(paper, [output])) for name, output in settings.tables.items()),
            *(("figure", name, plan.shown(paper, [output])) for name, output in settings.figures.items()),
            ("metrics", "metrics", plan.metrics_inputs(SimpleNamespace(paper=paper))),
        ]
        for kind, name, inputs in wanted:
            root = tmp_path / paper / name
            for file in inputs:
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                (root / file).symlink_to(finished.folder / file)
            made = root / f"results/smoke/papers/{paper}/{name}.csv"
            made.parent.mkdir(parents=True, exist_ok=True)
            params = SimpleNamespace(identity={"settings": whole})
            results = saved_results(SimpleNamespace(params=params, output=[made]))
            if kind == "metrics":
                write_metrics(results)
            else:
                getattr(draw, kind)(name, results, made.parent)
            assert made.stat().st_size > 0


def test_test_errors_are_in_the_history_of_those_that_evaluate(finished: Clone, project: Project) -> None:
    for name, paper in project.papers.items():
        for variant, settings in paper.variants.items():
            history = pd.read_csv(finished.folder / f"results/smoke/runs/{name}/{variant}/seed-0/history.csv")
            assert ("test_error" in history) == (settings.training.evaluate_every > 0)


def test_nothing_half_written_is_left(finished: Clone) -> None:
    assert not list(finished.folder.rglob("*.part"))


def test_nothing_to_be_done(finished: Clone) -> None:
    done = finished.snakemake(*SMOKE)
    assert done.status == 0, done.output
    assert "Nothing to be done" in done.output


def test_touched_files_make_nothing_again(finished: Clone) -> None:
    for pattern in ("results/smoke/datasets/**/*", "results/smoke/runs/**/model.safetensors", "workflow/scripts/*.py"):
        for file in finished.folder.glob(pattern):
            file.touch()
    assert finished.plan() == NOTHING


#: A file, and text in it with another that computes the same numbers.
HOUSEKEEPING = [
    ("training/batches.py", "from __future__", "# A remark.\nfrom __future__"),
    ("training/loop.py", 'f"training stopped: {what}', 'f"the training stopped: {what}'),
    ("training/run.py", "s left  {rest}", "s to go  {rest}"),
    ("training/lease.py", "TOUCHED = 15", "TOUCHED = 20"),
    ("provenance.py", '"host_cores"', '"cores"'),
    ("papers/probabilistic/options.py", "ge=1", "ge=0"),
    ("models/options.py", "kernel: int = Field(5, ge=1)", "kernel: int = Field(5, ge=2)"),
    ("config/training.py", "batch_size: int = Field(128, ge=1)", "batch_size: int = Field(128, ge=1, le=10**6)"),
]


def test_housekeeping_makes_nothing_again(finished: Clone) -> None:
    with ExitStack() as edits:
        for file, old, new in HOUSEKEEPING:
            edits.enter_context(finished.edited(f"src/recaps/{file}", old, new))
        assert finished.plan() == NOTHING


def test_machine_settings_make_nothing_again(finished: Clone) -> None:
    assert finished.plan("--config", "scale=smoke", "device=cpu", "mirror=elsewhere", "checkpoint_seconds=7") == NOTHING
    assert finished.plan("--cores", "1") == NOTHING, "nor does another number of threads"


def test_figure_code_redraws_that_papers_figures_only(finished: Clone, project: Project) -> None:
    with finished.edited("src/recaps/papers/sparse/figures.py", "from __future__ import annotations", _CHANGE):
        jobs = finished.plan()
    assert set(jobs) == {"draw_figures_of_sparse", "build_report", "all", "total"}


def test_a_note_of_a_claim_redraws_nothing(finished: Clone) -> None:
    with finished.edited("src/recaps/papers/sparse/claims.yaml", "reason: ", "reason: Indeed. "):
        assert set(finished.plan()) == {"score_claims", "build_report", "all", "total"}


def test_style_sheet_redraws_only(finished: Clone) -> None:
    with finished.edited("src/recaps/report/recaps.mplstyle", "lines.linewidth: 1.6", "lines.linewidth: 3"):
        jobs = finished.plan()
    assert stages(jobs) <= _DRAWING - {"collect_metrics"}
    assert "draw_figures" in stages(jobs)


def test_the_reports_style_sheet_builds_the_report_only(finished: Clone) -> None:
    with finished.edited("src/recaps/report/report.css", "{", "{ --changed: 1; "):
        assert set(finished.plan()) == {"build_report", "all", "total"}


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("nn/routing/dynamic.py", "dynamic"),
        ("papers/discriminative/routing.py", "discriminative"),
        ("models/convnet.py", "convnet"),
        ("papers/probabilistic/scae.py", "scae"),
    ],
)
def test_code_of_models_retrains_those_that_use_it(finished: Clone, project: Project, module: str, name: str) -> None:
    with finished.edited(f"src/recaps/{module}", "from __future__ import annotations", _CHANGE):
        jobs = finished.plan("train")
    models = [variant.model.model_dump() for paper in project.papers.values() for variant in paper.variants.values()]
    users = [model for model in models if name in (model["family"], model.get("routing", {}).get("name"))]
    assert jobs["train_variant"] == len(users) > 0


def test_a_variants_settings_retrain_it_alone(finished: Clone) -> None:
    override = "overrides={sparse: {variants: {dense-28: {training: {learning_rate: 0.002}}}}}"
    assert finished.plan("train", "--config", "scale=smoke", override) == {"train": 1, "train_variant": 1, "total": 2}


def test_a_title_trains_and_evaluates_nothing_again(finished: Clone) -> None:
    with finished.edited(
        "src/recaps/papers/sparse/paper.yaml", "title: SPARSECAPS (28x28)", "title: SPARSECAPS at 28x28"
    ):
        assert stages(finished.plan()) <= _DRAWING


def test_a_head_that_is_added_fits_that_head_alone(finished: Clone) -> None:
    """The job runs again, and takes the results of the other heads from its first run."""
    run = "results/smoke/runs/sparse/dense-28/seed-0"
    override = (
        "overrides={sparse: {heads: {ridge: {kind: linear, C: 0.01}},"
        " variants: {dense-28: {heads: {svm: [mnist-28], linear: [mnist-28], ridge: [mnist-28]}}}}}"
    )
    kept = finished.folder / "results/smoke/checkpoints/sparse/dense-28/seed-0/heads"
    before = {file.name: file.stat().st_mtime_ns for file in kept.iterdir()}
    whole = (finished.folder / run / "heads.json").read_text()
    done = finished.snakemake(*SMOKE, "--config", "scale=smoke", override, "--", f"{run}/heads.json")
    assert done.status == 0, done.output
    assert done.jobs() == {"evaluate_heads": 1, "total": 1}
    assert {file.name: file.stat().st_mtime_ns for file in kept.iterdir() if file.name in before} == before
    made = json.loads((finished.folder / run / "heads.json").read_text())
    assert made.pop("ridge")
    assert made == json.loads(whole)


def test_a_set_that_is_added_trains_nothing(finished: Clone) -> None:
    """Latents that are there stay. Without the set, everything is as it was, whatever the test before has added."""
    run = finished.folder / "results/smoke/runs/sparse/dense-28/seed-0"
    override = "overrides={sparse: {variants: {dense-28: {latents: {mnist-rotated/test: 50}}}}}"
    known = npz.read(run / "latents.npz", part="mnist/train")
    done = finished.snakemake(
        *SMOKE, "--config", "scale=smoke", override, "--", str((run / "heads.json").relative_to(finished.folder))
    )
    assert done.status == 0, done.output
    assert done.jobs() == {"read_model": 1, "evaluate_heads": 1, "total": 2}
    made = npz.read(run / "latents.npz", part="mnist/train")
    assert made.keys() == known.keys()
    assert all(np.array_equal(made[name], known[name]) for name in known)
    assert len(npz.read(run / "latents.npz", part="mnist-rotated/test")["labels"]) == 50
    assert finished.snakemake(*SMOKE).status == 0
    assert finished.plan() == NOTHING


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
    target = "results/smoke/runs/sparse/supcaps-28/seed-0/latents.npz"
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


#: The rules that may run again after a change of tables, figures or titles.
_DRAWING = {"draw_tables", "draw_figures", "collect_metrics", "score_claims", "build_report", "all", "total"}


def stages(jobs: dict[str, int]) -> set[str]:
    """Return the names of the rules without those of the papers."""
    return {rule.partition("_of_")[0] for rule in jobs}


_CHANGE = "from __future__ import annotations\n\nCHANGED = True"
