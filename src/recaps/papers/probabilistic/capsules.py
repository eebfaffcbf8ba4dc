"""*Capsule Networks: A Probabilistic Perspective*: capsules as a generative model of images, and inference in it.

The model itself is `recaps.papers.probabilistic.generative_model`. Here is what finds its variables in an image: a convolutional network infers
parts, and a set transformer infers objects from parts that were drawn. Both learn with the model, from one bound
(eq. 8). At test time the bound can be climbed further in the variables of each image: free-form inference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import elu

from recaps.config.training import Training
from recaps.models.model import Batch, Model
from recaps.nn.attention import ISAB, PMA
from recaps.nn.attentive_pooling import AttentivePooling
from recaps.nn.losses import summed_squared_error
from recaps.nn.noise import Noise
from recaps.nn.poses import rotated
from recaps.nn.precision import float32
from recaps.papers.probabilistic.generative_model import (
    Capsules,
    Generative,
    Picture,
    concrete,
    half_canvas,
    logistic,
    normal,
    starting_poses,
)
from recaps.papers.probabilistic.options import GenerativeOptions

KERNEL = 3
STRIDES = (2, 2, 1, 1)
#: Numbers of a pose.
POSE = 6
#: Degrees between two turns of an image.
TURN = 30
#: The digit whose turns free-form inference is shown on.
TWO = 2
#: How often free-form inference notes the bound, at most.
LOOKS = 21
#: Where templates are seen less than this, all together, a pixel is no template's.
SEEN = 0.05


class Belief(NamedTuple):
    """q of a layer of capsules, all of whose variables are independent."""

    logits: Tensor
    """Log odds of the presences, [B, n]."""
    poses: Tensor
    """Means of the poses, [B, n, 2, 3]."""
    log_deviations: Tensor | None
    """Of the poses' numbers, [n, 2, 3] or [B, n, 2, 3]; None: poses are deltas."""


class Inferred(NamedTuple):
    """q of images and a draw from it. Objects are inferred from the parts that were drawn."""

    part_belief: Belief
    parts: Capsules
    object_belief: Belief
    objects: Capsules


