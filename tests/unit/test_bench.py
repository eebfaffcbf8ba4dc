"""What `make bench` prints: the arithmetic behind it, and that it runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from recaps import bench, step_times
from recaps.papers.sparse.options import SparseCapsOptions
from recaps.config.training import Training
from recaps.models import build

pytestmark = pytest.mark.unit

CONFIG = str(Path(__file__).parents[2] / "config")


def test_operations_are_those_of_the_equations() -> None:
    options = SparseCapsOptions(learning="dense", capsules=4, conv_channels=8, primary_types=2, decoder=(16,))
    model = build(options, (1, 28, 28), 10)
    model.configure(Training())
    images = 3
    batch = {"images": torch.rand(images, 1, 28, 28), "labels": torch.zeros(images, dtype=torch.int64)}
    first = 2 * 20 * 20 * 81 * 8  # its input needs no gradient
    second = 2 * 6 * 6 * 81 * 8 * 16
    votes = 2 * 72 * 8 * 4 * 16
    routing = (3 + 2) * 2 * 72 * 4 * 16
    decoder = 2 * (64 * 16 + 16 * 784)
    expected = images * (2 * first + 3 * (second + votes + routing + decoder))
    assert bench.count_flop(model, batch, 0, torch.device("cpu"), "float32") == expected


def test_it_times_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "--config",
        CONFIG,
        "--scale",
        "smoke",
        "--only",
        "convnet-28",
        "--steps",
        "1",
        "--precisions",
        "float32",
    ]
    assert bench.main(command) == 0
    row = capsys.readouterr().out.splitlines()[-1].split()
    assert row[:2] == ["sparse/convnet-28", "float32"]
    assert float(row[5]) > 0
    assert float(row[6]) == 1


def test_equal_work_is_timed_once(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--config", CONFIG, "--scale", "smoke", "--papers", "discriminative", "--steps", "1", "--only"]
    assert bench.main([*command, "multimnist-l2", "mnist-l2-fc", "fashion-l2-fc"]) == 0
    rows = [row.split() for row in capsys.readouterr().out.splitlines()[5:]]
    assert rows[1] == ["discriminative/fashion-l2-fc", "as", "discriminative/mnist-l2-fc"]
    assert rows[2][0] == "discriminative/multimnist-l2"


def test_a_misspelt_variant_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--config", CONFIG, "--only", "supcap"]) == 1
    assert capsys.readouterr().err == "recaps: --only: no variant 'supcap' (did you mean 'supcaps'?)\n"


def test_models_on_sets_that_cannot_be_had_are_timed_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its images are random."""
    shutil.copytree(CONFIG, tmp_path / "config")
    (tmp_path / "config" / "config.yaml").write_text("papers: [discriminative]\nwithout: [cifar10]\n")
    command = ["--config", str(tmp_path / "config"), "--scale", "smoke", "--steps", "1", "--only", "cifar-l1-fc"]
    assert bench.main(command) == 0
    assert "discriminative/cifar-l1-fc" in capsys.readouterr().out


def test_times_are_saved_for_the_estimate(tmp_path: Path) -> None:
    """Also those of what a GPU would run, which has no compiled routing."""
    file = tmp_path / "times.csv"
    command = ["--config", CONFIG, "--scale", "smoke", "--steps", "1", "--device", "cpu", "--save", str(file)]
    assert bench.main([*command, "--only", "mnist-vae", "mnist-em"]) == 0
    rows = {(row.variant, row.code): row for row in step_times.read(file)}
    assert set(rows) == {("mnist-vae", "own"), ("mnist-em", "own"), ("mnist-em", "tensors")}
    for row in rows.values():
        assert min(row.seconds, row.gflop, row.calls, row.bf16, row.float32, row.bandwidth) > 0
        assert (row.scale, row.precision) == ("smoke", "bf16")
    assert [rows["mnist-em", code].images for code in ("own", "tensors")] == [16, 4]
    assert rows["mnist-em", "tensors"].batch_size == 16
    assert rows["mnist-em", "tensors"].calls > rows["mnist-em", "own"].calls


def test_compiled_routing_is_left_and_taken_again() -> None:
    from recaps.nn.routing import em

    before = em.fits
    with bench.leave_compiled_code():
        assert em.fits is not before
    assert em.fits is before


def test_calls_are_counted_forward_and_backward() -> None:
    """Of a VAE without views: more than twice its eight layers, and far fewer than a step's Python calls."""
    options = bench.load({"scale": "smoke"}, Path(CONFIG)).papers["experts"].variants["mnist-vae"]
    model = bench.untrained(options, options.training, torch.device("cpu"))
    batch = {"images": torch.rand(2, 1, 28, 28), "labels": torch.zeros(2, dtype=torch.int64)}
    counted = bench.count_calls(model, batch, 0, torch.device("cpu"), "float32")
    assert 20 < counted < 200
