"""Layers of latent capsules below the last one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from recaps.config.training import Training
from recaps.nn.routing.dynamic import dynamic_routing
from recaps.papers.sparse.deeper import DeeperSparseCaps
from recaps.papers.sparse.options import SparseCapsOptions
from recaps.papers.sparse.sparsecaps import SparseCaps, build

pytestmark = pytest.mark.unit

SMALL = {"conv_channels": 4, "primary_types": 2, "capsules": 5, "capsule_dim": 6, "decoder": (7,)}


def model(learning: str, layers: int = 3) -> SparseCaps:
    torch.manual_seed(0)
    options = SparseCapsOptions.model_validate({**SMALL, "learning": learning, "layers": layers, "boost_every": 1})
    return build(options, (1, 20, 20), 10)


def images() -> Tensor:
    return torch.rand(4, 1, 20, 20, generator=torch.Generator().manual_seed(1))


def test_one_layer_is_the_network_of_the_paper() -> None:
    assert type(model("sparse", 1)) is SparseCaps


@pytest.mark.parametrize("learning", ["dense", "sparse"])
def test_each_layer_routes_the_masked_capsules_below(learning: str) -> None:
    net = model(learning)
    assert isinstance(net, DeeperSparseCaps)
    capsules = net.primary_capsules(images())
    for number, layer in enumerate([*net.hidden, net]):
        votes = torch.einsum("bid,idjk->bijk", capsules, layer.votes.weight)
        made, coupling = dynamic_routing(votes, layer.bias)
        supports = coupling.reshape(4, 2, -1, 5).amax(1).sum(1) if number == 0 else coupling.sum(1)
        mask = layer.boosting.mask(supports) if learning == "sparse" else torch.ones_like(supports)
        capsules = made * mask.unsqueeze(2)
    routed = net(images())
    torch.testing.assert_close(net.support(routed.coupling), supports)
    torch.testing.assert_close(routed.capsules * net.mask(supports).unsqueeze(2), capsules)


def test_every_layer_learns_and_has_boosts_of_its_own() -> None:
    net = model("sparse")
    before = {name: values.clone() for name, values in net.named_parameters()}
    net.configure(Training(steps=200, batch_size=4))
    net.train()
    for step in range(3):
        net.training_step({"images": images()}, step)
    assert not [name for name, values in net.named_parameters() if torch.equal(values, before[name])]
    assert all(layer.boosting.steps == 3 for layer in net.hidden)
    assert all(layer.boosting.boost.max() > 1 for layer in net.hidden)
