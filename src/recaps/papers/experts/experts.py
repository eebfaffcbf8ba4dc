"""*Training products of expert capsules with mixing by dynamic routing*: capsules learned without labels.

A convolutional autoencoder maps an image to a code; slices of the code, squashed, are the input capsules. A capsule
encoder W maps them to fewer, longer capsules and learns by contrastive divergence (algorithm 1). A capsule decoder U
maps these back to the code and learns by a similar rule (section 4.1). One run trains autoencoder, W and U in three
phases, each with everything else fixed. Pictures are generated from a Gaussian sample in one capsule, with all others
zero.

The update rules are in `recaps.papers.experts.contrastive_divergence`.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, conv_transpose2d, fold, leaky_relu, normalize

from recaps.config.training import Training
from recaps.errors import UserError
from recaps.models.model import Batch, Model, set_rate
from recaps.nn.convolution import Convolution
from recaps.nn.layers import Votes
from recaps.nn.losses.squares import summed_squared_error
from recaps.nn.noise import Noise
from recaps.nn.precision import backward, float32
from recaps.nn.routing.cosine import cosine_coupling
from recaps.nn.squash import squash, unsquash
from recaps.papers.experts.contrastive_divergence import decoder_update, encoder_update, log_marginal, mixed, sphere
from recaps.papers.experts.options import ExpertsOptions

KERNEL = 9
STRIDE = 2
#: Images of a batch that are reconstructed for the history while U learns.
WATCHED = 16
#: Images whose capsules are stored for the reading `nearest` of the restricted domain.
KEPT = 128

PHASES = ("autoencoder", "encoder", "decoder")


class Experts(Model):
    """Images [B, C, H, W] to capsules [B, J, D] and back, through input capsules [B, I, d]."""

    phase = "autoencoder"  # the phase of this step
    scaling = False  # whether this step sets the scale
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
        # The factor of the code; 1 until the autoencoder has learned.
        self.register_buffer("scale", torch.ones(()))
        # Sum of the output capsules, and the last `KEPT` of them, while U learns: they define the restricted domain.
        self.register_buffer("visited_sum", torch.zeros(few))
        self.register_buffer("visited", torch.zeros(KEPT, *few))

    # Encoding and decoding

    def input_capsules(self, images: Tensor) -> Tensor:
        """Input capsules z_i before the squash: [B, C, H, W] to [B, I, d]."""
        return self.scale * self.autoencoder.as_capsules(self.autoencoder.encode(images))

    def encode(self, inputs: Tensor) -> Tensor:
        """Output capsules x_j of z_i: [B, I, d] to [B, J, D]."""
        return self.up(self.learning[0], self.below(inputs))

    def decode(self, capsules: Tensor) -> Tensor:
        """Reconstructed input capsules z~_i of x_j: [B, J, D] to [B, I, d]."""
        return self.lower(self.down(self.learning[1], capsules))

    def up(self, encoder: Votes, inputs: Tensor) -> Tensor:
        """Capsules of a layer, x_j, from those below before the squash, z_i (eqs. 3 and 4): [B, I, d] to [B, J, D]."""
        squashed = squash(inputs)
        coupling = self.coupling(encoder, squashed)
        with float32(inputs):
            return squash(self.nearest(mixed(squashed, coupling, encoder.weight)))

    def down(self, decoder: Votes, capsules: Tensor) -> Tensor:
        """Reconstructed capsules below a layer, z~_i, from its own, x_j: [B, J, D] to [B, I, d]."""
        coupling = self.coupling(decoder, capsules)
        with float32(capsules):
            return mixed(capsules, coupling, decoder.weight) / self.options.decoder_scale

    @property
    def learning(self) -> tuple[Votes, Votes]:
        """Encoder and decoder of the layer that learns."""
        return self.encoder, self.decoder

    def below(self, inputs: Tensor) -> Tensor:
        """The capsules below the layer that learns, before the squash, from the input capsules z_i."""
        return inputs

    def lower(self, made: Tensor) -> Tensor:
        """Reconstructed input capsules z~_i from the reconstructed capsules below the layer that learns."""
        return made

    def nearest(self, sums: Tensor) -> Tensor:
        """What an output capsule can be: the point nearest to z_j [B, J, D]. Here all points can be, a sphere of any
        radius."""
        return sphere(sums)

    def sampled(self, drawn: Tensor) -> Tensor:
        """The samples [n, J, D] of capsules that draws from a Gaussian stand for."""
        return drawn

    def coupling(self, part: Votes, capsules: Tensor) -> Tensor:
        """Coupling of an encoder or a decoder, [B, sources, targets]: sums to one over the sources, or the targets
        (`coupling_axis`, `decoder_axis`)."""
        up = part is self.learning[0]
        over_targets = (self.options.coupling_axis == "outputs") if up else (self.options.decoder_axis == "inputs")
        with float32(capsules):
            return cosine_coupling(part(capsules), self.options.iterations, 2 if over_targets else 1)

    def pictures(self, inputs: Tensor) -> Tensor:
        """Pictures [B, C, H, W] of input capsules z_i [B, I, d].

        The paper unsquashes the decoded capsules. Here they are squashed first, so that both together change nothing.
        """
        code = self.autoencoder.as_maps(unsquash(squash(inputs)) / self.scale)
        return self.autoencoder.logits(code).sigmoid()

    def reconstruct(self, images: Tensor) -> Tensor:
        """Reconstruct images by the whole chain: autoencoder, W, U, autoencoder."""
        return self.pictures(self.decode(self.encode(self.input_capsules(images))))

    def reconstruct_without_capsules(self, images: Tensor) -> Tensor:
        """Reconstruct images by the autoencoder alone."""
        return self.pictures(self.input_capsules(images))

    # Learning

    def configure(self, training: Training) -> None:
        self.training_options = training
        self.ends = phase_ends(self.options, training)
        self.optimizer = torch.optim.Adam(
            self.autoencoder.parameters(), lr=training.learning_rate, eps=1e-8, fused=True
        )
        options = self.options
        self.descents = {
            "encoder": _descent(self.learning[0], options.encoder_rate, options.encoder_decay, options.momentum),
            "decoder": _descent(self.learning[1], options.decoder_rate, options.decoder_decay, options.momentum),
        }

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {"autoencoder": self.optimizer, **self.descents}

    def phases(self) -> dict[str, int]:
        starts = (0, *self.ends)
        return {phase: start for phase, start, end in zip(PHASES, starts, self.ends, strict=False) if start < end}

    def schedule(self, step: int) -> Hashable:
        """The rates of W and U decay exponentially from the first step of their phase to its last."""
        super().schedule(step)
        self.phase = phase_at(self.ends, step)
        self.scaling = step == self.ends[0] and self.options.code_length is not None
        if step == self.ends[1]:  # nothing was visited yet, even if the run started from another
            self.visited_sum.zero_()
        if self.phase != "autoencoder":
            place = PHASES.index(self.phase)
            done = (step - self.ends[place - 1]) / (self.ends[place] - self.ends[place - 1])
            for group in self.descents[self.phase].param_groups:
                set_rate(group, group["initial_lr"] * self.options.rate_end**done)
        return self.phase, self.scaling

    def work(self, batch: Batch) -> dict[str, Tensor]:
        """Learn in the phase of the step; the method of the phase documents its scalars."""
        images = batch["images"]
        if self.phase == "autoencoder":
            return self._learn_autoencoder(images)
        with torch.no_grad():
            if self.scaling and self.options.code_length is not None:
                self.scale *= self.options.code_length / self.input_capsules(images).norm(dim=2).mean()
            inputs = self.input_capsules(images)
            return self._learn_encoder(inputs) if self.phase == "encoder" else self._learn_decoder(inputs, images)

    def _learn_autoencoder(self, images: Tensor) -> dict[str, Tensor]:
        """Learn by back-propagation.

        Returns:
            `loss`, and the summed squared `reconstruction_error`, both with dropout.
        """
        code = self.autoencoder.encode(images)
        code = self.noise.dropout(code, self.options.dropout, "dropout")
        logits = self.autoencoder.logits(code)
        loss = error = summed_squared_error(logits.sigmoid(), images).mean()
        if self.options.loss == "bce":
            loss = binary_cross_entropy_with_logits(logits, images, reduction="sum") / len(images)
        self.optimizer.zero_grad(set_to_none=True)
        backward(loss)
        self.optimizer.step()
        return {"loss": loss.detach(), "reconstruction_error": error.detach()}

    def _learn_encoder(self, inputs: Tensor) -> dict[str, Tensor]:
        """Take a step of algorithm 1.

        Args:
            inputs: z_i, [B, I, d].

        Returns:
            `loss`: squared error of an image's reconstructed input capsules x~_i, which nothing minimises;
            `gap`: log marginal (eq. 10) of the data minus that of the mixed capsules; mean `length` |z_j|,
            `activation` |x_j| and `mixed_activation` |x~_i|.
        """
        encoder, capsules = self.learning[0], squash(self.below(inputs))
        coupling = self.coupling(encoder, capsules)
        with float32(inputs):
            uniform = None
            if self.options.mixing == "drawn":
                generator = self.noise.generator(inputs.device, "mixing")
                shape = (len(inputs), encoder.weight.shape[2])
                uniform = torch.rand(shape, generator=generator, device=inputs.device)
            update = encoder_update(capsules, coupling, encoder.weight, uniform, self.nearest)
        self._ascend(update.change)
        return {
            "loss": summed_squared_error(update.inputs, capsules).mean(),
            "gap": (log_marginal(update.sums) - log_marginal(update.sums_again)).mean(),
            "length": update.sums.norm(dim=2).mean(),
            "activation": squash(update.sums).norm(dim=2).mean(),
            "mixed_activation": update.inputs.norm(dim=2).mean(),
        }

    def _learn_decoder(self, inputs: Tensor, images: Tensor) -> dict[str, Tensor]:
        """Take a step by the rule of section 4.1, and record the capsules that training visits.

        Returns:
            `loss`: squared error of an image's reconstructed input capsules z~_i, which nothing minimises; mean
            `length` |z~_i|, `activation` |x_j| and `mixed_activation` |x~_j|; summed squared `reconstruction_error` of
            the whole chain, for `WATCHED` images.
        """
        decoder, below = self.learning[1], self.below(inputs)
        capsules = self.up(self.learning[0], below)
        self.visited_sum += capsules.sum(0)
        self.visited.copy_(torch.cat([capsules, self.visited])[: len(self.visited)])
        coupling = self.coupling(decoder, capsules)
        with float32(inputs):
            scale = self.options.decoder_scale
            update = decoder_update(capsules, coupling, decoder.weight, scale * below, self.nearest)
        self._ascend(update.change)
        made = update.sums / scale
        pictures = self.pictures(self.lower(made[:WATCHED]))
        return {
            "loss": summed_squared_error(made, below).mean(),
            "length": made.norm(dim=2).mean(),
            "activation": capsules.norm(dim=2).mean(),
            "mixed_activation": update.capsules.norm(dim=2).mean(),
            "reconstruction_error": summed_squared_error(pictures, images[:WATCHED]).mean(),
        }

    def _ascend(self, change: Tensor) -> None:
        (group,) = self.descents[self.phase].param_groups
        group["params"][0].grad = -change
        self.descents[self.phase].step()

    def own_operations(self, images: int) -> int:
        """Count the operations of the phase of the scheduled step.

        Routing takes votes, their lengths, T weighted sums and T - 1 cosines. W adds mixing back, forward again, and
        two correlations; U adds the encoder's routing, mixing back, and two correlations.
        """
        if self.phase == "autoencoder":
            return 0
        few, long, many, short = self.learning[1].weight.shape
        product = 2 * few * long * many * short  # of all matrices with as many capsules
        routing = product + (2 + 4 * self.options.iterations - 2) * few * many * long
        if self.phase == "encoder":
            return images * (routing + 4 * product)
        routing_back = product + (2 + 4 * self.options.iterations - 2) * few * many * short
        return images * (routing + routing_back + 3 * product)

    # Evaluation

    def latents(self, images: Tensor) -> dict[str, Tensor]:
        """Return `capsules` x_j [B, J, D] and their `lengths` [B, J].

        Also the summed squared errors [B] of the whole chain, `reconstruction_error`, and of the autoencoder alone,
        `autoencoder_error`.
        """
        inputs = self.input_capsules(images)
        capsules = self.encode(inputs)
        return {
            "capsules": capsules,
            "lengths": capsules.norm(dim=2),
            "reconstruction_error": summed_squared_error(self.pictures(self.decode(capsules)), images),
            "autoencoder_error": summed_squared_error(self.pictures(inputs), images),
        }

    def sample(self) -> dict[str, Tensor]:
        """Generate pictures from Gaussian samples in one capsule, with all others zero (figure 2).

        Returns:
            `complete`, `restricted` and `opposite`, each [n, J, C, H, W] with n = `options.samples`; entry [k, j] is
            sample k of capsule j. `complete`: samples x as drawn. `restricted`: -x instead of x where x lies in the
            half of the sphere that training did not visit. `opposite`: -x for all samples.
        """
        drawn = self.drawn()
        turned = drawn * self.side(drawn).unsqueeze(2)
        return {
            name: torch.stack([self.generated(row) for row in self.sampled(values)])
            for name, values in (("complete", drawn), ("restricted", turned), ("opposite", -drawn))
        }

    def drawn(self) -> Tensor:
        """Samples x_j of all capsules, after the squash, from a Gaussian with mean zero: [n, J, D]."""
        shape = (self.options.samples, *self.visited_sum.shape)
        standard = self.noise.normal(*shape, device=self.visited_sum.device, purpose="samples", step=0)
        if self.options.gaussian == "standard":
            return squash(standard)
        capsules = self.visited.transpose(0, 1)  # [J, KEPT, D]; zero until U has learned from as many images
        images = self.visited.flatten(1).any(1).sum().clamp_min(1)
        values, axes = torch.linalg.eigh(capsules.transpose(1, 2) @ capsules / images)
        scaled = standard * values.clamp_min(0).sqrt()
        # The squash keeps lengths below 1.
        samples = torch.einsum("njd,jed->nje", scaled, axes)
        return samples / samples.norm(dim=2, keepdim=True).clamp_min(1)

    def generated(self, capsules: Tensor) -> Tensor:
        """Decode each x_j [J, D] alone, with all other capsules zero: pictures [J, C, H, W]."""
        alone = torch.eye(len(capsules), device=capsules.device).unsqueeze(2) * capsules
        if self.options.sample_coupling == "routed":
            return self.pictures(self.decode(alone))
        with float32(capsules):
            weight = self.learning[1].weight
            coupling = capsules.new_ones(*alone.shape[:2], weight.shape[2])
            code = self.lower(mixed(alone, coupling, weight) / self.options.decoder_scale)
            if self.options.sample_coupling == "matched" and (wanted := self.options.code_length):
                code = code * wanted / code.norm(dim=2).mean(1).clamp_min(1e-12)[:, None, None]
            return self.pictures(code)

    def side(self, values: Tensor) -> Tensor:
        """Return 1 where samples [n, J, D] lie in the half of the sphere that training visited, -1 elsewhere: [n, J].

        `mean_direction` compares a sample with the sum of the capsule over the images that U learned from, so longer
        capsules count more. `nearest` compares it with the last 128 of them. 1 if U has not learned yet.
        """
        if self.options.restricted == "mean_direction":
            likeness = (values * self.visited_sum).sum(2)
        else:
            visited = normalize(self.visited, dim=2)
            cosines = torch.einsum("njd,kjd->knj", values, visited)
            likeness = cosines.amax(0) - (-cosines).amax(0)
        return torch.where(likeness < 0, -1.0, 1.0)


class Autoencoder(nn.Module):
    """Two convolutions with leaky ReLUs, and the transposed convolutions with the same filters, ending in a sigmoid.

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
        self.first = Convolution(channels, options.channels[0], KERNEL, bias=options.bias)
        self.second = Convolution(*options.channels, KERNEL, STRIDE, bias=options.bias)
        self.bias_between = nn.Parameter(torch.zeros(options.channels[0])) if options.bias else None
        self.bias_images = nn.Parameter(torch.zeros(channels)) if options.bias else None
        self.capsules = self.inside[0] * self.inside[1] * options.channels[1] // options.primary_dim

    def encode(self, images: Tensor) -> Tensor:
        """Map images to their code, float32."""
        maps = images
        for layer in (self.first, self.second):
            maps = leaky_relu(layer(maps), self.slope)
        return maps.float()

    def logits(self, code: Tensor) -> Tensor:
        """Decode a code to pictures before the sigmoid, float32."""
        maps = conv_transpose2d(
            code, self.second.weight, self.bias_between, stride=STRIDE, output_padding=self.left_over
        )
        images = transposed(leaky_relu(maps, self.slope), self.first.weight)
        return images if self.bias_images is None else images + self.bias_images[:, None, None]

    def as_capsules(self, code: Tensor) -> Tensor:
        """View a code as capsules [B, I, d], ordered by row, column and channels."""
        return code.permute(0, 2, 3, 1).reshape(len(code), self.capsules, self.dim)

    def as_maps(self, capsules: Tensor) -> Tensor:
        """View capsules [B, I, d] as a code."""
        return capsules.reshape(len(capsules), *self.inside, -1).permute(0, 3, 1, 2)


