"""*Stacked Capsule Autoencoders* (SCAE), the baseline of *Capsule Networks: A Probabilistic Perspective*.

A convolutional network infers a pose, a presence and features of each part. The image is modelled as a mixture of the
templates of the parts, drawn at their poses. A set transformer infers objects from the parts, and each object votes for
the pose of every part, so that the poses are modelled as a mixture of votes. Training maximises both likelihoods. Of
the gradients of the second one, only those of the features reach the parts. Further losses make the objects sparse.
Where the SCAE paper and its released code differ, this file follows the code.
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
from recaps.nn.attention import AttentivePooling
from recaps.nn.convolution import Convolution, size_after
from recaps.nn.initial import initialise
from recaps.nn.layers import PerObject
from recaps.nn.losses.classes import correct
from recaps.nn.losses.squares import summed_squared_error
from recaps.nn.noise import Noise
from recaps.nn.poses import bounded_pose, compose, warp
from recaps.nn.precision import float32
from recaps.papers.probabilistic.generative_model import orthogonal_templates
from recaps.papers.probabilistic.options import SCAEOptions
from recaps.papers.probabilistic.rmsprop import RMSProp
from recaps.papers.probabilistic.template_mixture import Mixture, template_mixture

KERNEL = 3
STRIDES = (2, 2, 1, 1)
#: Numbers in a pose.
POSE = 6
#: Classes that the losses assume if there are no labels: those of MNIST.
UNLABELLED = 10
#: Log density and log weight of the dummy vote, which explains the parts that no object explains.
DUMMY = -2 * math.log(10)


class Parts(NamedTuple):
    """The parts of images."""

    poses: Tensor
    """Poses that map the template to the canvas, [B, J, 2, 3]."""
    features: Tensor
    """Special features, [B, J, F]."""
    logits: Tensor
    """Logits of the presences, with noise, [B, J]."""


class Objects(NamedTuple):
    """The objects that explain the parts."""

    presence: Tensor
    """The "prior" presence, [B, K]: presence of the object times its largest presence of a part."""
    posterior: Tensor
    """Posterior probability that object k explains part j, [B, K, J]. The dummy vote has the rest."""
    log_likelihood: Tensor
    """Log-likelihood of the poses, weighted by the presences of the parts, [B]."""
    offsets: Tensor
    """Dependence of the relations between objects and parts on the image, [B, K, 6, J], as raw numbers of `pose`."""

    @property
    def mass(self) -> Tensor:
        """The "posterior" presence, [B, K]: number of parts that the object explains."""
        return self.posterior.sum(2)


class SCAE(Model):
    """Infers J parts and K objects of images [B, C, H, W], and models the images by the parts."""

    def __init__(self, options: SCAEOptions, image_shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.options, self.classes = options, classes if classes > 1 else UNLABELLED
        channels = image_shape[0]
        self.part_encoder = PartEncoder(options, image_shape)
        self.templates = Templates(options, channels)
        self.object_encoder = ObjectEncoder(options, channels)
        self.object_decoder = ObjectDecoder(options)
        self.prior_probe = _linear(options.objects, classes)
        self.posterior_probe = _linear(options.objects, classes)
        self.noise = Noise()

    def parts(self, images: Tensor) -> Parts:
        """The parts of images. In training, and if `noise_at_test` is set, noise is added to the presences."""
        found = self.part_encoder(images)
        with float32(images):
            poses, features, logits = found.split([POSE, self.options.features, 1], 2)
            return Parts(bounded_pose(*poses.unbind(2)), features, self._noisy(logits.squeeze(2), "parts"))

    def pictures(self, parts: Parts, images: Tensor) -> Mixture:
        """The mixture model of images [B, C, H, W] that the parts define, evaluated at these images."""
        colours = self.templates.colours(parts.features)
        with float32(images):
            layers = torch.cat([self.templates.values(), self.templates.alphas], 1)
            drawn = warp(layers, parts.poses, (images.shape[2], images.shape[3]))
            background = (self.templates.background.sigmoid(), softplus(self.templates.background_logit))
            return template_mixture(images, drawn, colours, logsigmoid(parts.logits), *background)

    def objects(self, parts: Parts) -> Objects:
        """The objects that explain the parts. Of the parts, only features receive gradients. Noise as in `parts`."""
        poses, presences = parts.poses.detach(), parts.logits.detach().sigmoid()
        with torch.no_grad():
            templates = self.templates.values() * self.templates.colours(parts.features)[..., None, None]
        seen = [poses.flatten(2), 1 - presences.unsqueeze(2), parts.features, templates.flatten(2)]
        capsules = self.object_decoder(self.object_encoder(torch.cat(seen, 2), presences))
        with float32(poses):
            of_objects, relations = (bounded_pose(*each.unbind(2)) for each in (capsules.poses, capsules.relations))
            votes = compose(of_objects.unsqueeze(2), relations)
            of_object = logsigmoid(self._noisy(capsules.object_logits, "objects"))
            of_part = logsigmoid(self._noisy(capsules.part_logits, "votes"))
            log_presence = of_object.unsqueeze(2) + of_part
            densities, posterior = vote_mixture(poses, votes, capsules.scales, log_presence)
            log_likelihood = (densities * presences).sum(1)
            return Objects(log_presence.amax(2).exp(), posterior, log_likelihood, capsules.offsets)

    def _noisy(self, logits: Tensor, purpose: str) -> Tensor:
        """Logits plus uniform noise with mean zero; in evaluation, that of step 0 or none."""
        if not (self.options.noise_scale and (self.training or self.options.noise_at_test)):
            return logits
        generator = self.noise.generator(logits.device, purpose, None if self.training else 0)
        noise = torch.rand(logits.shape, generator=generator, device=logits.device)
        return logits + self.options.noise_scale * (noise - 0.5)

    # Learning

    def configure(self, training: Training) -> None:
        self.training_options = training
        epsilon = 0.01 / training.batch_size**2
        self.optimizer = RMSProp(self.parameters(), training.learning_rate, epsilon)

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {"rmsprop": self.optimizer}

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Losses of a training step.

        Returns:
            `loss`, the weighted sum of the following terms; the negative log-likelihoods `image` and `poses` in nats,
            `dynamic`, `posterior_within`, `posterior_between` (with a negative weight), `prior_within`, `prior_between`
            and `probes`, the cross-entropy of two linear classifiers on the presences; the accuracies of these
            classifiers, `accuracy_prior` and `accuracy_posterior`; and the summed squared `reconstruction_error`. Only
            the classifiers learn from labels.
        """
        images, labels, options = batch["images"], batch["labels"], self.options
        parts = self.parts(images)
        mixture = self.pictures(parts, images)
        objects = self.objects(parts)
        with float32(images):
            expected = options.within_constant or options.objects / self.classes
            within, between = entropies(objects.mass)
            prior, posterior = (
                classifier(presences.detach())
                for classifier, presences in (
                    (self.prior_probe, objects.presence),
                    (self.posterior_probe, objects.mass),
                )
            )
            terms = {
                "image": -mixture.log_likelihood.mean(),
                "poses": -objects.log_likelihood.mean(),
                "dynamic": 0.5 * objects.offsets.square().sum() / len(images),
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
            "accuracy_prior": correct(prior, labels).float().mean(),
            "accuracy_posterior": correct(posterior, labels).float().mean(),
            "reconstruction_error": summed_squared_error(mixture.mean, images).mean(),
        }

    # Evaluation

    def reconstruct(self, images: Tensor) -> Tensor:
        """The mean of the mixture of the parts' templates."""
        return self.pictures(self.parts(images), images).mean

    def latents(self, images: Tensor) -> dict[str, Tensor]:
        """Presences of the objects and the error of the picture.

        Returns:
            `presence` [B, K], the posterior presences, and `prior_presence` [B, K]; the summed squared
            `reconstruction_error` [B] of the mean of the mixture.
        """
        parts = self.parts(images)
        objects = self.objects(parts)
        return {
            "presence": objects.mass,
            "prior_presence": objects.presence,
            "reconstruction_error": summed_squared_error(self.pictures(parts, images).mean, images),
        }


