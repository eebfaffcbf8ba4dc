"""The generative model of *Capsule Networks: A Probabilistic Perspective*: objects, their parts, and pictures of these.

Objects are present or not, each at a pose. Every part chooses an object that is present, or the dummy, which always is,
and is then present or not where that object's pose puts it; which one it chose is summed out (App. A). Parts are drawn
as templates, one over the other.

Presences t are relaxed to binary concrete variables. They are held as their logits y, t = 1 / (1 + exp(-y)), which are
exact near 0 and 1. Densities are those of y: t's times t (1 - t), a factor that a posterior has as well.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, pad, softplus

from recaps.nn.poses import compose, warp
from recaps.papers.probabilistic.options import GenerativeOptions


class Capsules(NamedTuple):
    """Values of the variables of a layer."""

    logits: Tensor
    """Of the presences t, [B, n]."""
    poses: Tensor
    """[B, n, 2, 3]. Of parts, A1: template to canvas. Of objects, A0: what they add to the identity. Their unit is the
    option `extent`'s."""


class Sample(NamedTuple):
    """A draw of all variables; logits of presences are plus or minus infinity."""

    objects: Capsules
    selections: Tensor
    """What each part belongs to, 0 for the dummy, else the object's number from 1 on: int64 [B, n1]."""
    parts: Capsules


class Picture(NamedTuple):
    """What parts look like, on black."""

    mean: Tensor
    """[B, C, H, W]."""
    shares: Tensor
    """How much each template is seen at a pixel, [B, n1, H, W]: its alpha less what lies on top of it."""


class Joint(NamedTuple):
    """Logarithms of the factors of the joint density, in nats, [B] each."""

    image: Tensor
    """p(X | t1, A1), eq. 7."""
    parts: Tensor
    """p(t1, A1 | t0, A0), eqs. 3 to 6, with selections summed out."""
    objects: Tensor
    """p(t0, A0), eqs. 1 and 2."""
    picture: Picture
    """The mean of X."""


class Generative(nn.Module):
    """What all images share, at most some thousand numbers, and the densities of equations 1 to 7.

    Shapes: B images, C channels, n0 objects, n1 parts. Arrays over selections have the dummy first, then the objects.
    """

    def __init__(self, options: GenerativeOptions, image_shape: tuple[int, int, int], start: Tensor) -> None:
        """`start`: the poses that all objects expect of parts at first, but for some noise, [n1, 2, 3]."""
        super().__init__()
        self.options, self.size = options, (image_shape[1], image_shape[2])
        objects, parts, side = options.objects, options.parts, options.template_size
        self.extent = half_canvas(options, image_shape)
        self.colours = nn.Parameter(2 + 0.1 * torch.randn(parts, image_shape[0], side, side))
        self.alphas = nn.Parameter(_blobs(parts, side))
        self.relations = nn.Parameter(start + options.relation_spread * torch.randn(objects, parts, 2, 3))
        self.affinities = nn.Parameter(options.affinity_spread * torch.randn(objects, parts))
        self.appearances = nn.Parameter(torch.full((objects + 1, parts), options.appearance))
        widths = math.log(math.expm1(options.pose_deviation - options.pose_deviation_floor))
        self.widths = nn.Parameter(torch.full((objects, parts), widths))

    # Densities

    def joint(self, images: Tensor, objects: Capsules, parts: Capsules) -> Joint:
        """Of images [B, C, H, W], objects and parts."""
        options, picture = self.options, self.draw(parts)
        prior = math.log(options.object_probability / (1 - options.object_probability))
        present = concrete(objects.logits, prior, options.temperature).sum(1)
        return Joint(
            normal(images, picture.mean, options.pixel_deviation).sum((1, 2, 3)),
            self.by_selection(objects, parts).logsumexp(1).sum(1),
            present + normal(objects.poses, 0.0, 1.0).sum((1, 2, 3)),
            picture,
        )

    def by_selection(self, objects: Capsules, parts: Capsules) -> Tensor:
        """log p(s_j = i, t1_j, A1_j | t0, A0), eqs. 3 to 6: [B, n0 + 1, n1]."""
        options, poses = self.options, parts.poses.unsqueeze(1)
        appearing = concrete(parts.logits.unsqueeze(1), self.appearances, options.temperature)
        means, deviations = self._poses(objects)
        absent = options.absent_deviation
        on, off = logsigmoid(parts.logits).unsqueeze(1), logsigmoid(-parts.logits).unsqueeze(1)
        if options.relaxed_pose == "mixture":
            posed = torch.logaddexp(
                on + normal(poses, means, deviations).sum((3, 4)), off + normal(poses, 0.0, absent).sum((3, 4))
            )
        elif options.relaxed_pose == "geometric":
            t = on.exp()[..., None, None]
            sharp, dull = t / deviations.square(), (1 - t) / absent**2
            posed = normal(poses, means * sharp / (sharp + dull), (sharp + dull).rsqrt()).sum((3, 4))
        else:
            t = on.exp()[..., None, None]
            posed = normal(poses, t * means, t * deviations + (1 - t) * absent).sum((3, 4))
        return self._chosen(objects) + appearing + posed

    def selections(self, objects: Capsules, parts: Capsules) -> Tensor:
        """Posterior of which object a part belongs to (App. D): [B, n0 + 1, n1], which sums to one for each part."""
        return self.by_selection(objects, parts).softmax(1)

    def expected(self, objects: Capsules) -> Tensor:
        """Where objects put their parts, (I + A0_i) M_ij (eq. 5): [B, n0, n1, 2, 3]."""
        identity = torch.eye(2, 3, device=objects.poses.device)
        return compose((identity + objects.poses).unsqueeze(2), self.relations)

    def _chosen(self, objects: Capsules) -> Tensor:
        """log p(s_j = i | t0), eq. 3: [B, n0 + 1, n1]."""
        present = pad(logsigmoid(objects.logits), (1, 0)).unsqueeze(2)
        return (self.log_affinities() + present).log_softmax(1)

    def _poses(self, objects: Capsules) -> tuple[Tensor, Tensor]:
        """Means and deviations of eq. 5: [B, n0 + 1, n1, 2, 3] and [n0 + 1, n1, 1, 1]. The dummy has no pose; its mean
        is zero."""
        return pad(self.expected(objects), (0, 0, 0, 0, 0, 0, 1, 0)), self.deviations()[..., None, None]

    def log_affinities(self) -> Tensor:
        """log rho_ij, [n0 + 1, n1]; of objects between the bounds."""
        bound = self.options.affinity_bound
        learned = bound * torch.tanh(self.affinities / bound)
        return pad(learned, (0, 0, 1, 0), value=math.log(self.options.dummy_affinity))

    def deviations(self) -> Tensor:
        """Standard deviations c_ij of poses about what is expected, [n0 + 1, n1]."""
        learned = self.options.pose_deviation_floor + softplus(self.widths)
        return pad(learned, (0, 0, 1, 0), value=self.options.dummy_deviation)

    def sample(self, n: int, generator: torch.Generator) -> Sample:
        """Draws from the model as it is before presences are relaxed, eqs. 1 to 6."""
        options, device = self.options, self.colours.device

        def normals(*shape: int) -> Tensor:
            return torch.randn(n, *shape, generator=generator, device=device)

        def present(probabilities: Tensor) -> Tensor:
            drawn = torch.rand(probabilities.shape, generator=generator, device=device) < probabilities
            return torch.where(drawn, torch.inf, -torch.inf)

        objects = Capsules(
            present(torch.full((n, options.objects), options.object_probability, device=device)),
            normals(options.objects, 2, 3),
        )
        chances = self._chosen(objects).exp().transpose(1, 2).flatten(0, 1)
        selections = torch.multinomial(chances, 1, generator=generator).unflatten(0, (n, -1)).squeeze(2)
        image, part = torch.arange(n, device=device)[:, None], torch.arange(options.parts, device=device)
        logits = present(self.appearances[selections, part].sigmoid())
        means, deviations = self._poses(objects)
        on = (logits > 0)[..., None, None]
        mean = torch.where(on, means[image, selections, part], 0.0)
        deviation = torch.where(on, deviations[selections, part], options.absent_deviation)
        return Sample(objects, selections, Capsules(logits, mean + deviation * normals(options.parts, 2, 3)))

    # Pictures

    def draw(self, parts: Capsules) -> Picture:
        """Templates at their poses, each over those before it, with alphas as much as the part is present."""
        drawn = warp(self.layers(), parts.poses / self.extent, self.size)
        alphas = drawn[:, :, -1] * parts.logits.sigmoid()[..., None, None]
        shares = alphas * uncovered(alphas)
        return Picture((drawn[:, :, :-1] * shares.unsqueeze(2)).sum(1), shares)

    def layers(self) -> Tensor:
        """Colours and then the alpha of templates, between 0 and 1: [n1, C + 1, h, w]."""
        return torch.cat([self.colours, self.alphas], 1).sigmoid()


