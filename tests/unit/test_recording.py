"""Steps that never wait for a GPU, and steps that are recorded and replayed; proved without one.

A step's work runs on PyTorch's `meta` device, which has shapes but no values: an operation that must know a value, as
it would wait for a GPU, fails there.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from resuming import digits, run_cut, same
from resuming import run as train
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from works import VARIANTS

import recaps
from recaps.bench import random_split, untrained
from recaps.config.training import Training
from recaps.models.model import Model, set_rate
from recaps.nn.noise import Noise
from recaps.papers.experts.rbm import RBM
from recaps.papers.probabilistic.rmsprop import RMSProp
from recaps.training import device, recording
from recaps.training.batches import Batches
from recaps.training.images import images_of

pytestmark = pytest.mark.unit

CPU, META = torch.device("cpu"), torch.device("meta")


class Operations(TorchDispatchMode):
    """Notes the operations of a step with their scalars, and refuses to copy values from the host to the device."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given, new = (
            [each for each in tree_leaves(values) if isinstance(each, Tensor)] for values in ((args, kwargs), made)
        )
        assert not (any(each.is_cpu for each in given) and any(each.is_meta for each in (*given, *new))), (
            f"{func} copies values from the host"
        )
        scalars = [each for each in tree_leaves((args, kwargs)) if isinstance(each, int | float | bool)]
        self.found.append(f"{func} {scalars} {[tuple(each.shape) for each in given]}")
        return made


