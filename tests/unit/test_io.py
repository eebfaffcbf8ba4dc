"""Files that are whole or absent, and what stands in the way."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from messages import one_line

from recaps import io
from recaps.errors import TryAgain


@pytest.mark.parametrize("umask", [0o077, 0o002])
def test_the_umask_is_honoured(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        io.write_text(tmp_path / "a", "text")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o666 & ~umask


def test_what_killed_writers_left_is_swept(tmp_path: Path) -> None:
    """Only that of the given files: another process may write those beside them."""
    script = """
import os, sys
from pathlib import Path
from recaps import io
with io.atomic(Path(sys.argv[1])):
    os._exit(9)
"""
    for name in ("a.npz", "a.npz", "b.npz"):
        subprocess.run([sys.executable, "-c", script, str(tmp_path / name)], check=False)
    assert len(list(tmp_path.glob(".*.part"))) == 3
    io.write_text(tmp_path / "a.npz", "whole")
    io.sweep([tmp_path / "a.npz"])
    assert sorted(file.name[:7] for file in tmp_path.iterdir()) == [".b.npz.", "a.npz"]
    io.sweep([tmp_path / "*"])
    assert [file.name for file in tmp_path.iterdir()] == ["a.npz"]


@pytest.mark.parametrize(
    "write",
    [
        "io.write_bytes(Path(sys.argv[1]), bytes(10**5))",
        "save(Arrays(zeros, np.zeros(100, np.int64), {}, {}), Path(sys.argv[1]))",
    ],
)
def test_a_limit_on_the_size_of_files_is_told(tmp_path: Path, write: str) -> None:
    """Also by NumPy, whose error does not say why it wrote only a part."""
    script = f"""
import resource, sys
from pathlib import Path
import numpy as np
from recaps import io
from recaps.arrays import Arrays, save
from recaps.errors import UserError
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
zeros = np.zeros((100, 1, 28, 28), np.uint8)
try:
    {write}
except UserError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "a")], capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith(": larger than a file may be here (`ulimit -f`); raise the limit and run again\n")
    assert not list(tmp_path.rglob(".*"))


def test_a_folder_that_is_removed_meanwhile_is_told(tmp_path: Path) -> None:
    def write() -> None:
        with io.atomic(tmp_path / "made" / "a"):
            shutil.rmtree(tmp_path / "made")

    with one_line("made/a: its folder was removed meanwhile; run again", TryAgain):
        write()
