"""The generative model of *Capsule Networks: A Probabilistic Perspective*: equations 1 to 7.

Each object is present or absent and has a pose. Each part selects a present object, or the dummy object, which is
always present. The part is then present or absent, at a pose that the selected object predicts. The selections are
summed out (appendix A). Parts are drawn as templates, in a fixed order, each over the previous ones.

Presences t are relaxed to binary concrete variables and stored as logits y, with t = 1 / (1 + exp(-y)), because these
are exact near 0 and 1. Densities are those of y. They equal the densities of t times t (1 - t), and this factor cancels
between the model and the posterior.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, pad, softplus

from recaps.nn.poses import bounded_pose, compose, warp
from recaps.papers.probabilistic.compositing import over
from recaps.papers.probabilistic.options import GenerativeOptions

#: Numbers in a pose.
POSE = 6


class Capsules(NamedTuple):
    """Values of the variables of one layer."""

    logits: Tensor
    """Logits of the presences t, [B, n]."""
    poses: Tensor
    """Poses [B, n, 2, 3]. For parts A1, which maps the template to the canvas. For objects A0, the offset from the
    identity. The option `extent` sets their unit."""


class Sample(NamedTuple):
    """A draw of all variables. Presences are 0 or 1, so their logits are minus or plus infinity."""

    objects: Capsules
    selections: Tensor
    """The object that each part selects, int64 [B, n1]: 0 for the dummy, 1 to n0 for the objects."""
    parts: Capsules


class Picture(NamedTuple):
    """The parts drawn on a black canvas."""

    mean: Tensor
    """The picture, [B, C, H, W]."""
    shares: Tensor
    """Visible share of each part at each pixel, [B, n1, H, W]: its alpha times the transparency of the templates
    above it."""


class Joint(NamedTuple):
    """Log densities of the factors of the model, in nats, [B] each."""

    image: Tensor
    """log p(X | t1, A1), eq. 7."""
    parts: Tensor
    """log p(t1, A1 | t0, A0), eqs. 3 to 6, with the selections summed out."""
    objects: Tensor
    """log p(t0, A0), eqs. 1 and 2."""
    picture: Picture
    """The picture, whose mean is the mean of X."""


class Generative(nn.Module):
    """The parameters that all images share, a few thousand numbers, and the densities of equations 1 to 7.

    Shapes: B images, C channels, n0 objects, n1 parts. Arrays over selections hold the dummy first, then the objects.
    """

    temperature: Tensor

    def __init__(self, options: GenerativeOptions, image_shape: tuple[int, int, int], start: Tensor) -> None:
        """`start` [n1, 2, 3]: the initial value of M_ij for every object i, before noise is added."""
        super().__init__()
        self.options, self.size = options, (image_shape[1], image_shape[2])
        objects, parts, side = options.objects, options.parts, options.template_size
        self.extent = half_canvas(options, image_shape)
        templates = parts // options.occurrences
        if options.template_start == "orthogonal":
            self.colours = nn.Parameter(orthogonal_templates(templates, image_shape[0], side))
            self.alphas = nn.Parameter(torch.zeros(templates, 1, side, side))
        else:
            self.colours = nn.Parameter(2 + 0.1 * torch.randn(templates, image_shape[0], side, side))
            self.alphas = nn.Parameter(_blobs(templates, side))
        self.relations = nn.Parameter(start + options.relation_spread * torch.randn(objects, parts, 2, 3))
        self.affinities = nn.Parameter(options.affinity_spread * torch.randn(objects, parts))
        self.appearances = nn.Parameter(torch.full((objects + 1, parts), options.appearance))
        widths = math.log(math.expm1(options.pose_deviation - options.pose_deviation_floor))
        self.widths = nn.Parameter(torch.full((objects, parts), widths))
        #: The temperature of the concrete variables, a scalar.
        self.register_buffer("temperature", torch.tensor(options.temperature), persistent=False)
        prior = math.log(options.object_probability / (1 - options.object_probability))
        self.prior = nn.Parameter(torch.full((objects,), prior)) if options.learned_probability else prior

    # Densities, equations 1 to 7

    def joint(self, images: Tensor, objects: Capsules, parts: Capsules) -> Joint:
        """Log densities of images [B, C, H, W], objects and parts."""
        options, picture = self.options, self.draw(parts)
        present = concrete(objects.logits, self.prior, self.temperature).sum(1)
        return Joint(
            normal(images, picture.mean, options.pixel_deviation).sum((1, 2, 3)),
            self.by_selection(objects, parts).logsumexp(1).sum(1),
            present + normal(objects.poses, 0.0, 1.0).sum((1, 2, 3)),
            picture,
        )

    def by_selection(self, objects: Capsules, parts: Capsules) -> Tensor:
        """log p(s_j = i, t1_j, A1_j | t0, A0), eqs. 3 to 6: [B, n0 + 1, n1]."""
        options, poses = self.options, parts.poses.unsqueeze(1)
        appearing = concrete(parts.logits.unsqueeze(1), self.appearances, self.temperature)  # eq. 4
        means, deviations = self._poses(objects)
        absent = options.absent_deviation
        # Equation 5 where the part is present, equation 6 where it is absent; `relaxed_pose` sets what lies between.
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
        """Posterior of the selection of each part (appendix D): [B, n0 + 1, n1], sums to 1 over the objects."""
        return self.by_selection(objects, parts).softmax(1)

    def expected(self, objects: Capsules) -> Tensor:
        """The pose that object i predicts for part j, (I + A0_i) M_ij (eq. 5): [B, n0, n1, 2, 3]."""
        identity = torch.eye(2, 3, device=objects.poses.device)
        return compose((identity + objects.poses).unsqueeze(2), self.relations)

    def _chosen(self, objects: Capsules) -> Tensor:
        """log p(s_j = i | t0), eq. 3: [B, n0 + 1, n1]."""
        present = pad(logsigmoid(objects.logits), (1, 0)).unsqueeze(2)
        return (self.log_affinities() + present).log_softmax(1)

    def _poses(self, objects: Capsules) -> tuple[Tensor, Tensor]:
        """Means and standard deviations of eq. 5, [B, n0 + 1, n1, 2, 3] and [n0 + 1, n1, 1, 1]. The dummy has no pose;
        its means are zero."""
        return pad(self.expected(objects), (0, 0, 0, 0, 0, 0, 1, 0)), self.deviations()[..., None, None]

    def log_affinities(self) -> Tensor:
        """log rho_ij of eq. 3, [n0 + 1, n1]. For objects it lies between -`affinity_bound` and `affinity_bound`."""
        bound = self.options.affinity_bound
        learned = bound * torch.tanh(self.affinities / bound)
        return pad(learned, (0, 0, 1, 0), value=math.log(self.options.dummy_affinity))

    def deviations(self) -> Tensor:
        """Standard deviations c_ij of eq. 5, [n0 + 1, n1]."""
        learned = self.options.pose_deviation_floor + softplus(self.widths)
        return pad(learned, (0, 0, 1, 0), value=self.options.dummy_deviation)

    def sample(self, n: int, generator: torch.Generator) -> Sample:
        """Draw n samples of all variables from eqs. 1 to 6, with presences that are 0 or 1."""
        options, device = self.options, self.colours.device

        def normals(*shape: int) -> Tensor:
            return torch.randn(n, *shape, generator=generator, device=device)

        def present(probabilities: Tensor) -> Tensor:
            drawn = torch.rand(probabilities.shape, generator=generator, device=device) < probabilities
            return torch.where(drawn, torch.inf, -torch.inf)

        prior = torch.as_tensor(self.prior, device=device).sigmoid()
        objects = Capsules(present(prior.expand(n, options.objects)), normals(options.objects, 2, 3))
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
        """Draw the templates at the poses of the parts, each over the previous ones. The presence of a part multiplies
        its alpha."""
        of_parts = self.layers().repeat(self.options.occurrences, 1, 1, 1)
        drawn = warp(of_parts, parts.poses / self.extent, self.size)
        return Picture(*over(drawn, parts.logits.sigmoid()))

    def layers(self) -> Tensor:
        """Colours and, as the last channel, alphas of the templates, between 0 and 1: [templates, C + 1, h, w]."""
        return torch.cat([self.colours, self.alphas], 1).sigmoid()

    def by_template(self, values: Tensor) -> Tensor:
        """Sum values of parts over those that share a template: [B, n1, ...] to [B, templates, ...]."""
        return values.unflatten(1, (self.options.occurrences, -1)).sum(1)


def half_canvas(options: GenerativeOptions, image_shape: tuple[int, int, int]) -> float:
    """Half the canvas, in the unit of poses."""
    return options.extent or max(image_shape[1:]) / options.template_size


def starting_poses(options: GenerativeOptions, image_shape: tuple[int, int, int]) -> Tensor:
    """Initial poses of the parts, upright and spread over the canvas, or all alike if they are bounded: [n1, 2, 3]."""
    if options.part_pose == "bounded":
        return half_canvas(options, image_shape) * bounded_pose(*torch.zeros(POSE, options.parts))
    spread = options.part_spread * half_canvas(options, image_shape)
    middles = spread * (2 * torch.rand(options.parts, 2, 1) - 1)
    return torch.cat([options.part_scale * torch.eye(2).expand(options.parts, -1, -1), middles], 2)


def orthogonal_templates(number: int, channels: int, side: int) -> Tensor:
    """Logits of orthogonal random templates, scaled to lie between 0 and 1: [number, channels, side, side].

    As in the released code of SCAE. At most as many are orthogonal as a template has numbers.
    """
    numbers = channels * side * side
    most = max(number, numbers)
    rows = torch.linalg.qr(torch.rand(most, most)).Q[:number, :numbers]
    rows = (rows - rows.min()) / (rows.max() - rows.min())
    return rows.unflatten(1, (channels, side, side)).contiguous()


def logistic(shape: torch.Size, generator: torch.Generator, device: torch.device) -> Tensor:
    """Draws of a logistic variable. (log odds + draw) / temperature is the logit of a binary concrete variable."""
    uniform = torch.rand(shape, generator=generator, device=device)
    return uniform.clamp(1e-6, 1 - 1e-6).logit()


def concrete(logits: Tensor, location: Tensor | float, temperature: Tensor | float) -> Tensor:
    """Log density of the logit of a binary concrete variable whose log odds are `location`."""
    off = temperature * logits - location
    log = math.log(temperature) if isinstance(temperature, float) else temperature.log()
    return log + logsigmoid(off) + logsigmoid(-off)


def normal(values: Tensor, mean: Tensor | float, deviation: Tensor | float) -> Tensor:
    """Log density of N(mean, deviation^2)."""
    log = math.log(deviation) if isinstance(deviation, float) else deviation.log()
    return -0.5 * ((values - mean) / deviation).square() - log - 0.5 * math.log(2 * math.pi)


def _blobs(parts: int, side: int) -> Tensor:
    """Initial logits of the alphas, highest in the middle, [n1, 1, h, w]."""
    along = torch.linspace(-1, 1, side).square()
    return 2 - 5 * (along[:, None] + along) + 0.5 * torch.randn(parts, 1, side, side)
