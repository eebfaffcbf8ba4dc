"""A variational autoencoder (*Auto-Encoding Variational Bayes*), a baseline of two papers."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from recaps.models.model import Batch, Model
from recaps.models.options import VAEOptions
from recaps.nn.losses.squares import summed_squared_error
from recaps.nn.noise import Noise


class VAE(Model):
    """Encoder q(z|x) = N(mean, variance) with z of L dimensions, and decoder p(x|z), a Bernoulli for each pixel.

    A pixel between 0 and 1 is taken as a probability: the loss is the expected loss of an image whose pixels are drawn
    with these probabilities.
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
        """Decode latents [B, L] to logits of the pixels [B, C, H, W], float32."""
        return self.decoder(latents).float().unflatten(1, self.image_shape)

    def reconstruct(self, images: Tensor) -> Tensor:
        """Decode the mean of q(z|x): pixel probabilities [B, C, H, W]."""
        return self.logits(self.encode(images)[0]).sigmoid()

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """The negative evidence lower bound with one sample z, in nats per image.

        loss = -log p(x|z) + KL(q(z|x) || N(0, I)), with the terms `cross_entropy` and `divergence`. Also returns the
        squared `reconstruction_error`, summed over pixels.
        """
        images = batch["images"]
        mean, log_variance = self.encode(images)
        noise = self.noise.normal(*mean.shape, device=mean.device, purpose="latents")
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
        """The latent Gaussian of each image.

        Returns:
            `mean` and standard `deviation` of q(z|x), each [B, L]; `capsules`, the input of heads: the mean [B, L] or,
            with `features: mean_and_deviation`, both [B, 2 L]; `reconstruction_error` [B] of the image that the mean
            decodes to.
        """
        mean, log_variance = self.encode(images)
        deviation = (0.5 * log_variance).exp()
        both = self.options.features == "mean_and_deviation"
        return {
            "capsules": torch.cat([mean, deviation], 1) if both else mean,
            "mean": mean,
            "deviation": deviation,
            "reconstruction_error": summed_squared_error(self.logits(mean).sigmoid(), images),
        }

    def sample(self) -> dict[str, Tensor]:
        """Generate `options.samples` pictures from latents of N(0, I): `samples`, pixel probabilities [n, C, H, W]."""
        shape = (self.options.samples, self.options.latent_dim)
        drawn = self.noise.normal(*shape, device=next(self.parameters()).device, purpose="samples", step=0)
        return {"samples": self.logits(drawn).sigmoid()}


def divergence_from_prior(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(mean, variance) || N(0, I)) in nats, [B], of means and log-variances [B, L].

    Equal to 1/2 sum_l (mean_l^2 + variance_l - 1 - log variance_l).
    """
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1)


def _layers(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for narrow, wide in pairwise(widths):
        layers += [nn.Linear(narrow, wide), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def build(options: VAEOptions, image_shape: tuple[int, int, int], classes: int) -> VAE:
    return VAE(options, image_shape)
