"""RMSProp as TensorFlow 1 implements it (for SCAE)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class RMSProp(torch.optim.Optimizer):
    """v = decay v + (1 - decay) g^2, m = momentum m + rate g / sqrt(v + epsilon), w = w - m.

    PyTorch's implementation adds `epsilon` outside the root and starts v at zero. This one starts v at one, so that the
    first steps are small.
    """

    def __init__(
        self, parameters: Iterable[Tensor], lr: float, epsilon: float, momentum: float = 0.9, decay: float = 0.9
    ) -> None:
        super().__init__(parameters, {"lr": lr, "epsilon": epsilon, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            parameters = [each for each in group["params"] if each.grad is not None]
            for each in parameters:
                if not self.state[each]:
                    self.state[each] = {"square": torch.ones_like(each), "momentum": torch.zeros_like(each)}
            gradients = [each.grad for each in parameters]
            squares = [self.state[each]["square"] for each in parameters]
            moments = [self.state[each]["momentum"] for each in parameters]
            torch._foreach_mul_(squares, group["decay"])
            torch._foreach_addcmul_(squares, gradients, gradients, 1 - group["decay"])
            roots = torch._foreach_add(squares, group["epsilon"])
            torch._foreach_sqrt_(roots)
            torch._foreach_mul_(moments, group["momentum"])
            if isinstance(group["lr"], Tensor):  # which no host reads
                changes = torch._foreach_div(gradients, roots)
                torch._foreach_mul_(changes, group["lr"])
                torch._foreach_add_(moments, changes)
            else:
                torch._foreach_addcdiv_(moments, gradients, roots, group["lr"])
            torch._foreach_sub_(parameters, moments)
