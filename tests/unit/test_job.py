"""How a script ends: its exit status, what the terminal shows, what the log holds."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from recaps.errors import TryAgain, UserError
from recaps.io import read_json
from recaps.plan import stages
from recaps.plan.job import device, failure, given, job, project_root
from recaps.plan.jobs import Names
from recaps.plan.modules import modules
from recaps.plan.receipts import file_of, receipt
from recaps.training.lease import Lease, holder

#: The start of the line of the job below.
JOB = "recaps: train_variant sparse/dense/seed-0"


@pytest.fixture
def snakemake(tmp_path: Path) -> SimpleNamespace:
    log = tmp_path / "logs" / "rule.log"
    return SimpleNamespace(
        rule="train_variant",
        wildcards={"scale": "smoke", "paper": "sparse", "variant": "dense", "seed": "0"},
        log=[str(log)],
        output=[str(tmp_path / "made" / "model.safetensors")],
        threads=2,
        resources={},
        config={},
        scriptdir="root/workflow/scripts",
    )


def run(snakemake: SimpleNamespace, error: BaseException | None, show: bool = False) -> int:
    try:
        with job(snakemake, show=show):
            print("progress", file=sys.stderr)
            logging.getLogger("recaps").warning("careful")
            if error:
                raise error
            made = Path(snakemake.output[0])
            made.parent.mkdir()
            made.write_text("weights")
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (None, 0, ""),
        (UserError("x.yaml: no\n such key"), 1, f"{JOB}: x.yaml: no such key\n"),
        (TryAgain("stopped at step 3"), 75, f"{JOB}: stopped at step 3\n"),
        (KeyboardInterrupt(), 130, f"{JOB}: stopped; run again to continue\n"),
    ],
)
def test_end(
    snakemake: SimpleNamespace, capsys: pytest.CaptureFixture[str], error: BaseException | None, status: int, line: str
) -> None:
    assert run(snakemake, error) == status
    assert capsys.readouterr().err == line
    log = Path(snakemake.log[0]).read_text()
    assert log.startswith(f"progress\nWARNING recaps: careful\n{line}")
    cause = line.removeprefix(f"{JOB}: ").strip()
    assert failure(Path(snakemake.log[0])) == ((cause, status) if cause else None)


def test_unexpected_error_keeps_its_traceback_for_the_log(
    snakemake: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(snakemake, ZeroDivisionError("division")) == 70
    shown = capsys.readouterr().err
    assert shown == f"{JOB}: ZeroDivisionError: division (traceback in {snakemake.log[0]})\n"
    assert "Traceback (most recent call last)" in Path(snakemake.log[0]).read_text()


def test_what_is_shown_is_logged_too(snakemake: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(snakemake, None, show=True) == 0
    assert capsys.readouterr().err == Path(snakemake.log[0]).read_text() == "progress\nWARNING recaps: careful\n"


def test_device(
    snakemake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert device(snakemake) == "auto"
    snakemake.config = {"device": "cpu"}
    assert device(snakemake) == "cpu"
    snakemake.resources = {"gpu": 1}
    assert device(snakemake) == "cpu"
    snakemake.config = {}
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert device(snakemake) == "auto", "PyTorch may be unable to use the GPU of a laptop"
    assert "PyTorch cannot use the GPU of this machine" in capsys.readouterr().err
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert device(snakemake) == "cuda", "a job that was given a GPU must not fall back to the CPU in silence"


def test_what_a_cluster_gave(snakemake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    snakemake.resources = {"gpu": 1, "runtime": 240}
    assert given(snakemake) == {}
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert given(snakemake) == {"job": "7", "gpus": 1, "minutes": 240}
    monkeypatch.setenv("RECAPS_RUNS", "4")
    monkeypatch.setenv("RECAPS_MINUTES", "480")
    assert given(snakemake) == {"job": "7", "gpus": 0.25, "minutes": 480}


def test_a_log_without_an_ending_tells_no_failure(tmp_path: Path) -> None:
    for text in ("", "step 3\n", "recaps: rule: cause\nexit status\n"):
        (tmp_path / "log").write_text(text)
        assert failure(tmp_path / "log") is None
    assert failure(tmp_path / "none") is None


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_stops_no_job(snakemake: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    log = Path(snakemake.log[0])
    log.parent.mkdir()
    log.symlink_to("/dev/full")
    assert run(snakemake, None) == 0
    assert run(snakemake, TryAgain("full")) == 75
    assert capsys.readouterr().err == f"{JOB}: full\n"


def test_project_root(snakemake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert project_root(snakemake) == tmp_path / "root"


def stage_job(folder: Path, **params: object) -> Names:
    """A job that measures `latents.npz`, as the workflow passes it."""
    return Names(
        input=Names(latents=str(folder / "smoke/runs/latents.npz")),
        output=Names(numbers=folder / "smoke/runs/numbers.csv"),
        params=Names(identity={"settings": {"a": 1}, "modules": {}}, **params),
        config={"results": str(folder), "scale": "smoke"},
    )


def test_a_job_refuses_inputs_whose_bits_have_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those with the same size and time, which a start does not see; nothing is begun."""
    latents = tmp_path / "smoke/runs/latents.npz"
    with receipt([latents]):
        latents.parent.mkdir(parents=True)
        latents.write_bytes(b"01234567")
    made: list[Names] = []

    def record_run(job: Names) -> None:
        made.append(job)
        job.output.numbers.write_text("numbers")

    monkeypatch.setattr(stages, "record_run", record_run)
    stages.make("record_run", stage_job(tmp_path))
    written = read_json(file_of([tmp_path / "smoke/runs/numbers.csv"]))
    data = {"runs/latents.npz": hashlib.sha256(b"01234567").hexdigest()}
    assert written["identity"] == {"settings": {"a": 1}, "modules": {}, "data": data}
    about = latents.stat()
    latents.write_bytes(b"01234568")
    os.utime(latents, ns=(about.st_atime_ns, about.st_mtime_ns))
    with pytest.raises(UserError, match=r"latents\.npz: changed since it was made"):
        stages.make("record_run", stage_job(tmp_path))
    assert len(made) == 1
    assert read_json(file_of([tmp_path / "smoke/runs/numbers.csv"])) == written


