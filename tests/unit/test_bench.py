"""`make bench`: its arithmetic, its rows, and the times that it keeps."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import places
import pytest
import torch

from recaps import bench
from recaps.config.training import Training
from recaps.config.variant import Variant
from recaps.models import build
from recaps.nn import kernels
from recaps.nn.kernels import plain
from recaps.papers.sparse.options import SparseCapsOptions
from recaps.training.batches import Batches
from recaps.training.images import images_of
from recaps.training.timing import count_operations

pytestmark = pytest.mark.unit

OWN_DATA = "datasets: {mine: {path: my.npz}, cifar10: mine}\n"
CONFIG = str(places.CONFIG)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time models in this process, without the peak of matrix products."""

    class Here:
        def __init__(self, *arguments: Any, **options: Any) -> None: ...

        def __enter__(self) -> Here:
            return self

        def __exit__(self, *error: object) -> None: ...

        def submit(self, function: Callable[..., Any], *arguments: Any) -> Here:
            self.result = lambda: function(*arguments)
            return self

    monkeypatch.setattr(bench, "ProcessPoolExecutor", Here)
    monkeypatch.setattr(bench, "matmul_peak", lambda *arguments: 1e9)


def test_operations_are_those_of_the_equations() -> None:
    options = SparseCapsOptions(learning="dense", capsules=4, conv_channels=8, primary_types=2, decoder=(16,))
    model = build(options, (1, 28, 28), 10)
    images, device = 3, torch.device("cpu")
    training = Training(batch_size=images, precision="float32")
    model.configure(training)
    batches = Batches(images_of(bench.random_split("mnist", images), device), training, 0, device)
    first = 2 * 20 * 20 * 81 * 8  # its input needs no gradient
    second = 2 * 6 * 6 * 81 * 8 * 16
    votes = 2 * 72 * 8 * 4 * 16
    routing = (3 + 2) * 2 * 72 * 4 * 16
    decoder = 2 * (64 * 16 + 16 * 784)
    expected = images * (2 * first + 3 * (second + votes + routing + decoder))
    assert count_operations(model, batches, 0) == expected


def test_it_times_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "--config",
        CONFIG,
        "--scale",
        "smoke",
        "--only",
        "supcaps-28",
        "--steps",
        "1",
        "--plain",
        "0",
        "--precisions",
        "float32",
    ]
    assert bench.main(command) == 0
    row = capsys.readouterr().out.splitlines()[-1].split()
    assert row[:2] == ["sparse/supcaps-28", "float32"]
    assert float(row[5]) > 0
    assert float(row[6]) == 1


