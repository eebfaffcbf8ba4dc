"""The models of the comparison: pixels as the floor, and reconstructions of all that decode."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from made_results import CONFIG

from recaps.config.load import load
from recaps.config.training import Training
from recaps.config.variant import Paper
from recaps.models import build
from recaps.papers.comparison.options import PixelsOptions
from recaps.papers.comparison.probes import reconstructions

SHAPE = (1, 40, 40)


@pytest.fixture(scope="module")
def paper() -> Paper:
    return load({"scale": "smoke", "papers": ["comparison"]}, CONFIG).papers["comparison"]


def test_pixels_are_their_own_latents_and_learn_nothing() -> None:
    model = build(PixelsOptions(), SHAPE, 10)
    model.configure(Training())
    images = torch.rand(3, *SHAPE)
    latents = model.latents(images)
    assert torch.equal(latents["capsules"], images.flatten(1))
    assert torch.equal(model.reconstruct(images), images)
    assert list(model.parameters()) == []
    metrics = model.training_step({"images": images, "labels": torch.zeros(3, dtype=torch.long)}, 0)
    assert float(metrics["loss"]) == 0
    assert not model.state_dict()


def test_pictures_have_the_error_that_the_latents_report(paper: Paper) -> None:
    """A model's probe and its latents decode alike, whatever the family."""
    torch.manual_seed(0)
    images, labels = torch.rand(4, *SHAPE), torch.arange(4)
    checked = []
    for name, variant in paper.variants.items():
        if "reconstructions" not in variant.probes:
            continue
        model = build(variant.model, SHAPE, 10).eval()
        with torch.inference_mode():
            probe, latents = reconstructions(model, images, labels), model.latents(images)
        assert torch.equal(probe["images"], images)
        assert probe["decoded"].shape == images.shape
        if "reconstruction_error" in latents:
            errors = (probe["decoded"] - images).square().sum((1, 2, 3))
            torch.testing.assert_close(latents["reconstruction_error"], errors, rtol=1e-3, atol=1e-2)
            checked.append(name)
    assert {"dense", "sparsecaps", "experts", "scae", "vae", "rbm"} <= set(checked)


def test_heads_classify_arrays_that_the_models_have(paper: Paper, tmp_path: Path) -> None:
    images = torch.rand(2, *SHAPE)
    for variant in paper.variants.values():
        model = build(variant.model, SHAPE, 10).eval()
        with torch.inference_mode():
            latents = model.latents(images)
        for head in variant.heads:
            assert set(paper.heads[head].features) <= set(latents)
