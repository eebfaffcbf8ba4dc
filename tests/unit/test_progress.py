"""The progress of the demo: one line with a share and an estimate, and whole messages for errors."""

from __future__ import annotations

import io
import logging
from types import SimpleNamespace
from typing import Any

import pytest
import snakemake_logger_plugin_progress
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_logger_plugin_progress import LogHandler, Progress

pytestmark = pytest.mark.unit


def test_the_time_left_follows_from_the_jobs_of_the_same_rule() -> None:
    """Two trainings of 10 s and two heads of 1 s, one at a time."""
    progress = Progress({"train": 2, "head": 2})
    assert progress.left(0) is None
    progress.start(1, "train", "", 100)
    progress.finish(1, 110)
    assert progress.left(110) == pytest.approx(30), "no head has finished: as long as a training"
    progress.start(2, "head", "", 110)
    progress.finish(2, 111)
    assert progress.left(111) == pytest.approx(11)
    progress.start(3, "train", "", 111)
    assert progress.left(115) == pytest.approx(7)
    progress.finish(3, 121)
    progress.start(4, "head", "", 121)
    assert not progress.complete
    progress.finish(4, 122)
    assert progress.complete
    assert progress.left(122) == 0


def test_jobs_side_by_side_halve_the_time_left() -> None:
    progress = Progress({"train": 6})
    for job, (start, end) in enumerate([(0, 10), (0, 10)]):
        progress.start(job, "train", "", start)
        progress.finish(job, end)
    assert progress.left(10) == pytest.approx(20)


def test_the_line_names_share_times_and_a_job() -> None:
    progress = Progress({"train": 3, "all": 1})
    progress.start(1, "train", "Training a", 0)
    progress.finish(1, 62)
    progress.start(2, "train", "Training b", 62)
    line = progress.line(72)
    assert line == " 25 %  1 of 4 jobs  1:12 min so far, about 2:56 min left  Training b"
    progress = Progress({"train": 2})
    progress.start(1, "train", "Training a", 0)
    progress.finish(1, 3 * 3600)
    assert "3:00 h so far, about 3:00 h left" in progress.line(3 * 3600)


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