def half_canvas(options: GenerativeOptions, image_shape: tuple[int, int, int]) -> float:
    """Half of the canvas in the unit of poses."""
    return options.extent or max(image_shape[1:]) / options.template_size


def starting_poses(options: GenerativeOptions, image_shape: tuple[int, int, int]) -> Tensor:
    """Poses of parts at the start, upright and spread over the canvas: [n1, 2, 3]."""
    spread = options.part_spread * half_canvas(options, image_shape)
    middles = spread * (2 * torch.rand(options.parts, 2, 1) - 1)
    return torch.cat([options.part_scale * torch.eye(2).expand(options.parts, -1, -1), middles], 2)


def uncovered(alphas: Tensor) -> Tensor:
    """How much of each layer is seen through those after it, prod_{k > j} (1 - alpha_k): [B, n, H, W]."""
    through = (1 - alphas).flip(1).cumprod(1).flip(1)
    return pad(through[:, 1:], (0, 0, 0, 0, 0, 1), value=1.0)


def logistic(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Draws of a logistic variable: added to log odds and divided by the temperature, the logit of a concrete one."""
    uniform = torch.rand(shape, generator=generator, device=generator.device)
    return uniform.clamp(1e-6, 1 - 1e-6).logit()


def concrete(logits: Tensor, location: Tensor | float, temperature: float) -> Tensor:
    """Log density of the logit of a binary concrete variable with log odds `location`."""
    off = temperature * logits - location
    return math.log(temperature) + logsigmoid(off) + logsigmoid(-off)


def normal(values: Tensor, mean: Tensor | float, deviation: Tensor | float) -> Tensor:
    """Log density of N(mean, deviation^2)."""
    log = math.log(deviation) if isinstance(deviation, float) else deviation.log()
    return -0.5 * ((values - mean) / deviation).square() - log - 0.5 * math.log(2 * math.pi)


def _blobs(parts: int, side: int) -> Tensor:
    """Logits of alphas, dense in the middle, [n1, 1, h, w]."""
    along = torch.linspace(-1, 1, side).square()
    return 2 - 5 * (along[:, None] + along) + 0.5 * torch.randn(parts, 1, side, side)
