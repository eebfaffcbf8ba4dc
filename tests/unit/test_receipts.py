"""Receipts: what made the results that are there, and whether they are still the same."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from recaps import identity
from recaps.errors import TryAgain, UserError
from recaps.io import digest_of, write_json
from recaps.plan import receipts
from recaps.plan.receipts import Receipts, changed, refuse

pytestmark = pytest.mark.unit

WHAT: Mapping[str, Any] = {
    "settings": {"training": {"steps": 3}, "seed": 0},
    "data": {"mnist/train": "a"},
    "modules": {"m": "b"},
}


@pytest.fixture
def outputs(tmp_path: Path) -> list[Path]:
    """Two outputs of one job, one of them in a folder below."""
    files = [tmp_path / "run" / "model.safetensors", tmp_path / "run" / "more" / "history.csv"]
    with receipts.receipt(files, WHAT):
        for file in files:
            file.parent.mkdir(exist_ok=True, parents=True)
            file.write_text(f"content of {file.name}")
    return files


def check(folder: Path, **options: Any) -> list[Path]:
    """What has changed below a folder."""
    return Receipts(folder).check(**options)


def edit_in_secret(file: Path, text: str) -> None:
    """Change a file, of the same size, and set its time stamp back."""
    then = file.stat()
    assert len(text) == then.st_size
    file.write_text(text)
    os.utime(file, ns=(then.st_atime_ns, then.st_mtime_ns))


def contents(folder: Path) -> dict[Path, tuple[bytes, int]]:
    """The files below a folder, with their time stamps."""
    return {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.rglob("*") if file.is_file()}


def test_the_format(outputs: list[Path]) -> None:
    place = receipts.file_of(outputs)
    assert place == outputs[0].parent / ".made" / "model.safetensors.json"
    made = json.loads(place.read_text())
    assert made.keys() == {"identity", "outputs"}
    assert made["identity"] == WHAT
    assert made["outputs"] == {
        name: {
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
            "size": file.stat().st_size,
            "time": file.stat().st_mtime_ns,
        }
        for name, file in zip(("model.safetensors", "more/history.csv"), outputs, strict=True)
    }
    assert receipts.read(place) == made


@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_outputs_does_not_matter(outputs: list[Path], tmp_path: Path, order: int) -> None:
    found = Receipts(tmp_path).of([str(file) for file in outputs[::order]])
    assert found is not None
    assert found["identity"] == WHAT


def test_a_receipt_names_all_outputs_of_the_job(outputs: list[Path], tmp_path: Path) -> None:
    """If the job makes one more since, nothing says what made it."""
    assert Receipts(tmp_path).of([*map(str, outputs), str(tmp_path / "run" / "record.json")]) is None
    assert Receipts(tmp_path).of([str(tmp_path / "other" / "model.safetensors")]) is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"identity": {}}', '{"identity": {}, "outputs"'])
def test_a_damaged_receipt_is_none(outputs: list[Path], tmp_path: Path, content: str) -> None:
    receipts.file_of(outputs).write_text(content)
    assert Receipts(tmp_path).of(map(str, outputs)) is None
    assert check(tmp_path) == changed(outputs) == []


def test_what_is_as_it_was_made(outputs: list[Path], tmp_path: Path) -> None:
    assert check(tmp_path) == []
    for file in outputs:
        file.touch()
    assert check(tmp_path) == []
    outputs[1].unlink()
    assert check(tmp_path) == []
    outputs[1].write_text("content of history.csv")
    assert check(tmp_path) == []


@pytest.mark.parametrize("which", [0, 1])
def test_what_has_changed(outputs: list[Path], tmp_path: Path, which: int) -> None:
    outputs[which].write_text("something else")
    for _ in range(2):
        assert check(tmp_path) == [outputs[which]]
    with pytest.raises(UserError, match=rf"^{outputs[which]}: changed since it was made; `rm` it"):
        refuse(check(tmp_path))
    outputs[1 - which].write_text("something else")
    with pytest.raises(UserError, match=r" and 1 more: changed"):
        refuse(check(tmp_path))


def test_nothing_that_has_changed_is_no_error() -> None:
    refuse([])


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_ahead_or_behind(outputs: list[Path], tmp_path: Path, hours: int) -> None:
    """Of a file server, for instance: any other time stamp is a reason to look, whether later or earlier."""
    then = time.time_ns() + hours * 3600 * 10**9
    for file in outputs:
        os.utime(file, ns=(then, then))
    with receipts.receipt(outputs):
        for file in outputs:
            file.write_text(f"new content of {file.name}")
            os.utime(file, ns=(then, then))
    assert check(tmp_path) == []
    edit_in_secret(outputs[0], outputs[0].read_text().replace("new", "odd"))
    assert check(tmp_path) == []
    outputs[0].touch()
    assert check(tmp_path) == [outputs[0]]
    outputs[1].write_text("x" * outputs[1].stat().st_size)
    assert check(tmp_path) == outputs


def test_a_job_with_fewer_outputs_than_before(tmp_path: Path) -> None:
    """Figure 1 is now left out, and figure 2 is drawn otherwise; what is recorded of figure 1 stays."""
    first, second = tmp_path / "figure-1.png", tmp_path / "figure-2.png"
    for outputs, content in (([first, second], "old"), ([second], "new")):
        with receipts.receipt(outputs):
            for file in outputs:
                file.write_text(content)
        assert check(tmp_path) == []
    first.write_text("something else")
    assert check(tmp_path) == [first]
    with receipts.receipt([first, second]):
        first.write_text("something else")
    assert check(tmp_path) == []
    assert [file.name for file in (tmp_path / ".made").iterdir()] == ["figure-1.png.json"]


def test_a_touched_file_is_read_once(outputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in outputs:
        file.touch()
    assert check(tmp_path) == []
    monkeypatch.setattr(receipts, "digest_of", lambda file: pytest.fail(f"{file} is read again"))
    assert check(tmp_path) == []


def test_a_dry_check_writes_nothing(outputs: list[Path], tmp_path: Path) -> None:
    for file in outputs:
        file.touch()
    before = contents(tmp_path)
    assert check(tmp_path, refresh=False) == []
    assert check(tmp_path, refresh=False, whole=True) == []
    assert contents(tmp_path) == before
    assert check(tmp_path) == []
    assert contents(tmp_path) != before


def test_a_check_of_a_read_only_folder_is_no_error(
    outputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, ns: tuple[int, int]) -> None:
        raise PermissionError(path)

    outputs[0].touch()
    monkeypatch.setattr(os, "utime", refused)
    assert check(tmp_path) == []


def test_a_check_gives_a_touched_file_its_time_back_and_leaves_receipts_alone(
    outputs: list[Path], tmp_path: Path
) -> None:
    """DVC versions receipts; in a clone, all times are new."""
    place, before = receipts.file_of(outputs), contents(tmp_path)
    for file in outputs:
        file.touch()
    assert contents(tmp_path) != before
    assert check(tmp_path) == []
    assert contents(tmp_path) == before
    outputs[0].write_text("something else")
    assert check(tmp_path) == [outputs[0]]
    assert contents(tmp_path)[place] == before[place]
    assert outputs[0].stat().st_mtime_ns != before[outputs[0]][1]


def test_a_change_that_keeps_the_time_is_found_by_whoever_reads_the_files(outputs: list[Path], tmp_path: Path) -> None:
    """A start looks at sizes and times alone, as make, rsync and DVC do."""
    made = digest_of(outputs[0])
    edit_in_secret(outputs[0], "Content of model.safetensors")
    assert digest_of(outputs[0]) != made
    assert check(tmp_path) == []
    assert check(tmp_path, whole=True) == [outputs[0]]
    assert changed(outputs) == [outputs[0]]
    assert changed(outputs[1:]) == []


def test_flipped_bits_of_an_input_are_found(tmp_path: Path) -> None:
    file = tmp_path / "latents.npz"
    with receipts.receipt([file]):
        file.write_bytes(bytes(range(200)))
    before, content = file.stat(), bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert changed([file]) == check(tmp_path, whole=True) == [file]
    content[100] ^= 1
    file.write_bytes(content)
    assert changed([file]) == check(tmp_path, whole=True) == []


def test_files_without_a_receipt_have_not_changed(outputs: list[Path], tmp_path: Path) -> None:
    other = tmp_path / "run" / "claims.yaml"
    other.write_text("claims")
    outputs[0].unlink()
    assert changed([other, outputs[0], tmp_path / "nowhere" / "file"]) == []


def test_what_is_made_again_has_a_new_receipt(outputs: list[Path], tmp_path: Path) -> None:
    with receipts.receipt(outputs, {"settings": {}}):
        outputs[0].write_text("a new model")
        assert check(tmp_path) == []
    assert check(tmp_path, whole=True) == []
    made = receipts.read(receipts.file_of(outputs))
    assert made is not None
    assert made["identity"] == {"settings": {}}
    with suppress(KeyboardInterrupt), receipts.receipt(outputs):
        outputs[0].write_text("half a mod")
        raise KeyboardInterrupt
    assert check(tmp_path) == []
    assert not receipts.file_of(outputs).exists()


def test_a_job_that_starts_meanwhile_is_no_change(
    outputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It deletes the receipt and then makes its outputs again."""
    outputs[0].write_text("half a mod")

    def read(file: Path) -> str:
        receipts.file_of(outputs).unlink(missing_ok=True)
        return digest_of(file)

    monkeypatch.setattr(receipts, "digest_of", read)
    assert check(tmp_path) == []
    assert not receipts.file_of(outputs).exists(), "a check brings no receipt back"