class GenerativeCapsules(Model):
    """Images [B, C, H, W] to n1 parts and n0 objects and, from the parts alone, back."""

    step = 0  # the training step that draws are made for
    deltas = False  # whether poses are, whatever the options say

    def __init__(self, options: GenerativeOptions, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.options = options
        start = starting_poses(options, image_shape)
        self.generative = Generative(options, image_shape, start)
        self.part_encoder = PartEncoder(options, image_shape, start)
        self.object_encoder = ObjectEncoder(options, image_shape, start)
        self.noise = Noise()

    # Inference

    def infer(self, images: Tensor, purpose: str | None = None, step: int = 0) -> Inferred:
        """q of images, and a draw for some purpose; None: the middle of q."""
        part_belief = self._as_deltas(self.part_encoder(images))
        parts = self.draw(part_belief, purpose and f"{purpose}/parts", step)
        object_belief = self._as_deltas(self.object_encoder(parts))
        objects = self.draw(object_belief, purpose and f"{purpose}/objects", step)
        return Inferred(part_belief, parts, object_belief, objects)

    def _as_deltas(self, belief: Belief) -> Belief:
        return belief._replace(log_deviations=None) if self.deltas else belief

    def draw(self, belief: Belief, purpose: str | None, step: int = 0) -> Capsules:
        """A draw from q that gradients pass, or its middle: medians of presences and means of poses."""
        if purpose is None:
            return Capsules(belief.logits / self.options.temperature, belief.poses)
        generator = self.noise.generator(belief.logits.device, purpose, step)
        logits = (belief.logits + logistic(belief.logits.shape, generator)) / self.options.temperature
        if belief.log_deviations is None:
            return Capsules(logits, belief.poses)
        normals = torch.randn(belief.poses.shape, generator=generator, device=belief.poses.device)
        return Capsules(logits, belief.poses + belief.log_deviations.exp() * normals)

    def log_posterior(self, belief: Belief, capsules: Capsules) -> Tensor:
        """log q of a draw, [B]. Deltas count as 0 (section 2.3)."""
        density = concrete(capsules.logits, belief.logits, self.options.temperature).sum(1)
        if belief.log_deviations is None:
            return density
        return density + normal(capsules.poses, belief.poses, belief.log_deviations.exp()).sum((1, 2, 3))

    def bound(self, images: Tensor, inferred: Inferred) -> dict[str, Tensor]:
        """The bound (eq. 8, App. A) with one draw, in nats, [B] each.

        Returns:
            `bound`, the sum of `image`, log p(X | t1, A1), and of log p - log q of the `parts` and the `objects`; and
            the summed squared `reconstruction_error` of the draw.
        """
        joint = self.generative.joint(images, inferred.objects, inferred.parts)
        parts = joint.parts - self.log_posterior(inferred.part_belief, inferred.parts)
        objects = joint.objects - self.log_posterior(inferred.object_belief, inferred.objects)
        return {
            "bound": joint.image + parts + objects,
            "image": joint.image,
            "parts": parts,
            "objects": objects,
            "reconstruction_error": summed_squared_error(joint.picture.mean, images),
        }

    def picture(self, parts: Belief) -> Picture:
        """What parts look like in the middle of q."""
        with float32(parts.poses):
            return self.generative.draw(self.draw(parts, None))

    # Learning

    def configure(self, training: Training) -> None:
        self.training_options, options = training, self.options
        rates = {
            "": 1.0,
            "object_encoder": options.object_rate,
            "generative": options.arrangement_rate,
            "generative.affinities": 1.0,
            "generative.colours": options.template_rate,
            "generative.alphas": options.template_rate,
        }
        of_group: dict[str, list[nn.Parameter]] = {name: [] for name in rates}
        for name, values in self.named_parameters():
            of_group[max((group for group in rates if name.startswith(group)), key=len)].append(values)
        self.optimizer = torch.optim.Adam(
            [{"params": of_group[group], "rate": rate} for group, rate in rates.items()],
            lr=training.learning_rate,
            eps=self.adam_epsilon,
            fused=True,
        )

    def training_step(self, batch: Batch, step: int) -> dict[str, Tensor]:
        options = self.options
        self.step = step
        self.deltas = step < options.deltas_first * self.training_options.steps
        for group in self.optimizer.param_groups:
            group["factor"] = group["rate"] * min(1, (step + 1) / options.warmup_steps)
        try:
            return super().training_step(batch, step)
        finally:
            self.deltas = False

    def losses(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """`loss`, the negative bound with one draw, in nats per image; the bound's terms `image`, `parts` and
        `objects`; the summed squared `reconstruction_error` of the draw; and the sums of presences, `parts_present` and
        `objects_present`."""
        images = batch["images"]
        inferred = self.infer(images, "training", self.step)
        with float32(images):
            terms = {name: values.mean() for name, values in self.bound(images, inferred).items()}
        present = {"parts_present": inferred.parts, "objects_present": inferred.objects}
        counts = {name: capsules.logits.sigmoid().sum(1).mean() for name, capsules in present.items()}
        return {"loss": -terms.pop("bound"), **terms, **counts}

    # What was learned

    def latents(self, images: Tensor) -> dict[str, Tensor]:
        """q's middle and the bound.

        Returns:
            `presence` [B, n0], log odds of the objects' presences; `pose` [B, n0, 6], means of what their poses add to
            the identity; `part_presence` [B, n1], probabilities; `part_pose` [B, n1, 6], means; the summed squared
            `reconstruction_error` [B] of the parts at these; the `bound` [B] in nats, with one draw.
        """
        inferred = self.infer(images)
        drawn = self.infer(images, "bound")
        with float32(images):
            bound = self.bound(images, drawn)["bound"]
        return {
            "presence": inferred.object_belief.logits,
            "pose": inferred.object_belief.poses.flatten(2),
            "part_presence": inferred.part_belief.logits.sigmoid(),
            "part_pose": inferred.part_belief.poses.flatten(2),
            "reconstruction_error": summed_squared_error(self.picture(inferred.part_belief).mean, images),
            "bound": bound,
        }

    def probes(self) -> dict[str, Any]:
        return {
            "templates": self.templates,
            "samples": self.samples,
            "chain": self.chain,
            "rotations": self.rotations,
            "free-form": self.free_form,
            "free-form-rotations": self.free_form_rotations,
        }

    def templates(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """`templates` [n1, C, h, w] and their `alphas` [n1, 1, h, w], between 0 and 1."""
        layers = self.generative.layers()
        return {"templates": layers[:, :-1], "alphas": layers[:, -1:]}

    def samples(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """`samples` [n, C, H, W]: what parts drawn from the model look like."""
        generator = self.noise.generator(images.device, "samples")
        with float32(images):
            drawn = self.generative.sample(self.options.samples, generator)
            return {"samples": self.generative.draw(drawn.parts).mean}

    def chain(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """`images` and what is left of them in parts (`chain`), both [B, C, H, W]."""
        return {"images": images, "chain": self.picture(self.part_encoder(images)).mean}

    def rotations(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Images turned in steps of 30 degrees, as they are first.

        Returns:
            `angles` [12] in degrees, counter-clockwise; `images` and what is left of them in parts (`chain`), both
            [12, B, C, H, W]; `owner` int64 [12, B, H, W], the template that is seen most at each pixel, -1 where next
            to nothing is.
        """
        angles = torch.arange(0, 360, TURN, device=images.device)
        turned = _turned(images, angles)
        pictures = [self.picture(self.part_encoder(each)) for each in turned]
        return {
            "angles": angles,
            "images": turned,
            "chain": torch.stack([picture.mean for picture in pictures]),
            "owner": torch.stack([_owner(picture.shares) for picture in pictures]),
        }

    def free_form_rotations(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """As `free_form`, of the first 2, or the first image where there is none, turned by `angles` [7]: 0, 30, ...
        180 degrees."""
        angles = torch.arange(0, 181, TURN, device=images.device)
        two = int((labels == TWO).int().argmax())
        turned = _turned(images[two : two + 1], angles).flatten(0, 1)
        return {"angles": angles, **self.free_form(turned, labels)}

    def free_form(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Inference by gradient ascent of the bound in all parameters of each image's q, from the networks' answer.

        Returns:
            The `bound_along` [K, B] in nats, averaged over some draws that are always the same, at `steps` [K]. Of the
            networks' answer, and with `_free` in their names of the last step: `presence` [B, n0], log odds; `pose`
            [B, n0, 6]; and the picture `chain` [B, C, H, W]. `images`.
        """
        inferred = self.infer(images)
        with torch.inference_mode(False), torch.enable_grad(), float32(images):
            images = images.clone()
            start = [_free(inferred.part_belief), _free(inferred.object_belief)]
            beliefs = [_free(belief) for belief in start]
            free = [values for belief in beliefs for values in belief if values is not None]
            adam = torch.optim.Adam(free, lr=self.options.free_rate)
            last = self.options.free_steps
            looks = torch.linspace(0, last, min(LOOKS, last + 1)).round().long().tolist()
            along = []
            for step in range(last + 1):
                if step in looks:
                    with torch.no_grad():
                        along.append(self._average_bound(images, beliefs))
                if step < last:
                    bound = self.bound(images, self._drawn(beliefs, "free-form", step))["bound"]
                    for values, gradient in zip(free, torch.autograd.grad(-bound.sum(), free), strict=True):
                        values.grad = gradient
                    adam.step()
        made = {"images": images, "bound_along": torch.stack(along), "steps": torch.tensor(looks)}
        for ending, (part_belief, object_belief) in (("", start), ("_free", beliefs)):
            made[f"presence{ending}"] = object_belief.logits.detach()
            made[f"pose{ending}"] = object_belief.poses.detach().flatten(2)
            made[f"chain{ending}"] = self.picture(part_belief).mean.detach()
        return made

    def _drawn(self, beliefs: Sequence[Belief], purpose: str, step: int) -> Inferred:
        """q of parts and objects, neither depending on the other, with a draw."""
        parts, objects = beliefs
        drawn = (
            self.draw(belief, f"{purpose}/{name}", step) for belief, name in ((parts, "parts"), (objects, "objects"))
        )
        return Inferred(parts, next(drawn), objects, next(drawn))

    def _average_bound(self, images: Tensor, beliefs: Sequence[Belief]) -> Tensor:
        bounds = [
            self.bound(images, self._drawn(beliefs, "free-form-bound", draw))["bound"]
            for draw in range(self.options.free_samples)
        ]
        return torch.stack(bounds).mean(0)


class PartEncoder(nn.Module):
    """Four convolutions and attentive pooling: images [B, C, H, W] to q of the n1 parts, float32."""

    def __init__(self, options: GenerativeOptions, image_shape: tuple[int, int, int], start: Tensor) -> None:
        super().__init__()
        channels, *sides = image_shape
        widths = (channels, *[options.channels] * len(STRIDES))
        self.layers = nn.ModuleList(
            nn.Conv2d(fewer, more, KERNEL, stride, padding=1)
            for fewer, more, stride in zip(widths, widths[1:], STRIDES, strict=False)
        )
        for stride in STRIDES:
            sides = [-(-side // stride) for side in sides]
        self.places = nn.Parameter(torch.zeros(options.channels, *sides)) if options.place_bias else None
        self.pooling = AttentivePooling(options.channels, options.parts, 1 + POSE)
        self.start = nn.Parameter(start.clone())
        self.reach = options.part_reach * half_canvas(options, image_shape)
        self.log_deviations = _log_deviations(options, options.parts)

    def forward(self, images: Tensor) -> Belief:
        maps = images
        for layer in self.layers:
            maps = elu(layer(maps))
        if self.places is not None:
            maps = maps + self.places.to(maps.dtype)
        found = self.pooling(maps)
        poses = self.start + self.reach * found[..., 1:].unflatten(2, (2, 3))
        return Belief(found[..., 0], poses, self.log_deviations)


class ObjectEncoder(nn.Module):
    """A set transformer: drawn parts to q of the n0 objects, float32."""

    start: Tensor

    def __init__(self, options: GenerativeOptions, image_shape: tuple[int, int, int], start: Tensor) -> None:
        super().__init__()
        self.register_buffer("start", start.clone())
        self.zoom = options.pose_zoom / half_canvas(options, image_shape)
        own = options.parts if options.identity == "projection" else 1
        self.project = nn.Parameter(torch.randn(own, 1 + POSE, options.width) * (1 + POSE) ** -0.5)
        names = (
            torch.zeros(1, options.width) if options.identity == "none" else torch.randn(options.parts, options.width)
        )
        self.names = nn.Parameter(0.5 * names)
        self.blocks = nn.ModuleList(
            ISAB(options.width, options.width, options.heads, options.points, options.point_deviation)
            for _ in range(options.layers)
        )
        self.pooling = PMA(options.width, options.heads, options.objects, options.point_deviation)
        self.encoding = nn.Linear(options.width, options.encoding)
        self.presence, self.pose = (_mlp(options, numbers) for numbers in (1, POSE))
        last = self.pose[-1]
        assert isinstance(last, nn.Linear)
        nn.init.normal_(last.weight, std=0.3 * options.hidden**-0.5)
        self.log_deviations = _log_deviations(options, options.objects)

    def forward(self, parts: Capsules) -> Belief:
        offsets = self.zoom * (parts.poses - self.start)
        numbers = torch.cat([parts.logits.sigmoid().unsqueeze(2), offsets.flatten(2)], 2)
        members = torch.einsum("bjd,jdw->bjw", numbers, self.project.expand(numbers.shape[1], -1, -1)) + self.names
        for block in self.blocks:
            members = block(members)
        found = self.encoding(self.pooling(members))
        logits, poses = self.presence(found).float(), self.pose(found).float()
        return Belief(logits.squeeze(2), poses.unflatten(2, (2, 3)), self.log_deviations)


def _mlp(options: GenerativeOptions, numbers: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(options.encoding, options.hidden), nn.ReLU(), nn.Linear(options.hidden, numbers))


def _log_deviations(options: GenerativeOptions, number: int) -> nn.Parameter | None:
    """Logarithms of the deviations of Gaussian poses, [n, 2, 3]."""
    if options.poses == "delta":
        return None
    return nn.Parameter(torch.full((number, 2, 3), options.gaussian_start))


def _free(belief: Belief) -> Belief:
    """The same with parameters of its own for every image."""
    shape = belief.poses.shape
    copies = (None if each is None else each.detach() for each in belief)
    logits, poses, deviations = copies
    assert logits is not None
    assert poses is not None
    deviations = None if deviations is None else deviations.expand(shape).clone().requires_grad_()
    return Belief(logits.clone().requires_grad_(), poses.clone().requires_grad_(), deviations)


def _turned(images: Tensor, angles: Tensor) -> Tensor:
    """Images turned by each of some angles, in degrees: [A, B, C, H, W]."""
    return torch.stack([rotated(images, float(angle)) for angle in angles])


def _owner(shares: Tensor) -> Tensor:
    """The template that is seen most, -1 where next to nothing is: [B, n1, H, W] to int64 [B, H, W]."""
    return torch.where(shares.sum(1) < SEEN, -1, shares.argmax(1))


def build(options: GenerativeOptions, image_shape: tuple[int, int, int], classes: int) -> GenerativeCapsules:
    return GenerativeCapsules(options, image_shape)
