"""The command line that goes through the stages without Snakemake."""

from __future__ import annotations

import csv
import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from messages import one_line
from places import CONFIG

from recaps import papers
from recaps.cli import main
from recaps.command import command
from recaps.config.load import load
from recaps.plan import stages
from recaps.plan.checks import TARGETS
from recaps.plan.jobs import Job, Names, as_snakemake
from recaps.plan.plan import Plan
from recaps.plan.receipts import Receipts, receipt

pytestmark = pytest.mark.unit


def test_list_names_every_variant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--config", str(CONFIG), "--scale", "paper", "--papers", *papers.names(), "--without"]) == 0
    text = capsys.readouterr().out
    assert "sparse: Sparse Unsupervised Capsules Generalize Better" in text
    assert "30000 steps" in text
    expected = []
    for name, paper in load({"scale": "paper", "papers": papers.names()}, CONFIG).papers.items():
        expected += [(name, ""), *(("", variant) for variant in paper.variants)]
    assert re.findall(r"^(\S+): |^  (\S+) ", text, re.MULTILINE) == expected


def test_list_tells_what_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["list", "--config", str(CONFIG), "--papers", "discriminative"]
    assert main([*command, "--without", "cifar10"]) == 0
    lines = capsys.readouterr().out.splitlines()
    lost = "cifar-dr, cifar-l1-fc, cifar-l1-fc-relu, cifar-l2-fc"
    assert f"  without cifar10; left out: {lost}" in lines
    assert not [line for line in lines if line.startswith("  cifar")]
    assert main(command) == 0
    assert "left out" not in capsys.readouterr().out


def test_a_reader_who_has_seen_enough_gets_no_traceback() -> None:
    command = [sys.executable, "-m", "recaps", "list", "--config", str(CONFIG)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as listing:
        assert listing.stdout
        assert listing.stderr
        listing.stdout.close()
        assert listing.stderr.read() == b""
    assert listing.returncode == 128 + signal.SIGPIPE


def test_ctrl_c_ends_a_command_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    @command
    def interrupted() -> int:
        raise KeyboardInterrupt

    assert interrupted() == 130
    assert capsys.readouterr().err == "recaps: stopped\n"


def test_a_command_whose_output_is_closed_ends_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["list", "--config", str(CONFIG)]) == 0


@pytest.mark.parametrize("variant", ["cifar-dr", "discriminative/cifar-dr"])
def test_a_variant_that_is_left_out_is_told_in_one_line(variant: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", "--config", str(CONFIG), "--papers", "discriminative", "--without", "cifar10"]
    assert main([*command, "--variants", variant]) == 1
    message = "config: only: cifar-dr was left out: it needs cifar10 (config: without)"
    assert capsys.readouterr().err == f"recaps: {message}\n"


def test_a_variant_is_run_in_all_papers_or_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Job] = []
    monkeypatch.setattr("recaps.cli._complete", lambda plan, job, threads: ran.append(job))
    for variant in ("supcaps", "sparse/supcaps"):
        assert main(["run", "--config", str(CONFIG), "--scale", "smoke", "--variants", variant]) == 0
    assert [job.names.paper for job in ran if job.stage == "train_variant"] == ["comparison", "sparse", "sparse"]
    assert {job.stage for job in ran if job.names.get("paper") == "sparse"} == {
        "train_variant",
        "read_model",
        "record_run",
    }


def test_a_number_of_threads_is_at_least_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--threads", "-1"])
    assert "--threads: '-1' is not a whole number of 1 or more" in capsys.readouterr().err


