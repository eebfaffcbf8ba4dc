"""Options of the model families of the paper `discriminative`; free of PyTorch, so that checking a configuration stays fast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from recaps.models.options import Supervised


class DiscriminativeOptions(Supervised):
    """A capsule per class, routed by coefficients b that ascend a discriminative objective while the weights learn."""

    module: ClassVar[str] = "recaps.papers.discriminative.discriminative"
    family: Literal["discriminative"] = "discriminative"
    penalty: Literal["l2", "l1"] = "l2"
    """Regularisation of b: equations 10 to 13, or 14 and 15."""
    penalty_weight: float = Field(1e-5, ge=0)
    """Reading. Lambda: that of the released code, in whose `means` 0.001 is the larger value that the paper takes for
    MultiMNIST."""
    normalisation: Literal["means", "sums"] = "means"
    """Reading. `means`: the objective is a mean over the batch, the penalty a mean over input capsules, as in the
    released code. `sums`: both are sums, as equations 10 and 14 print them."""
    ascent: Literal["adam", "plain"] = "adam"
    """Reading. `adam`: as in the released code. `plain`: b grows by `gamma` times the gradient, equations 13 and 15."""
    ascent_rate: float = Field(0.2, gt=0)
    """Reading. Adam's learning rate of b, as a part of that of the weights: a fifth in the released code."""
    gamma: float = Field(0.001, gt=0)
    """Reading. Step size of plain ascent, which the paper never gives."""
    l1_factor: Literal["exact", "printed"] = "exact"
    """Reading. `exact`: the penalty's gradient is lambda sign(b). `printed`: twice that, as equation 15 reads with the
    penalty inside the bracket."""
    initial: float = 1.0
    """Reading. Initial b, as in the released code."""
    squash_votes: bool = True
    """Reading. Votes are squashed before they are added up, as in the released code closest to the paper."""
    squash_capsules: bool = False
    """Reading. Class capsules are squashed: table I says so, but equation 6 and that code do not."""

    leaky_routing: bool = False
    """Divide the primary capsules' coupling by one more than their types, as SUPCAPS did on CIFAR-10."""

    @property
    def leaky(self) -> bool:
        return self.leaky_routing

    @model_validator(mode="before")
    @classmethod
    def _refuse_dynamic_routing(cls, values: Any) -> Any:
        """Options of dynamic routing are refused, unless they have the defaults that older records name."""
        known = {"iterations": 3, "routing_gradient": "all"}
        for name, default in known.items():
            if isinstance(values, Mapping) and values.get(name, default) != default:
                raise ValueError(f"{name}: belongs to dynamic routing; learned coefficients have no iterations")
        return (
            {key: value for key, value in values.items() if key not in known} if isinstance(values, Mapping) else values
        )