@pytest.fixture
def on_meta(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let models run on `meta`, which has no autocast, generators or fused optimisers."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)
    monkeypatch.setattr(Noise, "generator", lambda *_: None)
    for optimizer in (torch.optim.Adam, torch.optim.SGD):
        start = optimizer.__init__
        monkeypatch.setattr(
            optimizer, "__init__", lambda self, *given, fused=None, _start=start, **more: _start(self, *given, **more)
        )
        monkeypatch.setattr(optimizer, "step", lambda self: None)  # PyTorch's own can be recorded on a GPU


def operations(model: Model, batches: Batches, step: int) -> tuple[object, list[str]]:
    """Return the kind of a step, and the operations of its work on `meta`."""
    drawn = {name: values.to(META) for name, values in batches.draw(step).items()}
    kind = model.schedule(step)
    with Operations() as noted:
        metrics = model.work(batches.make(drawn))
    assert all(each.is_meta and each.ndim == 0 for each in metrics.values())
    return kind, noted.found


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.usefixtures("on_meta")
def test_work_never_waits_and_is_the_same_in_all_steps_of_a_kind(name: str) -> None:
    """Its operations and scalars are the same, so what a graph has recorded in one step is right in another.

    Scikit-learn trains the RBM on the host.
    """
    variant = VARIANTS[name]
    images = images_of(random_split(variant.data.split("/")[0], variant.training.batch_size), CPU)
    for key, values in vars(images).items():
        if isinstance(values, Tensor):
            setattr(images, key, values.to(META))
    model = untrained(variant, variant.training, META)
    if not model.recordable:
        assert isinstance(model, RBM)
        return
    for group in itertools.chain(*(each.param_groups for each in model.optimizers().values())):
        group["lr"] = torch.zeros((), device=META)
    model.train()
    batches, steps = Batches(images, variant.training, 0, CPU), variant.training.steps
    known: dict[object, list[str]] = {}
    first = [start + more for start in model.phases().values() for more in range(4)]
    for step in sorted({*first, steps // 2, steps - 2, steps - 1} & {*range(steps)}):
        kind, found = operations(model, batches, step)
        if kind not in known:  # the first step of a kind makes the state of optimisers
            kind, found = operations(model, batches, step)
        assert found
        assert known.setdefault(kind, found) == found, (step, kind)


def test_what_waits_is_noticed() -> None:
    values = torch.zeros(3, device=META)
    waiting: list[Callable[[], object]] = [
        lambda: float(values.sum()),
        lambda: values.nonzero(),
        lambda: values[values > 0],
        lambda: values.long().bincount(),
        lambda: values.cpu() + 1,
        lambda: values + torch.tensor([1.0]).to(META),
    ]
    for each in waiting:
        with pytest.raises((RuntimeError, NotImplementedError, AssertionError)), Operations():
            each()


def test_a_rate_in_a_tensor_moves_weights_as_far() -> None:
    weights = []
    for rate in (0.01, torch.tensor(0.0)):
        weight = torch.nn.Parameter(torch.ones(4))
        optimizer = RMSProp([weight], rate, 1e-4)  # type: ignore[arg-type]
        for step in range(5):
            set_rate(optimizer.param_groups[0], 0.01 / (1 + step))
            weight.grad = torch.arange(4.0) - step
            optimizer.step()
        weights.append(weight.detach())
    torch.testing.assert_close(*weights)


# ---- Transfers ------------------------------------------------------------------------------------------------------


def transfers(tree: ast.AST) -> Iterator[str]:
    """Yield the calls that copy something to a device."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        given = " ".join(ast.unparse(each) for each in (*node.args, *node.keywords))
        to_device = node.func.attr == "to" and re.search(r"device|where", given)
        made_there = node.func.attr in ("tensor", "as_tensor") and re.search(r"device", given)
        if to_device or made_there or node.func.attr in ("cuda", "new_tensor", "pin_memory"):
            yield ast.unparse(node)


def test_one_function_copies_to_a_device() -> None:
    """The others move weights before training, prepare recording, run on CPUs alone, or draw in evaluation."""
    package = Path(recaps.__file__).parent
    found = {
        (file.relative_to(package).as_posix(), call.partition("(")[0])
        for folder in ("models", "nn", "training", "papers")
        for file in (package / folder).rglob("*.py")
        for call in transfers(ast.parse(file.read_text(encoding="utf-8")))
    }
    assert found == {
        ("training/device.py", "values.pin_memory"),
        ("training/recording.py", "torch.as_tensor"),
        ("models/model.py", "self.to"),
        ("nn/winograd.py", "torch.kron"),
        ("nn/poses.py", "torch.as_tensor"),
        ("papers/comparison/probes.py", "torch.randn"),
        ("papers/probabilistic/generative_model.py", "torch.as_tensor"),
        ("papers/probabilistic/templates.py", "shown.new_tensor"),
        ("papers/probabilistic/templates.py", "self.shown.new_tensor"),
    }


def test_copies_to_a_gpu_are_from_locked_memory_and_do_not_wait() -> None:
    class Values:
        pinned = False

        def pin_memory(self) -> Values:
            made = Values()
            made.pinned = True
            return made

        def to(self, device: torch.device, non_blocking: bool) -> tuple[bool, torch.device, bool]:
            return self.pinned, device, non_blocking

    gpu, values = torch.device("cuda"), Values()
    assert device.move(values, gpu) == (True, gpu, True)  # type: ignore[arg-type]
    assert device.move(values, CPU) is values  # type: ignore[arg-type]


# ---- Recording ------------------------------------------------------------------------------------------------------


def replayed(model: Model, step: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
    """A stand-in for a CUDA graph: it runs the step again, on the same memory."""
    metrics = torch.empty(0)

    def replay() -> None:
        made = step()
        metrics.resize_(made.shape).copy_(made)

    return replay, metrics


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(recording.RECORD, "cpu", replayed)


SETTINGS: dict[str, dict[str, Any]] = {
    "sparsecaps": {"learning": "sparse", "conv_channels": 4, "primary_types": 2, "decoder": [8], "settle_steps": 6},
    "discriminative": {"conv_channels": 4, "primary_types": 2, "decoder": None},
    "matrixcaps": {"conv_channels": 4, "types": [2, 2, 2], "loss": "spread", "routing": {"name": "em"}},
    "experts": {"channels": [8, 8], "capsules": 3, "autoencoder": 0.3, "encoder": 0.3, "dropout": 0.2},
    "generative": {"poses": "gaussian", "width": 16, "points": 4, "layers": 1, "objects": 3, "parts": 3},
    "scae": {"channels": 4, "parts": 3, "objects": 3},
    "vae": {"latent_dim": 3, "hidden": [8]},
}


def settings(family: str, **training: Any) -> dict[str, Any]:
    steps = {"steps": 20, "batch_size": 8, "shift": 2, "log_every": 2, "snapshots": [9]}
    return {"model": {"family": family, **SETTINGS[family]}, "training": steps | training}


@pytest.mark.parametrize("family", SETTINGS)
@pytest.mark.usefixtures("recorder")
def test_recorded_steps_have_the_same_bits_also_when_interrupted(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = digits(tmp_path, 60)
    plain = train(settings(family), data, tmp_path / "plain")
    made: list[object] = []
    start = recording.Recording.__init__
    monkeypatch.setattr(recording.Recording, "__init__", lambda self, *given: made.append(self) or start(self, *given))
    assert same(train(settings(family, graph=True), data, tmp_path / "recorded"), plain)
    assert made
    assert same(run_cut(settings(family, graph=True), data, tmp_path / "cut", [13], monkeypatch), plain)


def test_a_step_that_cannot_be_recorded_is_taken_as_usual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(model: Model, step: Callable[[], Tensor]) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setitem(recording.RECORD, "cpu", fails)
    data = digits(tmp_path, 60)
    recorded = train(settings("vae", graph=True), data, tmp_path / "one")
    assert same(recorded, train(settings("vae"), data, tmp_path / "other"))
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("training.graph")]
    assert said == [
        "training.graph: this step cannot be recorded (operation not permitted when stream is capturing); taking"
        " ordinary steps"
    ]


def test_batches_drawn_ahead_are_the_same() -> None:
    """On a device other than the CPU; `meta` has shapes only, so the copy is replaced."""
    training = Training(batch_size=4, shift=2, flip=True, brightness=3, contrast=(0.5, 1.5), crop=24)
    from recaps.training import step

    images = images_of(random_split("mnist", 10), CPU)
    batches = Batches(images, training, 0, CPU)
    expected = [batches.draw(number) for number in range(150)]
    batches.device = META
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "move", lambda values, where: values)
        found = list(step._drawn(batches, iter(range(150))))
    assert [number for number, _ in found] == list(range(150))
    for (_, ahead), drawn in zip(found, expected, strict=True):
        assert ahead.keys() == drawn.keys()
        assert all(torch.equal(ahead[name], drawn[name]) for name in drawn)
