"""Probes of the paper `probabilistic`: arrays that its figures and metrics need from a trained model.

`free_form` is the paper's free-form inference (section 2.4).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from recaps.nn.poses import rotated
from recaps.nn.precision import float32

if TYPE_CHECKING:
    from recaps.papers.probabilistic.capsules import Belief, GenerativeCapsules, Inferred

#: Methods of free-form inference.
METHODS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "plain": torch.optim.SGD,
    # Without `max_eval`, a line search ends after its first point, and then every step may have length 0.
    "lbfgs": partial(torch.optim.LBFGS, max_iter=1, max_eval=25, history_size=20, line_search_fn="strong_wolfe"),
}
#: Step between the angles of rotated images, in degrees.
TURN = 30
#: The digit that `free_form_rotations` rotates.
TWO = 2
#: Largest number of steps at which free-form inference reports the bound.
REPORTS = 21
#: A pixel belongs to no template if the visible shares of all templates add up to less than this.
VISIBLE = 0.05


def templates(model: GenerativeCapsules, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The learned `templates` [n, C, h, w] and their `alphas` [n, 1, h, w], between 0 and 1."""
    layers = model.generative.layers()
    return {"templates": layers[:, :-1], "alphas": layers[:, -1:]}


def samples(model: GenerativeCapsules, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """`samples` [n, C, H, W] from the generative model, without pixel noise."""
    generator = model.noise.generator(images.device, "samples", 0)
    with float32(images):
        drawn = model.generative.sample(model.options.samples, generator)
        return {"samples": model.generative.draw(drawn.parts).mean}


def rotations(model: GenerativeCapsules, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Reconstructions of images that are rotated in steps of 30 degrees, beginning with 0.

    Returns:
        `angles` [12] in degrees, counter-clockwise; the rotated `images` and their reconstructions from parts, `chain`,
        both [12, B, C, H, W]; `owner` int64 [12, B, H, W], the template with the largest visible share at each pixel,
        -1 where almost nothing is drawn; of the objects `presence` [12, B, n0], log odds, and `pose` [12, B, n0, 6].
    """
    angles = torch.arange(0, 360, TURN, device=images.device)
    turned = _turned(images, angles)
    found = [model.infer(each) for each in turned]
    pictures = [model.picture(each.part_belief) for each in found]
    return {
        "angles": angles,
        "images": turned,
        "chain": torch.stack([picture.mean for picture in pictures]),
        "owner": torch.stack([_owner(model.generative.by_template(picture.shares)) for picture in pictures]),
        "presence": torch.stack([each.object_belief.logits for each in found]),
        "pose": torch.stack([each.object_belief.poses.flatten(2) for each in found]),
    }


def selections(model: GenerativeCapsules, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Presences of the objects, at median presences and mean poses of q.

    Returns:
        `presence` [B, n0], log odds; `posterior_presence` [B, n0], the logarithm of the number of parts that are
        expected to select the object (appendix D and footnote 4).
    """
    found = model.infer(images)
    with float32(images):
        expected = model.generative.selections(found.objects, found.parts)[:, 1:].sum(2)
    # A number below the smallest normal float counts as this float.
    smallest = torch.finfo(expected.dtype).tiny
    return {"presence": found.object_belief.logits, "posterior_presence": expected.clamp_min(smallest).log()}


def free_form_rotations(model: GenerativeCapsules, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Free-form inference of the first 2, or of the first image if there is no 2, rotated by `angles` [7]: 0, 30, ...,
    180 degrees. The other arrays are those of `free_form`."""
    angles = torch.arange(0, 181, TURN, device=images.device)
    two = int((labels == TWO).int().argmax())
    turned = _turned(images[two : two + 1], angles).flatten(0, 1)
    return {"angles": angles, **free_form(model, turned, labels)}


def free_form(model: GenerativeCapsules, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Free-form inference: ascent of the bound in the parameters of q of each image (section 2.4).

    It starts at the amortised posterior, that of the networks. The gradient of each step is the mean over `free_pairs`
    pairs of antithetic draws. The learning rate falls linearly to zero, so that the last steps average out the noise.

    L-BFGS, a second-order method, searches along a line in each step, always with the draws of the first step and at a
    constant rate.

    Args:
        model: the model. Its options `free_...` say how.
        images: [B, C, H, W].
        labels: not used.

    Returns:
        `bound_along` [K, B] in nats, the mean over the same draws at each of the `steps` [K], and the number of
        `gradients` [K] until then; the `images`; for the amortised posterior, and with the ending `_free` for the last
        step: `presence` [B, n0], log odds, `pose` [B, n0, 6], and the reconstruction `chain` [B, C, H, W].
    """
    inferred, last = model.infer(images), model.options.free_steps
    with torch.inference_mode(False), torch.enable_grad(), float32(images):
        images = images.clone()
        start = inferred._replace(part_belief=_free(inferred.part_belief), object_belief=_free(inferred.object_belief))
        free = start._replace(part_belief=_free(start.part_belief), object_belief=_free(start.object_belief))
        every = [values for belief in (free.part_belief, free.object_belief) for values in belief if values is not None]
        learned = [free.object_belief.logits] if model.options.free_presences_only else every
        ascent = METHODS[model.options.free_ascent](learned, lr=model.options.free_rate)
        second_order = isinstance(ascent, torch.optim.LBFGS)
        reported = torch.linspace(0, last, min(REPORTS, last + 1)).round().long().tolist()
        along, counts, gradients = [], [], 0

        def descend() -> float:
            """Set the gradients of minus the bound, and return it."""
            nonlocal gradients
            ascent.zero_grad()
            first, total = (0 if second_order else step) * model.options.free_pairs, 0.0
            for pair, sign in itertools.product(range(model.options.free_pairs), (1, -1)):
                drawn = _drawn(model, free, model.options.free_draws, first + pair, sign)
                bound = model.bound(images, drawn)["bound"].sum() / (2 * model.options.free_pairs)
                torch.autograd.backward(-bound, inputs=learned)
                total -= float(bound.detach())
            gradients += 1
            return total

        for step in range(last + 1):
            if step in reported:
                with torch.no_grad():
                    along.append(_average_bound(model, images, free))
                counts.append(gradients)
            if step < last:
                if not second_order:
                    ascent.param_groups[0]["lr"] = model.options.free_rate * (1 - step / last)
                ascent.step(descend)
    made = {"images": images, "bound_along": torch.stack(along), "steps": torch.tensor(reported)}
    made["gradients"] = torch.tensor(counts)
    for ending, found in (("", start), ("_free", free)):
        made[f"presence{ending}"] = found.object_belief.logits.detach()
        made[f"pose{ending}"] = found.object_belief.poses.detach().flatten(2)
        made[f"chain{ending}"] = model.picture(found.part_belief).mean.detach()
    return made


def _free(belief: Belief) -> Belief:
    """A copy of q with separate learnable parameters for every image."""
    shape, (logits, poses, deviations) = belief.poses.shape, belief
    return belief._replace(
        logits=logits.detach().clone().requires_grad_(),
        poses=poses.detach().clone().requires_grad_(),
        log_deviations=None if deviations is None else deviations.detach().expand(shape).clone().requires_grad_(),
    )


def _drawn(model: GenerativeCapsules, found: Inferred, purpose: str, step: int, sign: int = 1) -> Inferred:
    """The same q of parts and objects with a new draw. Neither depends on the other."""
    return found._replace(
        parts=model.draw(found.part_belief, f"{purpose}/parts", step, sign),
        objects=model.draw(found.object_belief, f"{purpose}/objects", step, sign),
    )


def _average_bound(model: GenerativeCapsules, images: Tensor, found: Inferred) -> Tensor:
    """Mean of the bound over `free_samples` draws, [B]."""
    bounds = [
        model.bound(images, _drawn(model, found, "free-form-bound", draw))["bound"]
        for draw in range(model.options.free_samples)
    ]
    return torch.stack(bounds).mean(0)


def _turned(images: Tensor, angles: Tensor) -> Tensor:
    """Images rotated by each of some angles in degrees: [A, B, C, H, W]."""
    return torch.stack([rotated(images, float(angle)) for angle in angles])


def _owner(shares: Tensor) -> Tensor:
    """The template with the largest visible share, -1 where almost nothing is drawn: [B, n, H, W] to [B, H, W]."""
    return torch.where(shares.sum(1) < VISIBLE, -1, shares.argmax(1))
