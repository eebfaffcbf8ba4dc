"""Checksums of results, and the error for results that have changed."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from recaps.errors import TryAgain, UserError
from recaps.io import digest_of
from recaps.workflow import receipts

pytestmark = pytest.mark.unit


@pytest.fixture
def outputs(tmp_path: Path) -> list[Path]:
    """Two outputs of one job, one of them in a folder below."""
    files = [tmp_path / "run" / "model.safetensors", tmp_path / "run" / "more" / "history.csv"]
    with receipts.receipt(files):
        for file in files:
            file.parent.mkdir(exist_ok=True, parents=True)
            file.write_text(f"content of {file.name}")
    return files


def test_what_is_as_it_was_made(outputs: list[Path], tmp_path: Path) -> None:
    receipts.check(tmp_path)
    for file in outputs:
        file.touch()
    receipts.check(tmp_path)
    outputs[1].unlink()
    receipts.check(tmp_path)
    outputs[1].write_text("content of history.csv")
    receipts.check(tmp_path)


@pytest.mark.parametrize("which", [0, 1])
def test_what_has_changed(outputs: list[Path], tmp_path: Path, which: int) -> None:
    outputs[which].write_text("something else")
    for _ in range(2):
        with pytest.raises(UserError, match=rf"^{outputs[which]}: changed since it was made; `rm` it"):
            receipts.check(tmp_path)
    outputs[1 - which].write_text("something else")
    with pytest.raises(UserError, match=r" and 1 more: changed"):
        receipts.check(tmp_path)


def test_a_job_with_fewer_outputs_than_before(tmp_path: Path) -> None:
    """Figure 1 is now left out, and figure 2 is drawn otherwise; what is recorded of figure 1 stays."""
    first, second = tmp_path / "figure-1.png", tmp_path / "figure-2.png"
    for outputs, content in (([first, second], "old"), ([second], "new")):
        with receipts.receipt(outputs):
            for file in outputs:
                file.write_text(content)
        receipts.check(tmp_path)
    first.write_text("something else")
    with pytest.raises(UserError, match=rf"^{first}: changed since it was made"):
        receipts.check(tmp_path)
    with receipts.receipt([first, second]):
        first.write_text("something else")
    receipts.check(tmp_path)


def test_each_content_is_read_once(outputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in outputs:
        file.touch()
    receipts.check(tmp_path)
    monkeypatch.setattr(receipts, "digest_of", lambda file: pytest.fail(f"{file} is read again"))
    receipts.check(tmp_path)


def test_what_is_made_again_has_new_checksums(outputs: list[Path], tmp_path: Path) -> None:
    with receipts.receipt(outputs):
        outputs[0].write_text("a new model")
        receipts.check(tmp_path)
    receipts.check(tmp_path)
    with suppress(KeyboardInterrupt), receipts.receipt(outputs):
        outputs[0].write_text("half a mod")
        raise KeyboardInterrupt
    receipts.check(tmp_path)


def test_a_job_that_starts_meanwhile_is_no_change(
    outputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It deletes the receipt and then makes its outputs again."""
    outputs[0].write_text("half a mod")

    def read(file: Path) -> str:
        (tmp_path / "run" / receipts.FOLDER / outputs[0].name).unlink(missing_ok=True)
        return digest_of(file)

    monkeypatch.setattr(receipts, "digest_of", read)
    receipts.check(tmp_path)


def test_a_receipt_that_is_deleted_meanwhile_is_no_change(
    outputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time_of = receipts._time

    def timed(file: Path) -> int | None:
        found = time_of(file)
        if file.parent.name == receipts.FOLDER:
            file.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(receipts, "_time", timed)
    receipts.check(tmp_path)


def test_a_job_with_a_full_disk_is_not_lost(
    outputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise TryAgain("the disk is full")

    monkeypatch.setattr(receipts, "write_text", full)
    with receipts.receipt(outputs):
        outputs[0].write_text("a new model")
    receipts.check(tmp_path)


def test_the_format_is_that_of_sha256sum(outputs: list[Path]) -> None:
    command = "sha256sum --check .sha256/*"
    assert subprocess.run(command, shell=True, cwd=outputs[0].parent).returncode == 0
    outputs[1].write_text("something else")
    assert subprocess.run(command, shell=True, cwd=outputs[0].parent).returncode == 1


def test_a_change_that_keeps_the_time_is_not_seen(outputs: list[Path], tmp_path: Path) -> None:
    """A limit, as of make, rsync and DVC: a change is hidden if the time stamp is set back."""
    then, made = outputs[0].stat().st_mtime_ns, digest_of(outputs[0])
    outputs[0].write_text("something else")
    os.utime(outputs[0], ns=(time.time_ns(), then))
    receipts.check(tmp_path)
    assert digest_of(outputs[0]) != made