def test_run_goes_through_all_stages_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["run", "--config", str(CONFIG), "--scale", "smoke", "--variants", "dense-28", "--threads", "1"]
    assert main(command) == 0
    run = tmp_path / "results/smoke/runs/sparse/dense-28/seed-0"
    heads = json.loads((run / "heads.json").read_text())
    assert sorted(heads) == ["linear", "svm"]
    assert heads["svm"]["mnist-28"]["stand_in"] is True
    assert json.loads((run / "record.json").read_text())["steps"] == 30
    assert (run / "numbers.csv").exists()
    assert {file.name for file in (run / ".made").iterdir()} == {
        f"{first}.json" for first in ("config.json", "latents.npz", "heads.json", "arrays.npz")
    }
    made = sorted(file for file in tmp_path.rglob("*") if file.is_file())
    times = [file.stat().st_mtime_ns for file in made]
    capsys.readouterr()
    assert main(command) == 0
    assert capsys.readouterr().err == ""
    assert [file.stat().st_mtime_ns for file in made] == times
    latents = (run / "latents.npz").read_bytes()
    (run / "latents.npz").write_bytes(b"damaged")
    assert main(command) == 1
    assert "latents.npz: changed since it was made" in capsys.readouterr().err
    (run / "latents.npz").write_bytes(latents)
    (run / ".made" / "heads.json.json").unlink()
    assert main(command) == 0
    assert [line for line in capsys.readouterr().err.splitlines() if line.startswith("recaps: making")] == [
        "recaps: making heads of sparse/dense-28, seed 0 again: nothing says what made it"
    ]


def test_what_differs_from_the_plan_is_made_again_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made: list[str] = []

    def make(stage: str, job: Names) -> None:
        """The real stages need not run: a receipt says what made the outputs."""
        made.append(stage)
        outputs = [Path(file) for file in job.output.values()]
        inputs = [Path(file) for file in job.input.get("every", ())]
        what = job.params.identity | {"data": Receipts(Path("results/smoke")).data(inputs)}
        with receipt(outputs, what):
            for file in outputs:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps({"digest": "a", "seed": 0, "parameters": {}}))

    monkeypatch.setattr(stages, "make", make)
    config = tmp_path / "config"
    shutil.copytree(CONFIG, config)
    command = ["run", "--config", str(config), "--scale", "smoke", "--papers", "sparse", "--variants", "convnet"]
    assert main(command) == 0
    trained = ["train_variant", "read_model", "record_run"]
    assert [stage for stage in made if stage != "prepare_dataset"] == trained
    capsys.readouterr()
    made.clear()
    assert main(command) == 0
    assert (made, capsys.readouterr().err) == ([], "")
    more = {"sparse": {"variants": {"convnet": {"training": {"steps": 37}}}}}
    (config / "config.yaml").write_text(json.dumps({"overrides": more}))
    assert main(command) == 0
    first = capsys.readouterr().err.splitlines()[0]
    assert first == "recaps: making training of sparse/convnet, seed 0 again: training.steps: 30 -> 37"
    assert made[0] == "train_variant"
    assert "prepare_dataset" not in made


def test_why_and_verify_and_clean_without_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--config", str(CONFIG), "--scale", "smoke", "--papers", "sparse"]
    assert main(["why", "sparse/dens", *options]) == 1
    assert "the plan has no run 'sparse/dens' (did you mean 'sparse/dense'?)" in capsys.readouterr().err
    assert main(["why", "results/desk/runs/sparse/convnet/seed-0", *options]) == 1
    assert "why: 'results/desk/runs/sparse/convnet/seed-0' is no run of scale smoke" in capsys.readouterr().err
    for arguments, line in (
        (["why", "sparse/convnet"], "training of sparse/convnet, seed 0: not made yet"),
        (["why"], " not made yet, 0 differ from the plan"),
        (["clean"], "no checkpoints to remove: each belongs to a run of the plan"),
        (["accept"], "nothing to accept: no result differs from the plan in its modules alone"),
    ):
        assert main([*arguments, *options]) == 0
        assert line in capsys.readouterr().out
    assert main(["verify", *options]) == 1
    assert "verify: there are no results in results/smoke; name their scale with --scale" in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == [], "they make nothing"


def test_more_settings_are_read_as_snakemake_reads_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("papers: [sparse]\nstudies: {rates: {of: sparse/dense, vary: {training.shift: [1, 2]}}}")
    assert main(["list", "--config", str(CONFIG), "--scale", "smoke", "--configfile", str(mine)]) == 0
    assert "study sparse.rates: Study: rates, 2 rows" in capsys.readouterr().out
    assert main(["list", "--config", str(CONFIG), "--configfile", str(tmp_path / "none.yaml")]) == 1
    assert "none.yaml: no such file" in capsys.readouterr().err


