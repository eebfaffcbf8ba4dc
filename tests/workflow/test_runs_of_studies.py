"""The studies of the papers and of a user, made beside the finished smoke workflow."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from clones import SMOKE, Clone

from recaps import papers
from recaps.config.load import Project
from recaps.io import digest_of
from recaps.plan.jobs import Names
from recaps.plan.plan import Plan

#: A user's studies of two rows and one, which share the trained models of the papers' own runs.
MINE = """studies={
    mine: {of: experts/mnist-vae, judged: test, vary: {heads.linear.C: [1, 100]}, figure: linear-mnist},
    plain: {of: consensus/mnist-em, judged: test, measure: interpretation:by_iteration}}"""


#: Models alone: no classifiers, latents or probes.
BARE = "fixed: {heads: {}, latents: {}, probes: {}}, rows: {alone: {}}"
OF_ALL = ("sparse/sparsecaps", "consensus/mnist-em", "experts/mnist-experts", "probabilistic/*", "discriminative/*-fc")


def of_papers(clone: Clone, project: Project) -> dict[str, str]:
    """The digests of the files of the papers' runs, tables and figures."""
    smoke = clone.folder / "results" / "smoke"
    files = [
        file for name in project.papers for kind in ("runs", "papers") for file in (smoke / kind / name).rglob("*")
    ]
    return {str(file): digest_of(file) for file in files if file.is_file()}


@pytest.mark.long
def test_the_studies_of_the_papers(finished: Clone, project: Project) -> None:
    before = of_papers(finished, project)
    done = finished.snakemake(*SMOKE, "--", "studies")
    assert done.status == 0, done.output[-6000:]
    assert len({papers.of(name) for name in project.studies}) >= 4
    smoke, plan, trained = finished.folder / "results" / "smoke", Plan(project), 0
    for name, study in project.studies.items():
        table = pd.read_csv(smoke / "papers" / name / "table.csv")
        assert len(table) == len(study.changes)
        assert set(study.study.columns) <= set(table.columns)
        for variant, row in study.variants.items():
            record = json.loads((smoke / "runs" / name / variant / "seed-0" / "record.json").read_text())
            owner = plan.has_model_of(Names(paper=name, variant=variant, seed=0))
            assert record.get("trained", "") == owner
            trained += not owner
            assert record["dataset"]["split"] == row.data.split("/")[1]
    logs = [log.read_text() for log in (smoke / "logs" / "train_variant").glob("*.*-seed-0.log")]
    assert sum("step" in log for log in logs) == trained
    assert of_papers(finished, project) == before, "the papers' own results stay as they are"
    assert finished.plan() == finished.plan("--", "studies") == {}


def test_a_users_study_is_in_the_report(finished: Clone) -> None:
    planned = finished.plan("--config", MINE)
    assert planned["train_variant"] == 4, "three rows, and the judge beside two of them"
    assert not {"draw_figures_of_experts", "prepare_dataset"} & planned.keys()
    done = finished.snakemake(*SMOKE, "--config", MINE)
    assert done.status == 0, done.output[-6000:]
    smoke = finished.folder / "results" / "smoke"
    assert pd.read_csv(smoke / "papers/experts.mine/table.csv")["C"].tolist() == [1, 100]
    measured = pd.read_csv(smoke / "papers/consensus.plain/metrics.csv").set_index("metric")["value"]
    assert {"error", "error-1", "error-2", "error-3"} <= {*measured.index}
    report = (smoke / "report.html").read_text()
    assert 'id="paper-experts.mine"' in report
    assert "Study: mine" in report
    # Without the study, the report is made again without it, and nothing else.
    assert set(finished.plan()) == {"build_report", "all", "total"}


@pytest.mark.long
def test_models_alone_have_records(finished: Clone) -> None:
    studies = ", ".join(f"{of.split('/')[0]}-alone: {{of: {of}, judged: test, {BARE}}}" for of in OF_ALL)
    names = [f"{of.split('/')[0]}.{of.split('/')[0]}-alone" for of in OF_ALL]
    done = finished.snakemake(*SMOKE, "--config", f"studies={{{studies}}}", "--", *names)
    assert done.status == 0, done.output[-6000:]
    for name in names:
        assert (finished.folder / f"results/smoke/papers/{name}/table.csv").exists()


@pytest.mark.long
def test_the_example_of_the_page(finished: Clone) -> None:
    """It is judged on held-out images, which the finished workflow has not."""
    page = (finished.folder / "docs" / "adding-a-paper.md").read_text()
    example = page.partition("## A study")[2].partition("```yaml\n")[2].partition("```")[0]
    (finished.folder / "mine.yaml").write_text(example)
    done = finished.snakemake(*SMOKE, "--configfile", "mine.yaml", "--", "sparse.rates")
    assert done.status == 0, done.output[-6000:]
    folder = finished.folder / "results/smoke/papers/sparse.rates"
    table = pd.read_csv(folder / "table.csv")
    assert table["learning_rate"].tolist() == [0.001, 0.001, 0.0003, 0.0003]
    assert table["iterations"].tolist() == [1, 3, 1, 3]
    measured = pd.read_csv(folder / "metrics.csv")
    assert set(measured["measured_on"].dropna()) >= {"mnist-40/held_out", "affnist-generated/held_out"}
    assert (folder / "table.md").exists()
