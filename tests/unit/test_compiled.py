"""What compiled routings share: cached machine code, parts of a batch in threads, and an exponential."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np
import pytest
import torch

import recaps
from recaps.workflow.fingerprint import Code
from recaps.nn.kernels import compiled
from recaps.nn.kernels import em as fused_em
from recaps.nn.kernels import similarity as fused_similarity

# Cached machine code

#: Prints a hash of all results and gradients of the three routings, and PyTorch's number of threads.
PROGRAM = """
import hashlib
import torch
from recaps.nn.fields import convolutional
from recaps.nn.routing.connectionist import ConnectionistRouting
from recaps.nn.routing.em import EMRouting
from recaps.nn.routing.similarity import SimilarityRouting

torch.set_num_threads(2)
torch.manual_seed(0)
fields = convolutional(4, 4, 2, kernel=3, stride=1)
given = [torch.rand(*shape).requires_grad_() for shape in ((3, 32, 16), (3, 32), (18, 5, 4, 4))]
state = hashlib.sha256()
for route in (
    EMRouting(5, [0.1, 0.2, 0.3]),
    SimilarityRouting(5, 4, 1.0, (1.0, 1.0), scale=1.0),
    ConnectionistRouting((8,), (6,)),
):
    out = route(*given, fields)
    total = out.poses.square().sum() + out.activations.square().sum()
    gradients = torch.autograd.grad(total, [*given, *route.parameters()], materialize_grads=True)
    for each in (*out, *gradients):
        state.update(each.detach().numpy().tobytes())
print(state.hexdigest(), torch.get_num_threads())
"""


class Run(NamedTuple):
    """A process of its own: what it printed, and the cache after it."""

    result: str
    threads: str
    files: dict[Path, int]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Two processes with a cache that is empty at first."""
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
    assert len([file for file in runs[0].files if file.suffix == ".nbc"]) == 6, "forward and backward of three routings"
    assert runs[0].files == runs[1].files, "the second compiles nothing"


def test_routing_keeps_the_number_of_threads(runs: list[Run]) -> None:
    assert [run.threads for run in runs] == ["2", "2"]


@pytest.fixture
def _no_folder_yet() -> Iterator[None]:
    compiled._folder.cache_clear()
    yield
    compiled._folder.cache_clear()


@pytest.mark.usefixtures("_no_folder_yet")
@pytest.mark.parametrize(
    ("edited", "concerned"), [("compiled", {"em", "similarity"}), ("em", {"em"}), ("cosine", set())]
)
def test_a_kernel_is_kept_apart_when_a_module_that_it_imports_is_edited(
    edited: str, concerned: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    package = tmp_path / "recaps-sources" / "recaps"
    shutil.copytree(Path(recaps.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(compiled, "fingerprint", lambda roots: Code(package).fingerprint(tuple(roots)))
    kernels = {"em": fused_em._forward, "similarity": fused_similarity._forward}

    def places() -> dict[str, tuple[str, str]]:
        found = {name: compiled.Locator.from_function(each.py_func, "") for name, each in kernels.items()}
        return {name: (each.get_cache_path(), each.get_source_stamp()) for name, each in found.items()}

    before = places()
    with open(package / "nn" / "routing" / f"{edited}.py", "a") as file:
        file.write("\nMORE = 1\n")
    after = places()
    assert {name for name in kernels if before[name][0] != after[name][0]} == concerned
    assert {name for name in kernels if before[name][1] != after[name][1]} == concerned


@pytest.mark.usefixtures("_no_folder_yet")
def test_the_cache_lies_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR"):
        monkeypatch.delenv(variable, raising=False)
    for variable, folder in (("HOME", ".cache/recaps"), ("XDG_CACHE_HOME", "recaps"), ("NUMBA_CACHE_DIR", "recaps")):
        monkeypatch.setenv(variable, str(tmp_path / variable))
        compiled._folder.cache_clear()
        assert compiled._folder() == tmp_path / variable / folder


@pytest.mark.usefixtures("_no_folder_yet")
def test_a_cache_that_cannot_be_written_lies_in_a_temporary_folder_and_the_user_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "cache"))
    folder = compiled._folder()
    assert folder.parent == tmp_path / "temporary"
    assert folder.is_dir()
    told = capsys.readouterr().err
    assert told.startswith("Compiled routings are not kept: ")
    assert f"'{tmp_path}/file/cache/recaps'" in told


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


# The exponential


@numba.njit
def _each_expm1(values: np.ndarray, out: np.ndarray) -> None:
    for k in range(len(values)):
        out[k] = compiled.expm1(values[k], values.dtype.type)


@pytest.mark.parametrize(("kind", "above"), [(np.float32, 1e-5), (np.float64, 2e-7)])
def test_expm1_is_that_of_the_library(kind: type, above: float) -> None:
    """To 5 units in the last place up to 1; above, squaring six times and the cut polynomial cost more.

    Measured: 3.9 and 4.0 units, and above a relative 4.5e-6 in single and 1.3e-7 in double precision.
    """
    small = np.geomspace(1e-12, 1, 2000)
    values = np.concatenate([np.linspace(-30, 30, 60_001), small, -small]).astype(kind)
    found = np.empty_like(values)
    _each_expm1(values, found)
    expected = np.array([math.expm1(each) for each in values.astype(float)])
    allowed = np.where(values <= 1, 5 * np.finfo(kind).eps, above)
    assert (np.abs(found - expected) <= allowed * np.abs(expected)).all()


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_expm1_is_cut_at_30_and_keeps_what_is_no_number(kind: type) -> None:
    values = np.array([30, 1000, np.inf, -30, -1000, -np.inf, np.nan], kind)
    found = np.empty_like(values)
    _each_expm1(values, found)
    assert set(found[:3]) == {found[0]}
    assert set(found[3:6]) == {found[3]}
    assert np.isnan(found[6])
