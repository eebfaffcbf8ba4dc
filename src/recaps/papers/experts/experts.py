"""*Training products of expert capsules with mixing by dynamic routing*: capsules learned without labels or gradients.

A convolutional autoencoder makes a code of an image; pieces of the code, squashed, are the input capsules. A capsule
encoder W to few, longer capsules learns by contrastive divergence (algorithm 1), then a capsule decoder U back to the
code by the same kind of rule (section 4.1). Each learns with everything else held fixed, in one run in three phases.
Pictures come from Gaussian samples in one capsule, with all others zero.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, conv_transpose2d, fold, leaky_relu, normalize

from recaps.config.training import Training
from recaps.errors import UserError
from recaps.models.model import Batch, Model, learning_rate
from recaps.nn.convolution import convolve
from recaps.nn.losses import summed_squared_error
from recaps.nn.noise import Noise
from recaps.nn.precision import float32
from recaps.nn.routing.cosine import cosine_coupling
from recaps.nn.squash import squash
from recaps.nn.unsquash import unsquash
from recaps.nn.votes import Votes
from recaps.papers.experts.contrastive_divergence import decoder_update, encoder_update, log_marginal, mixed
from recaps.papers.experts.options import ExpertsOptions

KERNEL = 9
STRIDE = 2
#: Images of a batch whose pictures are made to see how far the decoder has come.
WATCHED = 16
#: Images whose capsules are kept for the restricted domain's reading `nearest`.
KEPT = 128

PHASES = ("autoencoder", "encoder", "decoder")


class Experts(Model):
    """Images [B, C, H, W] to capsules [B, J, D] and back, by way of input capsules [B, I, d]."""

    phase = "autoencoder"  # that last learned
    scale: Tensor
    visited_sum: Tensor
    visited: Tensor

    def __init__(self, options: ExpertsOptions, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.options = options
        self.autoencoder = Autoencoder(options, image_shape)
        inputs, dim = self.autoencoder.capsules, options.primary_dim
        few = (options.capsules, options.capsule_dim)
        self.encoder = Votes(inputs, dim, *few, std=options.initial)
        self.decoder = Votes(*few, inputs, dim, std=options.initial)
        for part in (self.encoder, self.decoder):
            nn.init.normal_(part.weight, std=options.initial)
        self.noise = Noise()
        # By what the code is multiplied; 1 until the autoencoder has learned.
        self.register_buffer("scale", torch.ones(()))
        # What the restricted domain is about, of the images that the decoder learns from.
        self.register_buffer("visited_sum", torch.zeros(few))
        self.register_buffer("visited", torch.zeros(KEPT, *few))

    # Forwards and back

    def input_capsules(self, images: Tensor) -> Tensor:
        """z_i, before they are squashed: [B, C, H, W] to [B, I, d]."""
        return self.scale * self.autoencoder.as_capsules(self.autoencoder.encode(images))

    def encode(self, inputs: Tensor) -> Tensor:
        """Output capsules x_j (eqs. 3 and 4) of z_i: [B, I, d] to [B, J, D]."""
        squashed = squash(inputs)
        coupling = self.coupling(self.encoder, squashed)
        with float32(inputs):
            return squash(mixed(squashed, coupling, self.encoder.weight))

    def decode(self, capsules: Tensor) -> Tensor:
        """z~_i that the decoder makes of x_j: [B, J, D] to [B, I, d]."""
        coupling = self.coupling(self.decoder, capsules)
        with float32(capsules):
            return mixed(capsules, coupling, self.decoder.weight) / self.options.decoder_scale

    def coupling(self, part: Votes, capsules: Tensor) -> Tensor:
        """Coupling of the encoder or the decoder, [B, sources, targets]: sums to one over the sources."""
        with float32(capsules):
            return cosine_coupling(part(capsules), self.options.iterations)

    def pictures(self, inputs: Tensor) -> Tensor:
        """Images [B, C, H, W] of input capsules z_i [B, I, d], which take the paper's way over squash and unsquash."""
        code = self.autoencoder.as_maps(unsquash(squash(inputs)) / self.scale)
        return self.autoencoder.logits(code).sigmoid()

    def reconstruct(self, images: Tensor) -> Tensor:
        """Images by the whole chain: autoencoder, W, U, autoencoder."""
        return self.pictures(self.decode(self.encode(self.input_capsules(images))))

    # Learning

    def configure(self, training: Training) -> None:
        self.training_options = training
        self.ends = phase_ends(self.options, training)
        self.optimizer = torch.optim.Adam(
            self.autoencoder.parameters(), lr=training.learning_rate, eps=1e-8, fused=True
        )
        options = self.options
        self.descents = {
            "encoder": _descent(self.encoder, options.encoder_rate, options.encoder_decay, options.momentum),
            "decoder": _descent(self.decoder, options.decoder_rate, options.decoder_decay, options.momentum),
        }

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {"autoencoder": self.optimizer, **self.descents}

    def phases(self) -> dict[str, int]:
        starts = dict(zip(PHASES, (0, *self.ends), strict=False))
        return {phase: start for phase, start in starts.items() if phase_at(self.ends, start) == phase}

    def training_step(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Learn in the phase of the step; scalars as the methods of the three phases say."""
        images, self.phase = batch["images"], phase_at(self.ends, step)
        if self.phase == "autoencoder":
            return self._learn_autoencoder(images, step)
        with torch.no_grad():
            if step == self.ends[0] and self.options.code_length is not None:
                self.scale *= self.options.code_length / self.input_capsules(images).norm(dim=2).mean()
            inputs = self.input_capsules(images)
            self._set_rate(step)
            return self._learn_encoder(inputs) if self.phase == "encoder" else self._learn_decoder(inputs, images)

    def _learn_autoencoder(self, images: Tensor, step: int) -> dict[str, Tensor]:
        """Back-propagation.

        Returns:
            `loss`; the summed squared `reconstruction_error`, with dropout.
        """
        self.optimizer.param_groups[0]["lr"] = learning_rate(self.training_options, step)
        code = self.autoencoder.encode(images)
        code = self.noise.dropout(code, self.options.dropout, "dropout", step)
        logits = self.autoencoder.logits(code)
        loss = error = summed_squared_error(logits.sigmoid(), images).mean()
        if self.options.loss == "bce":
            loss = binary_cross_entropy_with_logits(logits, images, reduction="sum") / len(images)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.detach(), "reconstruction_error": error.detach()}

    def _learn_encoder(self, inputs: Tensor) -> dict[str, Tensor]:
        """Algorithm 1.

        Args:
            inputs: z_i, [B, I, d].

        Returns:
            `loss`: squared error of an image's reconstructed input capsules x~_i, which nothing minimises;
            `gap`: log marginal (eq. 10) of the data less that of the mixed capsules; mean `length` |z_j|,
            `activation` |x_j| and `mixed_activation` |x~_i|.
        """
        capsules = squash(inputs)
        coupling = self.coupling(self.encoder, capsules)
        with float32(inputs):
            update = encoder_update(capsules, coupling, self.encoder.weight)
        self._ascend(update.change)
        return {
            "loss": summed_squared_error(update.inputs, capsules).mean(),
            "gap": (log_marginal(update.sums) - log_marginal(update.sums_again)).mean(),
            "length": update.sums.norm(dim=2).mean(),
            "activation": squash(update.sums).norm(dim=2).mean(),
            "mixed_activation": update.inputs.norm(dim=2).mean(),
        }

    def _learn_decoder(self, inputs: Tensor, images: Tensor) -> dict[str, Tensor]:
        """The rule of section 4.1; keeps count of the capsules that training visits.

        Returns:
            `loss`: squared error of an image's reconstructed input capsules z~_i, which nothing minimises; mean
            `length` |z~_i|, `activation` |x_j| and `mixed_activation` |x~_j|; summed squared `reconstruction_error` of
            the whole chain, of a few images.
        """
        capsules = self.encode(inputs)
        self.visited_sum += capsules.sum(0)
        self.visited.copy_(torch.cat([capsules, self.visited])[: len(self.visited)])
        coupling = self.coupling(self.decoder, capsules)
        with float32(inputs):
            scale = self.options.decoder_scale
            update = decoder_update(capsules, coupling, self.decoder.weight, scale * inputs)
        self._ascend(update.change)
        made = update.sums / scale
        return {
            "loss": summed_squared_error(made, inputs).mean(),
            "length": made.norm(dim=2).mean(),
            "activation": capsules.norm(dim=2).mean(),
            "mixed_activation": update.capsules.norm(dim=2).mean(),
            "reconstruction_error": summed_squared_error(self.pictures(made[:WATCHED]), images[:WATCHED]).mean(),
        }

    def _ascend(self, change: Tensor) -> None:
        (group,) = self.descents[self.phase].param_groups
        group["params"][0].grad = -change
        self.descents[self.phase].step()

    def _set_rate(self, step: int) -> None:
        """Exponential decay from the phase's first step to its last."""
        place, descent = PHASES.index(self.phase), self.descents[self.phase]
        done = (step - self.ends[place - 1]) / (self.ends[place] - self.ends[place - 1])
        for group in descent.param_groups:
            group["lr"] = group["initial_lr"] * self.options.rate_end**done

    def routing_operations(self, images: int) -> int:
        """In the phase that last learned: votes, their lengths, T weighted sums and T - 1 cosines; then for W the way
        back, forward again and two correlations, for U the encoder's routing besides, the way back and correlations."""
        if self.phase == "autoencoder":
            return 0
        few, long, many, short = self.decoder.weight.shape
        product = 2 * few * long * many * short  # of all matrices with as many capsules
        routing = product + (2 + 4 * self.options.iterations - 2) * few * many * long
        if self.phase == "encoder":
            return images * (routing + 4 * product)
        routing_back = product + (2 + 4 * self.options.iterations - 2) * few * many * short
        return images * (routing + routing_back + 3 * product)

    # What is read from a trained model

    def latents(self, images: Tensor) -> dict[str, Tensor]:
        """`capsules` x_j [B, J, D] and their `lengths` [B, J]; summed squared errors [B] of the whole chain and of the
        autoencoder alone, `reconstruction_error` and `autoencoder_error`."""
        inputs = self.input_capsules(images)
        capsules = self.encode(inputs)
        return {
            "capsules": capsules,
            "lengths": capsules.norm(dim=2),
            "reconstruction_error": summed_squared_error(self.pictures(self.decode(capsules)), images),
            "autoencoder_error": summed_squared_error(self.pictures(inputs), images),
        }

    def probes(self) -> dict[str, Any]:
        return {"samples": self.samples, "chain": self.chain}

    def chain(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """`images` and what is left of them behind the autoencoder alone (`autoencoder`) and the whole `chain`, all
        [B, C, H, W]."""
        inputs = self.input_capsules(images)
        made = self.pictures(self.decode(self.encode(inputs)))
        return {"images": images, "autoencoder": self.pictures(inputs), "chain": made}

    def samples(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Pictures of Gaussian samples in one capsule, all others zero (figure 2).

        Returns:
            `complete`, `restricted` and `opposite` [n, J, C, H, W]: of samples from N(0, I), of the same ones turned
            into the half of the sphere that training visited, and of all of them turned round; n is
            `options.samples`, row k of column j the k-th sample of capsule j.
        """
        shape = (self.options.samples, *self.visited_sum.shape)
        drawn = self.noise.normal(*shape, device=images.device, purpose="samples")
        turned = drawn * self.side(drawn).unsqueeze(2)
        return {
            name: torch.stack([self.generated(row) for row in values])
            for name, values in (("complete", drawn), ("restricted", turned), ("opposite", -drawn))
        }

    def generated(self, values: Tensor) -> Tensor:
        """A picture from each capsule alone: z_j [J, D], squashed and decoded with all others zero, to [J, C, H, W]."""
        alone = torch.eye(len(values), device=values.device).unsqueeze(2)
        return self.pictures(self.decode(alone * squash(values)))

    def side(self, values: Tensor) -> Tensor:
        """1 where samples [n, J, D] are in the half of the sphere that training visited, -1 elsewhere: [n, J].

        Images that the decoder has learned from tell: their mean capsule, so a direction counts as much as the capsule
        was on, or the last 128 of them one by one. 1 where there were none.
        """
        if self.options.restricted == "mean_direction":
            likeness = (values * self.visited_sum).sum(2)
        else:
            visited = normalize(self.visited, dim=2)
            cosines = torch.einsum("njd,kjd->knj", values, visited)
            likeness = cosines.amax(0) - (-cosines).amax(0)
        return torch.where(likeness < 0, -1.0, 1.0)


class Autoencoder(nn.Module):
    """Two convolutions with leaky ReLUs, and the way back through the same filters, with a sigmoid per pixel.

    Shapes: images [B, C, H, W], code [B, channels, h, w]; h = (H - 17) // 2 + 1.
    """

    def __init__(self, options: ExpertsOptions, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, *sides = image_shape
        if min(sides) < 2 * KERNEL - 1:
            raise UserError(f"model: images of {sides[0]}x{sides[1]} are too small for two 9x9 convolutions (17x17)")
        self.slope, self.dim = options.leaky_slope, options.primary_dim
        self.between = tuple(side - KERNEL + 1 for side in sides)
        self.inside = tuple((side - KERNEL) // STRIDE + 1 for side in self.between)
        self.left_over = tuple((side - KERNEL) % STRIDE for side in self.between)
        self.first = nn.Conv2d(channels, options.channels[0], KERNEL, bias=options.bias)
        self.second = nn.Conv2d(*options.channels, KERNEL, STRIDE, bias=options.bias)
        self.bias_between = nn.Parameter(torch.zeros(options.channels[0])) if options.bias else None
        self.bias_images = nn.Parameter(torch.zeros(channels)) if options.bias else None
        self.capsules = self.inside[0] * self.inside[1] * options.channels[1] // options.primary_dim

    def encode(self, images: Tensor) -> Tensor:
        """The code of images, float32."""
        maps = images
        for layer in (self.first, self.second):
            maps = convolve(maps, layer.weight, layer.stride[0])
            if layer.bias is not None:
                maps = maps + layer.bias[:, None, None]
            maps = leaky_relu(maps, self.slope)
        return maps.float()

    def logits(self, code: Tensor) -> Tensor:
        """Images of a code before the sigmoid, float32."""
        maps = conv_transpose2d(
            code, self.second.weight, self.bias_between, stride=STRIDE, output_padding=self.left_over
        )
        images = transposed(leaky_relu(maps, self.slope), self.first.weight)
        return images if self.bias_images is None else images + self.bias_images[:, None, None]

    def as_capsules(self, code: Tensor) -> Tensor:
        """A code as capsules [B, I, d], in the order row, column, channels."""
        return code.permute(0, 2, 3, 1).reshape(len(code), self.capsules, self.dim)

    def as_maps(self, capsules: Tensor) -> Tensor:
        """Capsules [B, I, d] as a code."""
        return capsules.reshape(len(capsules), *self.inside, -1).permute(0, 3, 1, 2)


def transposed(maps: Tensor, weight: Tensor) -> Tensor:
    """Transposed convolution with stride 1, for few output channels: several times faster than PyTorch's on a CPU.

    Args:
        maps: [B, O, h, w].
        weight: of the convolution that is turned round, [O, C, k, k].

    Returns:
        [B, C, h + k - 1, w + k - 1], float32.
    """
    height, width = (side + weight.shape[2] - 1 for side in maps.shape[2:])
    patches = maps.permute(0, 2, 3, 1).flatten(1, 2) @ weight.flatten(1)
    return fold(patches.float().transpose(1, 2), (height, width), weight.shape[2])


def _descent(part: Votes, rate: float, decay: float, momentum: float) -> torch.optim.SGD:
    """Stochastic gradient descent of one weight; `rate` is per source capsule, `decay` per step."""
    rate *= len(part.weight)
    group = {"params": [part.weight], "lr": rate, "initial_lr": rate}
    return torch.optim.SGD([group], momentum=momentum, weight_decay=decay / rate)


def phase_ends(options: ExpertsOptions, training: Training) -> tuple[int, int, int]:
    """The step after the last of each phase.

    Raises:
        UserError: a phase that should have steps has none.
    """
    rows = training.log_every
    shares = (options.autoencoder, options.encoder, 1 - options.autoencoder - options.encoder)
    first = rows * round(shares[0] * training.steps / rows)
    second = rows * round((shares[0] + shares[1]) * training.steps / rows)
    ends = (first, second, training.steps)
    for phase, share, start, end in zip(PHASES, shares, (0, *ends), ends, strict=False):
        if share > 1e-9 and end <= start:
            raise UserError(
                f"training.log_every: phases end where rows of the history do, every {rows} steps, and of"
                f" {training.steps} steps none is left for the {phase}; make it smaller"
            )
    return ends


def phase_at(ends: tuple[int, int, int], step: int) -> str:
    """The phase that a step is in."""
    return next(phase for phase, end in zip(PHASES, ends, strict=True) if step < end)


def build(options: ExpertsOptions, image_shape: tuple[int, int, int], classes: int) -> Experts:
    return Experts(options, image_shape)
