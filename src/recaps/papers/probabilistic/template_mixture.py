"""The likelihood of an image under a mixture of templates at each pixel, with a hand-written gradient (SCAE)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

#: Numbers that a CPU processes at a time, few enough to stay in its cache.
CHUNK = 2**19


class Mixture(NamedTuple):
    """A mixture model evaluated at images."""

    log_likelihood: Tensor
    """Log-likelihood in nats, summed over pixels and channels, [B]."""
    mean: Tensor
    """Mean of the mixture, [B, C, H, W], without gradients."""


def template_mixture(
    images: Tensor, drawn: Tensor, colours: Tensor, log_presence: Tensor, background: Tensor, background_logit: Tensor
) -> Mixture:
    """The mixture model of images: each value comes from one template or the background, with standard deviation 1.

    *Stacked Capsule Autoencoders*, eqs. 6 and 7: sum_j w_j N(x; c_j T_j, 1) / sum_j w_j, where w_j is the presence
    times the exponential of the alpha of the template. Outside a template its values and its alpha are zero, so there
    the template predicts black.

    Args:
        images: [B, C, H, W].
        drawn: values and, as the last channel, alphas of the templates on the canvas, [B, J, C + 1, H, W].
        colours: colours that multiply the values of the templates, [B, J, C].
        log_presence: [B, J].
        background: value of the background, a scalar.
        background_logit: log weight of the background, a scalar.
    """
    tensors = (drawn, colours, log_presence, background, background_logit)
    learning = torch.is_grad_enabled() and any(each.requires_grad for each in tensors)
    return Mixture(*_Mixture.apply(learning, images, *tensors))


class _Mixture(torch.autograd.Function):
    """Computes the gradient together with the likelihood, because both need the same intermediate values."""

    @staticmethod
    def forward(ctx: Any, learning: bool, images: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        of_images, background = tensors[:3], tensors[3:]
        likelihood, mean = images.new_empty(len(images)), torch.empty_like(images)
        ctx.save_for_backward(*tensors)
        ctx.gradients = [torch.empty_like(each) for each in of_images] if learning else []
        ctx.gradients += [torch.empty_like(likelihood) for _ in background] if learning else []
        size = len(images) if images.is_cuda else max(1, CHUNK // of_images[0][0].numel())
        for start in range(0, len(images), size):
            some = slice(start, start + size)
            likelihood[some], mean[some] = _part(
                images[some], [each[some] for each in of_images], background, [each[some] for each in ctx.gradients]
            )
        ctx.mark_non_differentiable(mean)
        return likelihood, mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_likelihood: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors  # raises an error if one was changed in place
        *of_images, grad_background, grad_background_logit = ctx.gradients
        scaled = (each * grad_likelihood.view(-1, *[1] * (each.ndim - 1)) for each in of_images)
        return None, None, *scaled, grad_background @ grad_likelihood, grad_background_logit @ grad_likelihood


def _part(
    images: Tensor, of_images: Sequence[Tensor], of_all: Sequence[Tensor], gradients: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Likelihood and mean of some images. `gradients`, if not empty, are filled with the gradients of the likelihood
    with respect to `drawn`, `colours`, `log_presence`, `background` and `background_logit`, for each image."""
    (drawn, colours, log_presence), (background, background_logit) = of_images, of_all
    channels = images.shape[1]
    values, x, colours = drawn[:, :, :channels], images.unsqueeze(1), colours[..., None, None]
    weights = drawn[:, :, channels:] + log_presence[..., None, None, None]
    highest = weights.amax(1, keepdim=True).clamp_min(background_logit)
    weights = weights.sub_(highest).exp_()
    behind = (background_logit - highest).exp()
    total = weights.sum(1, keepdim=True) + behind
    off, off_behind = torch.addcmul(x, values, colours, value=-1), x - background
    fitting = off.square().mul_(-0.5).exp_().mul_(weights)
    fitting_behind = off_behind.square().mul_(-0.5).exp_().mul_(behind)
    fit = fitting.sum(1, keepdim=True) + fitting_behind
    likelihood = (fit / total).log_().flatten(1).sum(1) - 0.5 * math.log(2 * math.pi) * images[0].numel()
    mean = x - ((off * weights).sum(1, keepdim=True) + off_behind * behind) / total
    if gradients:
        grad_drawn, grad_colours, grad_presence, grad_background, grad_background_logit = gradients
        # Posterior and prior probabilities of the components.
        after, before = fitting.div_(fit), weights.div_(total)
        grad_alphas = grad_drawn[:, :, channels:]
        torch.sub(after.sum(2, keepdim=True), before, alpha=channels, out=grad_alphas)
        grad_presence.copy_(grad_alphas.sum((2, 3, 4)))
        pull = after.mul_(off)
        torch.mul(pull, colours, out=grad_drawn[:, :, :channels])
        grad_colours.copy_(pull.mul_(values).sum((3, 4)))
        after, before = fitting_behind / fit, behind / total
        grad_background.copy_((after * off_behind).flatten(1).sum(1))
        grad_background_logit.copy_((after - before).flatten(1).sum(1))
    return likelihood, mean.squeeze(1)
