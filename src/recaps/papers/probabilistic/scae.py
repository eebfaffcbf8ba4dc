"""*Stacked Capsule Autoencoders*, to which *Capsule Networks: A Probabilistic Perspective* compares its model.

A convolutional network finds parts: a pose, a presence and some features of each. A picture is a mixture of the parts'
templates, drawn where their poses put them. A set transformer finds objects among the parts, and each object votes for
the pose of every part, so that a pose is a mixture of votes. Both likelihoods are maximised, with no gradient between
them but that of the features, under losses that make objects sparse. Where the paper and the code that came with it
differ, this is the code.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, logsigmoid, relu, softplus

from recaps.config.training import Training
from recaps.errors import UserError
from recaps.models.model import Batch, Model
from recaps.nn.attentive_pooling import AttentivePooling
from recaps.nn.convolution import convolve, size_after
from recaps.nn.initial import initialise, truncated_normal
from recaps.nn.losses import right, summed_squared_error
from recaps.nn.noise import Noise
from recaps.nn.poses import compose, warp
from recaps.nn.precision import float32
from recaps.papers.probabilistic.options import SCAEOptions
from recaps.papers.probabilistic.rmsprop import RMSProp
from recaps.papers.probabilistic.template_mixture import Mixture, template_mixture

KERNEL = 3
STRIDES = (2, 2, 1, 1)
#: Numbers of a pose.
POSE = 6
#: Logarithm of the density, and of the weight, of the vote that explains what no object does.
DUMMY = -2 * math.log(10)


class Parts(NamedTuple):
    """What is found in images."""

    poses: Tensor
    """Template to canvas, [B, J, 2, 3]."""
    features: Tensor
    """Special features, [B, J, F]."""
    logits: Tensor
    """Of presences, noise included, [B, J]."""


class Objects(NamedTuple):
    """What explains the parts."""

    presence: Tensor
    """Of the object and of the part that it is surest of, [B, K]: the "prior" presence."""
    posterior: Tensor
    """Shares of objects in the explanation of each part, [B, K, J]; the rest is nobody's."""
    log_likelihood: Tensor
    """Of the poses of the parts that are present, [B]."""
    deviations: Tensor
    """What the image adds to the poses of parts in their objects, [B, K, 6, J], before these are made matrices."""

    @property
    def mass(self) -> Tensor:
        """Parts that an object explains, [B, K]: its "posterior" presence."""
        return self.posterior.sum(2)


