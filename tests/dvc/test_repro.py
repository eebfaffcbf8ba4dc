"""`dvc repro` and Snakemake make the same files, and find the same files stale."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clones import SMOKE
from repository import TARGETS, Repository

from recaps.io import digest_of

MODEL = "results/smoke/runs/experts/mnist-vae/seed-0/model.safetensors"
FIGURE = "results/smoke/papers/sparse/figure-1.png"
RAW = "data/mnist/train-images-idx3-ubyte.gz"

#: What differs between two runs of the same settings.
OWN = {"seconds", "wall_seconds", "started", "finished", "starts", "images_per_second", "peak_memory_bytes", "git"}


@pytest.fixture
def project(made: Repository) -> Iterator[Repository]:
    """The finished project. After the test, git and DVC restore it."""
    yield made
    made.git("checkout", "--quiet", "--", ".")
    made.dvc("checkout", "--force", "--quiet")
    assert made.git("status", "--porcelain") == ""
    assert made.changed() == set()


@pytest.mark.long
def test_repro_makes_what_snakemake_makes(made: Repository, new: Callable[[str], Repository]) -> None:
    """After a run of Snakemake, `dvc commit` is enough."""
    other = new("by-snakemake")
    done = other.snakemake(*SMOKE)
    assert done.status == 0, done.output
    ours, theirs = contents(made), contents(other)
    assert ours.keys() == theirs.keys()
    assert [file for file in ours if ours[file] != theirs[file]] == []
    assert len([file for file in ours if file.endswith((".safetensors", ".npz", ".png"))]) > 30
    other.dvc("commit", "--force", "dvc.yaml")
    assert other.changed() == set()
    assert other.repro()[0] == []


def test_a_second_repro_does_nothing(project: Repository) -> None:
    before = project.folder.joinpath(MODEL).stat().st_mtime_ns
    stages, output = project.repro()
    assert stages == []
    assert "Data and pipelines are up to date." in output
    assert project.folder.joinpath(MODEL).stat().st_mtime_ns == before
    assert project.plan() == {}


def test_data_that_the_workflow_has_fetched_are_the_version_that_data_dvc_names(project: Repository) -> None:
    """In `made`, they were fetched after data.dvc had been written; see `new`."""
    assert "up to date" in project.dvc("status", "data.dvc")
    assert project.folder.joinpath(RAW).is_file()


@pytest.mark.parametrize(
    ("file", "old", "changed", "planned"),
    [
        # A figure, a routing, a model, the preparation of the data, and the report.
        ("src/recaps/papers/sparse/figures.py", "def figure_1", set(TARGETS), {"papers", "report"}),
        ("src/recaps/nn/kernels/products.py", "def ", {"papers"}, {"papers", "report"}),
        ("src/recaps/models/convnet.py", "class ", {"papers"}, {"papers", "report"}),
        ("src/recaps/datasets/formats/idx.py", "def ", set(TARGETS), set(TARGETS)),
        ("src/recaps/report/charts.py", "def ", {"papers", "report"}, {"report"}),
        # Sets and a routing that neither paper uses, and a page outside the library.
        ("src/recaps/datasets/derived.py", "def ", set(TARGETS), set()),
        ("src/recaps/nn/routing/em.py", "class ", {"papers"}, set()),
        ("docs/dvc.md", "# ", set(), set()),
    ],
)
def test_changed_code(project: Repository, file: str, old: str, changed: set[str], planned: set[str]) -> None:
    with project.edited(file, old, f"CHANGED = True\n\n\n{old}"):
        assert project.changed() == changed
        assert project.planned() == planned


def test_changed_figures_are_drawn_and_nothing_else(project: Repository) -> None:
    with project.edited("src/recaps/papers/sparse/figures.py", "def figure_1", "CHANGED = True\n\n\ndef figure_1"):
        stages, output = project.repro()
        assert "papers" in stages
        rules = set(re.findall(r"\(Rule: (\w+)\)", output))
        # The change draws the same figures, so there is nothing to do for the report.
        assert rules == {"draw_figures_of_sparse", "papers"}


@pytest.mark.parametrize(
    ("file", "before", "after", "changed", "planned"),
    [
        ("config/config.yaml", "seeds: null", "seeds: [0, 1]", {"papers"}, {"papers", "report"}),
        ("config/config.yaml", "device: auto", "device: cpu", set(), set()),
        # The papers' folders decide which sets are prepared.
        ("src/recaps/papers/experts/paper.yaml", "lr_decay: 0.96", "lr_decay: 0.9", set(TARGETS), {"papers", "report"}),
        # A tolerance is in the scorecard only.
        ("src/recaps/papers/sparse/claims.yaml", "tolerance: 0.8", "tolerance: 0.9", set(TARGETS), {"report"}),
    ],
)
def test_changed_settings(
    project: Repository, file: str, before: str, after: str, changed: set[str], planned: set[str]
) -> None:
    with project.edited(file, before, after):
        assert project.changed() == changed
        assert project.planned() == planned


def test_a_comment_runs_a_stage_in_which_nothing_is_made(project: Repository) -> None:
    with project.edited("src/recaps/models/convnet.py", "class ", "# A remark.\nclass "):
        assert project.planned() == set()
        assert project.changed() == {"papers"}
        stages, output = project.repro()
        assert stages == ["papers"]
        assert "Nothing to be done" in output
        assert project.changed() == set()


def test_deleted_outputs_are_made_again(project: Repository) -> None:
    """Targets, and all intermediate results."""
    run = "results/smoke/runs/sparse/dense-28/seed-0"
    model = f"{run}/model.safetensors"
    names = [f"{run}/latents.npz", f"{run}/probes.npz", FIGURE]
    names += ["results/smoke/datasets/mnist/test/factors.npz", "results/smoke/verdicts/sparse.json", model]
    files = [project.folder / name for name in names]
    before = [digest_of(file) for file in files]
    for file in files:
        file.unlink()
    assert project.changed() == set(TARGETS)
    assert project.planned() == set(TARGETS)
    stages, output = project.repro()
    assert set(stages) == set(TARGETS)
    assert output.count("Rule: train_variant") == 1, output
    assert [digest_of(file) for file in files] == before


def test_a_corrupted_output_is_found_by_both_and_blessed_by_none(project: Repository) -> None:
    file = project.folder / MODEL
    flip(file)
    damaged = digest_of(file)
    assert project.changed() == {"papers", "report"}
    line = f"recaps: {MODEL}: changed since it was made; `rm` it to make it again"
    assert line in project.run(*_SNAKEMAKE, "-n", status=1).output
    project.run(*_SNAKEMAKE, "--unlock")
    stages, output = project.repro(status=255)
    assert stages == ["papers"]
    assert line in output
    assert digest_of(file) == damaged, "nothing was made of it, and nothing is lost"
    project.dvc("checkout", "--force", "--quiet", MODEL)
    assert digest_of(file) != damaged
    assert project.planned() == set()


def test_a_corrupted_raw_file_is_found_before_anything_trains_on_it(project: Repository) -> None:
    """If the data were an input of a stage, DVC would write the new hash to data.dvc."""
    flip(project.folder / RAW)
    assert project.changed() == {"data.dvc"}
    assert project.planned() == set(), "what was made from the official file stays"
    assert project.repro()[0] == []
    with project.edited("src/recaps/datasets/formats/idx.py", "def ", "CHANGED = True\n\n\ndef "):
        stages, output = project.repro(status=255)
        assert stages == ["data"]
        assert "data.dvc" in project.changed()
    assert project.git("diff", "--stat", "data.dvc") == "", "nobody has blessed it"
    assert re.search(rf"recaps: prepare_dataset mnist/train: {RAW}: SHA-256 expected \w+, found \w+; delete it", output)
    assert "Rule: train_variant" not in output


@pytest.mark.long
def test_an_older_commit(project: Repository) -> None:
    model = project.folder / MODEL
    older = digest_of(model)
    smaller = "model: {hidden: [64], samples: 200}"
    with project.edited("src/recaps/papers/experts/paper.yaml", smaller, smaller.replace("64", "32")):
        output = project.repro()[1]
        assert output.count("Rule: train_variant") == 1, output
        newer = digest_of(model)
        assert newer != older
        project.git("checkout", "--quiet", "-b", "newer")
        project.commit("another model")
        assert project.planned() == project.changed() == set()
        for branch, digest in (("-", older), ("newer", newer), ("-", older)):
            project.git("checkout", "--quiet", branch)
            project.dvc("checkout", "--quiet")
            assert project.planned() == project.changed() == set()
            assert digest_of(model) == digest


def test_metrics_and_plots(project: Repository) -> None:
    verdicts = [f"results/smoke/verdicts/{paper}.json" for paper in ("sparse", "experts")]
    shown = json.loads(project.dvc("metrics", "show", "--json", *verdicts))
    for paper, file in zip(("sparse", "experts"), verdicts, strict=True):
        counts = shown[""]["data"][file]["data"]
        card = rows(project.folder / "results/smoke/scorecard.csv")
        claims = [row for row in card if (row["paper"], row["role"]) == (paper, "claim")]
        assert sum(counts.values()) == len(claims)
        assert counts["reproduced"] == len([row for row in claims if row["verdict"] == "reproduced"])
    scorecard = project.folder / "results/smoke/scorecard.json"
    values = json.loads(scorecard.read_text())
    claim = next(iter(values))
    scorecard.write_text(json.dumps(values | {claim: values[claim] + 1}))
    difference = json.loads(project.dvc("metrics", "diff", "--json"))
    ((file, changed),) = difference.items()
    assert file == "results/smoke/scorecard.json"
    assert {key: round(change["diff"], 6) for key, change in changed.items()} == {claim: 1}
    project.dvc("checkout", "--force", "--quiet", str(scorecard))
    histories = sorted(map(str, project.folder.glob("results/smoke/runs/*/*/seed-0/history.csv")))
    plots = json.loads(project.dvc("plots", "show", "-x", "step", "-y", "loss", "--json", *histories))
    assert not plots.get("errors")
    drawn = json.dumps(plots["data"])
    assert all(variant in drawn for variant in ("supcaps-28", "sparsecaps-28", "mnist-experts", "mnist-rbm"))


_SNAKEMAKE = ("snakemake", *SMOKE)


def flip(file: Path) -> None:
    """Change one bit in the middle of a file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def rows(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(file.read_text())))


def contents(repository: Repository) -> dict[str, Any]:
    """Return all results by name: digests, or content without times."""
    root = repository.folder / "results" / "smoke"
    left_out = {"logs", "checkpoints", "report.html", ".made"}
    files = (file for file in root.rglob("*") if file.is_file())
    names = {file: file.relative_to(root) for file in files}
    return {str(name): _content(file) for file, name in names.items() if not left_out & set(name.parts)}


def _content(file: Path) -> Any:
    if file.suffix == ".json":
        return _without_times(json.loads(file.read_text()))
    if file.name in ("history.csv", "metrics.csv", "numbers.csv"):
        timed = [row for row in rows(file) if row.get("metric") != "training-minutes"]
        return [{key: value for key, value in row.items() if key not in OWN} for row in timed]
    # The cost of more seeds comes from the times of others. Claims of equal cost share a line of the page.
    if file.name == "scorecard.csv":
        return re.sub(r"the missing ones [^(]+ of training", "", file.read_text())
    if file.name == "scorecard.md":
        return [line for line in file.read_text().splitlines() if "the missing ones" not in line]
    return digest_of(file)


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(item) for key, item in value.items() if key not in OWN}
    return [_without_times(item) for item in value] if isinstance(value, list) else value
