"""Probes of *Sparse Unsupervised Capsules Generalize Better*: arrays of trained models for its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from recaps.errors import UserError

if TYPE_CHECKING:
    from recaps.models.supcaps import SupCaps
    from recaps.papers.sparse.sparsecaps import SparseCaps


def single_capsules(model: SparseCaps, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The contribution of each capsule to the reconstruction (figure 2).

    Returns:
        `images` and `full` [B, C, H, W]; `single` [B, L, C, H, W], decoded from capsule l alone; `without`
        [B, L, C, H, W], decoded from all capsules but l; `mask` [B, L].
    """
    routed = model(images)
    mask = model.mask(model.support(routed.coupling))
    each = torch.eye(mask.shape[1], device=mask.device)
    single = [model.decode(routed.capsules, mask * only) for only in each]
    without = [model.decode(routed.capsules, mask * (1 - only)) for only in each]
    return {
        "images": images,
        "full": model.decode(routed.capsules, mask),
        "single": torch.stack(single, 1),
        "without": torch.stack(without, 1),
        "mask": mask,
    }


def traversals(model: SparseCaps | SupCaps, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Images decoded while each dimension of one capsule takes 11 values (figures 1 and 5).

    SPARSECAPS: the dimensions of the capsule of rank 0 are set to -1 to 1 in steps of 0.2. SUPCAPS: the dimensions of
    the capsule of the (first) label move by -0.25 to 0.25 in steps of 0.05.

    Labels are [B] or [B, n].

    Returns:
        `images` [B, C, H, W]; `decoded` [B, D, 11, C, H, W]; `values` [11]; `capsule` [B], the capsule that changes.

    Raises:
        UserError: the model has no decoder.
    """
    if model.decoder is None:
        raise UserError("probe 'traversals': the model has no decoder; set model.decoder")
    routed = model(images)
    unsupervised = hasattr(model, "boosting")
    if unsupervised:
        sparsecaps = cast("SparseCaps", model)
        capsule = sparsecaps.ranks(sparsecaps.support(routed.coupling)).argmin(1)
        mask = sparsecaps.mask(sparsecaps.support(routed.coupling))
    else:
        capsule = labels.reshape(len(labels), -1)[:, 0]
        mask = one_hot(capsule, routed.capsules.shape[1]).to(routed.capsules.dtype)
    reach = 1.0 if unsupervised else 0.25
    values = torch.linspace(-reach, reach, 11, device=images.device)
    decoded = model.traverse(routed.capsules, mask, capsule, values, relative=not unsupervised)
    return {"images": images, "decoded": decoded, "values": values, "capsule": capsule}
