"""Options of the family `discriminative`; without PyTorch, so that checking a configuration is fast."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from recaps.models.options import Supervised


class LearnedCoefficients(Supervised):
    """A capsule per class, routed by coefficients b that ascend a discriminative objective while the weights learn."""

    penalty: Literal["l2", "l1"] = "l2"
    """Penalty on b: `l2` (equations 10 to 13) or `l1` (equations 14 and 15)."""
    penalty_weight: float = Field(1e-5, ge=0)
    """Reading. Lambda. 1e-5 is the released code's value; the paper calls 0.001, its value for MultiMNIST, the larger
    one."""
    normalisation: Literal["means", "sums"] = "means"
    """Reading. `means`: the objective is a mean over the batch and the penalty a mean over input capsules, as in the
    released code. `sums`: both are sums, as in equations 10 and 14."""
    ascent: Literal["adam", "plain", "none"] = "adam"
    """Reading. `adam`: Adam, as in the released code. `plain`: b grows by `gamma` times the gradient (equations 13 and
    15). `none`: b keeps its initial value, as a control."""
    ascent_rate: float = Field(0.2, gt=0)
    """Reading. Adam's learning rate for b is this factor times that of the weights, but at least `training.lr_floor`.
    The released code has a fifth and the same floor."""
    gamma: float = Field(0.001, gt=0)
    """Reading. Learning rate of plain ascent; the paper gives none."""
    l1_factor: Literal["exact", "printed"] = "exact"
    """Reading. `exact`: the gradient of the L1 penalty is lambda sign(b). `printed`: twice that, as in equation 15 with
    the penalty inside the bracket."""
    initial: float = 1.0
    """Reading. Initial b, as in the released code."""
    squash_votes: bool | Literal["classes"] = True
    """Reading. `true`: squash each vote before the sum. `classes`: squash each component of a vote as a vector over the
    classes, as branch `offical` of the released code does. `false`: no squash, as in equation 6."""
    squash_capsules: bool = False
    """Reading. Squash class capsules. Table I says so; equation 6 and branch `offical` of the released code do not."""
    nonnegative: bool = False
    """Coefficients that would become negative are set to 0, as those of dynamic routing cannot be negative."""
    leaky_routing: bool = False
    """Reading. Divide the primary convolution by one more than the number of types, as leaky routing in SUPCAPS does on
    CIFAR-10. The class capsules do not change."""


class DiscriminativeOptions(LearnedCoefficients):
    """The network of the paper: primary and class capsules."""

    module: ClassVar[str] = "recaps.papers.discriminative.discriminative"
    family: Literal["discriminative"] = "discriminative"


class DeeperOptions(LearnedCoefficients):
    """The same with one more layer of capsules between the primary and the class capsules."""

    module: ClassVar[str] = "recaps.papers.discriminative.deeper"
    family: Literal["deeper-discriminative"] = "deeper-discriminative"
    hidden_capsules: int = Field(32, ge=1)
    """Number of capsules in the hidden layer."""
    hidden_dim: int = Field(8, ge=1)
    """Their dimensions."""
