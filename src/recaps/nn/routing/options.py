"""Options of the routing algorithms. This module does not import PyTorch."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from recaps.config.base import Section


class RoutingOptions(Section):
    """Options of a routing algorithm; a subclass has those of one algorithm."""

    routing: ClassVar[str] = ""
    """The class of an algorithm of this project, as `module:Class`. Others have this as their name."""
    name: str = ""

    @property
    def path(self) -> str:
        """The class, as `module:Class`."""
        return self.name if ":" in self.name else self.routing


class VoteOptions(RoutingOptions):
    """Options of a routing of votes, `recaps.nn.routing.interface.VoteRouting`."""


class PoseOptions(RoutingOptions):
    """Options of a routing of pose matrices, `recaps.nn.routing.interface.PoseRouting`."""


class AttentionOptions(VoteOptions):
    """Routing by self-attention (*Efficient-CapsNet*, section 3)."""

    routing: ClassVar[str] = "recaps.nn.routing.attention:AttentionRouting"
    name: Literal["attention"] = "attention"


class CosineOptions(VoteOptions):
    """Routing by the cosine between vote and output (*Training products of expert capsules*, section 2.2)."""

    routing: ClassVar[str] = "recaps.nn.routing.cosine:CosineRouting"
    name: Literal["cosine"] = "cosine"
    iterations: int = Field(3, ge=1)
    """Routing iterations."""


class DynamicOptions(VoteOptions):
    """Routing by agreement, as in SUPCAPS."""

    routing: ClassVar[str] = "recaps.nn.routing.dynamic:DynamicRouting"
    name: Literal["dynamic"] = "dynamic"
    iterations: int = Field(3, ge=1)
    """Routing iterations."""
    leaky: bool = False
    """Add one more output with logit zero to the softmax and discard its coupling, as SUPCAPS did on CIFAR-10. The
    primary convolution is then divided by one more than the number of types."""
    gradient: Literal["all", "last"] = "all"
    """Reading. `all`: gradients flow through every routing iteration, as in the released code of SUPCAPS. `last`: the
    coupling coefficients are constants, as in most PyTorch versions."""


class ConnectionistOptions(PoseOptions):
    """Connectionist routing (*Learning to compute inner consensus*, section 4.2)."""

    routing: ClassVar[str] = "recaps.nn.routing.connectionist:ConnectionistRouting"
    name: Literal["connectionist"] = "connectionist"
    iterations: int = Field(3, ge=1)
    """Routing iterations."""
    compatibility_layers: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] = ((), (32, 32), (64, 64))
    """Widths of the hidden layers of the compatibility network, for each capsule layer; table 2."""
    activation_layers: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] = ((), (64, 64), (124, 124))
    """Widths of the hidden layers of the activation network, for each capsule layer; table 2."""
    lstm_units: int = Field(16, ge=1)
    """Size of the hidden state and of the cell state (table 2)."""


class EMOptions(PoseOptions):
    """EM routing (*Matrix Capsules with EM Routing*). Each type of output capsule has two learned costs."""

    routing: ClassVar[str] = "recaps.nn.routing.em:EMRouting"
    name: Literal["em"] = "em"
    iterations: int = Field(3, ge=1)
    """Routing iterations."""
    final_temperature: float = Field(0.01, gt=0)
    """Reading. The inverse temperature lambda of iteration t = 0, 1, ... is `final_temperature` * (1 - 0.95^(t+1))."""
    cost_inputs: float | None = Field(100, gt=0)
    """Reading. Costs count as if each output capsule had this many inputs. null: procedure 1, in which the costs grow
    with the number of inputs, so that activations saturate where there are many."""


class VectorEMOptions(VoteOptions):
    """EM routing of vectors, with which the authors of *Sparse Unsupervised Capsules* hope to train (section 4)."""

    routing: ClassVar[str] = "recaps.papers.sparse.em:VectorEM"
    name: Literal["recaps.papers.sparse.em:VectorEM"] = "recaps.papers.sparse.em:VectorEM"
    iterations: int = Field(3, ge=1)
    """Routing iterations."""
    final_temperature: float = Field(0.01, gt=0)
    """The inverse temperature lambda of iteration t = 0, 1, ... is `final_temperature` * (1 - 0.95^(t+1))."""
    cost_inputs: float = Field(100, gt=0)
    """Costs count as if each output capsule had this many inputs."""


class SimilarityOptions(PoseOptions):
    """Similarity routing (*Learning to compute inner consensus*, section 4.1)."""

    routing: ClassVar[str] = "recaps.nn.routing.similarity:SimilarityRouting"
    name: Literal["similarity"] = "similarity"
    iterations: int = Field(3, ge=1)
    """Routing iterations."""
    kernels: tuple[int, int, int] = (4, 4, 10)
    """Number of Gaussians, Q, in the kernel of each capsule layer."""
    kernel_width: float = Field(1.0, gt=0)
    """Reading. Mean initial width l; widths spread by a tenth of it. The author's code draws widths from a normal
    distribution with mean 0 and standard deviation 0.1. The kernel of the class layer then stays near zero."""
    channel_widths: bool = True
    """Whether each type of output capsule has its own widths of the kernel, or all of a layer share them ("the
    parameters of the kernel function could either be shared across convolutional channel or layer", section 4.1)."""
    lambda_init: tuple[float, float] = (12.0, 1.0)
    """Reading. Initial lambda_1 and lambda_2, from the author's last version."""
    class_scale: float = 0.0
    """Reading. Initial mean of theta_1 in the class layer, with a standard deviation of 0.1. A class score is theta_1
    times the agreement, a number from 0 to 1, plus theta_2. With 0, the author's value, all classes have nearly equal
    scores for long."""
