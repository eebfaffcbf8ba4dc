"""Training steps on a GPU against the same steps in plain PyTorch on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from works import VARIANTS

from recaps.bench import random_split, untrained
from recaps.config.variant import Variant
from recaps.models.model import Model
from recaps.nn.kernels import plain
from recaps.nn.noise import Noise
from recaps.training import device as devices
from recaps.training import recording
from recaps.training.batches import Batches
from recaps.training.images import images_of
from recaps.training.step import take_steps

pytestmark = pytest.mark.gpu


CPU = torch.device("cpu")


def step(variant: Variant, phase: str, where: torch.device) -> tuple[dict[str, float], Tensor]:
    """Take a training step in float32; return its scalars and its gradients, one after the other."""
    training = variant.training.model_copy(update={"precision": "float32"})
    images = images_of(random_split(variant.data.split("/")[0], training.batch_size), where)
    model = untrained(variant, training, where)
    model.train()
    at = model.phases()[phase]
    scalars = next(take_steps(model, Batches(images, training, 0, where), [at]))
    changed = [each.grad if each.grad is not None else each.detach() for each in model.parameters()]
    gradient = torch.cat([torch.zeros(0), *(each.detach().cpu().flatten() for each in changed)])
    return {name: float(value) for name, value in scalars.items()}, gradient


@pytest.mark.parametrize("name", VARIANTS)
def test_a_training_step_on_the_gpu_is_that_of_the_cpu(name: str) -> None:
    """A model that draws noise draws other numbers on a GPU, so only its loss is compared, within 5 %."""
    variant, gpu, cpu = VARIANTS[name], devices.choose("cuda"), torch.device("cpu")
    model = untrained(variant, variant.training, cpu)
    noisy = any(isinstance(each, Noise) for each in model.modules())
    for phase in model.phases():
        scalars, gradient = step(variant, phase, gpu)
        with plain():
            expected, exact = step(variant, phase, cpu)
        if noisy:
            assert scalars["loss"] == pytest.approx(expected["loss"], rel=0.05), phase
        else:
            assert scalars == pytest.approx(expected, rel=1e-3, abs=1e-4), phase
            assert (gradient - exact).norm() <= 1e-3 * exact.norm(), phase


@pytest.mark.parametrize("name", VARIANTS)
def test_recorded_and_resumed_steps_have_the_bits_of_ordinary_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some steps of each phase, from the same initial weights; the resumed ones continue from a copy."""
    variant, where = VARIANTS[name], devices.choose("cuda")
    training = variant.training.model_copy(update={"graph": True})
    images = images_of(random_split(variant.data.split("/")[0], training.batch_size), where)
    numbers = [start + more for start in untrained(variant, training, CPU).phases().values() for more in range(12)]

    def taken(numbers: list[int], before: Model | None = None) -> Model:
        model = untrained(variant, training, where)
        if before is not None:
            model.load_state_dict(before.state_dict())
            for key, optimizer in model.optimizers().items():
                optimizer.load_state_dict(before.optimizers()[key].state_dict())
        model.train()
        for _ in take_steps(model, Batches(images, training, 0, where), numbers):
            pass
        return model

    recorded, resumed = taken(numbers), taken(numbers[7:], taken(numbers[:7]))
    monkeypatch.setattr(recording, "ORDINARY", len(numbers))
    ordinary = taken(numbers)
    for key, values in ordinary.state_dict().items():
        assert torch.equal(values, recorded.state_dict()[key]), key
        assert torch.equal(values, resumed.state_dict()[key]), key
