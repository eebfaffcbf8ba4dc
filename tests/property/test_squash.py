"""Squash and its inverse, over all lengths."""

from __future__ import annotations

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recaps.nn.squash import squash, unsquash

pytestmark = pytest.mark.property

relaxed = settings(max_examples=60, deadline=None)
vectors = arrays.arrays(np.float64, (3, 4), elements=st.floats(-100, 100, allow_subnormal=False))


@relaxed
@given(vectors)
def test_unsquash_undoes_squash(values: np.ndarray) -> None:
    z = torch.tensor(values)
    z = z[z.norm(dim=1) > 1e-5]
    torch.testing.assert_close(unsquash(squash(z, epsilon=0)), z, rtol=1e-9, atol=0)


@relaxed
@given(vectors)
def test_squash_undoes_unsquash(values: np.ndarray) -> None:
    lengths = torch.tensor(values).norm(dim=1, keepdim=True)
    x = torch.tensor(values) / lengths.clamp_min(1) * 0.99
    x = x[x.norm(dim=1) > 1e-9]
    torch.testing.assert_close(squash(unsquash(x), epsilon=0), x, rtol=1e-9, atol=0)


@relaxed
@given(vectors)
def test_the_length_of_a_squashed_capsule_is_a_sigmoid_of_its_log_squared_length(values: np.ndarray) -> None:
    z = torch.tensor(values)
    z = z[z.norm(dim=1) > 1e-5]
    torch.testing.assert_close(squash(z, epsilon=0).norm(dim=1), z.square().sum(1).log().sigmoid())
