"""What the terminal shows of jobs that fail."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from types import SimpleNamespace
from typing import Any

import failures
import pytest
from snakemake.exceptions import RuleException, format_exception_to_string
from snakemake.logging import logger
from snakemake.script import PythonScript
from snakemake_interface_logger_plugins.common import LogEvent


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (137, "killed, perhaps because memory ran out"),
        (-9, "killed, perhaps because memory ran out"),
        (139, "killed by SIGSEGV"),
        (-11, "killed by SIGSEGV"),
        (1, ""),
        (70, ""),
        (75, ""),
        (130, ""),
        (255, ""),
    ],
)
def test_a_job_that_was_killed_is_told(
    status: int, told: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def run(script: Any, name: str, edit: bool) -> None:
        raise subprocess.CalledProcessError(status, name)

    monkeypatch.setattr(PythonScript, "execute_script", run)
    monkeypatch.setattr(logger, "filters", [])
    monkeypatch.setattr(logger, "propagate", True)
    failures.attend()
    job = SimpleNamespace(rulename="train_variant", wildcards={"scale": "desk", "seed": "0"}, log="a.log")
    with pytest.raises(subprocess.CalledProcessError):
        PythonScript.execute_script(job, "stage.py")
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(";")[0] for line in lines] == ([f"recaps: train_variant seed-0: {told}"] if told else [])


def test_what_snakemake_adds_to_the_line_of_a_job_is_left_out() -> None:
    def shown(text: str, **more: Any) -> bool:
        record = logging.LogRecord("", logging.ERROR, "", 0, text, None, None)
        record.__dict__.update(more)
        return each.filter(record)

    each = failures.Shown()
    of_job: dict[str, Any] = {"event": LogEvent.JOB_ERROR}
    assert not shown(format_exception_to_string(RuleException("CalledProcessError in file ...")))
    assert shown(format_exception_to_string(RuleException("NameError in file ...")))
    assert shown("Error in rule train_variant", **of_job)
    assert shown("Terminating processes on user request, this might take some time.")
    assert not shown("Error in rule train_variant", **of_job)
    assert shown("WorkflowError: At least one job did not complete successfully.")


@pytest.mark.parametrize("ignored", [False, True])
def test_a_closed_terminal_stops_the_jobs_and_the_scheduler(ignored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with `nohup`."""
    told: list[Any] = []
    monkeypatch.setattr(os, "killpg", lambda group, number: told.append((group, number)))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        failures.end_with_the_terminal(SimpleNamespace(exit_gracefully=lambda: told.append("ends")))
        signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert told == ([] if ignored else [(0, signal.SIGHUP), "ends"])