def test_clean_removes_no_checkpoints_of_runs_that_are_left_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [Path("results/smoke/checkpoints", run, "seed-0/0") for run in ("sparse/dense", "sparse/old", "gone/old")]
    options = ["--config", str(CONFIG), "--scale", "smoke"]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "identity.json").write_text("{}")
    assert main(["clean", *options, "--without", "sparse/dense"]) == 0
    assert [folder.exists() for folder in folders] == [True, False, False]
    assert main(["clean", *options, "--papers", "experts"]) == 0
    assert folders[0].exists()
    assert main(["clean", *options, "--seeds", "1"]) == 1
    assert "clean: takes no --seeds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--papers", "sparse", "list"],
            "there is no command '--papers' (valid: accept, burst, clean, compare, list, new, run, verify, why)",
        ),
        (["lst"], "there is no command 'lst' (did you mean 'list'?)"),
    ],
)
def test_an_option_before_the_command_is_told_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    assert capsys.readouterr().err == f"recaps: {message}; name the command first, then its options\n"


@pytest.mark.parametrize(("wrong", "right"), [("sparscaps", "sparsecaps"), ("sparse/sparscaps", "sparse/sparsecaps")])
def test_a_misspelt_variant_is_told_in_one_line(wrong: str, right: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--config", str(CONFIG), "--variants", wrong]) == 1
    message = f"config: only: there is no variant '{wrong}' (did you mean '{right}'?)"
    assert capsys.readouterr().err == f"recaps: {message}\n"


def test_a_run_that_evaluates_gets_its_test_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["run", "--config", str(CONFIG), "--scale", "smoke", "--variants", "mnist-l2-fc", "--threads", "1"]
    assert main(command) == 0
    run = tmp_path / "results/smoke/runs/discriminative/mnist-l2-fc/seed-0"
    with open(run / "history.csv", encoding="utf-8") as file:
        assert all(row["test_error"] for row in csv.DictReader(file))
    assert list(json.loads((run / "scores.json").read_text())) == ["argmax"]


def test_it_trains_where_the_workflow_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the one began, the other goes on with."""
    monkeypatch.chdir(tmp_path)
    project = load({"scale": "smoke"}, CONFIG)
    called = {}
    monkeypatch.setattr("recaps.training.run.train", lambda settings, **options: called.update(options))
    plan = Plan(project)
    names = Names(paper="sparse", variant="supcaps-28", seed=0)
    (job,) = [job for job in plan.jobs if job.stage == "train_variant" and names.items() <= job.names.items()]
    (record,) = [Path(file) for file in job.inputs if Path(file).name == "record.json"]
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    stages.make("train_variant", as_snakemake(plan, job))
    assert called["checkpoints"] == Path(plan.checkpoints(names))
    assert called["lease"].file == called["checkpoints"] / "lease.json"
    assert called["modules"] == job.identity()["modules"]
    assert called["test"] is None


def test_help_says_what_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "timings, tables and figures are left to the workflow" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["paper", "sparse"], "new paper: the name 'sparse' is taken; choose another"),
        (["paper", "report"], "new paper: the name 'report' is taken; choose another"),
        (["paper", "vae"], "new paper: the name 'vae' is taken; choose another"),
        (["paper", "My-Paper"], "new paper: 'My-Paper' is not valid; use lower-case letters and digits"),
        (["routing", "em"], "new routing: the name 'em' is taken; choose another"),
        (["routing", "lambda"], "new routing: 'lambda' is not valid; use lower-case letters and digits"),
    ],
)
def test_a_bad_or_taken_name_is_told_in_one_line(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", *arguments]) == 1
    assert capsys.readouterr().err == f"recaps: {line}\n"


def test_an_installed_package_gets_no_new_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(papers, "FOLDER", tmp_path / "lib" / "recaps" / "papers")
    assert main(["new", "routing", "mine"]) == 1
    assert f"recaps: new routing: {tmp_path}/lib/recaps is no checkout; clone the project" in capsys.readouterr().err


def test_no_paper_may_have_the_name_of_a_target() -> None:
    project = load({"scale": "smoke", "papers": ["sparse"]}, CONFIG)
    renamed = project.model_copy(update={"papers": {"report": project.papers["sparse"]}})
    with one_line("'report' is the name of a target; rename the paper$"):
        Plan(renamed)


def test_the_targets_are_those_of_the_snakefile(root: Path) -> None:
    assert set(TARGETS) == set(re.findall(r'^    "(\w+)": \(', (root / "Snakefile").read_text(), re.MULTILINE))