@pytest.mark.usefixtures("quick")
def test_equal_work_is_timed_once(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--config", CONFIG, "--scale", "smoke", "--papers", "discriminative", "--steps", "1", "--only"]
    assert bench.main([*command, "multimnist-l2", "mnist-l2-fc", "fashion-l2-fc"]) == 0
    rows = [row.split() for row in capsys.readouterr().out.splitlines()[6:]]
    assert rows[1] == ["discriminative/fashion-l2-fc", "as", "discriminative/mnist-l2-fc"]
    assert rows[2][0] == "discriminative/multimnist-l2"


def test_a_misspelt_variant_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--config", CONFIG, "--only", "supcap"]) == 1
    assert capsys.readouterr().err == "recaps: --only: no variant 'supcap' (did you mean 'supcaps'?)\n"


@pytest.mark.usefixtures("quick")
def test_models_of_unavailable_sets_and_of_own_data_are_timed_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The images are random."""
    shutil.copytree(CONFIG, tmp_path / "config")
    (tmp_path / "config" / "config.yaml").write_text("papers: [discriminative]\nwithout: [cifar10]\n" + OWN_DATA)
    command = ["--config", str(tmp_path / "config"), "--scale", "smoke", "--steps", "1", "--only", "cifar-l1-fc"]
    assert bench.main(command) == 0
    assert "discriminative/cifar-l1-fc" in capsys.readouterr().out


@pytest.mark.usefixtures("quick")
def test_times_are_kept_by_device_and_step(tmp_path: Path) -> None:
    file = tmp_path / "times.json"
    file.write_text('{"GPU": {"other": {"seconds": 1.0}}}')
    command = ["--config", CONFIG, "--scale", "smoke", "--steps", "1", "--device", "cpu", "--save", str(file)]
    for _ in range(2):
        assert bench.main([*command, "--only", "mnist-vae"]) == 0
    times = json.loads(file.read_text())
    assert times.pop("GPU") == {"other": {"seconds": 1.0}}
    variant = bench.load({"scale": "smoke"}, Path(CONFIG)).papers["experts"].variants["mnist-vae"]
    (steps,) = times.values()
    assert list(steps) == [bench.step_name(variant, "", "auto")]
    assert steps[bench.step_name(variant, "", "auto")]["seconds"] > 0
    assert steps[bench.step_name(variant, "", "auto")]["model"] == "experts/mnist-vae"


def test_variants_with_equal_steps_share_a_time() -> None:
    def variant(name: str = "mnist-vae", **training: float) -> Variant:
        overrides = {"experts": {"variants": {name: {"training": training}}}}
        project = bench.load({"scale": "smoke", "papers": ["experts"], "overrides": overrides}, Path(CONFIG))
        return project.papers["experts"].variants[name]

    own = bench.work_of(variant())
    assert own == bench.work_of(variant("fashion-vae")) == bench.work_of(variant(steps=7, learning_rate=0.5))
    others = {bench.work_of(each) for each in (variant("mnist-rbm"), variant(batch_size=7), variant(pad=2))}
    assert len(others | {own}) == 4


@pytest.mark.usefixtures("quick")
def test_a_time_of_a_busy_machine_is_not_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "times.json"
    command = ["--config", CONFIG, "--scale", "smoke", "--steps", "1", "--plain", "0", "--device", "cpu"]
    for peak, kept in ((1e9, 1e9), (0.3e9, 1e9), (0.9e9, 0.9e9)):
        monkeypatch.setattr(bench, "matmul_peak", lambda *arguments, peak=peak: peak)
        assert bench.main([*command, "--save", str(file), "--only", "mnist-vae"]) == 0
        ((step,),) = (steps.values() for steps in json.loads(file.read_text()).values())
        assert step["peak"] == kept
        assert ("products reach 0 GFLOP/s, and 1 at the last time" in capsys.readouterr().out) == (peak == 0.3e9)


@pytest.mark.parametrize(("rate", "size"), [(1e12, 2048), (1e10, 1024), (1e6, 256)])
def test_a_slow_processor_multiplies_smaller_matrices(monkeypatch: pytest.MonkeyPatch, rate: float, size: int) -> None:
    sizes = []

    def timed(products: Callable[[], torch.Tensor], device: torch.device) -> float:
        sizes.append(len(products()))
        return 3 * 2 * sizes[-1] ** 3 / rate

    monkeypatch.setattr(bench, "_timed", timed)
    assert bench.matmul_peak(torch.float32, torch.device("cpu")) == pytest.approx(rate)
    assert sizes == [256, *[size] * 5]


@pytest.mark.usefixtures("quick")
def test_a_step_alternates_with_a_plain_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fast: list[bool] = []
    timed = bench._timed
    monkeypatch.setattr(bench, "_timed", lambda *given: fast.append(kernels.enabled()) or timed(*given))
    command = ["--config", CONFIG, "--scale", "smoke", "--steps", "3", "--device", "cpu", "--only", "mnist-em"]
    assert bench.main([*command, "--plain", "2"]) == 0
    assert fast == [True, False, True, False, True]
    head, row = capsys.readouterr().out.splitlines()[-2:]
    assert head.split()[-1] == "plain"
    assert float(row.split()[-1]) > 0
    fast.clear()
    assert bench.main([*command, "--plain", "0"]) == 0
    assert fast == [True] * 3
    head, row = capsys.readouterr().out.splitlines()[-2:]
    assert len(row.split()) == len(head.split()) - 1


@pytest.mark.parametrize(
    "name",
    [
        "sparse/supcaps-28",
        "sparse/sparsecaps",
        "discriminative/cifar-dr",
        "consensus/mnist-em",
        "experts/mnist-experts",
    ],
)
def test_a_plain_step_computes_the_same(name: str) -> None:
    paper, variant = name.split("/")
    found = bench.load({"scale": "smoke", "papers": [paper]}, Path(CONFIG)).papers[paper].variants[variant]
    training = found.training.model_copy(update={"batch_size": 4})
    device = torch.device("cpu")
    batch = Batches(images_of(bench.random_split(found.data.split("/")[0], 4), device), training, 0, device)(0)
    gradients = []
    for context in (nullcontext(), plain()):
        model = bench.untrained(found, training, device)
        torch.manual_seed(0)
        with context:
            model.training_step(batch, 0)
        gradients.append([each.grad for each in model.parameters() if each.grad is not None])
    assert gradients[0]
    for ours, slow in zip(*gradients, strict=True):
        # Gradients of EM in float32 differ by up to 6e-5 of the largest from those in float64.
        torch.testing.assert_close(ours, slow, rtol=1e-3, atol=2e-4 * float(slow.abs().max()))


@pytest.mark.parametrize("setting", ["ieee", "bf16"])
def test_plain_steps_use_the_default_library_for_products(setting: str) -> None:
    products = torch.backends.mkldnn.matmul
    before = products.fp32_precision
    products.fp32_precision = setting
    try:
        with plain():
            assert products.fp32_precision == "ieee"
        assert products.fp32_precision == setting
    finally:
        products.fp32_precision = before
