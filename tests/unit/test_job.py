"""How a script ends: its exit status, what the terminal shows, what the log holds."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from recaps.errors import TryAgain, UserError
from recaps.workflow.job import device, failure, job, project_root


@pytest.fixture
def snakemake(tmp_path: Path) -> SimpleNamespace:
    log = tmp_path / "logs" / "rule.log"
    return SimpleNamespace(
        rule="train_variant",
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
        (UserError("x.yaml: no\n such key"), 1, "recaps: train_variant: x.yaml: no such key\n"),
        (TryAgain("stopped at step 3"), 75, "recaps: train_variant: stopped at step 3\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_end(
    snakemake: SimpleNamespace,
    capsys: pytest.CaptureFixture[str],
    error: BaseException | None,
    status: int,
    line: str,
) -> None:
    assert run(snakemake, error) == status
    assert capsys.readouterr().err == line
    log = Path(snakemake.log[0]).read_text()
    assert log.startswith(f"progress\nWARNING recaps: careful\n{line}")
    cause = line.removeprefix("recaps: train_variant: ").strip()
    assert failure(Path(snakemake.log[0])) == ((cause, status) if cause else None)


def test_unexpected_error_keeps_its_traceback_for_the_log(
    snakemake: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(snakemake, ZeroDivisionError("division")) == 70
    shown = capsys.readouterr().err
    assert shown == f"recaps: train_variant: ZeroDivisionError: division (traceback in {snakemake.log[0]})\n"
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
    assert capsys.readouterr().err == "recaps: train_variant: full\n"


def test_project_root(snakemake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert project_root(snakemake) == tmp_path / "root"