class SCAE(Model):
    """Images [B, C, H, W] to J parts, K objects and pictures."""

    step = 0  # the training step that noise is drawn for

    def __init__(self, options: SCAEOptions, image_shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.options, self.classes = options, classes
        channels = image_shape[0]
        self.part_encoder = PartEncoder(options, image_shape)
        self.templates = Templates(options, channels)
        self.object_encoder = ObjectEncoder(options, channels)
        self.object_decoder = ObjectDecoder(options)
        self.prior_probe = _linear(options.objects, classes)
        self.posterior_probe = _linear(options.objects, classes)
        self.noise = Noise()

    def parts(self, images: Tensor, noisy: bool) -> Parts:
        found = self.part_encoder(images)
        with float32(images):
            poses, features, logits = found.split([POSE, self.options.features, 1], 2)
            return Parts(pose(*poses.unbind(2)), features, self._noisy(logits.squeeze(2), "parts", noisy))

    def pictures(self, parts: Parts, images: Tensor) -> Mixture:
        """The mixture that parts make of a picture, held against images [B, C, H, W]."""
        colours = self.templates.colours(parts.features)
        with float32(images):
            layers = torch.cat([self.templates.values(), self.templates.alphas], 1)
            drawn = warp(layers, parts.poses, (images.shape[2], images.shape[3]))
            background = (self.templates.background.sigmoid(), softplus(self.templates.background_logit))
            return template_mixture(images, drawn, colours, logsigmoid(parts.logits), *background)

    def objects(self, parts: Parts, noisy: bool) -> Objects:
        """The objects that explain parts; of these only the features get a gradient."""
        poses, presences = parts.poses.detach(), parts.logits.detach().sigmoid()
        with torch.no_grad():
            templates = self.templates.values() * self.templates.colours(parts.features)[..., None, None]
        seen = [poses.flatten(2), 1 - presences.unsqueeze(2), parts.features, templates.flatten(2)]
        capsules = self.object_decoder(self.object_encoder(torch.cat(seen, 2), presences))
        with float32(poses):
            votes = compose(pose(*capsules.poses.unbind(2)).unsqueeze(2), pose(*capsules.relations.unbind(2)))
            of_object = logsigmoid(self._noisy(capsules.object_logits, "objects", noisy))
            of_part = logsigmoid(self._noisy(capsules.part_logits, "votes", noisy))
            log_presence = of_object.unsqueeze(2) + of_part
            densities, posterior = vote_mixture(poses, votes, capsules.scales, log_presence)
            log_likelihood = (densities * presences).sum(1)
            return Objects(log_presence.amax(2).exp(), posterior, log_likelihood, capsules.deviations)

    def _noisy(self, logits: Tensor, purpose: str, noisy: bool) -> Tensor:
        """Logits and uniform noise about zero."""
        if not noisy or not self.options.noise_scale:
            return logits
        generator = self.noise.generator(logits.device, purpose, self.step)
        noise = torch.rand(logits.shape, generator=generator, device=logits.device)
        return logits + self.options.noise_scale * (noise - 0.5)

    # Learning

    def configure(self, training: Training) -> None:
        self.training_options = training
        epsilon = 0.01 / training.batch_size**2
        self.optimizer = RMSProp(self.parameters(), training.learning_rate, epsilon)

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {"rmsprop": self.optimizer}

    def training_step(self, batch: Batch, step: int) -> dict[str, Tensor]:
        self.step = step
        return super().training_step(batch, step)

    def losses(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """`loss`; the terms that, with the weights of the options, it is made of: minus the log-likelihoods `image` and
        `poses` in nats, `dynamic`, `posterior_within` less `posterior_between`, `prior_within`, `prior_between` and
        `probes`; the accuracies of the probes, `accuracy_prior` and `accuracy_posterior`; the summed squared
        `reconstruction_error`. Labels are for the probes, which nothing else learns from.
        """
        images, labels, options = batch["images"], batch["labels"], self.options
        parts = self.parts(images, noisy=True)
        mixture = self.pictures(parts, images)
        objects = self.objects(parts, noisy=True)
        with float32(images):
            expected = options.within_constant or options.objects / self.classes
            within, between = entropies(objects.mass)
            prior, posterior = (
                probe(presences.detach())
                for probe, presences in ((self.prior_probe, objects.presence), (self.posterior_probe, objects.mass))
            )
            terms = {
                "image": -mixture.log_likelihood.mean(),
                "poses": -objects.log_likelihood.mean(),
                "dynamic": 0.5 * objects.deviations.square().sum() / len(images),
                "posterior_within": within,
                "posterior_between": between,
                "prior_within": (objects.presence.sum(1) - expected).square().mean(),
                "prior_between": (objects.presence.sum(0) - len(images) / self.classes).square().mean(),
                "probes": cross_entropy(prior, labels) + cross_entropy(posterior, labels),
            }
        weights = {
            "dynamic": options.dynamic_weight,
            "posterior_within": options.posterior_within,
            "posterior_between": -options.posterior_between,
            "prior_within": options.prior_within,
            "prior_between": options.prior_between,
        }
        return {
            "loss": torch.stack([weights.get(name, 1) * term for name, term in terms.items()]).sum(),
            **terms,
            "accuracy_prior": right(prior, labels).float().mean(),
            "accuracy_posterior": right(posterior, labels).float().mean(),
            "reconstruction_error": summed_squared_error(mixture.mean, images).mean(),
        }

    # What was learned

    def latents(self, images: Tensor) -> dict[str, Tensor]:
        """`presence` [B, K], how many parts each object explains (the "posterior" presence), and `prior_presence`
        [B, K]; the summed squared `reconstruction_error` [B] of the mixture's mean."""
        parts = self.parts(images, self.options.noise_at_test)
        objects = self.objects(parts, self.options.noise_at_test)
        return {
            "presence": objects.mass,
            "prior_presence": objects.presence,
            "reconstruction_error": summed_squared_error(self.pictures(parts, images).mean, images),
        }

    def probes(self) -> dict[str, Any]:
        return {"chain": self.chain}

    def chain(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """`images` and what is left of them in parts (`chain`): the mean of their mixture, both [B, C, H, W]."""
        return {"images": images, "chain": self.pictures(self.parts(images, self.options.noise_at_test), images).mean}


class PartEncoder(nn.Module):
    """Four convolutions, a bias for each place, attentive pooling: [B, C, H, W] to a pose, features and the logit of
    the presence of each part, [B, J, 6 + F + 1], float32."""

    def __init__(self, options: SCAEOptions, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, *sides = image_shape
        for stride in STRIDES:
            sides = [size_after(side, KERNEL, stride, same=False) for side in sides]
        if min(sides) < 1:
            raise UserError(f"model: images of {image_shape[1]}x{image_shape[2]} are too small for four convolutions")
        widths = (channels, *[options.channels] * len(STRIDES))
        self.layers = nn.ModuleList(
            _initial(nn.Conv2d(fewer, more, KERNEL, stride))
            for fewer, more, stride in zip(widths, widths[1:], STRIDES, strict=False)
        )
        self.places = nn.Parameter(torch.zeros(options.channels, *sides))
        self.pooling = AttentivePooling(options.channels, options.parts, POSE + options.features + 1)
        _initial(self.pooling.layer)

    def forward(self, images: Tensor) -> Tensor:
        maps = images
        for layer in self.layers:
            assert isinstance(layer, nn.Conv2d)
            assert layer.bias is not None
            maps = convolve(maps, layer.weight, layer.stride[0])
            maps = relu(maps + layer.bias.to(maps.dtype)[:, None, None])
        return self.pooling(maps + self.places.to(maps.dtype))


class Templates(nn.Module):
    """What parts look like: values and alphas, a colour that depends on the image, and what is behind them."""

    def __init__(self, options: SCAEOptions, channels: int) -> None:
        super().__init__()
        shape = (channels, options.template_size, options.template_size)
        numbers = math.prod(shape)
        most = max(options.parts, numbers)
        rows = torch.linalg.qr(torch.rand(most, most)).Q[: options.parts, :numbers]
        rows = (rows - rows.min()) / (rows.max() - rows.min())
        self.logits = nn.Parameter(rows.unflatten(1, shape).contiguous())
        self.alphas = nn.Parameter(torch.zeros(options.parts, 1, *shape[1:]))
        self.colour = nn.Sequential(_linear(options.features, 32), nn.ReLU(), _linear(32, channels))
        self.background = nn.Parameter(torch.empty(()).uniform_(-math.sqrt(3), math.sqrt(3)))
        self.background_logit = nn.Parameter(torch.zeros(()))

    def values(self) -> Tensor:
        """Values of the templates, [J, C, h, w]."""
        return self.logits.sigmoid()

    def colours(self, features: Tensor) -> Tensor:
        """Factors of the templates' values, float32: [B, J, F] to [B, J, C]."""
        return self.colour(features).float().sigmoid()


class Attention(nn.Module):
    """One head of attention: queries [B, n, D] or [n, D] look at items [B, m, D]; [B, n, D], float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (_linear(width, width) for _ in range(4))

    def forward(self, queries: Tensor, items: Tensor, bias: Tensor) -> Tensor:
        """`bias` [B, m] is added to the scores of items."""
        queries, keys, values = (
            layer(each).float() for layer, each in ((self.query, queries), (self.key, items), (self.value, items))
        )
        with float32(items):
            scores = queries @ keys.transpose(1, 2) / math.sqrt(keys.shape[2])
            seen = (scores + bias.unsqueeze(1)).softmax(2) @ values
        return self.out(seen).float()


class SelfAttention(nn.Module):
    """Attention of items [B, m, D] to each other, then a layer of hidden units, both with a way around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = Attention(width)
        self.layers = nn.Sequential(_linear(width, 2 * width), nn.ReLU(), _linear(2 * width, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, items: Tensor, presences: Tensor, bias: Tensor) -> Tensor:
        items = self.attention(items, items, bias) + items
        items = self.norms[0](items * presences.unsqueeze(2))
        return self.norms[1](self.layers(items) + items)


class ObjectEncoder(nn.Module):
    """A set transformer: parts, as a pose, their absence, features and a template, to objects [B, K, D]."""

    def __init__(self, options: SCAEOptions, channels: int) -> None:
        super().__init__()
        self.weighted = options.attention == "weighted"
        seen = POSE + 1 + options.features + channels * options.template_size**2
        self.first = _linear(seen, options.width)
        self.layers = nn.ModuleList(SelfAttention(options.width) for _ in range(options.layers))
        self.last = _linear(options.width, options.object_width)
        self.queries = nn.Parameter(nn.init.xavier_uniform_(torch.empty(options.objects, options.object_width)))
        self.attention = Attention(options.object_width)

    def forward(self, parts: Tensor, presences: Tensor) -> Tensor:
        bias = presences.clamp_min(1e-16).log() if self.weighted else 1e32 * (presences - 1)
        items = self.first(parts).float()
        for layer in self.layers:
            items = layer(items, presences, bias)
        objects: Tensor = self.attention(self.queries, self.last(items), bias)
        return objects


class Capsules(NamedTuple):
    """What object capsules say of themselves and their parts."""

    poses: Tensor
    """Object to canvas, [B, K, 6], before they are made matrices."""
    relations: Tensor
    """Part to object, [B, K, 6, J], likewise."""
    deviations: Tensor
    """Of relations, from what they are in any image."""
    object_logits: Tensor
    """Of the presences of objects, [B, K]."""
    part_logits: Tensor
    """Of the presences of parts in objects, [B, K, J]."""
    scales: Tensor
    """Standard deviations of votes, [B, K, J]."""


class ObjectDecoder(nn.Module):
    """Objects [B, K, D] to what they say, by weights that every object has for itself; float32."""

    def __init__(self, options: SCAEOptions) -> None:
        super().__init__()
        number, parts = options.objects, options.parts
        self.splits = (POSE * parts, POSE, 1, parts, parts)
        self.layers = nn.ModuleList(
            PerObject(number, fewer, more)
            for fewer, more in ((options.object_width, options.hidden), (options.hidden, options.object_dim))
        )
        # An object capsule has one dimension more, which says that it exists.
        self.hidden = PerObject(number, options.object_dim + 1, options.hidden)
        self.out = PerObject(number, options.hidden, sum(self.splits), bias=False)
        self.bias = nn.Parameter(torch.zeros(number, sum(self.splits[1:])))
        bound = math.sqrt(6 / (number * (parts + POSE)))
        self.relations = nn.Parameter(torch.empty(number, POSE, parts).uniform_(-bound, bound))

    def forward(self, objects: Tensor) -> Capsules:
        first, second = self.layers
        capsules = second(relu(first(objects.transpose(0, 1))))
        existing = nn.functional.pad(capsules, (0, 1), value=1.0)
        made = self.out(relu(self.hidden(existing))).float().transpose(0, 1)
        deviations, others = made.split([self.splits[0], sum(self.splits[1:])], 2)
        deviations = deviations.unflatten(2, (POSE, -1))
        poses, object_logits, part_logits, scales = (others + self.bias).split(self.splits[1:], 2)
        return Capsules(
            poses,
            deviations + self.relations,
            deviations,
            object_logits.squeeze(2),
            part_logits,
            softplus(scales + 0.5) + 0.01,
        )


class PerObject(nn.Module):
    """A linear layer for each object: [K, B, fewer] to [K, B, more]."""

    def __init__(self, objects: int, fewer: int, more: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(truncated_normal(objects, fewer, more, std=fewer**-0.5))
        self.bias = nn.Parameter(torch.zeros(objects, 1, more)) if bias else None

    def forward(self, values: Tensor) -> Tensor:
        made = values @ self.weight
        return made if self.bias is None else made + self.bias.to(made.dtype)


def pose(scale_x: Tensor, scale_y: Tensor, angle: Tensor, shear: Tensor, right: Tensor, down: Tensor) -> Tensor:
    """A pose [..., 2, 3] of six unbounded numbers, all [...]: scales between 0.01 and 1.01, an angle in turns, a shear
    and a translation between -1 and 1."""
    scale_x, scale_y = scale_x.sigmoid() + 0.01, scale_y.sigmoid() + 0.01
    shear, right, down = ((5 * each).tanh() for each in (shear, right, down))
    cos, sin = (2 * math.pi * angle).cos(), (2 * math.pi * angle).sin()
    across = [scale_x * cos + shear * scale_y * sin, shear * scale_y * cos - scale_x * sin, right]
    # One entry of all matrices after the other in memory: to sum six neighbours takes longer than six arrays.
    return torch.stack([*across, scale_y * sin, scale_y * cos, down]).unflatten(0, (2, 3)).movedim((0, 1), (-2, -1))


def vote_mixture(poses: Tensor, votes: Tensor, scales: Tensor, log_presence: Tensor) -> tuple[Tensor, Tensor]:
    """Poses of parts as mixtures of the objects' votes, with weights that are not normalised.

    Args:
        poses: [B, J, 2, 3].
        votes: [B, K, J, 2, 3].
        scales: standard deviations of all numbers of a vote, [B, K, J].
        log_presence: logarithm of the weight of a vote, [B, K, J].

    Returns:
        Logarithms of the densities [B, J], and shares of the objects in them [B, K, J]; the rest is the dummy's.
    """
    off = (poses.unsqueeze(1) - votes).square().sum((3, 4)) / scales.square()
    log_density = -0.5 * off - POSE * (scales.log() + 0.5 * math.log(2 * math.pi))
    joint = log_presence + log_density
    total = torch.logaddexp(joint.logsumexp(1), joint.new_tensor(2 * DUMMY))
    return total, (joint - total.unsqueeze(1)).exp()


def entropies(mass: Tensor) -> tuple[Tensor, Tensor]:
    """Entropy in nats of how an image's mass is shared among objects, on average, and of how that of all images is.

    Args:
        mass: [B, K], not negative.
    """
    shares = mass / (mass.sum(1, keepdim=True) + 1e-8)
    total = mass.sum(0)
    return _entropy(shares).mean(), _entropy(total / (total.sum() + 1e-8))


def _entropy(shares: Tensor) -> Tensor:
    return -(shares * shares.clamp_min(1e-16).log()).sum(-1)


def _linear(fewer: int, more: int) -> nn.Linear:
    return _initial(nn.Linear(fewer, more))


def _initial(layer: Any) -> Any:
    """Weights and biases as the library of the released code draws them."""
    return initialise(layer, std=layer.weight[0].numel() ** -0.5, bias=0.0)


def build(options: SCAEOptions, image_shape: tuple[int, int, int], classes: int) -> SCAE:
    return SCAE(options, image_shape, classes)
