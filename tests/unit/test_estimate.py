"""What `make estimate` prints: numbers made by hand, and where each comes from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recaps import estimate, step_times
from recaps.config.load import load
from recaps.config.variant import Variant
from recaps.config.workflow import Scale
from recaps.datasets.preparation import build
from recaps.errors import UserError
from recaps.estimate import Gpu, Seconds, Sizes, Times
from recaps.step_times import OWN, TENSORS, StepTime, work_of
from recaps.workflow.plan import Plan

CONFIG = Path(__file__).parents[2] / "config"
CPU, A100 = "Some CPU, 2 threads", "NVIDIA A100-SXM4-80GB"
#: 300 times the bfloat16 arithmetic of the CPU, and 100 times its bandwidth.
GPU = Gpu("NVIDIA A100", 300_000, 20_000, 2000, 80)
ROW = StepTime(
    device=CPU,
    work="",
    phase="",
    precision="bf16",
    code=OWN,
    batch_size=32,
    images=32,
    seconds=3.0,
    gflop=100.0,
    calls=50,
    gib=1.0,
    bf16=1000.0,
    float32=200.0,
    bandwidth=20.0,
    scale="smoke",
    paper="experts",
    variant="mnist-vae",
    date="2026-01-31",
    torch="2.0",
)


def plan(**values: Any) -> Plan:
    return Plan(load({"scale": "smoke", "papers": ["experts"], **values}, CONFIG))


def variant(name: str = "mnist-vae", **values: Any) -> Variant:
    return plan(**values).project.papers["experts"].variants[name]


def row(name: str = "mnist-vae", **values: Any) -> StepTime:
    return replace(ROW, **{"work": work_of(variant(name)), **values})


def times(*rows: StepTime) -> Times:
    return Times(rows, GPU, GPU.name)


def test_a_converted_time_lies_between_the_ratios_of_arithmetic_and_of_bandwidth() -> None:
    step = times(row()).step(variant(), "")
    assert step is not None
    assert step.low == pytest.approx(3.0 / 300)
    assert step.high == pytest.approx(3.0 / 100)


def test_float32_is_converted_by_the_rate_of_float32() -> None:
    precise = variant(overrides={"experts": {"variants": {"mnist-vae": {"training": {"precision": "float32"}}}}})
    step = times(row(precision="float32")).step(precise, "")
    assert step == Seconds(pytest.approx(3.0 / 100), pytest.approx(3.0 / 100))
    assert times(row()).step(precise, "") is None


def test_no_step_is_faster_than_its_operations_are_started() -> None:
    step = times(row(seconds=1e-4, calls=50)).step(variant(), "")
    assert step == Seconds(pytest.approx(50 * 10e-6), pytest.approx(50 * 10e-6))


def test_a_measured_time_wins_over_a_converted_one() -> None:
    measured = row(device=A100, seconds=0.02)
    for rows in ((measured, row()), (row(), measured)):
        assert times(*rows).step(variant(), "") == Seconds(0.02, 0.02)
    # On another GPU it is converted as well, and before that of a CPU.
    other = Gpu("NVIDIA H200", 2000, 2000, 40, 1)
    assert Times([row(seconds=9.0), measured], other, other.name).step(variant(), "") == Seconds(
        pytest.approx(0.02 * 1000 / 2000), pytest.approx(0.02 * 20 / 40)
    )


def test_what_a_gpu_would_run_is_converted_where_it_was_measured() -> None:
    tensors = row(code=TENSORS, seconds=6.0)
    for rows in ((tensors, row()), (row(), tensors)):
        step = times(*rows).step(variant(), "")
        assert step is not None
        assert step.low == pytest.approx(6.0 / 300)
    assert times(replace(tensors, device=A100)).measured == {}


def test_an_rbm_learns_on_the_cpu_whatever_the_gpu() -> None:
    assert times(row("mnist-rbm")).step(variant("mnist-rbm"), "") == Seconds(3.0, 3.0)


def test_phases_have_times_of_their_own() -> None:
    phases = {"autoencoder": 0, "encoder": 12, "decoder": 42}
    rows = [
        row("mnist-experts", device=A100, phase=phase, seconds=seconds)
        for phase, seconds in (("autoencoder", 1.0), ("encoder", 0.1), ("decoder", 0.01))
    ]
    assert variant("mnist-experts").training.steps == 60
    total = estimate.training_time(variant("mnist-experts"), phases, times(*rows))
    assert total is not None
    assert total.low == pytest.approx(12 * 1.0 + 30 * 0.1 + 18 * 0.01)
    assert estimate.training_time(variant("mnist-experts"), phases, times(*rows[1:])) is None


def test_seeds_and_equal_networks_share_a_measurement() -> None:
    mnist, fashion = variant("mnist-vae"), variant("fashion-vae")
    assert work_of(mnist) == work_of(fashion)
    assert work_of(mnist) != work_of(variant("mnist-rbm"))
    longer = {"experts": {"variants": {"mnist-vae": {"training": {"steps": 7, "learning_rate": 0.5}}}}}
    assert work_of(mnist) == work_of(variant(overrides=longer))
    larger = {"experts": {"variants": {"mnist-vae": {"training": {"batch_size": 7}}}}}
    assert work_of(mnist) != work_of(variant(overrides=larger))
    padded = {"experts": {"variants": {"mnist-vae": {"training": {"pad": 2}}}}}
    assert work_of(mnist) != work_of(variant(overrides=padded))


def test_a_paper_by_hand() -> None:
    """Two seeds of eight variants, 60 steps of 32 images each, every step a second on the GPU itself."""
    small = plan(seeds=[0, 1])
    rows = [row(name, device=A100, seconds=1.0) for name in ("mnist-experts", "mnist-rbm", "mnist-vae", "mnist-judge")]
    found = estimate.cost(small, times(*rows), of=lambda _: Sizes({"": 0}, model=100, optimizers=200, latents=10))
    assert found.steps == 2 * 8 * 60
    assert found.training == Seconds(pytest.approx(2 * 8 * 60), pytest.approx(2 * 8 * 60))
    # 300 images of two splits for six variants, of one for the judges; a third of 1/32 s each.
    read = 6 * 600 + 2 * 300
    assert found.reading.high == pytest.approx(2 * read / 3 / 32)
    assert found.unknown == ()
    assert found.models == 2 * 8 * 100
    assert found.checkpoints == 2 * 8 * 2 * 300
    assert found.latents == 2 * read * 10
    assert found.datasets == 2 * (1437 + 360) * (28 * 28 + 8)
    assert found.storage == found.models + found.checkpoints + found.latents + found.datasets


def test_variants_that_were_measured_nowhere_are_named() -> None:
    found = estimate.cost(plan(), times(row()), of=lambda _: Sizes({"": 0}, 1, 1, 1))
    assert "experts/mnist-judge" in found.unknown
    assert "experts/fashion-vae" not in found.unknown
    assert found.training.high == pytest.approx(2 * 60 * 3.0 / 100)


def test_tests_along_a_training_are_counted() -> None:
    project = plan(papers=["discriminative"], scale="paper").project
    training = project.papers["discriminative"].variants["mnist-dr"]
    assert estimate.images_read(training, project) == 10_000 + 40 * 10_000
    pairs = project.papers["discriminative"].variants["multimnist-l2"]
    assert estimate.images_read(pairs, project) == 100_000 + 100 * 10_000


def test_sizes_of_an_autoencoder_by_hand() -> None:
    """784-64-640 and back from 320: what the file of the model, Adam and the latents hold."""
    found = estimate.sizes(variant())
    parameters = (784 * 64 + 64) + (64 * 640 + 640) + (320 * 64 + 64) + (64 * 784 + 784)
    tensors = 8
    assert found.phases == {"": 0}
    assert found.model == 4 * parameters + 8, "and the seed of its noise"
    assert found.optimizers == 2 * 4 * parameters + 4 * tensors
    assert found.latents == 4 * (3 * 320 + 1) + 8 + 8


@pytest.mark.parametrize(
    ("name", "images"),
    [
        ("mnist-40/train", 60_000),
        ("mnist-rotated-45/test", 10_000),
        ("affnist/test", 320_000),
        ("affnist-generated/test", 30_000),
        ("affnist-generated/validation", 30_000),
        ("smallnorb/train", 24_300),
        ("smallnorb-48/train", 48_600),
        ("smallnorb-48-azimuth/train", 16_200),
        ("smallnorb-48-elevation/novel", 32_400),
        ("multimnist/train", 60_000),
        ("cifar10/train", 700),
    ],
)
def test_images_of_official_sets(name: str, images: int) -> None:
    options = {"affnist-generated": {"versions": 3}, "cifar10": {"limit": 700}}
    assert estimate.stored_images(name, Scale(description="", dataset_options=options)) == images


@pytest.mark.parametrize(
    "name", ["mnist/train", "fashion-mnist/test", "affnist/test", "affnist-generated/validation", "smallnorb-48/train"]
)
def test_images_of_stand_ins(name: str, tmp_path: Path) -> None:
    options: dict[str, dict[str, Any]] = {
        "affnist": {"versions": 2},
        "affnist-generated": {"versions": 2},
        "smallnorb-48": {"limit": 30},
    }
    scale = Scale(description="", stand_in=True, dataset_options=options)
    made = build(*name.split("/"), tmp_path, stand_in=True, options=options.get(name.split("/")[0], {}))  # type: ignore[misc]
    assert estimate.stored_images(name, scale) == len(made)
    exact = made.images.nbytes + made.labels.nbytes
    assert estimate.stored_bytes(name, scale) == exact


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("NVIDIA A100", "NVIDIA A100"),
        ("a100", "NVIDIA A100"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100"),
        ("Tesla V100-SXM2-32GB", "NVIDIA V100"),
        ("NVIDIA GeForce RTX 3090", "NVIDIA RTX 3090"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100"),
    ],
)
def test_names_of_gpus(name: str, gpu: str) -> None:
    assert estimate.choose_gpu(name, [])[1] == gpu


def test_a_device_that_was_measured_needs_no_table() -> None:
    gpu, device = estimate.choose_gpu(CPU, [row()])
    assert (gpu, device) == (None, CPU)
    assert Times([row()], gpu, device).step(variant(), "") == Seconds(3.0, 3.0)
    assert Times([row()], gpu, device).step(variant("mnist-rbm"), "") is None


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("NVIDIA A10O", " (did you mean 'NVIDIA A100'?)"),
        ("NVIDIA GeForce RTX 3090 Ti", " (did you mean 'NVIDIA RTX 3090'?)"),
        ("abacus", " (valid: NVIDIA A100, NVIDIA H100, NVIDIA H200, NVIDIA L40S, NVIDIA RTX 3090, NVIDIA RTX 4090,"),
    ],
)
def test_an_unknown_gpu_is_told_in_one_line(
    name: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert estimate.main(["--config", str(CONFIG), "--times", str(tmp_path / "none.csv"), "--gpu", name]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"recaps: --gpu: nothing is known of '{name}'{told}")
    assert error.count("\n") == 1


def test_rows_are_kept_and_replaced(tmp_path: Path) -> None:
    file = tmp_path / "times.csv"
    assert step_times.read(file) == []
    first, other = row(), row(device=A100)
    step_times.save(file, [first, other])
    assert step_times.read(file) == [first, other]
    step_times.save(file, [replace(first, seconds=1.5)])
    assert step_times.read(file) == [replace(first, seconds=1.5), other]
    file.write_text("device,seconds\nx,1\n")
    with pytest.raises(UserError, match=r"times\.csv: not a file of step times"):
        step_times.read(file)


def test_what_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "times.csv"
    names = ("mnist-vae", "mnist-rbm", "mnist-judge")
    phases = ("autoencoder", "encoder", "decoder")
    step_times.save(
        file,
        [
            *(row(name, variant=name) for name in names),
            *(row("mnist-experts", variant="mnist-experts", phase=phase, device=A100) for phase in phases[:2]),
        ],
    )
    command = ["--config", str(CONFIG), "--scale", "smoke", "--papers", "experts", "--times", str(file)]
    assert estimate.main([*command, "--gpu", "A100"]) == 0
    printed = capsys.readouterr().out
    lines = [(line[:26].strip(), line[26:].split()) for line in printed.splitlines()]
    assert ("", ["experts", "total"]) in lines
    assert ("trainings", ["8", "8"]) in lines
    assert ("heads (on CPUs)", ["8", "8"]) in lines
    assert ("tables, figures, others", ["9", "11"]) in lines, "one table, seven figures, the metrics; then the report"
    assert "0 of 8 variants measured on this device, 6 converted, 2 unknown" in printed
    assert "Unknown, and in no sum of hours: experts/mnist-experts, experts/fashion-experts" in printed
    assert "These are assumptions, not measurements" in printed


def test_most_steps_at_scale_paper_were_measured() -> None:
    """What is missing after a change of settings is named when the estimate is made."""
    variants = [each for paper in load({"scale": "paper"}, CONFIG).papers.values() for each in paper.variants.values()]
    known = {each.work for each in step_times.read(CONFIG.parent / step_times.FILE)}
    assert sum(work_of(each) in known for each in variants) > len(variants) / 2
