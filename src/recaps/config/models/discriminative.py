"""Options of the family `discriminative`: SUPCAPS with routing coefficients that are learned."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from recaps.config.network import Supervised


class Options(Supervised):
    """A capsule per class, routed by coefficients b that ascend a discriminative objective while the weights learn."""

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

    @model_validator(mode="after")
    def _refuse_dynamic_routing(self) -> Options:
        for name in ("iterations", "routing_gradient"):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name}: belongs to dynamic routing; coefficients that are learned have no iterations"
                )
        return self
