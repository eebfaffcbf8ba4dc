"""A variational autoencoder: *Auto-Encoding Variational Bayes*, as the papers compare with it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from recaps.models.model import Batch, Model
from recaps.models.options import VAEOptions
from recaps.nn.losses import summed_squared_error
from recaps.nn.noise import Noise


class VAE(Model):
    """Images [B, C, H, W] to Gaussians of L dimensions and back to a probability for each pixel.

    Pixels are probabilities themselves where they lie between 0 and 1, so the bound is that of a picture whose pixels
    are drawn with these.
    """

    def __init__(self, options: VAEOptions, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.options, self.image_shape = options, image_shape
        pixels = image_shape[0] * image_shape[1] * image_shape[2]
        self.encoder = _layers(pixels, *options.hidden, 2 * options.latent_dim)
        self.decoder = _layers(options.latent_dim, *reversed(options.hidden), pixels)
        self.noise = Noise()

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and logarithm of the variance of q(z|x), each [B, L], float32."""
        mean, log_variance = self.encoder(images.flatten(1)).float().chunk(2, 1)
        return mean, log_variance

    def logits(self, latents: Tensor) -> Tensor:
        """Latents [B, L] to logits of the pixels [B, C, H, W], float32."""
        return self.decoder(latents).float().unflatten(1, self.image_shape)

    def reconstruct(self, images: Tensor) -> Tensor:
        """What the decoder makes of the mean of q(z|x)."""
        return self.logits(self.encode(images)[0]).sigmoid()

    def losses(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """`loss`: the negative evidence lower bound with one sample, in nats per image; its terms `cross_entropy` and
        `divergence`; the summed squared `reconstruction_error`."""
        images = batch["images"]
        mean, log_variance = self.encode(images)
        noise = self.noise.normal(*mean.shape, device=mean.device, purpose="latents", step=step)
        logits = self.logits(mean + (0.5 * log_variance).exp() * noise)
        cross_entropy = binary_cross_entropy_with_logits(logits, images, reduction="sum") / len(images)
        divergence = divergence_from_prior(mean, log_variance).mean()
        return {
            "loss": cross_entropy + divergence,
            "cross_entropy": cross_entropy,
            "divergence": divergence,
            "reconstruction_error": summed_squared_error(logits.sigmoid(), images).mean(),
        }

    def latents(self, images: Tensor) -> dict[str, Tensor]:
        """`capsules`, by the name that heads know: the mean of q(z|x) [B, L], with `features: mean_and_deviation` and
        its standard deviation [B, 2 L]; both by names of their own, `mean` and `deviation`; the summed squared
        `reconstruction_error` [B] from the mean."""
        mean, log_variance = self.encode(images)
        deviation = (0.5 * log_variance).exp()
        both = self.options.features == "mean_and_deviation"
        return {
            "capsules": torch.cat([mean, deviation], 1) if both else mean,
            "mean": mean,
            "deviation": deviation,
            "reconstruction_error": summed_squared_error(self.logits(mean).sigmoid(), images),
        }

    def probes(self) -> dict[str, Any]:
        return {"samples": self.samples, "chain": self.chain}

    def samples(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """`samples` [n, C, H, W]: the pixels' probabilities under latents from N(0, I)."""
        shape = (self.options.samples, self.options.latent_dim)
        drawn = self.noise.normal(*shape, device=images.device, purpose="samples")
        return {"samples": self.logits(drawn).sigmoid()}

    def chain(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """`images` and what is left of them behind encoder and decoder (`chain`), both [B, C, H, W]."""
        return {"images": images, "chain": self.reconstruct(images)}


def divergence_from_prior(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(mean, variance) || N(0, I)) in nats: [B, L], [B, L] to [B]."""
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1)


def _layers(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for narrow, wide in pairwise(widths):
        layers += [nn.Linear(narrow, wide), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def build(options: VAEOptions, image_shape: tuple[int, int, int], classes: int) -> VAE:
    return VAE(options, image_shape)
