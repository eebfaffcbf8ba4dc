"""Compiled kernels: the switch, the cache of machine code, parts of a batch in threads."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from recaps.nn import kernels
from recaps.nn.kernels import compiled

pytestmark = pytest.mark.unit

# The switch


def test_kernels_are_switched_off_and_on_again() -> None:
    poses, weight = torch.zeros(1, 3, 16), torch.zeros(3, 2, 4, 4)
    assert kernels.fits(poses, weight)
    with kernels.off():
        assert not kernels.fits(poses, weight)
        with kernels.off():
            pass
        assert not kernels.fits(poses, weight), "the inner context does not switch them on"
    assert kernels.fits(poses, weight)


def test_kernels_are_for_cpus_and_a_limited_number_of_outputs() -> None:
    poses = torch.zeros(1, 3, 16)
    assert not kernels.fits(poses, torch.zeros(3, kernels.LANES + 1, 4, 4))
    assert not kernels.fits(poses.to("meta"), torch.zeros(3, 2, 4, 4))


def test_kernels_import_no_layer_that_calls_them() -> None:
    """And the seam itself does not load the compiler."""
    for file in Path(kernels.__file__).parent.glob("*.py"):
        imported = re.findall(r"^from (recaps\S+)", file.read_text(encoding="utf-8"), re.MULTILINE)
        assert {name for name in imported if not name.startswith("recaps.nn.kernels")} <= {
            "recaps.nn.fields",
            "recaps.nn.precision",
            "recaps.nn.squash",
        }
    program = "import sys, recaps.nn.routing.em, recaps.nn.poses; sys.exit('numba' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


# The cache of machine code

#: Prints a digest of all results and gradients of a routing, and PyTorch's number of threads. The kernels of dynamic
#: routing take the least time to compile; all kernels share the cache.
PROGRAM = """
import hashlib
import torch
from recaps.nn.kernels.votes import by_agreement, padded

torch.set_num_threads(2)
torch.manual_seed(0)
given = [torch.rand(*shape).requires_grad_() for shape in ((3, 32, 8), (32, 8, 5, 4), (3, 5, 4))]
capsules, coupling = by_agreement(*padded(*given[:2]), given[2])
state = hashlib.sha256()
for each in (capsules, coupling, *torch.autograd.grad(capsules.square().sum(), given)):
    state.update(each.detach().numpy().tobytes())
print(state.hexdigest(), torch.get_num_threads())
"""


class Run(NamedTuple):
    """The output of a process, and the files of the cache after it."""

    result: str
    threads: str
    files: dict[Path, int]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Two processes with one cache, which is empty at first."""
    cache = tmp_path_factory.mktemp("cache")
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "NUMBA_NUM_THREADS": "3"}
    made = []
    for _ in range(2):
        command = [sys.executable, "-c", PROGRAM]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        files = {file: file.stat().st_mtime_ns for file in cache.rglob("*") if file.is_file()}
        made.append(Run(*done.stdout.split(), files))
    return made


def test_a_process_that_compiles_and_one_that_loads_give_the_same_bits(runs: list[Run]) -> None:
    assert runs[0].result == runs[1].result
    assert len([file for file in runs[0].files if file.suffix == ".nbc"]) == 2, "forward and backward"
    assert runs[0].files == runs[1].files, "the second compiles nothing"


def test_routing_keeps_the_number_of_threads(runs: list[Run]) -> None:
    assert [run.threads for run in runs] == ["2", "2"]


@pytest.fixture
def _no_folder_yet() -> Iterator[None]:
    compiled._folder.cache_clear()
    yield
    compiled._folder.cache_clear()


@pytest.mark.usefixtures("_no_folder_yet")
def test_an_edit_of_any_kernel_gives_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    sources = tmp_path / "kernels"
    shutil.copytree(Path(compiled.__file__).parent, sources, ignore=shutil.ignore_patterns("__pycache__"))

    def place() -> tuple[str, str]:
        found = compiled.Locator.from_function(print, "")
        return found.get_cache_path(), found.get_source_stamp()

    own = place()
    monkeypatch.setattr(compiled, "__file__", str(sources / "compiled.py"))
    assert place() == own, "another checkout of the same code"
    for name in ("compiled", "em"):
        before = place()
        with open(sources / f"{name}.py", "a") as file:
            file.write("\nMORE = 1\n")
        assert all(old != new for old, new in zip(before, place(), strict=True))


@pytest.mark.usefixtures("_no_folder_yet")
def test_the_user_chooses_the_folder_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR"):
        monkeypatch.delenv(variable, raising=False)
    for variable, folder in (("HOME", ".cache/recaps"), ("XDG_CACHE_HOME", "recaps"), ("NUMBA_CACHE_DIR", "recaps")):
        monkeypatch.setenv(variable, str(tmp_path / variable))
        compiled._folder.cache_clear()
        assert compiled._folder() == tmp_path / variable / folder


@pytest.mark.usefixtures("_no_folder_yet")
def test_a_temporary_folder_replaces_a_cache_that_is_not_writable_with_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "cache"))
    folder = compiled._folder()
    assert folder.parent == tmp_path / "temporary"
    assert folder.is_dir()
    message = capsys.readouterr().err
    assert message.startswith("Compiled kernels are not cached: ")
    assert f"'{tmp_path}/file/cache/recaps'" in message


@pytest.mark.usefixtures("_no_folder_yet")
def test_a_user_without_a_home_can_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert compiled._folder().parent == tmp_path


# Parts


@pytest.fixture
def _three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_three_threads")
def test_every_part_is_called_once() -> None:
    called = []
    compiled.in_parts(lambda *given: called.append(given), "one", "two")
    assert sorted(called) == [(part, 3, "one", "two") for part in range(3)]


@pytest.mark.usefixtures("_three_threads")
@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_error_in_any_part_reaches_the_caller(failing: int) -> None:
    def kernel(part: int, parts: int) -> None:
        if part == failing:
            raise ArithmeticError(f"in part {part} of {parts}")

    with pytest.raises(ArithmeticError, match=f"in part {failing} of 3"):
        compiled.in_parts(kernel)