def transposed(maps: Tensor, weight: Tensor) -> Tensor:
    """Transposed convolution with stride 1. For few output channels it is several times faster on a CPU than PyTorch's.

    Args:
        maps: [B, O, h, w].
        weight: of the convolution, [O, C, k, k].

    Returns:
        [B, C, h + k - 1, w + k - 1], float32.
    """
    height, width = (side + weight.shape[2] - 1 for side in maps.shape[2:])
    patches = maps.permute(0, 2, 3, 1).flatten(1, 2) @ weight.flatten(1)
    return fold(patches.float().transpose(1, 2), (height, width), weight.shape[2])


def _descent(part: Votes, rate: float, decay: float, momentum: float) -> torch.optim.SGD:
    """Stochastic gradient descent for one weight; the learning rate is `rate` times the number of source capsules."""
    rate *= len(part.weight)
    group = {"params": [part.weight], "lr": rate, "initial_lr": rate}
    return torch.optim.SGD([group], momentum=momentum, weight_decay=decay / rate)


def phase_ends(options: ExpertsOptions, training: Training) -> tuple[int, int, int]:
    """Return, for each phase, the step after its last.

    Raises:
        UserError: a phase that should have steps has none.
    """
    rows = training.log_every
    shares = (options.autoencoder, options.encoder, 1 - options.autoencoder - options.encoder)
    ends = list[int]()
    for after in (1, 2, 3):
        end = rows * round(sum(shares[:after]) * training.steps / rows)
        more = any(share > 1e-9 for share in shares[after:])
        ends.append(min(end, training.steps) if more else training.steps)
    for phase, share, start, end in zip(PHASES, shares, (0, *ends), ends, strict=False):
        if share > 1e-9 and end <= start:
            raise UserError(
                f"training.log_every: a phase ends at a row of the history, every {rows} steps, so none of the"
                f" {training.steps} steps is left for the {phase}; make log_every smaller"
            )
    return ends[0], ends[1], ends[2]


def phase_at(ends: tuple[int, int, int], step: int) -> str:
    """Return the phase of a step."""
    return next(phase for phase, end in zip(PHASES, ends, strict=True) if step < end)


def build(options: ExpertsOptions, image_shape: tuple[int, int, int], classes: int) -> Experts:
    from recaps.papers.experts.deeper import DeeperExperts
    from recaps.papers.experts.product import ProductExperts

    model = DeeperExperts if options.layers == 2 else ProductExperts if options.flat_dim else Experts
    return model(options, image_shape)
