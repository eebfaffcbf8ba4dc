"""What the figures of the paper `sparse` are made of."""

from __future__ import annotations

import numpy as np

from recaps.papers.sparse import metrics as sparse


def test_labels_of_near_points_are_piled_above_the_topmost() -> None:
    frequencies = np.array([[0.5, 0.1], [0.9, 0.0], [0.52, 0.2], [0.0, 0.53]])
    assert sparse.label_piles(frequencies, 0.1) == [([2, 0], 0, 0.52), ([1], 0, 0.9), ([3], 1, 0.53)]


def test_a_pile_takes_in_the_points_that_it_would_cover() -> None:
    frequencies = np.array([[0.5], [0.51], [0.65], [0.97]])
    assert sparse.label_piles(frequencies, 0.1) == [([2, 1, 0], 0, 0.65), ([3], 0, 0.97)]
