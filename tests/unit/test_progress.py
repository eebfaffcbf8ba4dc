"""The progress of the demo: one line with a share and an estimate, and whole messages for errors."""

from __future__ import annotations

import io
import logging
from contextlib import redirect_stderr
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import snakemake_logger_plugin_progress
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_logger_plugin_progress import LogHandler, Progress

from recaps.training.run import _print

pytestmark = pytest.mark.unit


def test_the_line_names_share_times_and_a_job() -> None:
    progress = Progress(4, started=10)
    progress.running[1] = "Training a"
    assert progress.line(20) == "  0 %  0 of 4 jobs  0:10 min so far  Training a"
    progress.done, progress.running = 1, {2: "Training b", 3: "Training c"}
    assert progress.line(72) == " 25 %  1 of 4 jobs  1:02 min so far, about 3:06 min left  Training c"
    assert "3:00 h so far, about 9:00 h left" in progress.line(10 + 3 * 3600)
    progress.done, progress.running = 4, {}
    assert progress.complete
    assert progress.line(80) == "100 %  4 of 4 jobs  1:10 min so far"


def test_a_running_training_tells_loss_and_time_left(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    progress = Progress(4, started=0)
    progress.running, progress.logs = {1: "Training a", 2: "Drawing b"}, {1: [log], 2: [tmp_path / "none.log"]}
    assert progress.line(5).endswith("so far  Drawing b")
    log.write_text("continuing from step 50\n")
    assert progress.line(5).endswith("so far  Drawing b")
    with log.open("a") as file, redirect_stderr(file):
        for step in (100, 200):
            row = {"step": step, "seconds": step / 10, "images_per_second": 128, "learning_rate": 0.001}
            _print(row | {"loss": 25 / step, "margin": 1.0}, 1000)
    assert progress.line(5) == "  0 %  0 of 4 jobs  0:05 min so far  loss 0.125, 1:20 min left:  Training a"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def events() -> list[dict[str, Any]]:
    """Two jobs, of which the first fails."""
    job = {"event": LogEvent.JOB_INFO, "jobid": 1, "rule_name": "train", "rule_msg": "Training a"}
    error = {"event": LogEvent.JOB_ERROR, "level": logging.ERROR, "msg": "Error in rule train"}
    return [
        {"msg": "Building DAG of jobs..."},
        {"event": LogEvent.RUN_INFO, "stats": {"train": 2, "total": 2}, "msg": "Job stats: ..."},
        {"msg": "Select jobs to execute..."},
        {**job, "msg": "Rule: train, Jobid: 1"},
        {**error, "jobid": 1},
        {**job, "jobid": 2, "rule_msg": "Training b", "msg": "Rule: train, Jobid: 2"},
        {"event": LogEvent.JOB_FINISHED, "job_id": 2, "msg": "Finished jobid: 2 (Rule: train)"},
        {"event": LogEvent.PROGRESS, "done": 1, "total": 2, "msg": None},
        {"msg": "Complete log(s): file.log"},
    ]


def shown(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(snakemake_logger_plugin_progress, "time", SimpleNamespace(monotonic=lambda: 0.0))
    monkeypatch.setenv("COLUMNS", "80")
    handler = LogHandler(SimpleNamespace(stdout=False, dryrun=False), None)  # type: ignore[arg-type]
    for each in events():
        values = dict(each)
        record = logging.LogRecord("", values.pop("level", logging.INFO), "", 0, values.pop("msg"), None, None)
        record.__dict__.update(values)
        handler.emit(record)
    return stream.getvalue()


def test_on_a_terminal_one_line_is_rewritten_and_an_error_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(Terminal(), monkeypatch)
    assert text.startswith("\r\x1b[KBuilding DAG of jobs...\n")
    assert "Error in rule train\n" in text
    assert text.count("\n") == 3, "all else is the line"
    *_, line, last = text.split("\x1b[K")
    assert line == " 50 %  1 of 2 jobs  0:00 min so far, about 0:00 min left\r"
    assert last == "Complete log(s): file.log\n"
    for unwanted in ("Select jobs", "Finished jobid", "Job stats", "Jobid"):
        assert unwanted not in text


def test_in_a_log_lines_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(io.StringIO(), monkeypatch).splitlines()
    assert lines[0] == "Building DAG of jobs..."
    assert lines[1] == "Error in rule train"
    assert lines[2] == " 50 %  1 of 2 jobs  0:00 min so far, about 0:00 min left"
    assert lines[3:] == ["Complete log(s): file.log"]