def test_a_job_that_ends_meanwhile_is_no_change(outputs: list[Path], tmp_path: Path) -> None:
    found = Receipts(tmp_path)
    with receipts.receipt(outputs, WHAT):
        outputs[0].write_text("made again")
    assert found.check() == []


def test_folders_may_lie_on_another_disk(outputs: list[Path], tmp_path: Path) -> None:
    elsewhere, scale = tmp_path / "disk", tmp_path / "smoke"
    elsewhere.mkdir()
    scale.mkdir()
    (tmp_path / "run").rename(elsewhere / "run")
    (scale / "run").symlink_to(elsewhere / "run")
    assert Receipts(scale).of(str(scale / file.relative_to(tmp_path)) for file in outputs)


def test_the_folder_may_be_named_with_dots(outputs: list[Path], tmp_path: Path) -> None:
    dotted = [tmp_path / "run/.." / file.relative_to(tmp_path) for file in outputs]
    found = Receipts(tmp_path / "run/..")
    assert found.of(map(str, dotted))
    assert found.data(dotted) == Receipts(tmp_path).data(outputs) != dict.fromkeys(found.data(dotted))


def test_files_that_are_deleted_meanwhile_are_no_change(
    outputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(file: Path) -> str:
        file.unlink()
        return digest_of(file)

    outputs[0].touch()
    monkeypatch.setattr(receipts, "digest_of", gone)
    assert check(tmp_path) == []
    assert not outputs[0].exists()
    assert changed(outputs[1:]) == []


def test_a_job_with_a_full_disk_is_not_lost(
    outputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, value: Any) -> None:
        raise TryAgain("the disk is full")

    monkeypatch.setattr(receipts, "write_json", full)
    with receipts.receipt(outputs):
        outputs[0].write_text("a new model")
    assert outputs[0].read_text() == "a new model"
    assert check(tmp_path) == []


# Digests of inputs


def record(folder: Path, **values: Any) -> Path:
    """A job that makes a run's record."""
    file = folder / "runs" / "a" / "b" / "seed-0" / "record.json"
    with receipts.receipt([file]):
        write_json(file, {"steps": 3, "identity": {"modules": {}}, **values})
    return file


def test_a_record_counts_without_what_it_tells_of_its_identity(tmp_path: Path) -> None:
    """So that results made from it stay when a change of code is accepted, which writes both."""
    name = "runs/a/b/seed-0/record.json"
    found = []
    for values in ({}, {"identity": {"modules": {"m": "1"}}}, {"proofs": ["a"]}, {"steps": 4}):
        file = record(tmp_path, **values)
        found.append(Receipts(tmp_path).data([file]))
        assert list(found[-1]) == [name]
        made = receipts.read(receipts.file_of([file]))
        assert made is not None
        assert made["outputs"]["record.json"]["sha256"] == digest_of(file)
        assert made["outputs"]["record.json"]["content"] == found[-1][name] != digest_of(file)
    assert found[0] == found[1] == found[2] != found[3]


def test_inputs_are_named_from_the_folder_of_the_scale(outputs: list[Path], tmp_path: Path) -> None:
    other, official = tmp_path / "run" / "other.csv", tmp_path.parent / "images.gz"
    other.write_text("has no receipt")
    assert Receipts(tmp_path).data([*outputs, other, official]) == {
        "run/other.csv": None,
        "run/model.safetensors": digest_of(outputs[0]),
        "run/more/history.csv": digest_of(outputs[1]),
    }


def test_a_data_set_counts_once_with_what_it_holds(tmp_path: Path) -> None:
    about = {"digest": "d", "seed": 1, "parameters": {"shift": 2}, "prepared": "today"}
    folder = tmp_path / "datasets" / "mnist" / "train"
    write_json(folder / "record.json", about)
    files = [folder / "images.npy", folder / "labels.npy", folder / "record.json"]
    assert Receipts(tmp_path).data(files) == {"mnist/train": identity.of_split(about)}
    write_json(folder / "record.json", about | {"prepared": "tomorrow"})
    assert Receipts(tmp_path).data(files) == {"mnist/train": identity.of_split(about)}
    write_json(folder / "record.json", about | {"digest": "e"})
    assert Receipts(tmp_path).data(files) == {"mnist/train": identity.of_split(about | {"digest": "e"})}
    for content in ("[]", "{"):
        (folder / "record.json").write_text(content)
        assert Receipts(tmp_path).data(files) == {"mnist/train": None}


def test_rewritten_outputs_have_not_changed(outputs: list[Path], tmp_path: Path) -> None:
    """As `accept` writes records."""
    found = receipts.read(receipts.file_of(outputs))
    assert found is not None
    outputs[0].write_text("on purpose")
    receipts.rewrite(receipts.file_of(outputs), found | {"proofs": ["a"]}, outputs[:1])
    assert check(tmp_path, whole=True) == []
    made = receipts.read(receipts.file_of(outputs))
    assert made is not None
    assert (made["identity"], made["proofs"]) == (WHAT, ["a"])
    outputs[1].write_text("not on purpose")
    assert check(tmp_path) == [outputs[1]]
