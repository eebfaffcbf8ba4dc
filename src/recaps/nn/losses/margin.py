"""The margin loss of class capsules."""

from __future__ import annotations

from torch import Tensor

from recaps.nn.losses.classes import present_classes


def margin_loss(
    lengths: Tensor, labels: Tensor, present: float = 0.9, absent: float = 0.1, weight: float = 0.5
) -> Tensor:
    """Margin loss, *Dynamic Routing Between Capsules*, eq. 4: one term per image and class.

    Args:
        lengths: lengths of the class capsules, [B, classes].
        labels: int64, [B], or [B, n] if each image shows n classes.
        present: lower margin m+ of the length of a present class.
        absent: upper margin m- of the length of an absent class.
        weight: weight of the absent classes.

    Returns:
        [B, classes].
    """
    is_label = present_classes(labels, lengths.shape[1]).to(lengths.dtype)
    too_short = (present - lengths).clamp_min(0).square()
    too_long = (lengths - absent).clamp_min(0).square()
    return is_label * too_short + weight * (1 - is_label) * too_long
