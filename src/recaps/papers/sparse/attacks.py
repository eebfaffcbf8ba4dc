"""How robust models are to adversarial examples, which the paper expects of SPARSECAPS (section 4)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recaps.config.heads import Head
from recaps.evaluation.attacks import Scores, attacked
from recaps.evaluation.heads import classifier, features
from recaps.evaluation.record import MetricRow, Run

#: The first test images are attacked, in batches.
IMAGES, BATCH = 500, 100
#: Largest changes of a pixel, in percent of the step from black to white.
STRENGTHS = (5, 10, 20, 30)
#: Gradients of PGD; at `MIDDLE`, also with fewer. Accuracy must fall as they grow, or gradients are masked.
STEPS, FEWER, MIDDLE = 40, (5, 10, 20), 10
#: Attacks that are computed on this variant are also shown to the others.
SURROGATE = "convnet-28"
#: Without class scores, a model is attacked through a classifier of its capsules.
HEAD = Head(kind="linear", features=("capsules",), C=100)


def robustness(run: Run) -> list[MetricRow]:
    """The accuracy of a model on test images that are changed by noise and by attacks of several strengths.

    `noise-s`: each pixel moves by s percent up or down, at random. `fgsm-s`: one step of the gradient. `pgd-s`: `STEPS`
    steps; `pgd-s-steps-n`: n steps. `transfer-s`: PGD on the ConvNet beside it.
    """
    split, on = run.split("mnist/test"), run.resolve("mnist/test")
    images = torch.tensor(split.images[:IMAGES]).float() / 255
    labels = torch.tensor(split.labels[:IMAGES]).long()
    scores = classifier_of(run)
    other = run.beside.get(SURROGATE) if run.variant != SURROGATE else None
    surrogate = classifier_of(other) if other else None
    found = {"clean": images}
    for strength in STRENGTHS:
        found[f"noise-{strength}"] = noisy(images, strength)
        found[f"fgsm-{strength}"] = _attack(scores, images, labels, strength, 1)
        found[f"pgd-{strength}"] = _attack(scores, images, labels, strength, STEPS)
        if surrogate:
            found[f"transfer-{strength}"] = _attack(surrogate, images, labels, strength, STEPS)
    found |= {f"pgd-{MIDDLE}-steps-{n}": _attack(scores, images, labels, MIDDLE, n) for n in FEWER}
    return [
        run.number(name, 100 * _accuracy(scores, each, labels), "percent", on, n=len(labels))
        for name, each in found.items()
    ]


def classifier_of(run: Run) -> Scores:
    """The class scores of a model, or of a linear classifier of its capsules, with gradients for the images."""
    model: Any = run.model().requires_grad_(False)
    if "argmax" in run.settings.heads:
        return lambda images: model.class_scores(images)
    train = run.latents(run.settings.data, "capsules", "mask", "labels")
    fitted = classifier(HEAD).fit(features(train, HEAD), train["labels"])
    weight, bias = (torch.from_numpy(each).float() for each in (fitted.coef_, fitted.intercept_))
    return lambda images: model(images).capsules.flatten(1) @ weight.T + bias


def noisy(images: Tensor, strength: int) -> Tensor:
    """Images in which each pixel moves by `strength` percent up or down, at random, within 0..1."""
    signs = torch.randint(0, 2, images.shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return (images + strength / 100 * signs).clamp(0, 1)


def _attack(scores: Scores, images: Tensor, labels: Tensor, strength: int, steps: int) -> Tensor:
    generator = torch.Generator().manual_seed(0) if steps > 1 else None
    batches = zip(images.split(BATCH), labels.split(BATCH), strict=True)
    return torch.cat([attacked(scores, each, truth, strength / 100, steps, generator) for each, truth in batches])


def _accuracy(scores: Scores, images: Tensor, labels: Tensor) -> float:
    with torch.no_grad():
        right = [
            scores(each).argmax(1) == truth
            for each, truth in zip(images.split(BATCH), labels.split(BATCH), strict=True)
        ]
    return float(torch.cat(right).float().mean())
