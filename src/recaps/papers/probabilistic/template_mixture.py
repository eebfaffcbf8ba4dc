"""A picture as a mixture of templates, pixel by pixel: its likelihood, and the gradient of that by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

#: Numbers of what is drawn that a CPU works on at a time: so few that they stay in its cache.
CHUNK = 2**19


class Mixture(NamedTuple):
    """What a mixture says of images."""

    log_likelihood: Tensor
    """In nats, summed over pixels and channels, [B]."""
    mean: Tensor
    """The picture to be expected, [B, C, H, W]; a constant."""


def template_mixture(
    images: Tensor, drawn: Tensor, colours: Tensor, log_presence: Tensor, background: Tensor, background_logit: Tensor
) -> Mixture:
    """Every value of a picture comes from one template or the background, with a standard deviation of 1.

    *Stacked Capsule Autoencoders*, eqs. 6 and 7: sum_j w_j N(x; c_j T_j, 1) / sum_j w_j, w_j being presence times the
    exponential of the template's alpha. Where a template is not drawn its values and its alpha are zero, so there it
    speaks for black.

    Args:
        images: [B, C, H, W].
        drawn: the templates' values and, as the last channel, their alphas on the canvas, [B, J, C + 1, H, W].
        colours: factors of the templates' values, [B, J, C].
        log_presence: [B, J].
        background: its value, a scalar.
        background_logit: logarithm of its weight, a scalar.
    """
    tensors = (drawn, colours, log_presence, background, background_logit)
    learning = torch.is_grad_enabled() and any(each.requires_grad for each in tensors)
    return Mixture(*_Mixture.apply(learning, images, *tensors))


class _Mixture(torch.autograd.Function):
    """The gradient is made together with the likelihood, while all that it needs is at hand."""

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
                images[some],
                [each[some] for each in of_images],
                background,
                [each[some] for each in ctx.gradients],
            )
        ctx.mark_non_differentiable(mean)
        return likelihood, mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, at_likelihood: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors  # complains where one was changed in place
        *of_images, at_background, at_background_logit = ctx.gradients
        scaled = (each * at_likelihood.view(-1, *[1] * (each.ndim - 1)) for each in of_images)
        return None, None, *scaled, at_background @ at_likelihood, at_background_logit @ at_likelihood


def _part(
    images: Tensor, of_images: Sequence[Tensor], of_all: Sequence[Tensor], gradients: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Likelihood and mean of some images. `gradients`, if there are any, are filled with those of the likelihood, by
    what is drawn, colours and presences, and by background and its logit, for each image."""
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
        at_drawn, at_colours, at_presence, at_background, at_background_logit = gradients
        # Shares in the explanation of a number, and what they would be without looking at it.
        after, before = fitting.div_(fit), weights.div_(total)
        at_alphas = at_drawn[:, :, channels:]
        torch.sub(after.sum(2, keepdim=True), before, alpha=channels, out=at_alphas)
        at_presence.copy_(at_alphas.sum((2, 3, 4)))
        pull = after.mul_(off)
        torch.mul(pull, colours, out=at_drawn[:, :, :channels])
        at_colours.copy_(pull.mul_(values).sum((3, 4)))
        after, before = fitting_behind / fit, behind / total
        at_background.copy_((after * off_behind).flatten(1).sum(1))
        at_background_logit.copy_((after - before).flatten(1).sum(1))
    return likelihood, mean.squeeze(1)
