"""*Capsule Networks: A Probabilistic Perspective*: inference and learning in the generative model.

`generative_model.py` defines the model (equations 1 to 7). Here a convolutional network infers the parts of an image,
and a set transformer infers the objects from a draw of the parts. Both networks and the model are trained on one
variational bound (equation 8). `probes.py` holds free-form inference, which maximises the bound for single images.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import elu, logsigmoid, one_hot

from recaps.config.training import Training
from recaps.errors import UserError
from recaps.models.model import Batch, Model
from recaps.nn.attention import ISAB, PMA, AttentivePooling
from recaps.nn.convolution import size_after
from recaps.nn.layers import PerObject
from recaps.nn.losses.squares import summed_squared_error
from recaps.nn.noise import Noise
from recaps.nn.poses import bounded_pose
from recaps.nn.precision import float32
from recaps.npz import Array
from recaps.papers.probabilistic.generative_model import (
    POSE,
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


class Belief(NamedTuple):
    """The posterior q of a layer of capsules, under which all variables are independent."""

    logits: Tensor
    """Log odds of the presences, [B, n]."""
    poses: Tensor
    """Means of the poses, [B, n, 2, 3]."""
    log_deviations: Tensor | None
    """Log standard deviations of the poses, [n, 2, 3] or [B, n, 2, 3]. None: q of the poses is a point (a delta)."""


class Inferred(NamedTuple):
    """The posterior q of images and a draw from it. The objects are inferred from the drawn parts."""

    part_belief: Belief
    parts: Capsules
    object_belief: Belief
    objects: Capsules


class GenerativeCapsules(Model):
    """Infers n1 parts and n0 objects of images [B, C, H, W], and draws images from the parts alone."""

    deltas = False  # whether q of the poses is a point in this training step, whatever the options say

    def __init__(self, options: GenerativeOptions, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.options = options
        start = starting_poses(options, image_shape)
        self.generative = Generative(options, image_shape, start)
        self.part_encoder = PartEncoder(options, image_shape, start)
        self.object_encoder = ObjectEncoder(options, image_shape, start)
        self.noise = Noise()

    # Inference

    def infer(
        self,
        images: Tensor,
        purpose: str | None = None,
        step: int | None = 0,
        deltas: bool = False,
        labels: Tensor | None = None,
    ) -> Inferred:
        """The posterior q of images and a draw from it.

        Args:
            images: [B, C, H, W].
            purpose: what the draw is for; with the seed and `step` it determines the random numbers. None: take the
                median presences and mean poses of q instead of a draw.
            step: the training step; None: the scheduled one.
            deltas: whether to take q of the poses as points, whatever the options say.
            labels: [B], for the control `presences_from_labels`.
        """
        part_belief = self.part_encoder(images)
        if deltas:
            part_belief = part_belief._replace(log_deviations=None)
        parts = self.draw(part_belief, purpose and f"{purpose}/parts", step)
        object_belief = self.object_encoder(parts)
        if labels is not None and self.options.presences_from_labels is not None:
            known = self.options.presences_from_labels * (2 * one_hot(labels, self.options.objects) - 1)
            object_belief = object_belief._replace(logits=known.to(object_belief.logits.dtype))
        if deltas:
            object_belief = object_belief._replace(log_deviations=None)
        objects = self.draw(object_belief, purpose and f"{purpose}/objects", step)
        return Inferred(part_belief, parts, object_belief, objects)

    def draw(self, belief: Belief, purpose: str | None, step: int | None = 0, sign: int = 1) -> Capsules:
        """A reparametrised draw from q. If `purpose` is None, the median presences and the mean poses.

        With `sign` -1, all random numbers have the opposite sign: the antithetic draw.
        """
        if purpose is None:
            return Capsules(belief.logits / self.generative.temperature, belief.poses)
        shape, device = belief.logits.shape, belief.logits.device
        generator = self.noise.generator(device, purpose, step)
        logits = (belief.logits + sign * logistic(shape, generator, device)) / self.generative.temperature
        if belief.log_deviations is None:
            return Capsules(logits, belief.poses)
        normals = sign * torch.randn(belief.poses.shape, generator=generator, device=belief.poses.device)
        return Capsules(logits, belief.poses + belief.log_deviations.exp() * normals)

    def log_posterior(self, belief: Belief, capsules: Capsules) -> Tensor:
        """log q of a draw, [B]. Poses that are points contribute 0 (section 2.3)."""
        density = concrete(capsules.logits, belief.logits, self.generative.temperature).sum(1)
        if belief.log_deviations is None:
            return density
        return density + normal(capsules.poses, belief.poses, belief.log_deviations.exp()).sum((1, 2, 3))

    def bound(self, images: Tensor, inferred: Inferred) -> dict[str, Tensor]:
        """The variational bound (eq. 8, appendix A), estimated with one draw.

        Returns:
            Arrays [B]: the `bound` in nats, which is the sum of `image`, log p(X | t1, A1), and of log p - log q of the
            `parts` and of the `objects`; and the summed squared `reconstruction_error` of the draw.
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
        """The picture of the parts at the median presences and mean poses of q."""
        with float32(parts.poses):
            return self.generative.draw(self.draw(parts, None))

    # Learning

    def configure(self, training: Training) -> None:
        self.training_options, options = training, self.options
        factors = {
            "": 1.0,
            "object_encoder": options.object_rate,
            "generative": options.arrangement_rate,
            "generative.affinities": 1.0,
            "generative.colours": options.template_rate,
            "generative.alphas": options.template_rate,
        }
        of_group: dict[str, list[nn.Parameter]] = {name: [] for name in factors}
        for name, values in self.named_parameters():
            of_group[max((group for group in factors if name.startswith(group)), key=len)].append(values)
        self.optimizer = torch.optim.Adam(
            [{"params": of_group[group], "factor": factor} for group, factor in factors.items()],
            lr=training.learning_rate,
            eps=self.adam_epsilon,
            fused=True,
        )

    def schedule(self, step: int) -> Hashable:
        super().schedule(step)
        if (start := self.options.temperature_start) is not None:
            left = 1 - step / self.training_options.steps
            self.generative.temperature.fill_(self.options.temperature * (start / self.options.temperature) ** left)
        # Gaussian poses begin as points (section 2.3).
        first = self.options.deltas_first * self.training_options.steps
        self.deltas = self.options.poses == "gaussian" and step < first
        return self.deltas

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Losses of a training step, as means over the images.

        Returns:
            `loss`, the negative bound in nats, with one draw or importance weighted with several; the terms of the
            bound `image`, `parts` and `objects`; the summed squared `reconstruction_error` of the draw; and the sums of
            the presences, `parts_present` and `objects_present`.
        """
        images, labels, draws = batch["images"], batch.get("labels"), self.options.draws
        if draws > 1:
            images = images.repeat(draws, 1, 1, 1)
            labels = None if labels is None else labels.repeat(draws)
        inferred = self.infer(images, "training", None, self.deltas, labels)
        with float32(images):
            each = self.bound(images, inferred)
            if draws > 1:
                each["bound"] = each["bound"].unflatten(0, (draws, -1)).logsumexp(0) - math.log(draws)
            terms = {name: values.mean() for name, values in each.items()}
        present = {"parts_present": inferred.parts, "objects_present": inferred.objects}
        counts = {name: capsules.logits.sigmoid().sum(1).mean() for name, capsules in present.items()}
        return {"loss": -terms.pop("bound"), **terms, **counts}

    # Evaluation

    def reconstruct(self, images: Tensor) -> Tensor:
        """The mean of the picture of the parts, at median presences and mean poses."""
        return self.picture(self.part_encoder(images)).mean

    def latents(self, images: Tensor) -> dict[str, Tensor]:
        """The parameters of q and the bound.

        Returns:
            `presence` [B, n0], log odds of the presences of the objects; `pose` [B, n0, 6], means of their poses, as
            offsets from the identity; `part_presence` [B, n1], probabilities; `part_pose` [B, n1, 6], means; the summed
            squared `reconstruction_error` [B] of the parts at median presences and mean poses; the `ink` [B, templates]
            of the image that each template draws then; the `bound` [B] in nats, with one draw, and its term of the
            `objects`.
        """
        inferred = self.infer(images)
        drawn = self.infer(images, "bound")
        picture = self.picture(inferred.part_belief)
        with float32(images):
            bound = self.bound(images, drawn)
            ink = self.generative.by_template(torch.einsum("bnhw,bchw->bn", picture.shares, images))
        return {
            "presence": inferred.object_belief.logits,
            "pose": inferred.object_belief.poses.flatten(2),
            "part_presence": inferred.part_belief.logits.sigmoid(),
            "part_pose": inferred.part_belief.poses.flatten(2),
            "reconstruction_error": summed_squared_error(picture.mean, images),
            "ink": ink,
            "bound": bound["bound"],
            "objects": bound["objects"],
        }

    def diagnosis(self, latents: Mapping[str, Array]) -> dict[str, float]:
        """Whether presences say something.

        Returns:
            The standard deviation of log odds over images, mean and maximum over the objects; the mean number of parts
            that are present; and the number of live templates, which draw at least a quarter of an even share of the
            ink.
        """
        spread, ink = latents["presence"].std(0), latents["ink"].sum(0)
        return {
            "log odds spread": float(spread.mean()),
            "largest spread": float(spread.max()),
            "parts present": float(latents["part_presence"].sum(1).mean()),
            "live templates": float((ink >= ink.mean() / 4).sum()),
        }


class PartEncoder(nn.Module):
    """Four convolutions and attentive pooling: images [B, C, H, W] to the posterior q of the n1 parts, float32."""

    def __init__(self, options: GenerativeOptions, image_shape: tuple[int, int, int], start: Tensor) -> None:
        super().__init__()
        channels, *sides = image_shape
        widths = (channels, *[options.channels] * len(STRIDES))
        same = options.padding == "same"
        self.layers = nn.ModuleList(
            nn.Conv2d(fewer, more, KERNEL, stride, padding=int(same))
            for fewer, more, stride in zip(widths, widths[1:], STRIDES, strict=False)
        )
        for stride in STRIDES:
            sides = [size_after(side, KERNEL, stride, same) for side in sides]
        if min(sides) < 1:
            raise UserError(
                f"model: images of {image_shape[1]}x{image_shape[2]} are too small; set model.padding: same"
            )
        self.places = nn.Parameter(torch.zeros(options.channels, *sides)) if options.place_bias else None
        self.pooling = AttentivePooling(options.channels, options.parts, 1 + _pose_numbers(options))
        self.start = nn.Parameter(start.clone()) if options.part_pose == "linear" else None
        self.unit = half_canvas(options, image_shape)
        self.reach = options.part_reach * self.unit
        self.log_deviations = _log_deviations(options, options.parts)

    def forward(self, images: Tensor) -> Belief:
        maps = images
        for layer in self.layers:
            maps = elu(layer(maps))
        if self.places is not None:
            maps = maps + self.places.to(maps.dtype)
        logits, poses, deviations = self.pooling(maps).tensor_split((1, 1 + POSE), 2)
        with float32(images):
            if self.start is None:
                poses = self.unit * bounded_pose(*poses.unbind(2))
            else:
                poses = self.start + self.reach * poses.unflatten(2, (2, 3))
            return Belief(logits.squeeze(2), poses, _varied(self.log_deviations, deviations))


class ObjectEncoder(nn.Module):
    """A set transformer: drawn parts to the posterior q of the n0 objects, float32."""

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
        self.own, self.masked = options.object_layers == "own", options.attention == "present"
        self.presence, self.pose = (_mlp(options, numbers) for numbers in (1, _pose_numbers(options)))
        last = self.pose[-1]
        assert isinstance(last.weight, Tensor)
        nn.init.normal_(last.weight, std=0.3 * options.hidden**-0.5)
        self.log_deviations = _log_deviations(options, options.objects)

    def forward(self, parts: Capsules) -> Belief:
        # Log odds of some objects differ between images by hundredths; bfloat16 has steps of 0.0156 between 2 and 4.
        with float32(parts.poses):
            offsets = self.zoom * (parts.poses - self.start)
            numbers = torch.cat([parts.logits.sigmoid().unsqueeze(2), offsets.flatten(2)], 2)
            members = torch.einsum("bjd,jdw->bjw", numbers, self.project.expand(numbers.shape[1], -1, -1)) + self.names
            bias = logsigmoid(parts.logits) if self.masked else None
            for block in self.blocks:
                members = block(members, bias)
            found = self.encoding(self.pooling(members, bias))
            if self.own:
                logits, poses = (layers(found.transpose(0, 1)).transpose(0, 1) for layers in (self.presence, self.pose))
            else:
                logits, poses = self.presence(found), self.pose(found)
            poses, deviations = poses.tensor_split((POSE,), 2)
            return Belief(logits.squeeze(2), poses.unflatten(2, (2, 3)), _varied(self.log_deviations, deviations))


def _pose_numbers(options: GenerativeOptions) -> int:
    """How many numbers of the posterior of a pose a network computes: its mean, and perhaps offsets of deviations."""
    return POSE * (1 + (options.poses == "gaussian" and options.gaussian_from == "image"))


def _mlp(options: GenerativeOptions, numbers: int) -> nn.Sequential:
    sizes = (options.encoding, options.hidden), (options.hidden, numbers)
    if options.object_layers == "own":
        first, last = (PerObject(options.objects, *size) for size in sizes)
        return nn.Sequential(first, nn.ReLU(), last)
    return nn.Sequential(nn.Linear(*sizes[0]), nn.ReLU(), nn.Linear(*sizes[1]))


def _varied(shared: Tensor | None, offsets: Tensor) -> Tensor | None:
    """Log standard deviations of poses: those of all images, [n, 2, 3], plus offsets [B, n, 6] if there are any."""
    return shared if shared is None or not offsets.shape[2] else shared + offsets.unflatten(2, (2, 3))


def _log_deviations(options: GenerativeOptions, number: int) -> nn.Parameter | None:
    """Log standard deviations of Gaussian poses, [n, 2, 3]."""
    if options.poses == "delta":
        return None
    return nn.Parameter(torch.full((number, 2, 3), options.gaussian_start))


def build(options: GenerativeOptions, image_shape: tuple[int, int, int], classes: int) -> GenerativeCapsules:
    return GenerativeCapsules(options, image_shape)