class PartEncoder(nn.Module):
    """Four convolutions, a bias for each place, and attentive pooling: images [B, C, H, W] to the pose, the features
    and the logit of the presence of each part, [B, J, 6 + F + 1], float32."""

    def __init__(self, options: SCAEOptions, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, *sides = image_shape
        for stride in STRIDES:
            sides = [size_after(side, KERNEL, stride, same=False) for side in sides]
        if min(sides) < 1:
            raise UserError(f"model: images of {image_shape[1]}x{image_shape[2]} are too small for four convolutions")
        widths = (channels, *[options.channels] * len(STRIDES))
        self.layers = nn.ModuleList(
            _initial(Convolution(fewer, more, KERNEL, stride))
            for fewer, more, stride in zip(widths, widths[1:], STRIDES, strict=False)
        )
        self.places = nn.Parameter(torch.zeros(options.channels, *sides))
        self.pooling = AttentivePooling(options.channels, options.parts, POSE + options.features + 1)
        _initial(self.pooling.layer)

    def forward(self, images: Tensor) -> Tensor:
        maps = images
        for layer in self.layers:
            maps = relu(layer(maps))
        return self.pooling(maps + self.places.to(maps.dtype))


class Templates(nn.Module):
    """Templates with values and alphas, their colours, which depend on the image, and the background."""

    def __init__(self, options: SCAEOptions, channels: int) -> None:
        super().__init__()
        side = options.template_size
        self.logits = nn.Parameter(orthogonal_templates(options.parts, channels, side))
        self.alphas = nn.Parameter(torch.zeros(options.parts, 1, side, side))
        self.colour = nn.Sequential(_linear(options.features, 32), nn.ReLU(), _linear(32, channels))
        self.background = nn.Parameter(torch.empty(()).uniform_(-math.sqrt(3), math.sqrt(3)))
        self.background_logit = nn.Parameter(torch.zeros(()))

    def values(self) -> Tensor:
        """Values of the templates, [J, C, h, w]."""
        return self.logits.sigmoid()

    def colours(self, features: Tensor) -> Tensor:
        """Colours that multiply the values of the templates: features [B, J, F] to [B, J, C], float32."""
        return self.colour(features).float().sigmoid()


class Attention(nn.Module):
    """Attention with one head, from queries [B, n, D] or [n, D] to items [B, m, D]: returns [B, n, D], float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (_linear(width, width) for _ in range(4))

    def forward(self, queries: Tensor, items: Tensor, bias: Tensor) -> Tensor:
        """`bias` [B, m] is added to the scores of the items."""
        queries, keys, values = (
            layer(each).float() for layer, each in ((self.query, queries), (self.key, items), (self.value, items))
        )
        with float32(items):
            scores = queries @ keys.transpose(1, 2) / math.sqrt(keys.shape[2])
            seen = (scores + bias.unsqueeze(1)).softmax(2) @ values
        return self.out(seen).float()


class SelfAttention(nn.Module):
    """Self-attention of items [B, m, D], then a hidden layer, both with residual connections."""

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
    """A set transformer: parts, each given as pose, 1 - presence, features and template, to objects [B, K, D]."""

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
    """The object capsules: their own variables and those of their parts."""

    poses: Tensor
    """Poses that map the object to the canvas, [B, K, 6], as raw numbers of `pose`."""
    relations: Tensor
    """Poses that map the part to the object, [B, K, 6, J], as raw numbers of `pose`."""
    offsets: Tensor
    """The part of `relations` that depends on the image."""
    object_logits: Tensor
    """Logits of the presences of objects, [B, K]."""
    part_logits: Tensor
    """Logits of the presences of parts in objects, [B, K, J]."""
    scales: Tensor
    """Standard deviations of votes, [B, K, J]."""


class ObjectDecoder(nn.Module):
    """Objects [B, K, D] to object capsules, float32. Every object has its own weights."""

    def __init__(self, options: SCAEOptions) -> None:
        super().__init__()
        number, parts = options.objects, options.parts
        self.splits = (POSE * parts, POSE, 1, parts, parts)
        self.layers = nn.ModuleList(
            PerObject(number, fewer, more)
            for fewer, more in ((options.object_width, options.hidden), (options.hidden, options.object_dim))
        )
        # An object capsule has one more dimension, which is constantly 1.
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
        offsets, others = made.split([self.splits[0], sum(self.splits[1:])], 2)
        offsets = offsets.unflatten(2, (POSE, -1))
        poses, object_logits, part_logits, scales = (others + self.bias).split(self.splits[1:], 2)
        return Capsules(
            poses,
            offsets + self.relations,
            offsets,
            object_logits.squeeze(2),
            part_logits,
            softplus(scales + 0.5) + 0.01,
        )


def vote_mixture(poses: Tensor, votes: Tensor, scales: Tensor, log_presence: Tensor) -> tuple[Tensor, Tensor]:
    """The poses of parts under mixtures of the votes of objects. The mixture weights are not normalised.

    Args:
        poses: [B, J, 2, 3].
        votes: [B, K, J, 2, 3].
        scales: standard deviations of the votes, [B, K, J].
        log_presence: log weights of the votes, [B, K, J].

    Returns:
        Log densities [B, J] and posterior probabilities of the objects [B, K, J]. The dummy vote has the rest.
    """
    off = (poses.unsqueeze(1) - votes).square().sum((3, 4)) / scales.square()
    log_density = -0.5 * off - POSE * (scales.log() + 0.5 * math.log(2 * math.pi))
    joint = log_presence + log_density
    total = torch.logaddexp(joint.logsumexp(1), joint.new_full((), 2 * DUMMY))
    return total, (joint - total.unsqueeze(1)).exp()


def entropies(mass: Tensor) -> tuple[Tensor, Tensor]:
    """Entropies in nats of the distribution of mass over objects: the mean over single images, and that of the batch.

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
    """Initialise as the library of the released code does."""
    return initialise(layer, std=layer.weight[0].numel() ** -0.5, bias=0.0)


def build(options: SCAEOptions, image_shape: tuple[int, int, int], classes: int) -> SCAE:
    return SCAE(options, image_shape, classes)