def test_a_job_sweeps_what_a_killed_one_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_latents(tmp_path)
    left = [tmp_path / "smoke/runs/.numbers.csv.1.part", tmp_path / "smoke/runs/.made/.numbers.csv.json.1.part"]
    for file in left:
        file.touch()
    monkeypatch.setattr(stages, "record_run", lambda job: None)
    stages.make("record_run", stage_job(tmp_path))
    assert not [file for file in left if file.exists()]


def made_latents(folder: Path, content: str = "latents") -> Path:
    """The input of `stage_job`, with a receipt."""
    latents = folder / "smoke/runs/latents.npz"
    with receipt([latents]):
        latents.parent.mkdir(parents=True, exist_ok=True)
        latents.write_text(content)
    return latents


def test_a_job_refuses_an_input_that_is_being_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its receipt is gone meanwhile, and a digest that is not known would never be compared again."""
    file_of([made_latents(tmp_path)]).unlink()
    made: list[Names] = []
    monkeypatch.setattr(stages, "record_run", made.append)
    with pytest.raises(TryAgain, match=r"latents\.npz: nothing says what made it"):
        stages.make("record_run", stage_job(tmp_path))
    assert not made


def test_a_job_refuses_code_that_was_edited_since_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its receipt would name the code of the start, or other code than it runs."""
    made_latents(tmp_path)
    job = stage_job(tmp_path)
    made: list[Names] = []
    monkeypatch.setattr(stages, "record_run", made.append)
    job.params.identity["modules"] = modules(["recaps.models.model"])
    stages.make("record_run", job)
    assert made == [job]
    for name in ("recaps.models.model", "recaps.models.gone"):
        job.params.identity["modules"] = {name: "0" * 16}
        with pytest.raises(TryAgain, match=f"record_run: {name} was edited since this start"):
            stages.make("record_run", job)
    assert made == [job]


def test_a_job_whose_input_changes_meanwhile_leaves_no_receipt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_latents(tmp_path)

    def record_run(job: Names) -> None:
        made_latents(tmp_path, "others")
        job.output.numbers.write_text("numbers of which?")

    monkeypatch.setattr(stages, "record_run", record_run)
    with pytest.raises(TryAgain, match="record_run: another process changed an input meanwhile"):
        stages.make("record_run", stage_job(tmp_path))
    assert not file_of([tmp_path / "smoke/runs/numbers.csv"]).exists()


def test_a_job_of_a_run_holds_the_lease_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_latents(tmp_path)
    folder = tmp_path / "checkpoints"
    job = stage_job(tmp_path, checkpoints=str(folder))
    held: list[int] = []
    monkeypatch.setattr(stages, "record_run", lambda job: held.append(holder(folder)["pid"]))
    stages.make("record_run", job)
    assert held == [os.getpid()]
    assert holder(folder) == {}
    with Lease(folder), pytest.raises(TryAgain, match="trains this run"):
        stages.make("record_run", job)
    assert len(held) == 1
